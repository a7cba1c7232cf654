"""Functions of arrays, and comparisons of their results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

Arrays = list[mx.array]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Function:
    """A function of arrays with names for messages; it always returns a list."""

    call: Callable[..., Any]
    op: str
    args: tuple[str, ...]
    outputs: tuple[str, ...] = ("the result",)
    is_finite: bool = True  # otherwise infinite parameters may make any output infinite

    def __call__(self, *args: mx.array) -> Arrays:
        out = self.call(*args)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    def arg(self, index: int) -> str:
        """Return the name of an argument."""
        return self.args[index] if index < len(self.args) else f"args[{index}]"

    def output(self, index: int) -> str:
        """Return the name of an output."""
        return self.outputs[index] if index < len(self.outputs) else f"output {index}"

    @classmethod
    def of(cls, fn: Callable[..., Any], count: int) -> Function:
        """Wrap a function of `count` arrays, with the names of its own parameters."""
        if isinstance(fn, Function):
            return fn
        try:
            names = list(inspect.signature(fn).parameters)[:count]
        except (TypeError, ValueError):  # functions of extension modules have no signature
            names = []
        return cls(fn, getattr(fn, "__name__", "function"), tuple(names))


class Place(NamedTuple):
    """The subject of a comparison, for a message, and its parts for a table."""

    text: str
    argument: str = ""
    element: str = ""


@dataclass(eq=False)
class Mismatch(AssertionError):
    """A failed check: the message, and its parts for a table."""

    op: str
    text: str
    argument: str = ""
    element: str = ""
    got: str = ""
    expected: str = ""
    hint: str = field(default="")

    def __str__(self) -> str:
        return f"[{self.op}] {self.message}"

    @property
    def message(self) -> str:
        """The message without the operator's name."""
        return f"{self.text}; {self.hint}" if self.hint else self.text


def to_numpy(x: mx.array) -> Floats:
    """Convert any array to float64 (or complex128)."""
    x = x.astype(mx.float32) if x.dtype == mx.bfloat16 else x
    # NumPy drops an error of the evaluation: it asks a second time for the numbers, and gets any.
    mx.eval(x)
    dtype = np.complex128 if x.dtype == mx.complex64 else np.float64
    return np.asarray(np.array(x), dtype=dtype)


def is_float(x: mx.array) -> bool:
    """Return true for a floating dtype."""
    return mx.issubdtype(x.dtype, mx.floating)


def is_inexact(x: mx.array) -> bool:
    """Return true for a floating or complex dtype, which can be differentiated."""
    return mx.issubdtype(x.dtype, mx.inexact)


def replaced(args: Sequence[mx.array], argnums: Sequence[int], values: Sequence[Any]) -> Arrays:
    """Return the arguments with some of them replaced."""
    out = list(args)
    for i, value in zip(argnums, values, strict=True):
        out[i] = value
    return out


# Comparing ----------------------------------------------------------------------------------------


def require(condition: bool, fn: Function, message: str) -> None:
    __tracebackhide__ = True
    if not condition:
        raise Mismatch(fn.op, message)


def require_like(
    got: mx.array, wanted: mx.array, fn: Function, what: str, source: str, argument: str = ""
) -> None:
    """Require equal shapes and dtypes."""
    __tracebackhide__ = True
    for kind in ("shape", "dtype"):
        a, b = getattr(got, kind), getattr(wanted, kind)
        if a != b:
            text = f"{what} has {kind} {a}, but {b} {source}"
            raise Mismatch(fn.op, text, argument, "", f"{kind} {a}", f"{kind} {b}")


def require_close(
    got: Floats,
    wanted: Floats,
    tolerance: Floats,
    fn: Function,
    where: Callable[[int], Place],
    source: str,
    hint: Callable[[int], str] = lambda worst: "",
) -> None:
    """Require all elements of flat arrays within the tolerances; the message shows the worst."""
    __tracebackhide__ = True
    with np.errstate(invalid="ignore"):
        difference = np.abs(got - wanted)
        fine = (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (difference <= tolerance)
        excess = np.nan_to_num(difference - tolerance, nan=np.inf)
    if fine.all():
        return
    i = int(np.argmax(np.where(fine, -np.inf, excess)))
    place, values = where(i), (f"{got[i]:.9g}", f"{wanted[i]:.9g}")
    text = (
        f"{place.text} is {values[0]}, but {values[1]} {source} "
        f"(difference {difference[i]:.3g}, tolerance {tolerance[i]:.3g}; "
        f"{int((~fine).sum())} of {got.size} elements are wrong)"
    )
    raise Mismatch(fn.op, text, place.argument, place.element, *values, hint(i))


def element_of(name: str, of: mx.array, flat: int) -> str:
    index = ", ".join(str(i) for i in np.unravel_index(flat, of.shape))
    return f"{name}[{index}]" if index else name


def require_same(
    got: Sequence[mx.array],
    wanted: Sequence[mx.array],
    fn: Function,
    what: str,
    source: str,
    rtol: float,
    same_dtype: bool = True,
) -> None:
    """Require equal outputs up to rounding, relative to each element and to the average element.

    Args:
        got: The results of `fn`.
        wanted: The expected results.
        fn: Provides the names in messages.
        what: The circumstances, the start of the message.
        source: The origin of `wanted`, as the end of "but 3 ...".
        rtol: Tolerance.
        same_dtype: Compare dtypes, too.

    Raises:
        AssertionError: An output has another shape, dtype or value. NaN equals NaN.
    """
    __tracebackhide__ = True
    count = len(wanted)
    require(len(got) == count, fn, f"{what}: {len(got)} outputs, but {count} {source}")
    for k, (g, w) in enumerate(zip(got, wanted, strict=True)):
        name = fn.output(k)
        like = g if same_dtype else g.astype(w.dtype)
        require_like(like, w, fn, f"{what}: {name}", source)
        expected = to_numpy(w).ravel()
        size = np.where(np.isfinite(expected), np.abs(expected), 0)
        tolerance = rtol * (size + (size.mean() if size.size else 0))

        def where(i: int, name: str = name, of: mx.array = w) -> Place:
            element = element_of(name, of, i)
            return Place(f"{what}: {element}", "", element)

        require_close(to_numpy(g).ravel(), expected, tolerance, fn, where, source)


def subsets(argnums: Sequence[int]) -> list[list[int]]:
    """Return each argument alone, and all together."""
    return [[i] for i in argnums] + ([list(argnums)] if len(argnums) > 1 else [])
