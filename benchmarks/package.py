"""The build time of one operator: as the first and second package, and by `mlxgen.load`.

The cache is empty at the start. CPU time is the sum over all processes.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .measure import Options, Result, duration

BUILD = "from mlxgen import build; build.build_wheel('dist')"
LOAD = '''
import time
import mlx.core
start = time.perf_counter()
import mlxgen
mlxgen.load("""
- name: softsign
  signature: "softsign(array x) -> array"
  dispatch: softsign
  composite: x / ({number} + abs(x))
  grad: {{x: "{number} * grad / square({number} + abs(x))"}}
""", cpp="""
template <typename T> T softsign(T x) {{ return x / ({number} + mlxgen::math::fabs(x)); }}
""")
print(time.perf_counter() - start)
'''


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    rounds = 2 if options.quick else 5
    # The headers are still being precompiled there when the first operator is loaded.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        options.progress("load the first operator on a machine")
        environment = {**os.environ, "MLXGEN_CACHE": str(Path(scratch, "first"))}
        said, took = _run(LOAD.format(number=1), Path(scratch), environment)
        yield Result(
            "package",
            "`mlxgen.load` of the first operator on a machine",
            f"{duration(float(said))} ({duration(took)} of processor time)",
            "at most 18 s of processor time",
            took <= 18,
            {"seconds": float(said), "processor": took},
        )
        environment = {**os.environ, "MLXGEN_CACHE": str(Path(scratch, "cache"))}
        for place, aim in (("first", None), ("second", 12)):
            options.progress(f"build a package of one operator, the {place} on a machine")
            _, took = _run(BUILD, _project(Path(scratch, place)), environment)
            yield Result(
                "package",
                f"a package of one operator, the {place} on a machine: CPU time",
                duration(took),
                f"at most {aim} s" if aim else "",
                took <= aim if aim else None,
                {"seconds": took},
            )
        options.progress("load an operator")
        scripts = [LOAD.format(number=number) for number in range(1, rounds + 1)]
        first = [_run(script, Path(scratch), environment) for script in scripts]
        again = [_run(script, Path(scratch), environment) for script in scripts]
    new, known = (statistics.median(float(said) for said, _ in runs) for runs in (first[1:], again))
    took = statistics.median(took for _, took in first[1:])
    yield Result(
        "package",
        "`mlxgen.load` of a new operator",
        f"{duration(new)} ({duration(took)} of CPU time, Python and MLX included)",
        "at most 5 s on two cores",
        new <= 5,
        {"seconds": new, "processor": took},
    )
    yield Result(
        "package",
        "`mlxgen.load` of a known operator, in a new process",
        duration(known),
        "at most 0.2 s",
        known <= 0.2,
        {"seconds": known},
    )


def _project(folder: Path) -> Path:
    """Make a package of one operator with `mlxgen new`."""
    name = f"{folder.name}-ops"
    command = [sys.executable, "-m", "mlxgen", "new", name, "--folder", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def _run(script: str, folder: Path, environment: Mapping[str, str]) -> tuple[str, float]:
    """Return a script's output, and the CPU time of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return done.stdout, took
