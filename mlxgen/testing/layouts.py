"""Checks of memory layouts, sizes and broadcasting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from .compare import Arrays, Function, replaced, require, require_same, subsets, to_numpy

LENGTHS = ((2, 3, 2, 5), (2, 3, 10, 5), (2, 3, 7, 53))
"""Shapes with numbers of elements that kernels process in different ways. The last ones are not
multiples of the number that an emulated kernel processes at a time (runtime/src/metal.cpp)."""


def _transposed(x: mx.array) -> mx.array:
    return mx.contiguous(x.T).T


def _sliced(x: mx.array) -> mx.array:
    room = mx.full([2 * n + 1 for n in x.shape], 77).astype(x.dtype)
    inside = tuple(slice(1, None, 2) for _ in x.shape)
    room[inside] = x
    mx.eval(room)
    return room[inside]


def _reversed(x: mx.array) -> mx.array:
    back = tuple(slice(None, None, -1) for _ in x.shape)
    return mx.contiguous(x[back])[back]


def _repeated(x: mx.array) -> mx.array:
    first = x[tuple(slice(0, 1) for _ in x.shape)]
    return mx.broadcast_to(first, x.shape)


LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "transposed": _transposed,
    "sliced": _sliced,
    "reversed": _reversed,
    "broadcast": _repeated,
}
"""Memory layouts of an array; `broadcast` changes its numbers, too."""


def _evaluated(fn: Function, args: Sequence[mx.array]) -> tuple[Arrays, str]:
    """Return the outputs, and the message of an error of their evaluation."""
    outputs = fn(*args)
    try:
        mx.eval(outputs)
    except RuntimeError as error:
        return outputs, str(error)
    return outputs, ""


def contiguous(x: mx.array) -> mx.array:
    """Return a row-contiguous copy."""
    # Through NumPy: not lazy, not shared, and without the strides that mx.array would keep.
    return mx.array(np.array(to_numpy(x), order="C"), dtype=x.dtype)


def _accepts(args: Sequence[mx.array]) -> bool:
    return True


def check_layouts(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    *,
    rtol: float = 1e-5,
    accepts: Callable[[Sequence[mx.array]], bool] = _accepts,
) -> None:
    """Compare arguments of any strides with contiguous ones, one by one and together.

    Also check the same array for two arguments, and donated arguments, whose memory the function
    may reuse. It must not change other arguments. Where the evaluation of contiguous arguments
    raises (a broadcast matrix is singular), that of others must raise, too.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        rtol: Tolerance.
        accepts: Returns true if arguments with other numbers are valid; the function is not called
            with others.

    Raises:
        AssertionError: An output differs, or an argument was changed.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))

    def compare(given: Arrays, what: str) -> None:
        __tracebackhide__ = True
        mx.eval(given)
        copies = [contiguous(a) for a in given]
        wanted, error = _evaluated(whole, copies)
        if error:
            found = _evaluated(whole, given)[1]
            require(bool(found), whole, f"{what}: no error, but '{error}' if contiguous")
            return
        require_same(whole(*given), wanted, whole, what, "if contiguous", rtol)

    for name, layout in LAYOUTS.items():
        allowed = [
            i
            for i, a in enumerate(args)
            if name != "broadcast" or accepts(replaced(args, [i], [layout(a)]))
        ]
        for subset in subsets(allowed):
            names = ", ".join(f"'{whole.arg(i)}'" for i in subset)
            laid = [layout(a) if i in subset else a for i, a in enumerate(args)]
            compare(laid, f"{name} {names}")
    for i, j in itertools.combinations(range(len(args)), 2):
        if args[i].shape == args[j].shape and args[i].dtype == args[j].dtype:
            for one, other in ((i, j), (j, i)):
                given = replaced(args, [other], [args[one]])
                if accepts(given):
                    compare(given, f"'{whole.arg(one)}' given for '{whole.arg(other)}' too")
                    break
    wanted = whole(*args)
    mx.eval(wanted)
    got = whole(*(mx.where(True, a, a) for a in args))
    require_same(got, wanted, whole, "temporary arguments", "for others", rtol)
    kept = [mx.where(True, a, a) for a in args]
    mx.eval(whole(*kept), kept)
    for i, (after, before) in enumerate(zip(kept, args, strict=True)):
        same_values = np.array_equal(to_numpy(after), to_numpy(before), equal_nan=True)
        require(same_values, whole, f"the argument '{whole.arg(i)}' was changed")


def check_sizes(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    *,
    rtol: float = 1e-5,
    accepts: Callable[[Sequence[mx.array]], bool] = _accepts,
) -> None:
    """Check an elementwise function with empty, 0-d and broadcast arguments.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        rtol: Tolerance.
        accepts: Returns true if the function supports such arguments; others are left out.

    Raises:
        AssertionError: An output has another shape, dtype or value.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    dtypes = [w.dtype for w in whole(*args)]
    for shape in ((0,), (2, 0, 3)):
        given = [mx.zeros(shape, a.dtype) for a in args]
        if accepts(given):
            empty = [mx.zeros(shape, dtype) for dtype in dtypes]
            what = f"arguments of shape {shape}"
            require_same(whole(*given), empty, whole, what, "from others", rtol)
    ones = [a.reshape(-1)[:1] for a in args]
    scalars = [a[0] for a in ones]
    if accepts(ones) and accepts(scalars):
        wanted = [w[0] for w in whole(*ones)]
        require_same(whole(*scalars), wanted, whole, "0-d arguments", "in an array", rtol)
    for i in range(len(args)) if len(args) > 1 else ():
        for smaller in reductions(args[i]):
            given = replaced(args, [i], [smaller])
            if not accepts(given):
                continue
            shape = np.broadcast_shapes(*(a.shape for a in given))
            plain = [contiguous(mx.broadcast_to(a, shape)) for a in given]
            what = f"'{whole.arg(i)}' of shape {smaller.shape}"
            require_same(whole(*given), whole(*plain), whole, what, "broadcast before", rtol)


def check_long(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    *,
    rtol: float = 1e-5,
    accepts: Callable[[Sequence[mx.array]], bool] = _accepts,
) -> None:
    """Check an elementwise function with few and many elements, in one to four axes with gaps.

    The arguments are those of ``check_sizes``.

    Raises:
        AssertionError: An element has another value than in a smaller array.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    shape = np.broadcast_shapes(*(a.shape for a in args))
    plain = [contiguous(mx.broadcast_to(a, shape)) for a in args]
    values = [w.reshape(-1) for w in whole(*plain)]
    for lengths in LENGTHS:
        index = mx.arange(math.prod(lengths)) % plain[0].size
        wanted = [value[index] for value in values]
        long = [a.reshape(-1)[index] for a in plain]
        what = f"{index.size} elements"
        if accepts(long):
            require_same(whole(*long), wanted, whole, what, "in a smaller array", rtol)
        for axes in range(1, len(lengths) + 1):
            table = (-1, *lengths[len(lengths) - axes + 1 :])
            gaps = [_sliced(a.reshape(table)) for a in long]
            if not accepts(gaps):
                continue
            what = f"an array of shape {gaps[0].shape} with gaps"
            tables = [w.reshape(table) for w in wanted]
            require_same(whole(*gaps), tables, whole, what, "in a smaller array", rtol)


def reductions(x: mx.array) -> Arrays:
    """Return arrays that broadcast to the shape of this one."""
    return [] if x.ndim == 0 else [x[:1], x[0], x.reshape(-1)[0]]
