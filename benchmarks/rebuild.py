"""Edit one formula among many entries, and build again: which share of the clean build it takes.

Both builds are what ``pip install`` does: CMake with mlxgen's CMakeLists.txt, which generates, then
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
    """The results of this group."""
    size = 30 if options.quick else 300
    options.progress(f"build {size} entries, change one, build again")
    with tempfile.TemporaryDirectory() as folder:
        clean, edited, recompiled = build_twice(Path(folder), size)
    yield Result(
        "rebuild",
        f"one formula edited among {size} entries, to a finished build",
        f"{edited / clean:.3f} of the clean build ({duration(edited)} of {duration(clean)}; "
        f"{recompiled} compiled)",
        "at most 0.1",
        edited <= 0.1 * clean,
        {"clean": clean, "edited": edited, "ratio": edited / clean},
    )


def build_twice(folder: Path, size: int) -> tuple[float, float, int]:
    """Seconds of a clean build and of one after an edit, and how many files the second compiled."""
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
    yaml.write_text(text.replace(before, "    x: 2 * scale * grad_wave", 1), encoding="utf-8")
    start = time.perf_counter()
    log = run_command([sys.executable, "-m", "cmake", "--build", str(build), "--verbose"])
    return clean, time.perf_counter() - start, log.count(".cpp.o -c ")


def _ninja() -> str:
    return str(Path(ninja.BIN_DIR) / "ninja")
