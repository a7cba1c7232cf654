"""Says which packages chosen tests need: ``make test PYTEST_ARGS=..`` builds no other.

Prints make's targets. A test file needs a package that it, a module of the tests that it imports,
or a conftest.py next to or above it names in an import, also in a program that the test runs. The
tests of aten/ need mlx_aten.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests", "aten/tests")
TARGETS = {"mlx_aten": ".venv/.aten", "mlxops": ".venv/.built"}
PACKAGE = re.compile(rf"\b(?:import|from|-m|import_module\(\")[ ]?({'|'.join(TARGETS)})\b")
MODULE = re.compile(r"^\s*(?:from|import) (\w+(?:\.\w+)*)", re.MULTILINE)


def needed(arguments: Sequence[str]) -> set[str]:
    """Return the packages that the tests chosen by pytest's arguments need, of ``TARGETS``."""
    named = [ROOT / argument.partition("::")[0] for argument in arguments if argument[:1] != "-"]
    chosen = [path for path in named if path.exists()] or [ROOT / folder for folder in TESTS]
    seen: set[Path] = set()
    for path in chosen:
        for file in path.rglob("test_*.py") if path.is_dir() else [path]:
            if "golden" not in file.parts:
                seen.update(_files(file, seen))
    found = {name for file in seen for name in PACKAGE.findall(file.read_text(encoding="utf-8"))}
    return found | {"mlx_aten" for file in seen if file.is_relative_to(ROOT / "aten")}


def _files(file: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield a test file, and the files of the tests that it needs, without those in ``seen``."""
    if file in seen:
        return
    yield file
    text = file.read_text(encoding="utf-8")
    folders = [folder for folder in file.parents if folder.is_relative_to(ROOT)]
    wanted = [folder / "conftest.py" for folder in folders]
    for name in MODULE.findall(text):
        relative = name.replace(".", "/") + ".py"
        wanted += [folder / relative for folder in (file.parent, ROOT / "tests", ROOT)]
    for path in wanted:
        if path.is_file() and path.is_relative_to(ROOT):
            yield from _files(path, seen | {file})


if __name__ == "__main__":
    print(" ".join(TARGETS[name] for name in needed(sys.argv[1:])) or ".venv/.ready")
