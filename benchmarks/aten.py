"""The package mlx_aten: its size, its import, its build, and the overhead of all its functions.

The overhead of a function is that of a call without evaluation, with the arguments of a recorded
sample of aten/tests/samples. It is compared with the time in which mlx.core makes as many nodes of
the graph: a call that makes five nodes may take as long as six calls of `mx.add`.
"""

from __future__ import annotations

import gc
import io
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_aten

from .measure import Options, Result, alternate, duration

ATEN = Path(__file__).resolve().parents[1] / "aten"
sys.path.insert(0, str(ATEN / "tests"))

import report  # noqa: E402
from comparing import to_mlx  # noqa: E402
from samples import load  # noqa: E402

SIZE, IMPORT, BUILD = 15e6, 0.2, 360.0  # aims: bytes, seconds, and seconds of CPU time
AT_MOST = 1.1  # an aim: a call, as a multiple of mlx.core's, within the precision of a measurement
SLOWEST = 5  # functions that are listed


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    yield from _package(options)
    if not options.quick:
        yield _build(options)
    yield from _overhead(options)


def _package(options: Options) -> Iterator[Result]:
    """Measure the size of the module and the time of its import."""
    folder = Path(mlx_aten.__file__).parent
    size = sum(file.stat().st_size for file in folder.rglob("*.so"))
    yield Result(
        "aten",
        "the compiled modules of `mlx_aten`",
        f"{size / 1e6:.3g} MB",
        f"less than {SIZE / 1e6:.0f} MB",
        size < SIZE,
        {"bytes": size},
    )
    options.progress("import mlx_aten")
    timer = "import time, {before}; s = time.perf_counter(); import {name}; "
    timer += "print(time.perf_counter() - s)"
    whole, own = (
        min(
            float(_python(timer.format(before=before, name="mlx_aten")))
            for _ in range(5 if options.quick else 20)
        )
        for before in ("sys", "mlxops")
    )
    yield Result(
        "aten",
        "`import mlx_aten` in a new process",
        f"{duration(whole)}, of which MLX and mlxops take {duration(whole - own)}",
        f"at most {IMPORT} s",
        whole <= IMPORT,
        {"seconds": whole, "own": own},
    )


def _python(script: str) -> str:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _build(options: Options) -> Result:
    """Measure the CPU time of a build from scratch, with the shared toolchain in the cache."""
    options.progress("build mlx_aten")
    with tempfile.TemporaryDirectory() as scratch:
        script = "from mlxgen import build; build.build_wheel({0!r}, {{'build-dir': {1!r}}})"
        wheel, work = str(Path(scratch, "wheel")), str(Path(scratch, "build"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", script.format(wheel, work)]
        subprocess.run(command, cwd=ATEN, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Result(
        "aten",
        "a build of `mlx_aten` from scratch: CPU time",
        duration(took),
        f"at most {BUILD / 60:.0f} min",
        took <= BUILD,
        {"seconds": took},
    )


def _overhead(options: Options) -> Iterator[Result]:
    """Measure a call of each function, without evaluation."""
    mx.set_default_device(mx.cpu)
    a, b = mx.array([1.0]), mx.array([2.0])
    mx.eval(a, b)
    ratios, sizes = {}, {}
    calls = _sample_calls()
    gc.freeze()  # else each collection between the rounds looks at all samples
    for name, (call, nodes) in calls.items():
        options.progress(f"time a call of {name}")
        times = alternate(
            {"ours": call, "add": lambda: mx.add(a, b)},
            rounds=3 if options.quick else 9,
            calls=20 if options.quick else 100,
            clock=time.process_time,
        )
        ratios[name] = times.ratio("ours", "add") / (nodes + 1)
        sizes[name] = times.quartile("ours"), nodes
    ordered = sorted(ratios, key=ratios.__getitem__)
    within = sum(ratio <= AT_MOST for ratio in ratios.values())
    middle = ordered[len(ordered) // 2]
    yield Result(
        "aten",
        f"calls of {len(ratios)} functions, against `mx.add` per node of the graph and once more",
        f"{ratios[middle]:.2f}x in the median; {within} at most {AT_MOST}x",
        f"all at most {AT_MOST}x",
        within == len(ratios),
        {"median": ratios[middle], "within": within, "functions": len(ratios)},
    )
    for name in reversed(ordered[-SLOWEST:]):
        seconds, nodes = sizes[name]
        yield Result(
            "aten",
            f"`{name}`, one of the {SLOWEST} slowest of them",
            f"{ratios[name]:.2f}x ({duration(seconds)}; nodes: {nodes})",
            data={"ratio": ratios[name], "seconds": seconds, "nodes": nodes},
        )


def _sample_calls() -> dict[str, tuple[Callable[[], Any], int]]:
    """Return a call of each function with its first right sample, and the number of its nodes."""
    rows, _ = report.read()
    calls = {}
    for name in report.allowed():
        samples = [s for i, s in enumerate(load(name)) if not rows[name].leaves_out(i)]
        if not samples or not hasattr(mlx_aten, name):
            continue
        args = [to_mlx(value) for value in samples[0].args]
        kwargs = {key: to_mlx(value) for key, value in samples[0].kwargs.items()}
        if name in report.RANDOM:
            kwargs["key"] = mx.random.key(0)
        mx.eval(
            [value for value in (*args, *kwargs.values()) if isinstance(value, mx.array | list)]
        )
        function = getattr(mlx_aten, name)

        def call(function: Any = function, args: Any = args, kwargs: Any = kwargs) -> Any:
            return function(*args, **kwargs)

        calls[name] = call, _nodes(call())
    return calls


def _nodes(results: Any) -> int:
    """Return the number of nodes of the graph of results that are not evaluated."""
    text = io.StringIO()
    arrays = [results] if isinstance(results, mx.array) else list(results)
    mx.export_to_dot(text, *arrays)
    return text.getvalue().count("shape=rectangle")
