"""Checks functions under ``mx.compile(shapeless=True)`` with other shapes than those of the trace.

A shapeless graph is traced with the arrays of the first call, and later runs with others. A size
that a function uses as a Python number becomes a constant of the trace. Later results are then
silently wrong. A function must therefore match a plain call, or reject the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from .compare import Arrays, Function, require, require_same
from .formulas import formula_code

REFUSED = ("shapeless=True", "cannot infer output shapes")
"""Parts of the errors of a trace that state that shapes are needed for compilation."""


class Resized(NamedTuple):
    """The arguments of another call."""

    what: str  # the axis that differs
    args: Arrays


def resized(a: mx.array, axis: int, length: int) -> mx.array:
    """Return an array with another size along an axis: cut, or with its last element repeated."""
    last = max(a.shape[axis] - 1, 0)
    if length == 0 or a.shape[axis] == 0:
        return mx.zeros([*a.shape[:axis], length, *a.shape[axis + 1 :]], a.dtype)
    return mx.take(a, mx.minimum(mx.arange(length), last), axis=axis)


def single_axes(args: Sequence[mx.array], names: Sequence[str]) -> Iterable[Resized]:
    """Return variants in which one axis is longer or has size 1, for each axis in turn."""
    for i, (a, name) in enumerate(zip(args, names, strict=True)):
        for axis, count in enumerate(a.shape):
            for length in {count + 1, 1} - {count}:
                other = resized(a, axis, length)
                yield Resized(
                    f"{name}.shape[{axis}] = {length}", [*args[:i], other, *args[i + 1 :]]
                )


def equal_axes(args: Sequence[mx.array]) -> Iterable[Resized]:
    """Return variants in which all axes of equal size are longer or have size 1."""
    for count in sorted({n for a in args for n in a.shape}):
        for length in {count + 1, 1} - {count}:
            others = list(args)
            for i, a in enumerate(args):
                for axis, n in enumerate(a.shape):
                    if n == count:
                        others[i] = resized(others[i], axis, length)
            yield Resized(f"each axis of {count} = {length}", others)


def named_axes(
    args: Sequence[mx.array],
    names: Sequence[str],
    axes: Mapping[str, Sequence[Sequence[str]]],
) -> Iterable[Resized]:
    """Return variants in which an axis that the entry names is longer or has size 1, everywhere."""
    lengths, change = _lengths(args, names, axes)
    for name, count in lengths.items():
        for length in {count + 1, 1} - {count}:
            yield Resized(f"{name} = {length}", change(lengths | {name: length}))


def scaled(
    args: Sequence[mx.array],
    names: Sequence[str],
    axes: Mapping[str, Sequence[Sequence[str]]],
    factor: int,
) -> Arrays:
    """Return arrays in which all axes that the entry names are longer by a factor."""
    lengths, change = _lengths(args, names, axes)
    return change({name: factor * count for name, count in lengths.items()})


def _lengths(
    args: Sequence[mx.array],
    names: Sequence[str],
    axes: Mapping[str, Sequence[Sequence[str]]],
) -> tuple[dict[str, int], Callable[[Mapping[str, int]], Arrays]]:
    """Return the sizes of named axes, and a function of other sizes that returns the arrays."""
    terms = [_terms(a, axes.get(name, ())) for a, name in zip(args, names, strict=True)]
    lengths: dict[str, int] = {}
    for a, of in zip(args, terms, strict=True):
        lengths |= {t: n for t, n in zip(of, a.shape, strict=True) if t.isidentifier()}

    def change(changed: Mapping[str, int]) -> Arrays:
        others = list(args)
        for i, of in enumerate(terms):
            for axis, term in enumerate(of):
                n = _evaluated(term, changed)
                if n is not None and n >= 0 and n != args[i].shape[axis]:
                    others[i] = resized(others[i], axis, n)
        return others

    return lengths, change


def _terms(a: mx.array, alternatives: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return the term for each axis of an array; empty for axes without a name."""
    for terms in alternatives:
        more = a.ndim - len(terms)
        if "..." in terms:
            at = list(terms).index("...")
            return [*terms[:at], *[f"others_{i}" for i in range(more + 1)], *terms[at + 1 :]]
        if more == 0:
            return terms
    return [""] * a.ndim


def _evaluated(term: str, lengths: Mapping[str, int]) -> int | None:
    if not term:
        return None
    code, names = formula_code(term)
    return eval(code, {"__builtins__": {}, **lengths}) if names <= lengths.keys() else None


def check_shapeless(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    others: Iterable[Resized],
    *,
    op: str = "",
    rtol: float = 1e-4,
) -> None:
    """Compare a function compiled with ``shapeless=True`` with plain calls, for other shapes.

    Args:
        fn: Takes arrays, returns an array or several.
        args: The arguments of the first call, which is traced.
        others: The arguments of later calls; those that a plain call rejects are left out.
        op: The operator whose own errors in a later call are allowed, such as an error of a kernel
            that does not support these sizes.
        rtol: Tolerance.

    Raises:
        AssertionError: The trace is not rejected, but a later call differs from a plain call or
            raises an error.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    compiled = mx.compile(lambda *values: whole(*values), shapeless=True)
    try:
        mx.eval(compiled(*args))
    except ValueError as error:
        if any(part in str(error) for part in REFUSED):
            return
        raise
    for what, given in others:
        try:
            wanted = whole(*given)
            mx.eval(wanted)
        except (ValueError, IndexError):
            continue
        label = f"compiled with shapeless=True, then {what}"
        try:
            got = compiled(*given)
            mx.eval(got)
        except ValueError as error:
            if op and str(error).startswith(f"[{op}] "):
                continue
            require(False, whole, f"{label}: {error}, but a plain call works")
        require_same(got, wanted, whole, label, "in a plain call", rtol)
