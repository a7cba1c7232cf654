"""How long generating takes, as a multiple of merely reading the YAML file.

The yardstick is ``yaml.compose`` of the same file with PyYAML's C loader, in the same process and
in turns. What is timed is ``mlxgen.generate`` into an empty folder: reading, checking, scanning the
kernels, rendering and writing all files. The start of Python, the same for any size, is not part of
it, but of the second run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import yaml

from mlxgen.command import generate as generator
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.settings import Settings

from .measure import Options, Result, alternate, duration
from .synthetic import write_project

SIZES = (25, 250, 2584, 10000)
SECOND_RUN = 500


def measure(options: Options) -> Iterator[Result]:
    """The results of this group."""
    per_entry = {}
    for size in SIZES[: 2 if options.quick else None]:
        options.progress(f"generate {size:,} entries")
        with tempfile.TemporaryDirectory() as folder:
            result = _generate(Path(folder), size)
        per_entry[size] = result.data["generate"] / size
        yield result
    sizes = sorted(per_entry)[1:]
    if len(sizes) > 1:
        growth = per_entry[sizes[-1]] / per_entry[sizes[0]]
        yield Result(
            "generation",
            f"time per entry of {sizes[-1]:,}, as a multiple of that of {sizes[0]:,}",
            f"{growth:.2f}x",
            "linear: 1x",
            growth < 1.25,
            {"ratio": growth},
        )
    options.progress(f"generate {SECOND_RUN} entries twice")
    with tempfile.TemporaryDirectory() as folder:
        yield _second_run(Path(folder))


def _generate(folder: Path, size: int) -> Result:
    path = write_project(folder, size, version("mlx"))
    text = path.read_text(encoding="utf-8")
    settings = _settings(folder)
    output = folder / "generated"

    def compose() -> None:
        yaml.compose(text, Loader=yaml.CSafeLoader)

    def check() -> None:
        diagnostics = Diagnostics()
        generator.load(settings, diagnostics)
        assert diagnostics.ok

    def generate() -> None:
        shutil.rmtree(output, ignore_errors=True)
        diagnostics = Diagnostics()
        result = generator.generate(settings, output, diagnostics)
        assert result is not None and result.operators == size

    rounds = 1 if size > 5000 else 3 if size > 1000 else 7
    times = alternate(
        {"compose": compose, "check": check, "generate": generate}, rounds=rounds, collect=True
    )
    ratio = times.ratio("generate", "compose")
    written = sum(p.stat().st_size for p in output.rglob("*") if p.is_file())
    return Result(
        "generation",
        f"{size:,} entries ({len(text.splitlines()):,} lines, {written / 1e6:.1f} MB generated)",
        f"{ratio:.1f}x yaml.compose ({duration(times.seconds('generate'))}; "
        f"reading and checking alone {times.ratio('check', 'compose'):.1f}x)",
        "at most 3x",
        ratio <= 3,
        {
            "ratio": ratio,
            "check_ratio": times.ratio("check", "compose"),
            **{name: times.seconds(name) for name in ("compose", "check", "generate")},
        },
    )


def _settings(folder: Path) -> Settings:
    diagnostics = Diagnostics()
    settings = generator.load_settings(folder, diagnostics)
    assert settings is not None
    return settings


def _second_run(folder: Path) -> Result:
    write_project(folder, SECOND_RUN, version("mlx"))
    command = [sys.executable, "-m", "mlxgen", "generate"]
    command += ["--project", str(folder), "--output", str(folder / "generated")]

    def run() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start

    first = run()
    second = min(run() for _ in range(5))
    return Result(
        "generation",
        f"`mlxgen generate` of {SECOND_RUN} entries again, nothing changed (whole command)",
        f"{duration(second)} (the first time {duration(first)})",
        "at most 0.3 s",
        second <= 0.3,
        {"first": first, "second": second},
    )
