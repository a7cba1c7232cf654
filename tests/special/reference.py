"""The terms of the records in reference_*.py, against which special functions are measured.

A record defines the function in mpmath, the regions of its arguments with the allowed error in
each, SciPy's counterpart, and the special values that differ from SciPy's. A module
``reference_<family>.py`` has a list ``RECORDS``; ``records.py`` collects them. A record is
sufficient for all tests of a function, and for the report of ``make accuracy``:

    Record(
        "digamma",
        lambda x: None if pole(x) else mpmath.digamma(x),
        {
            "positive": Region(log(1e-300, 1e300)),
            "root": Region(near(1.4616321449683622), conditioned="the only positive zero"),
        },
        scipy=scipy.special.digamma,
    )

Arguments are always exact in the tested dtype: regions return points for a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import mpmath
import numpy as np

from mlxgen.testing import to_numpy

DIGITS = 40  # of mpmath during calls of a record's function
SEED = 0x5EC1A1

ULPS = 4.0  # allowed in float32, in ulp
RELATIVE = 1e-13  # allowed in float64


@dataclass(frozen=True)
class Format:
    """A floating dtype: digits of the significand, exponents of its normal numbers."""

    dtype: mx.Dtype
    digits: int
    emin: int  # 2**emin is the smallest normal number
    emax: int  # 2**emax is the largest power of 2

    @property
    def name(self) -> str:
        """The name of the dtype, such as ``float32``."""
        return str(self.dtype).removeprefix("mlx.core.")

    @property
    def eps(self) -> float:
        """The spacing of the numbers above 1."""
        return math.ldexp(1.0, 1 - self.digits)

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return math.ldexp(1.0, self.emin)

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.emin - self.digits + 1)

    @property
    def max(self) -> float:
        """The largest finite number."""
        return math.ldexp(2.0 - self.eps, self.emax)

    def round(self, x: Any) -> np.ndarray:
        """Round to the nearest numbers of this dtype, as float64."""
        x = np.asarray(x, dtype=np.float64)
        if self.digits == 53:
            return x
        digits = self.digits
        exponent = np.maximum(np.frexp(x)[1] - 1, self.emin) - digits + 1
        rounded = np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)
        rounded = np.where(np.abs(rounded) > self.max, np.copysign(np.inf, x), rounded)
        return np.where(np.isfinite(x), rounded, x)

    def next(self, x: float, up: bool) -> float:
        """Return the neighbor of a number of this dtype."""
        if self.digits == 53:
            return float(np.nextafter(x, np.inf if up else -np.inf))
        if x == 0:
            return self.smallest if up else -self.smallest
        step = math.ldexp(1.0, max(math.frexp(x)[1] - 1, self.emin) - self.digits + 1)
        towards_zero = up == (x < 0)
        if towards_zero and abs(math.frexp(x)[0]) == 0.5 and abs(x) > self.tiny:
            step /= 2  # the spacing below a power of 2
        return x + step if up else x - step

    def array(self, x: Any) -> mx.array:
        """Return an array of this dtype, on the CPU if only the CPU supports the dtype."""
        return mx.array(np.asarray(x, dtype=np.float64), dtype=self.dtype)


FORMATS = {
    format.name: format
    for format in (
        Format(mx.float16, 11, -14, 15),
        Format(mx.bfloat16, 8, -126, 127),
        Format(mx.float32, 24, -126, 127),
        Format(mx.float64, 53, -1022, 1023),
    )
}

# Points ------------------------------------------------------------------------------------------
# An axis returns approximately the requested number of points of a format.

Axis = Callable[[int, Format], np.ndarray]


def log(low: float | None = None, high: float | None = None) -> Axis:
    """Positive numbers with evenly spaced logarithms; None stands for the limits of the format."""

    def points(count: int, format: Format) -> np.ndarray:
        a = format.tiny if low is None else max(low, format.tiny)
        b = format.max if high is None else min(high, format.max)
        if a >= b:
            return np.empty(0)
        exponents = np.linspace(math.log2(a), math.log2(b), count)
        values = 2.0 ** np.minimum(exponents, 1023.9999)
        values[[0, -1]] = a, b
        return format.round(values)

    return points


def linear(low: float, high: float) -> Axis:
    """Numbers between two, evenly spaced."""

    def points(count: int, format: Format) -> np.ndarray:
        a, b = max(low, -format.max), min(high, format.max)
        return format.round(np.linspace(a, b, count))

    return points


def near(*centres: float | Callable[[Format], float | None]) -> Axis:
    """Numbers that approach each center from both sides, up to the neighbors of the nearest number.

    A center may depend on the format, as in ``crossing``; None omits it.
    """

    def points(count: int, format: Format) -> np.ndarray:
        out: list[float] = []
        given = [c(format) if callable(c) else c for c in centres]
        found = [float(format.round(c)) for c in given if c is not None]
        steps = max(2, count // max(1, 2 * len(found)) - 1)
        for c in found:
            unit = abs(c) if c else 1.0
            out.append(c)
            for e in np.linspace(2, format.digits - 1, steps):
                delta = unit * 2.0**-e
                out += [float(format.round(c - delta)), float(format.round(c + delta))]
            out += [format.next(c, False), format.next(c, True)]
        values = np.unique(np.array(out))
        return values[np.isfinite(values)]

    return points


def subnormal() -> Axis:
    """Positive numbers below the normal ones."""
    return lambda count, format: np.unique(
        format.round(np.geomspace(format.smallest, format.tiny, count, endpoint=False))
    )


def integers(low: int, high: int) -> Axis:
    """Integers from low to high that the format represents."""

    def points(count: int, format: Format) -> np.ndarray:
        return np.unique(format.round(np.rint(np.linspace(low, high, count))))

    return points


def values(*numbers: float) -> Axis:
    """These, rounded to the format."""
    return lambda count, format: format.round(np.array(numbers, dtype=float))


def negative(axis: Axis) -> Axis:
    """The numbers with the other sign."""
    return lambda count, format: -axis(count, format)


def both(axis: Axis) -> Axis:
    """The numbers with both signs."""

    def points(count: int, format: Format) -> np.ndarray:
        half = axis(-(-count // 2), format)
        return np.concatenate([half, -half])

    return points


def union(*axes: Axis) -> Axis:
    """The numbers of several axes, with equal shares."""
    return lambda count, format: np.concatenate(
        [axis(-(-count // len(axes)), format) for axis in axes]
    )


def crossing(
    function: Callable[[Any], Any], low: float, high: float, edge: str = "max"
) -> Callable[[Format], float | None]:
    """The point where a monotone function of one argument crosses a limit of the format.

    Args:
        function: The function in mpmath.
        low: One end of the searched interval.
        high: The other end.
        edge: ``max``, ``tiny`` or ``smallest``: a property of ``Format``.

    Returns:
        A function from formats to points; None if the limit is not crossed in the interval.
    """

    @cache
    def find(format: Format) -> float | None:
        wanted = mpmath.mpf(getattr(format, edge))
        with mpmath.workdps(30):
            a, b = mpmath.mpf(low), mpmath.mpf(high)
            above = [abs(function(x)) > wanted for x in (a, b)]
            if above[0] == above[1]:
                return None
            for _ in range(120):
                middle = (a + b) / 2
                if (abs(function(middle)) > wanted) == above[0]:
                    a = middle
                else:
                    b = middle
            return float(a)

    return find


@dataclass(frozen=True)
class Region:
    """A set of arguments, and the allowed error.

    Args:
        axes: One per argument: their points are paired at random. Or one for all arguments, a
            function of the number of points and the format that returns a tuple of arrays.
        head: Attributes before the arrays, such as the order of ``polygamma``. Default: the
        record's.
        ulps: Allowed error in float32, in ulp.
        relative: Allowed relative error in float64.
        because: The reason for unusual limits; required for them.
        conditioned: The reason why the error in float64 may be as large as the change of the result
            when an argument changes by eps.
    """

    axes: tuple[Axis, ...]
    head: tuple[Any, ...] | None
    ulps: float
    relative: float
    because: str
    conditioned: str

    def __init__(
        self,
        *axes: Axis,
        head: Sequence[Any] | None = None,
        ulps: float = ULPS,
        relative: float = RELATIVE,
        because: str = "",
        conditioned: str = "",
    ) -> None:
        assert because or (ulps <= ULPS and relative <= RELATIVE), "a wider limit needs a reason"
        for name, value in {
            "axes": axes,
            "head": None if head is None else tuple(head),
            "ulps": ulps,
            "relative": relative,
            "because": because,
            "conditioned": conditioned,
        }.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Record:
    """A function of ``mlxops.special`` and its correct values.

    Args:
        name: The function's name.
        exact: The function in mpmath: called with the region's head and ``mpf`` arguments, at
            ``DIGITS`` digits. ``None`` where only the special values are defined (poles).
        regions: The regions by name.
        scipy: SciPy's function of the same arguments; None if it has none.
        arity: The number of array arguments.
        head: Attributes before the arrays, unless a region sets them.
        output: The index of the output, for functions with several (one record for each).
        variant: The difference from another record of the same function.
        special: Arguments whose results are SciPy's: zeros, infinities, NaN and poles. Default: all
            combinations of 0, -0, 1, -1, inf, -inf and NaN.
        corrections: Exceptions from SciPy: arguments, the right value and the reason. NaN among the
            arguments is matched, too.
        smooth: Points at which derivatives are tested: one axis per argument. None: no test.
        gradient: Allowed relative error of derivatives, by dtype.
        undifferentiable: Positions of the arguments without derivative.
        once: Pairs (i, j) of positions: the derivative by argument i has none by argument j.
    """

    name: str
    exact: Callable[..., Any]
    regions: Mapping[str, Region]
    scipy: Callable[..., Any] | None = None
    arity: int = 1
    head: tuple[Any, ...] = ()
    output: int | None = None
    variant: str = ""
    special: Sequence[tuple[float, ...]] | None = None
    corrections: Sequence[tuple[tuple[float, ...], float, str]] = ()
    smooth: tuple[Axis, ...] | None = None
    gradient: Mapping[str, float] = field(
        default_factory=lambda: {"float32": 1e-5, "float64": 1e-12}
    )
    undifferentiable: tuple[int, ...] = ()
    once: tuple[tuple[int, int], ...] = ()

    @property
    def id(self) -> str:
        """The record's name, with its variant or output if there are several."""
        which = self.variant if self.output is None else str(self.output)
        return f"{self.name}[{which}]" if which else self.name

    def call(self, head: tuple[Any, ...], *arrays: mx.array) -> mx.array:
        """Call our function."""
        import mlxops

        module = getattr(mlxops, "special", mlxops)
        function = getattr(module, self.name, None) or getattr(mlxops, self.name)
        out = function(*head, *arrays)
        return out if self.output is None else out[self.output]

    def scipy_call(self, head: tuple[Any, ...], *arrays: np.ndarray) -> np.ndarray:
        """Call SciPy's function, without its warnings."""
        assert self.scipy is not None
        with np.errstate(all="ignore"):
            out = self.scipy(*head, *arrays)
        return np.asarray(out)

    def special_points(self) -> np.ndarray:
        """Return the arguments of the special values, one row each."""
        given = self.special
        if given is None:
            grid = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)
            given = list(product(grid, repeat=self.arity))
        return np.array(given, dtype=float).reshape(-1, self.arity)

    def points(self, region: str, format: Format, count: int) -> tuple[np.ndarray, ...]:
        """Return the arguments of a region: an array per argument, of about ``count`` numbers."""
        axes = self.regions[region].axes
        return pair(axes, self.arity, format, count)

    def head_of(self, region: str) -> tuple[Any, ...]:
        """Return the attributes of a region."""
        head = self.regions[region].head
        return self.head if head is None else head


def pair(axes: Sequence[Axis], arity: int, format: Format, count: int) -> tuple[np.ndarray, ...]:
    """Return the points of the axes, paired at random; a single axis returns tuples of points."""
    if len(axes) == 1 and arity > 1:
        joint = axes[0](count, format)
        return tuple(format.round(a) for a in joint)
    assert len(axes) == arity, f"{len(axes)} axes for {arity} arguments"
    columns = [axis(count, format) for axis in axes]
    if arity == 1:
        return (columns[0],)
    if any(len(column) == 0 for column in columns):
        return tuple(np.empty(0) for _ in columns)
    random = np.random.default_rng(SEED)
    size = max(len(column) for column in columns)
    return tuple(random.permutation(np.resize(column, size)) for column in columns)


# Exact values and errors --------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """Exact values, with more digits and range than float64: ``(high + low) * 2**exponent``.

    ``high`` is in [0.5, 1), or 0, infinite or NaN. ``known`` is False for undefined values.
    """

    high: np.ndarray
    low: np.ndarray
    exponent: np.ndarray
    known: np.ndarray

    def to_float64(self) -> np.ndarray:
        """Round to float64; values beyond its range become infinite."""
        with np.errstate(over="ignore", under="ignore"):
            return np.ldexp(self.high, self.exponent)


def split(value: Any) -> tuple[float, float, int, bool]:
    """Return the parts of an exact value; see ``Exact``."""
    if value is None:
        return math.nan, 0.0, 0, False
    value = mpmath.mpf(value)
    if not mpmath.isfinite(value) or value == 0:
        return float(value), 0.0, 0, True
    mantissa, exponent = mpmath.frexp(value)
    exponent = max(min(int(exponent), 2**30), -(2**30))
    high = float(mantissa)
    return high, float(mantissa - mpmath.mpf(high)), exponent, True


def evaluate(record: Record, head: tuple[Any, ...], arguments: Sequence[np.ndarray]) -> Exact:
    """Evaluate the record's function at all points."""
    rows = []
    with mpmath.workdps(DIGITS):
        for point in zip(*arguments, strict=True):
            rows.append(split(record.exact(*head, *(mpmath.mpf(float(x)) for x in point))))
    high, low, exponent, known = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Exact(
        np.array(high, dtype=float),
        np.array(low, dtype=float),
        np.array(exponent, dtype=np.int64),
        np.array(known, dtype=bool),
    )


def sensitivity(
    record: Record, head: tuple[Any, ...], point: Sequence[float], step: float = 2.0**-60
) -> float:
    """Return the change of the value per relative change of the arguments: |x f'(x)|."""
    total = mpmath.mpf(0)
    with mpmath.workdps(2 * DIGITS):
        x = [mpmath.mpf(float(v)) for v in point]
        for i, xi in enumerate(x):
            if xi == 0 or not mpmath.isfinite(xi):
                continue
            low, high = ([*x[:i], xi + s * xi, *x[i + 1 :]] for s in (-step, step))
            a, b = record.exact(*head, *low), record.exact(*head, *high)
            if a is not None and b is not None:
                total += abs(mpmath.mpf(b) - mpmath.mpf(a)) / (2 * step)
        return float(total)


def errors_in_ulps(got: np.ndarray, exact: Exact, format: Format) -> np.ndarray:
    """Return the error of each result, in ulp of the exact value.

    An infinite result counts as the power of 2 after the largest number, so that an overflow is not
    an error if the exact value is that large, and a small error if it is nearly so. Results of
    another kind (NaN or not, the wrong infinity) have an infinite error. Undefined points have no
    error.
    """
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == exact.high.shape, f"{got.shape}, but {exact.high.shape} is right"
    high, exponent = exact.high, exact.exponent.astype(np.int64)
    end = float(format.emax + 1)
    with np.errstate(all="ignore"):
        # Both as a significand and an exponent, independent of float64's range.
        m, e = np.frexp(got)
        overflow = np.isinf(got) & np.isfinite(high)
        m = np.where(overflow, np.copysign(0.5, got), m)
        e = np.where(overflow, end + 1, e).astype(np.int64)
        unit = np.maximum(exponent - 1, format.emin) - format.digits + 1 - exponent
        difference = np.ldexp(m, np.clip(e - exponent, -2000, 2000)) - high - exact.low
        error = np.abs(difference) / np.ldexp(1.0, np.clip(unit, -2000, 1000))
        error = np.where(high == 0, np.abs(got) / format.smallest, error)
        # Beyond the range, infinity is right.
        beyond = (np.isfinite(high)) & (exponent > end) & overflow & (np.sign(got) == np.sign(high))
        error = np.where(beyond, 0, error)
        # An exact infinity or NaN allows only itself.
        strict = ~np.isfinite(high) | np.isnan(got)
        same = (got == high) | (np.isnan(got) & np.isnan(high))
        error = np.where(strict, np.where(same, 0, np.inf), error)
    return np.where(exact.known, error, 0.0)


def errors_relative(got: np.ndarray, exact: Exact, format: Format) -> np.ndarray:
    """Return the error relative to the exact value, or to the smallest normal number."""
    ulps = errors_in_ulps(got, exact, format)
    with np.errstate(all="ignore"):
        # A ulp is eps times the power of 2 at or below the value; the value is 2 * high times that.
        size = np.maximum(2 * np.abs(exact.high), 1.0)
        normal = (exact.exponent > format.emin) & np.isfinite(exact.high)
        return ulps * format.eps / np.where(normal, size, 1.0)


def compute(record: Record, head: tuple[Any, ...], format: Format, *points: Any) -> np.ndarray:
    """Return our results at points of a format, as float64."""
    return to_numpy(record.call(head, *(format.array(x) for x in points)))
