"""The time to edit one formula among many entries and build again, relative to a clean build.

Both builds are those of ``pip install``: CMake with mlxgen's CMakeLists.txt, which generates, then
Ninja.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import ninja

import mlxgen

from .measure import Options, Result, duration, run_command
from .synthetic import write_project


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    size = 30 if options.quick else 300
    options.progress(f"build {size} entries, change one, build again")
    with tempfile.TemporaryDirectory() as folder:
        clean, edited, recompiled, moved = build_again(Path(folder), size)
    yield Result(
        "rebuild",
        f"one formula edited among {size} entries, to a finished build",
        f"{edited / clean:.3f} of the clean build ({duration(edited)} of {duration(clean)}; "
        f"{recompiled} compiled)",
        "at most 0.1",
        edited <= 0.1 * clean,
        {"clean": clean, "edited": edited, "ratio": edited / clean},
    )
    yield Result(
        "rebuild",
        f"a line inserted above {size} entries: files that are compiled again",
        str(moved),
        "none",
        moved == 0,
        {"compiled": moved},
    )


def build_again(folder: Path, size: int) -> tuple[float, float, int, int]:
    """Build, edit, and build again.

    Returns:
        Seconds of the clean build, and of the build after a formula was edited; the number of files
        compiled by the latter, and after a line was inserted at the top.
    """
    yaml = write_project(folder, size, version("mlx"))
    build = folder / "build"
    configure = [sys.executable, "-m", "cmake", "-G", "Ninja"]
    configure += ["-S", str(Path(mlxgen.__file__).parent / "package" / "cmake"), "-B", str(build)]
    configure += [f"-DMLXGEN_PROJECT={folder}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={_ninja()}"]

    start = time.perf_counter()
    run_command(configure)
    run_command([sys.executable, "-m", "cmake", "--build", str(build)])
    clean = time.perf_counter() - start

    text = yaml.read_text(encoding="utf-8")
    before = "    x: scale * grad_wave"
    assert before in text
    text = text.replace(before, "    x: 2 * scale * grad_wave", 1)
    yaml.write_text(text, encoding="utf-8")
    again = [sys.executable, "-m", "cmake", "--build", str(build), "--verbose"]
    start = time.perf_counter()
    recompiled = run_command(again).count(".cpp.o -c ")
    edited = time.perf_counter() - start
    yaml.write_text(f"# A line.\n{text}", encoding="utf-8")
    return clean, edited, recompiled, run_command(again).count(".cpp.o -c ")


def _ninja() -> str:
    return str(Path(ninja.BIN_DIR) / "ninja")
