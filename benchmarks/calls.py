"""The time of a call in Python, before anything is computed.

MLX is lazy: a call builds a node of the graph. The nodes are dropped here, so that the measurements
include the binding, checks, promotion and the node itself, on arrays of one element.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import mlxops

from mlxgen.package import compat

from .measure import Options, Result, alternate, duration, run_command

SOURCE = Path(__file__).parent / "handwritten"
BUILD = Path(__file__).resolve().parents[1] / "build" / "benchmarks" / "handwritten"

# The call, its competitor, and the maximum ratio of their times.
COMPARISONS = (
    ("mlxops.examples.add(a, b)", "mx.add(a, b)", 1.05),
    ("mlxops.examples.axpby(a, b, 2, 3)", "mx.add(a, b)", 1.05),
    ("mlxops.examples.add(a, 2.0)", "mx.add(a, 2.0)", 0.8),
    ("mlxops.examples.axpby(a, 2.0)", "mx.add(a, 2.0)", 0.8),
    ("mlxops.examples.axpby(a, b, 2, 3)", "hand-written extension", None),
    ("mlxops.examples.axpby(a, b, 2, 3)", "MLX composition 2 * a + 3 * b", None),
    ("mlxops.examples.axpby(a, b, 2, 3)", "the same through mx.custom_function", 1 / 8),
)


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    options.progress("build the hand-written extension")
    extension = handwritten()
    options.progress("time calls")
    a, b = mx.array([1.0]), mx.array([2.0])
    mx.eval(a, b)
    through_python = custom()
    times = alternate(
        {
            "mx.add(a, b)": lambda: mx.add(a, b),
            "mx.add(a, 2.0)": lambda: mx.add(a, 2.0),
            "mlxops.examples.add(a, b)": lambda: mlxops.examples.add(a, b),
            "mlxops.examples.add(a, 2.0)": lambda: mlxops.examples.add(a, 2.0),
            "mlxops.examples.axpby(a, b, 2, 3)": lambda: mlxops.examples.axpby(a, b, 2.0, 3.0),
            "mlxops.examples.axpby(a, 2.0)": lambda: mlxops.examples.axpby(a, 2.0),
            "hand-written extension": lambda: extension.axpby(a, b, 2.0, 3.0),
            "MLX composition 2 * a + 3 * b": lambda: 2.0 * a + 3.0 * b,
            "the same through mx.custom_function": lambda: through_python(a, b),
        },
        rounds=20 if options.quick else 100,
        calls=1000,
    )
    for name, other, aim in COMPARISONS:
        ratio = times.ratio(name, other)
        yield Result(
            "calls",
            f"`{name}` against {other if ' ' in other and '(' not in other else f'`{other}`'}",
            f"{ratio:.2f}x ({duration(times.seconds(name))}, {duration(times.seconds(other))})",
            f"at most {aim:.3g}x" if aim else "",
            ratio <= aim if aim else None,
            {"ratio": ratio, "seconds": times.seconds(name), "other": times.seconds(other)},
        )


def handwritten() -> ModuleType:
    """Return the extension of ``handwritten/``; build it on first use."""
    toolchain = compat.find()
    run_command(
        [
            *(sys.executable, "-m", "cmake", "-S", str(SOURCE), "-B", str(BUILD)),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DMLX_ROOT={toolchain.mlx}",
            f"-DNANOBIND_ROOT={toolchain.nanobind / 'cmake'}",
        ]
    )
    run_command([sys.executable, "-m", "cmake", "--build", str(BUILD)])
    file = next(BUILD.glob("handwritten.*.so"))
    spec = importlib.util.spec_from_file_location("handwritten", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def custom() -> Callable[..., object]:
    """Return axpby as users define it in Python today, with its gradient."""

    @mx.custom_function
    def axpby(x: mx.array, y: mx.array) -> mx.array:
        return 2.0 * x + 3.0 * y

    @axpby.vjp
    def axpby_vjp(
        primals: list[mx.array], cotangent: mx.array, output: mx.array
    ) -> tuple[mx.array, mx.array]:
        return 2.0 * cotangent, 3.0 * cotangent

    return axpby
