"""Transforms of a function of arrays, compared with loops and plain calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from .compare import Arrays, Function, Mismatch, is_float, replaced, require_same
from .derivatives import flat_of, pullback

AXES = 24
"""The number of tested combinations of in_axes; if there are more, a random choice."""


def check_forward(
    fn: Callable[..., Any],
    reference: Callable[..., Any],
    args: Sequence[mx.array],
    *,
    what: str = "forward",
    source: str = "by the reference",
    rtol: float = 1e-5,
) -> None:
    """Compare with another function of the same arguments: shapes, dtypes and values.

    Raises:
        AssertionError: An output differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    wanted = Function.of(reference, len(args))(*args)
    require_same(whole(*args), wanted, whole, what, source, rtol)


def _choices(ranks: Sequence[int], limit: int, seed: int = 0) -> list[tuple[int | None, ...]]:
    """Return combinations of in_axes for arguments of these ranks, not all None."""
    # Many arguments have millions of combinations: only the chosen ones are enumerated.
    options = [(None, *range(rank + 1)) for rank in ranks]
    counts = [len(o) for o in options]
    others = math.prod(counts) - 1
    chosen = np.random.default_rng(seed).choice(others, min(limit, others), replace=False)
    return [
        tuple(o[i] for o, i in zip(options, np.unravel_index(n + 1, counts), strict=True))
        for n in sorted(chosen)
    ]


def _stack(elements: Sequence[Sequence[mx.array]], axes: Sequence[int | None]) -> Arrays:
    """Stack the elements' arguments for vmap; without an axis, return the first element's."""
    columns = zip(zip(*elements, strict=True), axes, strict=True)
    return [a[0] if axis is None else mx.stack(list(a), axis=axis) for a, axis in columns]


def _looped(fn: Function, axes: Sequence[int | None], size: int) -> Function:
    """Return a loop that is equivalent to vmap of a function."""

    def call(*args: mx.array) -> Arrays:
        # With mx.split: MLX's take rejects empty arrays, and the vjp of x[0] crashes.
        columns = [
            [a] * size if n is None else [mx.squeeze(p, n) for p in mx.split(a, size, axis=n)]
            for a, n in zip(args, axes, strict=True)
        ]
        results = [fn(*element) for element in zip(*columns, strict=True)]
        return [mx.stack(list(column)) for column in zip(*results, strict=True)]

    return Function(call, fn.op, fn.args, fn.outputs)


def _vmapped(fn: Function, axes: Sequence[int | None], out_axes: int = 0) -> Function:
    call = mx.vmap(fn, in_axes=tuple(axes), out_axes=out_axes)
    return Function(call, fn.op, fn.args, fn.outputs)


def check_vmap(
    fn: Callable[..., Any],
    elements: Sequence[Sequence[mx.array]],
    *,
    limit: int = AXES,
    rtol: float = 1e-5,
) -> None:
    """Compare vmap, and vmap of vmap, with loops, for every combination of in_axes.

    Args:
        fn: Takes arrays, returns an array or several.
        elements: The arguments of each element of the batch, of equal shapes.
        limit: The number of tested combinations (a random choice if there are more).
        rtol: Tolerance.

    Raises:
        AssertionError: An output differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(elements[0]))
    size = len(elements)
    ranks = [a.ndim for a in elements[0]]
    for axes in _choices(ranks, limit):
        stacked = _stack(elements, axes)
        wanted = _looped(whole, axes, size)(*stacked)
        what = f"vmap with in_axes={axes}"
        got = _vmapped(whole, axes)(*stacked)
        require_same(got, wanted, whole, what, "in a loop", rtol)
    if all(w.ndim > 1 for w in wanted):
        got = _vmapped(whole, axes, out_axes=-1)(*stacked)
        wanted = [mx.moveaxis(w, 0, -1) for w in wanted]
        require_same(got, wanted, whole, f"{what}, out_axes=-1", "in a loop", rtol)
    for axes in _choices(ranks, limit // 4, seed=1):
        inner = _vmapped(whole, axes)
        # Two batches, the second in reverse order.
        batches = [_stack(elements, axes), _stack(elements[::-1], axes)]
        for outer in _choices([a.ndim for a in batches[0]], 2, seed=2):
            stacked = _stack(batches, outer)
            wanted = _looped(_looped(whole, axes, size), outer, 2)(*stacked)
            what = f"vmap with in_axes={outer} of vmap with in_axes={axes}"
            got = _vmapped(inner, outer)(*stacked)
            require_same(got, wanted, whole, what, "in a loop", rtol)


def check_vmap_vjp(
    fn: Callable[..., Any],
    elements: Sequence[Sequence[mx.array]],
    argnums: Sequence[int],
    *,
    limit: int = AXES // 4,
    rtol: float = 1e-4,
) -> None:
    """Compare vmap of the vjp, and the vjp of vmap, with those of a loop.

    The arguments are those of ``check_vmap``, and the arguments to differentiate.

    Raises:
        AssertionError: A gradient differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(elements[0]))
    rng = np.random.default_rng(0)

    def cotangents(outputs: Sequence[mx.array]) -> Arrays:
        return [mx.array(rng.uniform(-1, 1, out.shape), dtype=out.dtype) for out in outputs]

    pull = pullback(whole, elements[0], argnums)
    check_vmap(pull, [[*e, *cotangents(whole(*e))] for e in elements], limit=limit, rtol=rtol)
    is_empty = any(a.size == 0 for a in elements[0])
    for axes in _choices([a.ndim for a in elements[0]], limit):
        if is_empty and any(n != 0 for n in axes):
            continue  # MLX 0.32.4 does not always terminate if an empty array is broadcast
        stacked = _stack(elements, axes)
        vmapped = _vmapped(whole, axes)
        cotangent = cotangents(vmapped(*stacked))
        got = pullback(vmapped, stacked, argnums)
        # Not the vjp of a loop, because MLX's updates of empty slices do not terminate.
        gradients = []
        for k, element in enumerate(elements):
            columns = zip(element, elements[0], axes, strict=True)
            args = [first if n is None else a for a, first, n in columns]
            gradients.append(pull(*args, *(c[k] for c in cotangent)))
        wanted = []
        for i, of_elements in zip(argnums, zip(*gradients, strict=True), strict=True):
            n = axes[i]
            stack = mx.stack(list(of_elements), axis=n or 0)
            wanted.append(stack if n is not None else stack.sum(axis=0))
        what = f"of vmap with in_axes={axes}"
        require_same(got(*stacked, *cotangent), wanted, got, what, "in a loop", rtol)


def check_compile(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    resized: Sequence[mx.array] | None = None,
    *,
    shapeless: bool = True,
    rtol: float = 1e-5,
) -> None:
    """Compare ``mx.compile``, also with shapeless, with plain calls.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        resized: Arguments of other shapes, for shapeless.
        shapeless: Compile for any shape, too.
        rtol: Tolerance.

    Raises:
        AssertionError: An output differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    for free in (False, True) if shapeless else (False,):
        compiled = mx.compile(lambda *values: whole(*values), shapeless=free)
        what = "compiled, shapeless" if free else "compiled"
        for values in (args, resized or args, args) if free else (args, args):
            got = compiled(*values)
            require_same(got, whole(*values), whole, what, "in a plain call", rtol)


def check_checkpoint(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    argnums: Sequence[int],
    inside: Sequence[int] | None = None,
    *,
    rtol: float = 1e-5,
) -> None:
    """Compare the vjp under ``mx.checkpoint`` with the plain one.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        argnums: The arguments to differentiate.
        inside: The arguments of the checkpoint, which MLX differentiates all; by default, the same.
        rtol: Tolerance.

    Raises:
        AssertionError: A gradient differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))

    within = argnums if inside is None else inside

    def again(*values: mx.array) -> Arrays:
        checkpoint = mx.checkpoint(lambda *v: whole(*replaced(values, within, v)))
        return list(checkpoint(*(values[i] for i in within)))

    given = [*args, *(mx.ones_like(out) for out in whole(*args))]
    under = pullback(Function(again, whole.op, whole.args, whole.outputs), args, argnums)
    plain = pullback(whole, args, argnums)
    check_forward(under, plain, given, what="under mx.checkpoint", source="without it", rtol=rtol)


NEIGHBOURS = 12
"""The number of arguments whose rounding errors are compared."""


def check_precision(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    dtype: mx.Dtype,
    *,
    ulps: float = 8,
    keeps_dtype: bool = False,
    composed: bool = False,
) -> None:
    """Compare float16 or bfloat16 with float32, on the same (rounded) arguments.

    A composition rounds each of its steps, and a sum of terms that cancel magnifies the errors, so
    that no tolerance of the result is right. Rounding errors differ at random between arguments;
    the effect of a mistake does not.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        dtype: float16 or bfloat16.
        ulps: Tolerance in ulp of the dtype.
        keeps_dtype: Require outputs of this dtype.
        composed: Allow larger errors if they are rounding errors.

    Raises:
        AssertionError: An output differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    low = [a.astype(dtype) if is_float(a) else a for a in args]
    wanted = whole(*_single(low))
    wanted = [w.astype(dtype) if is_float(w) else w for w in wanted]
    what = f"in {str(dtype).removeprefix('mlx.core.')}"
    rtol = ulps * float(mx.finfo(dtype).eps)
    try:
        require_same(whole(*low), wanted, whole, what, "in float32", rtol, keeps_dtype)
    except Mismatch:
        if not (composed and _is_rounding(whole, low, dtype, rtol)):
            raise


def _single(arrays: Sequence[mx.array]) -> Arrays:
    return [a.astype(mx.float32) if is_float(a) else a for a in arrays]


def _is_rounding(fn: Function, low: Arrays, dtype: mx.Dtype, rtol: float) -> bool:
    """Return true if errors of neighboring arguments are random and leave some accuracy."""
    rng = np.random.default_rng(0)
    epsilon = float(mx.finfo(dtype).eps)
    errors, values = [], []
    for _ in range(NEIGHBOURS):
        near = [
            (a.astype(mx.float32) * mx.array(1 + epsilon * rng.integers(-3, 4, a.shape))).astype(
                dtype
            )
            if is_float(a)
            else a
            for a in low
        ]
        got, wanted = flat_of(fn(*near)), flat_of(fn(*_single(near)))
        finite = np.isfinite(wanted)
        if got.shape != wanted.shape or (finite != np.isfinite(got)).any():
            return False
        errors.append(np.subtract(got, wanted, where=finite, out=np.zeros_like(got)))
        values.append(np.where(finite, wanted, 0))
    size = np.abs(values).mean(axis=0)
    size = size + size.mean()
    common, noise = np.abs(np.mean(errors, axis=0)), np.std(errors, axis=0)
    # The rounding of the arguments themselves is not a mistake either.
    condition = np.std(values, axis=0)
    is_random = common <= rtol * size + 5 * noise / np.sqrt(NEIGHBOURS)
    return bool((is_random & (noise <= np.maximum(0.1 * size, 8 * condition))).all())
