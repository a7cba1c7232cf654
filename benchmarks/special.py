"""mlxops.special on 4M numbers of float32 and float64, against SciPy and compositions of MLX's ops.

Everything in one process on one core, each call allocating its result. The compositions are those
of ``compositions.py``, what PyTensor's MLX backend has to do; they are timed as they are and
through ``mx.compile``. Memory is what MLX holds at most beside the inputs, in units of the output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from .compositions import COMPOSITIONS
from .measure import Options, Result, alternate, duration

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from special.records import RECORDS
from special.reference import Record

AT_SPEED = 1.05  # of SciPy's time: no slower, within what the measurement can tell
COPY_SHARE = 0.8  # of the speed of copying memory: no function can be much faster
FIVEFOLD = {
    *("lgamma", "gammaln", "digamma", "psi", "i0", "i0e", "i1", "i1e", "ndtri"),
    *("erf", "erfc", "erfcx", "erfinv", "erfcinv"),
}
TWENTYFOLD = 20  # against the composition
MEMORY = 1.05  # of the output

# Where the arguments lie: uniform between two numbers, one pair per argument.
DEFAULT = (0.1, 5.0)
ARGUMENTS: dict[str, Sequence[tuple[float, float]]] = {
    "lgamma": [(0.1, 20)],
    "gamma": [(0.1, 20)],
    "digamma": [(0.1, 20)],
    "polygamma": [(0.1, 20)],
    "zeta": [(1.1, 20), (0.1, 20)],
    "beta": [(0.1, 20), (0.1, 20)],
    "betaln": [(0.1, 20), (0.1, 20)],
    "gammainc": [(0.1, 20), (0, 20)],
    "gammaincc": [(0.1, 20), (0, 20)],
    "betainc": [(0.1, 20), (0.1, 20), (0, 1)],
    "betaincc": [(0.1, 20), (0.1, 20), (0, 1)],
    "erf": [(-3, 3)],
    "erfc": [(-3, 6)],
    "erfcx": [(-3, 20)],
    "erfinv": [(-1, 1)],
    "erfcinv": [(0, 2)],
    "ndtr": [(-8, 8)],
    "log_ndtr": [(-20, 8)],
    "ndtri": [(0, 1)],
    "expit": [(-20, 20)],
    "logit": [(0, 1)],
    "log_expit": [(-20, 20)],
    "log1mexp": [(-20, -1e-3)],
    "exprel": [(-5, 5)],
    "i0": [(-20, 20)],
    "i0e": [(-20, 20)],
    "i1": [(-20, 20)],
    "i1e": [(-20, 20)],
    "iv": [(0, 10), (0.1, 20)],
    "ive": [(0, 10), (0.1, 20)],
    "j0": [(-30, 30)],
    "j1": [(-30, 30)],
    "y0": [(0.01, 30)],
    "y1": [(0.01, 30)],
    "k0": [(0.01, 20)],
    "k1": [(0.01, 20)],
    "k0e": [(0.01, 20)],
    "k1e": [(0.01, 20)],
    "airy": [(-10, 5)],
    "sinc": [(-10, 10)],
    "entr": [(0, 2)],
    "huber": [(0.5, 2), (-4, 4)],
    "pseudo_huber": [(0.5, 2), (-4, 4)],
}


def measure(options: Options) -> Iterator[Result]:
    """The results of this group."""
    size = 2**16 if options.quick else 2**22
    rounds = 3 if options.quick else 7
    seen = set()
    with mx.stream(mx.cpu):
        for record in RECORDS.values():
            if record.name in seen:  # further outputs of the same function
                continue
            seen.add(record.name)
            for dtype in ("float32", "float64"):
                options.progress(f"time {record.name} of {dtype}")
                yield _result(record, dtype, size, rounds)


def inputs(record: Record, dtype: str, size: int) -> list[np.ndarray]:
    """Arguments of a function."""
    random = np.random.default_rng(0)
    given = ARGUMENTS.get(record.name, [DEFAULT] * record.arity)
    return [random.uniform(low, high, size).astype(dtype) for low, high in given]


def peak(function, arrays: Sequence[mx.array]) -> float:
    """Bytes that MLX holds at most during a call, beside what it held before."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    out = function(*arrays)
    mx.eval(out)
    return mx.get_peak_memory() - before


def _result(record: Record, dtype: str, size: int, rounds: int) -> Result:
    numbers = inputs(record, dtype, size)
    arrays = [mx.array(x, dtype=getattr(mx, dtype)) for x in numbers]
    mx.eval(arrays)
    copied = np.empty_like(numbers[0])

    def ours(*x: mx.array) -> mx.array:
        return record.call(record.head, *x)

    functions = {
        "ours": lambda: mx.eval(ours(*arrays)),
        "copy": lambda: np.copyto(copied, numbers[0]),
    }
    if record.scipy is not None:
        functions["SciPy"] = lambda: record.scipy_call(record.head, *numbers)
    composition = COMPOSITIONS.get(record.name)
    if composition is not None:
        compiled = mx.compile(composition)
        functions["composition"] = lambda: mx.eval(composition(*arrays))
        functions["compiled"] = lambda: mx.eval(compiled(*arrays))
    # What takes a second need not be timed often.
    times = alternate(functions, rounds=1)
    if max(times.seconds(name) for name in functions) < 1:
        times = alternate(functions, rounds=rounds)
    else:
        times = alternate(functions, rounds=min(rounds, 3))

    # All of a function's outputs are computed, whichever is looked at.
    output = arrays[0].nbytes * len(_outputs(record, arrays))
    memory = peak(lambda *x: _outputs(record, x), arrays) / output
    moved = sum(x.nbytes for x in numbers) + output
    bandwidth = moved / (2 * copied.nbytes) / times.ratio("ours", "copy")
    each = times.seconds("ours") / size
    texts = [f"{duration(each)} per element, {bandwidth:.0%} of copying speed"]
    aims, met = [], [memory <= MEMORY]
    data = {"seconds": times.seconds("ours"), "bandwidth": bandwidth, "memory": memory}
    if "SciPy" in functions:
        faster = data["SciPy"] = times.ratio("SciPy", "ours")
        factor = 5 if record.name in FIVEFOLD and dtype == "float32" else 1
        texts.append(f"SciPy takes {faster:.2g}x")
        aims.append(f"{factor}x SciPy" if factor > 1 else "SciPy's speed")
        met.append(faster >= factor / AT_SPEED or bandwidth >= COPY_SHARE)
    if composition is not None:
        slower = data["composition"] = times.ratio("composition", "ours")
        data["compiled"] = times.ratio("compiled", "ours")
        data["composition memory"] = peak(composition, arrays) / output
        texts.append(
            f"the composition {slower:.2g}x, compiled {data['compiled']:.2g}x, "
            f"with {data['composition memory']:.2g}x the memory"
        )
        aims.append("20x the composition")
        met.append(slower >= TWENTYFOLD)
    aims.append("no temporaries")
    return Result(
        "special",
        f"{record.name}, {dtype}",
        "; ".join(texts) + ("" if memory <= MEMORY else f"; memory {memory:.2g}x the output"),
        ", ".join(aims),
        all(met),
        data,
    )


def _outputs(record: Record, arrays: Sequence[mx.array]) -> Sequence[mx.array]:
    import mlxops

    function = getattr(getattr(mlxops, "special", mlxops), record.name, None)
    out = (function or getattr(mlxops, record.name))(*record.head, *arrays)
    return list(out) if isinstance(out, (tuple, list)) else [out]
