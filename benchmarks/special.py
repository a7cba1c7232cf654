"""mlxops.special on 4M numbers of float32 and float64, against SciPy and compositions of MLX's ops.

All functions run in one process on one core; each call allocates its result, in memory that the
process keeps. The compositions are those of ``compositions.py``, which correspond to PyTensor's MLX
backend; they are timed directly and through ``mx.compile``. Memory is MLX's maximum in addition to
the inputs, in units of the output.

Times are CPU times; on one core they differ from wall times only by other processes. A function and
its competitors are timed alternately for up to ``BUDGET`` seconds, so that all of them take ten
minutes: slow functions are timed once, fast ones in five rounds, for ``TURN`` seconds in each. The
minimum is reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np
from special.records import RECORDS
from special.reference import Record

from .compositions import COMPOSITIONS
from .measure import Options, Result, alternate, duration, keep_memory

AT_SPEED = 1.05  # times SciPy's time: not slower, within the precision of the measurement
COPY_SHARE = 0.8  # times the speed of copying memory: no function can be much faster
ROUNDS = 5
BUDGET = 3  # seconds of rounds for a function and dtype
TURN = 0.1  # seconds for one of them in a round
# Compositions of hundreds of ops: mx.compile runs a compiler for every few of them, for minutes.
HUGE = {"gammainc", "gammaincc", "betainc"}
SMALL = 2**14  # numbers for warming up, and for measuring a composition's memory
FIVEFOLD = {
    *("lgamma", "gammaln", "digamma", "psi", "i0", "i0e", "i1", "i1e", "ndtri"),
    *("erf", "erfc", "erfcx", "erfinv", "erfcinv"),
}
TWENTYFOLD = 20  # times the composition's speed
MEMORY = 1.05  # times the output

# The ranges of the arguments: uniform between two numbers, one pair per argument.
DEFAULT = (0.1, 5.0)
ARGUMENTS: dict[str, Sequence[tuple[float, float]]] = {
    "lgamma": [(0.1, 20)],
    "gamma": [(0.1, 20)],
    "digamma": [(0.1, 20)],
    "polygamma": [(0.1, 20)],
    "zeta": [(1.1, 20), (0.1, 20)],
    "zeta[Riemann]": [(-10, 20)],
    "binom": [(0.1, 20), (0.1, 20)],
    "gammaincinv": [(0.1, 20), (0, 1)],
    "gammainccinv": [(0.1, 20), (0, 1)],
    "betaincinv": [(0.1, 20), (0.1, 20), (0, 1)],
    "betainccinv": [(0.1, 20), (0.1, 20), (0, 1)],
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
    """Yield the results of this group; raise ``LookupError`` for an unknown function."""
    records: dict[str, Record] = {}
    for record in RECORDS.values():
        records.setdefault(_key(record), record)  # one of several outputs
    unknown = options.only - set(records)
    if unknown:
        raise LookupError(f"no such function: {', '.join(sorted(unknown))}")
    size = 2**16 if options.quick else 2**22
    keep_memory()
    with mx.stream(mx.cpu):
        for name, record in records.items():
            for dtype in ("float32", "float64"):
                if not options.only or name in options.only:
                    options.progress(f"time {name} of {dtype}")
                    yield _result(record, dtype, size)


def _key(record: Record) -> str:
    """Return the name of a record; `zeta[Riemann]` is zeta of one argument."""
    return record.id if record.id in ARGUMENTS else record.name


def inputs(record: Record, dtype: str, size: int) -> list[np.ndarray]:
    """Return the arguments of a function."""
    random = np.random.default_rng(0)
    given = ARGUMENTS.get(_key(record), [DEFAULT] * record.arity)
    return [random.uniform(low, high, size).astype(dtype) for low, high in given]


def peak(function, arrays: Sequence[mx.array]) -> float:
    """Return MLX's maximum memory during a call in bytes, relative to its start."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    out = function(*arrays)
    mx.eval(out)
    return mx.get_peak_memory() - before


def _result(record: Record, dtype: str, size: int) -> Result:
    numbers = inputs(record, dtype, size)
    arrays = [mx.array(x, dtype=getattr(mx, dtype)) for x in numbers]
    mx.eval(arrays)
    small = [x[:SMALL] for x in arrays]
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
        functions["composition"] = lambda: mx.eval(composition(*arrays))
        if record.name not in HUGE:
            compiled = mx.compile(composition)
            mx.eval(compiled(*small))  # a compiler runs
            functions["compiled"] = lambda: mx.eval(compiled(*arrays))
    functions["ours"]()  # new memory would slow fast functions
    times = alternate(functions, rounds=ROUNDS, budget=BUDGET, turn=TURN, clock=time.process_time)

    # A function computes all of its outputs, whichever is measured.
    outputs = len(_outputs(record, small))
    memory = peak(lambda *x: _outputs(record, x), arrays) / (arrays[0].nbytes * outputs)
    moved = sum(x.nbytes for x in numbers) + arrays[0].nbytes * outputs
    bandwidth = moved / (2 * copied.nbytes) * times.least("copy") / times.least("ours")
    each = times.least("ours") / size
    value = duration(each)
    if bandwidth >= COPY_SHARE / 2:
        value += f", {bandwidth:.0%} of copying speed"
    aims, met = [], [memory <= MEMORY]
    data = {"seconds": times.least("ours"), "bandwidth": bandwidth, "memory": memory}
    if "SciPy" in functions:
        faster = data["SciPy"] = times.least("SciPy") / times.least("ours")
        factor = 5 if record.name in FIVEFOLD and dtype == "float32" else 1
        value += f"; SciPy {_factor(faster)}"
        aims.append(f"SciPy {factor}x")
        met.append(faster >= factor / AT_SPEED or bandwidth >= COPY_SHARE)
    if composition is not None:
        slower = data["composition"] = times.least("composition") / times.least("ours")
        value += f"; composition {_factor(slower)}"
        if "compiled" in functions:
            data["compiled"] = times.least("compiled") / times.least("ours")
            value += f" (compiled {_factor(data['compiled'])})"
        data["composition memory"] = peak(composition, small) / small[0].nbytes
        value += f" with {_factor(data['composition memory'])} the memory"
        aims.append(f"composition {TWENTYFOLD}x")
        met.append(slower >= TWENTYFOLD)
    if memory > MEMORY:
        value += f"; memory {_factor(memory)} the output"
    what = f"`{_key(record)}` {dtype}"
    return Result("special", what, value, ", ".join(aims), all(met), data)


def _factor(ratio: float) -> str:
    """Format with two digits, or more before the decimal point."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def _outputs(record: Record, arrays: Sequence[mx.array]) -> Sequence[mx.array]:
    import mlxops

    function = getattr(getattr(mlxops, "special", mlxops), record.name, None)
    out = (function or getattr(mlxops, record.name))(*record.head, *arrays)
    return list(out) if isinstance(out, (tuple, list)) else [out]
