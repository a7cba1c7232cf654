"""A cache of exact values, because mpmath needs up to a tenth of a second for one value.

Values are stored in ~/.cache/mlxops/exact (``MLXOPS_EXACT_CACHE``), under a hash of the points and
of the reference's source. Values that the tests need and that take long are in exact.npz in this
folder, so that the tests are quick everywhere; ``python -m special.exact`` in tests/ writes it. A
changed reference has another hash, and is computed again.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from special.reference import DIGITS, FORMATS, Exact, Format, Record, evaluate, pair

TABLE = Path(__file__).with_suffix(".npz")
SLOW = 0.05  # seconds for the points of a test: quicker results are not cached
TABULATED = 0.3  # slower ones are in exact.npz
NUMBERS = (int, float, str, tuple, mpmath.mpf)  # constants of references
POINTS = {"float16": 24, "bfloat16": 24, "float32": 60, "float64": 60}  # of the tests, per region


def fingerprint(function: Any, seen: set[Any] | None = None) -> str:
    """Return the code of a reference: its source, and that of the functions and numbers it uses."""
    seen = set() if seen is None else seen
    if isinstance(function, NUMBERS):
        return repr(function)
    function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, types.FunctionType) or function in seen:
        return getattr(function, "__qualname__", type(function).__name__)
    seen.add(function)
    parts = ["".join(inspect.getsource(function).split())]
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        parts += code.co_names  # for several lambdas in a line, the source is only the line
        for name in code.co_names:
            found = function.__globals__.get(name)
            own = getattr(found, "__module__", None) or ""
            if own.startswith("special.") or isinstance(found, NUMBERS):
                parts.append(fingerprint(found, seen))
    parts += [fingerprint(cell.cell_contents, seen) for cell in function.__closure__ or ()]
    return " ".join(parts)


def key(record: Record, head: tuple[Any, ...], points: Sequence[np.ndarray], *more: Any) -> str:
    """Return the cache key of values."""
    code = hashlib.sha256()
    for x in points:
        code.update(x.tobytes())
    code.update(repr((record.id, fingerprint(record.exact), head, DIGITS, *more)).encode())
    return code.hexdigest()[:32]


def folder() -> Path:
    """Return the folder of the cache."""
    given = os.environ.get("MLXOPS_EXACT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(given or os.path.join(base, "mlxops", "exact"))


def load(name: str) -> Mapping[str, np.ndarray] | None:
    """Return the cached arrays of a key."""
    try:
        with np.load(folder() / f"{name}.npz") as file:
            return dict(file)
    except (OSError, ValueError):
        return None


def store(name: str, **arrays: np.ndarray) -> None:
    """Cache arrays; several processes may do so at once."""
    path = folder() / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".new", delete=False) as file:
        np.savez(file, **arrays)
    os.replace(file.name, path)


@cache
def _table() -> dict[str, np.ndarray]:
    if not TABLE.exists():
        return {}
    with np.load(TABLE) as file:
        return dict(file)


def _kept(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the values of a key, cached or computed now."""
    if name in _table():
        return _table()[name]
    kept = load(name)
    if kept is not None:
        return kept["values"]
    start = time.process_time()
    values = compute()
    seconds = time.process_time() - start
    if seconds > SLOW:
        store(name, values=values, seconds=np.array(seconds))
    return values


def exact_at(record: Record, head: tuple[Any, ...], points: Sequence[np.ndarray]) -> Exact:
    """Return the exact values at the points."""
    name = key(record, head, points)
    return _unpack(_kept(name, lambda: _pack(evaluate(record, head, points))))


def derivative_at(
    record: Record, points: Sequence[np.ndarray], orders: tuple[int, ...]
) -> np.ndarray:
    """Return the exact derivatives at the points, of these orders in the arguments."""

    def compute() -> np.ndarray:
        numbers = zip(*(map(mpmath.mpf, map(float, x)) for x in points), strict=True)
        with mpmath.workdps(DIGITS):
            return np.array(
                [
                    float(mpmath.diff(lambda *x: record.exact(*record.head, *x), point, orders))
                    for point in numbers
                ]
            )

    return _kept(key(record, record.head, points, orders), compute)


def _pack(exact: Exact) -> np.ndarray:
    return np.stack([exact.high, exact.low, exact.exponent, exact.known])


def _unpack(rows: np.ndarray) -> Exact:
    return Exact(rows[0], rows[1], rows[2].astype(np.int64), rows[3].astype(bool))


def write_table() -> None:
    """Write exact.npz: the values of all slow tests."""
    from special.records import RECORDS

    rows: dict[str, np.ndarray] = {}

    def keep(name: str, shown: str) -> None:
        if name in _table():
            rows[name] = _table()[name]
            return
        kept = load(name)
        if kept is not None and kept["seconds"] >= TABULATED:
            rows[name] = kept["values"]
            print(shown, flush=True)

    for record in RECORDS.values():
        for region in record.regions:
            for format in FORMATS.values():
                points, head = points_of(record, region, format), record.head_of(region)
                exact_at(record, head, points)
                keep(key(record, head, points), f"{record.id}, {region}, {format.name}")
        for points, orders in derivatives_of(record):
            derivative_at(record, points, orders)
            keep(key(record, record.head, points, orders), f"{record.id}, derivative {orders}")
    np.savez_compressed(TABLE, **rows)


def points_of(record: Record, region: str, format: Format) -> tuple[np.ndarray, ...]:
    """Return the points of the tests."""
    return record.points(region, format, POINTS[format.name])


def smooth_points_of(record: Record) -> tuple[np.ndarray, ...]:
    """Return the points for derivatives: numbers of float32, for all dtypes."""
    return pair(record.smooth, record.arity, FORMATS["float32"], 10)


def derivatives_of(record: Record) -> Iterator[tuple[tuple[np.ndarray, ...], tuple[int, ...]]]:
    """Yield the points and orders of the tested derivatives."""
    if record.smooth:
        some = [i for i in range(record.arity) if i not in record.undifferentiable]
        pairs = [(i, j) for i, j in product(some, repeat=2) if (i, j) not in record.once]
        for chosen in [*((i,) for i in some), *pairs]:
            orders = tuple(chosen.count(k) for k in range(record.arity))
            yield smooth_points_of(record), orders


if __name__ == "__main__":
    write_table()
