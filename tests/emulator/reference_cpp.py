"""A real compiler's preprocessor and MLX's headers, which reading C++ and Metal is held to."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mlxgen.emulator.source import lex


def mlx_include() -> Path:
    """The include folder of the installed MLX, with the headers of its Metal kernels."""
    found = importlib.util.find_spec("mlx")
    assert found is not None and found.submodule_search_locations
    for location in found.submodule_search_locations:
        folder = Path(location) / "include"
        if (folder / "mlx/backend/metal/kernels").is_dir():
            return folder
    raise AssertionError("this MLX comes without the headers of its Metal kernels")


def preprocessed(
    path: Path, include_dirs: Sequence[Path], stubs: Path, defines: dict[str, str]
) -> str:
    """What the compiler's preprocessor makes of a file, with empty headers for `<...>`."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    assert compiler, "a C++ compiler is needed, as it is for building ops"
    options = ["-E", "-P", "-undef", "-nostdinc", "-x", "c++", "-std=c++20"]
    folders = [f"-I{folder}" for folder in (stubs, *include_dirs)]
    macros = [f"-D{name}={value}" for name, value in defines.items()]
    done = subprocess.run(
        [compiler, *options, *macros, *folders, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_stubs(folder: Path, sources: Sequence[Path]) -> None:
    """Empty headers for all that the sources include in angle brackets."""
    for source in sources:
        for name in re.findall(r"#include <([^>]+)>", source.read_text(encoding="utf-8")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()


def texts(source: str) -> list[str]:
    """The tokens of preprocessed text without the pragmas, which a preprocessor hands on."""
    return [token.text for token in lex(source)]
