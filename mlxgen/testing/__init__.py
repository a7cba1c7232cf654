"""Checks of a function of arrays: its derivatives, transforms, dtypes and memory layouts.

What the generated checks of a package consist of (``cases`` applies them to its operators), and
useful by hand on anything that takes and returns arrays::

    import mlx.core as mx
    from mlxgen import testing

    x = mx.array([0.5, 1.5])
    testing.check_vjp(mx.sin, [x])
    testing.check_vmap(mx.add, [[x, x], [x + 1, x - 1]])

Every check raises ``AssertionError`` with the operator, the argument or output, and the element
that is furthest off. Needs NumPy beside MLX.

Derivatives are compared with central differences in float64 on the CPU. There MLX's exp, sin and
cos are off by up to 3e-8 and erf by 1.4e-7 (relative), which a difference quotient divides by the
step. So the step is wide, 0.01, and the stencil of order 8: noise of 1.4e-7 becomes at most
2.1 * 1.4e-7 / 0.01 = 3e-5 of the function's size, and truncation adds step^8 / 630 = 2e-19 times
the ninth derivative. ``RTOL`` allows three times that noise; a wrong sign, factor or term is far
above it. What has no float64 is differentiated in float32, with a tolerance to match.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from .compare import Arrays as Arrays
from .compare import Floats as Floats
from .compare import Function as Function
from .compare import element_of, require, require_close, require_like
from .compare import is_float as is_float
from .compare import replaced as replaced
from .compare import require_same as require_same
from .compare import subsets as subsets
from .compare import to_numpy as to_numpy
from .layouts import LAYOUTS as LAYOUTS
from .layouts import check_layouts as check_layouts
from .layouts import check_long as check_long
from .layouts import check_sizes as check_sizes
from .layouts import contiguous as contiguous
from .layouts import reductions as reductions

STENCIL = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
"""Weights of f(x + k h) - f(x - k h), k = 1, 2...: first derivative, order 8."""

STEP = 0.01
"""The step h."""

RTOL = {mx.float64: 1e-4, mx.float32: 2e-3}
"""Tolerance of derivatives, relative to the derivative and to the function."""

COORDINATES = 48
"""Elements of an argument that are moved; of a larger one, a random choice."""

AXES = 24
"""Combinations of in_axes that are tried; of more, a random choice."""


def metal_backend() -> Literal["gpu", "emulation"] | None:
    """What runs Metal kernels here: a GPU, or `mlxgen metal-test` on the CPU, or nothing."""
    if os.environ.get("MLXGEN_METAL_EMULATION"):
        return "emulation"
    return "gpu" if mx.metal.is_available() else None


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


# Derivatives --------------------------------------------------------------------------------------

DIFFERENCES = "by finite differences"


class _Point:
    """A function's floating outputs at given arguments, and how they change with those."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[mx.array], dtype: mx.Dtype) -> None:
        whole = Function.of(fn, len(args))
        self.args = [a.astype(dtype) if is_float(a) else a for a in args]
        self.rng = np.random.default_rng(len(args))
        self.rtol = RTOL[dtype]
        kept = [i for i, out in enumerate(whole(*self.args)) if is_float(out)]

        def floating(*values: mx.array) -> Arrays:
            outputs = whole(*values)
            return [outputs[i] for i in kept]

        names = tuple(whole.output(i) for i in kept)
        self.fn = Function(floating, whole.op, whole.args, names, whole.is_finite)
        self.outputs = self.fn(*self.args)
        # Where infinite numbers are given, there is nothing to compare with.
        self.is_finite = whole.is_finite and all(np.isfinite(to_numpy(a)).all() for a in self.args)
        for k, out in enumerate(self.outputs) if self.is_finite else ():
            wrong = np.flatnonzero(~np.isfinite(to_numpy(out)))
            if wrong.size:
                element = element_of(self.fn.output(k), out, wrong[0])
                value = to_numpy(out).flat[wrong[0]]
                require(False, self.fn, f"{element} is {value}: {OUTSIDE}")

    def argnums(self, given: Iterable[int] | None) -> list[int]:
        """The arguments asked for; all floating ones if not said."""
        every = [i for i, a in enumerate(self.args) if is_float(a)]
        return every if given is None else list(given)

    def comparable(self, got: Floats, wanted: Floats) -> Floats:
        """Derivatives; those that infinite arguments make infinite or NaN are as they should be."""
        if self.is_finite:
            return got
        return np.where(np.isfinite(got) & np.isfinite(wanted), got, wanted)

    def random(self, like: mx.array) -> mx.array:
        """A cotangent or tangent: numbers of either sign, small only where `like` is infinite."""
        values = self.rng.uniform(0.5, 1.5, like.shape) * self.rng.choice([-1, 1], like.shape)
        return mx.array(np.where(np.isfinite(to_numpy(like)), values, 0), dtype=like.dtype)

    def coordinates(self, argnum: int, limit: int) -> list[int]:
        """The elements of an argument that are moved."""
        at = self.rng.permutation(self.args[argnum].size)[:limit]
        return sorted(at[np.isfinite(to_numpy(self.args[argnum]).flat[at])].tolist())

    def jacobian(self, argnum: int, at: Sequence[int], step: float) -> tuple[Floats, Floats]:
        """Difference quotients, coordinates x outputs, and their tolerances."""
        base, outputs = to_numpy(self.args[argnum]), _flat(self.outputs)
        same = ~np.isfinite(outputs)
        rows = np.zeros((len(at), sum(out.size for out in self.outputs)))
        sizes = np.zeros_like(rows)
        for row, coordinate in enumerate(at):
            for (k, weight), sign in itertools.product(enumerate(STENCIL, 1), (1, -1)):
                values = base.copy()
                values.flat[coordinate] += sign * k * step
                moved = mx.array(values, dtype=self.args[argnum].dtype)
                out = _flat(self.fn(*replaced(self.args, [argnum], [moved])))
                out[same & _equal(out, outputs)] = 0
                with np.errstate(invalid="ignore"):  # infinite where it was not before
                    rows[row] += sign * weight / step * out
                sizes[row] = np.maximum(sizes[row], np.abs(out))
        # An output that did not change at all has no noise either.
        noise = np.where(rows != 0, sizes, 1e-6 * sizes)
        return rows, self.rtol * (np.abs(rows) + noise)


def _flat(arrays: Sequence[mx.array]) -> Floats:
    return np.concatenate([np.zeros(0), *(to_numpy(a).ravel() for a in arrays)])


def _equal(a: Floats, b: Floats) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _steps(step: float | Sequence[float], count: int) -> list[float]:
    return list(step) if isinstance(step, Sequence) else [step] * count


def pullback(fn: Callable[..., Any], args: Sequence[mx.array], argnums: Sequence[int]) -> Function:
    """The vjp as a function of arrays: all the arguments, then a cotangent per output."""
    whole = Function.of(fn, len(args))

    def call(*values: mx.array) -> Arrays:
        primals = values[: len(args)]
        gradients = mx.vjp(
            lambda *v: whole(*replaced(primals, argnums, v)),
            [primals[i] for i in argnums],
            list(values[len(args) :]),
        )[1]
        # MLX's vjp and vmap are wrong for functions that return an array twice.
        return [g + 0 for g in gradients]

    cotangents = tuple(f"cotangent of {name}" for name in whole.outputs)
    gradients = tuple(f"the gradient of {whole.arg(i)}" for i in argnums)
    names = (*whole.args, *cotangents)
    return Function(call, f"vjp of {whole.op}", names, gradients, whole.is_finite)


def check_vjp(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    argnums: Iterable[int] | None = None,
    *,
    step: float | Sequence[float] = STEP,
    dtype: mx.Dtype = mx.float64,
    limit: int = COORDINATES,
) -> None:
    """Compare the vjp with finite differences, for each argument alone and for all together.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments; floating ones are converted to `dtype`.
        argnums: The arguments to differentiate; all floating ones by default.
        step: Step of the differences, or one per argument.
        dtype: Where it is computed: float64, or float32 for what has no float64.
        limit: Elements of each argument that are moved (a random choice of more).

    Raises:
        AssertionError: A gradient has the wrong shape, dtype or value.
    """
    __tracebackhide__ = True
    with mx.stream(mx.cpu):
        point = _Point(fn, args, dtype)
        args, steps = point.args, _steps(step, len(args))
        cotangents = [point.random(out) for out in point.outputs]
        flat = _flat(cotangents)
        chosen = point.argnums(argnums)
        at = {i: point.coordinates(i, limit) for i in chosen}
        jacobians = {i: point.jacobian(i, at[i], steps[i]) for i in chosen}
        for subset in subsets(chosen):
            gradients = pullback(point.fn, args, subset)(*args, *cotangents)
            for i, gradient in zip(subset, gradients, strict=True):
                name = point.fn.arg(i)
                what = f"vjp of '{name}'" + f" (argnums {tuple(subset)})" * (len(subset) > 1)
                require_like(gradient, args[i], point.fn, f"{what}: the gradient", "the argument")
                wanted = jacobians[i][0] @ flat
                tolerance = jacobians[i][1] @ np.abs(flat)

                def where(worst: int, i: int = i, what: str = what) -> str:
                    element = element_of(point.fn.arg(i), args[i], at[i][worst])
                    value = to_numpy(args[i]).flat[at[i][worst]]
                    return f"{what}: the gradient at {element} = {value:.6g}"

                def hint(
                    worst: int, i: int = i, wanted: Floats = wanted, tol: Floats = tolerance
                ) -> str:
                    # With half the step the same comes out, unless a kink or pole is near.
                    rows, _ = point.jacobian(i, [at[i][worst]], steps[i] / 2)
                    smooth = abs((rows @ flat)[0] - wanted[worst]) <= 10 * tol[worst]
                    return "" if smooth else KINK

                got = point.comparable(to_numpy(gradient).ravel()[at[i]], wanted)
                require_close(got, wanted, tolerance, point.fn, where, DIFFERENCES, hint)


def require_finite(fn: Callable[..., Any], args: Sequence[mx.array], dtype: mx.Dtype) -> None:
    """That a function is finite where it is to be differentiated.

    Raises:
        AssertionError: An output is infinite or NaN, though the arguments are finite.
    """
    with mx.stream(mx.cpu):
        _Point(fn, args, dtype)


OUTSIDE = (
    "the function cannot be differentiated here; if that is right, change the sample (low, high, "
    "values, away_from)"
)

KINK = (
    "; with half the step they are different: if the function is not smooth here, change the "
    "sample (low, high, away_from)"
)


def check_jvp(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    argnums: Iterable[int] | None = None,
    *,
    step: float | Sequence[float] = STEP,
    dtype: mx.Dtype = mx.float64,
    limit: int = COORDINATES,
) -> None:
    """Compare the jvp with finite differences, for each argument alone and for all together.

    Arguments as those of ``check_vjp``.

    Raises:
        AssertionError: The tangent of an output has the wrong shape, dtype or value.
    """
    __tracebackhide__ = True
    with mx.stream(mx.cpu):
        point = _Point(fn, args, dtype)
        args, steps = point.args, _steps(step, len(args))
        chosen = point.argnums(argnums)
        tangents, wanted, tolerance = {}, {}, {}
        for i in chosen:
            at = point.coordinates(i, limit)
            rows, tolerances = point.jacobian(i, at, steps[i])
            values = np.zeros(args[i].size)
            values[at] = to_numpy(point.random(args[i])).ravel()[at]
            tangents[i] = mx.array(values.reshape(args[i].shape), dtype=dtype)
            wanted[i], tolerance[i] = values[at] @ rows, np.abs(values[at]) @ tolerances
        for subset in subsets(chosen):
            along = ", ".join(f"'{point.fn.arg(i)}'" for i in subset)

            def restricted(*values: mx.array, subset: Sequence[int] = subset) -> Arrays:
                return point.fn(*replaced(args, subset, values))

            jvps = mx.jvp(restricted, [args[i] for i in subset], [tangents[i] for i in subset])[1]
            for k, (out, jvp) in enumerate(zip(point.outputs, jvps, strict=True)):
                what = f"jvp along {along}: the tangent of {point.fn.output(k)}"
                require_like(jvp, out, point.fn, what, "the output")

            def where(worst: int, along: str = along) -> str:
                k = 0
                while worst >= point.outputs[k].size:
                    worst -= point.outputs[k].size
                    k += 1
                element = element_of(point.fn.output(k), point.outputs[k], worst)
                return f"jvp along {along}: the tangent of {element}"

            total = np.sum([wanted[i] for i in subset], axis=0)
            got = np.where(np.isfinite(_flat(point.outputs)), _flat(jvps), total)
            require_close(
                point.comparable(got, total),
                total,
                np.sum([tolerance[i] for i in subset], axis=0),
                point.fn,
                where,
                DIFFERENCES,
            )


def check_second(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    argnums: Iterable[int] | None = None,
    within: Iterable[int] | None = None,
    *,
    step: float | Sequence[float] = STEP,
    dtype: mx.Dtype = mx.float64,
    limit: int = 12,
) -> None:
    """Compare the vjp of the vjp, also in its cotangents, with finite differences of the vjp.

    Arguments as those of ``check_vjp``, and the arguments in which gradients are differentiated;
    the same by default.

    Raises:
        AssertionError: As from ``check_vjp``; the message calls the operator "vjp of ...".
    """
    __tracebackhide__ = True
    with mx.stream(mx.cpu):
        point = _Point(fn, args, dtype)
        count = len(args) + len(point.outputs)
        chosen = point.argnums(argnums)
        check_vjp(
            pullback(point.fn, point.args, chosen),
            [*point.args, *(point.random(out) for out in point.outputs)],
            [*(chosen if within is None else within), *range(len(args), count)],
            step=[*_steps(step, len(args)), *[STEP] * len(point.outputs)],
            dtype=dtype,
            limit=limit,
        )


def check_not_differentiable(fn: Callable[..., Any], args: Sequence[mx.array], argnum: int) -> None:
    """Asking for an argument's gradient raises an error that names the operator and the argument.

    Raises:
        AssertionError: There was no error, or its message lacks a name.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    name = whole.arg(argnum)
    try:
        cotangents = [mx.ones_like(out) for out in whole(*args)]
        pullback(whole, args, [argnum])(*args, *cotangents)
    except ValueError as error:
        for part in (f"[{whole.op}]", f"'{name.partition('[')[0]}'"):
            require(part in str(error), whole, f"vjp of '{name}': no {part} in: {error}")
        return
    require(False, whole, f"vjp of '{name}': no error, though it is not differentiable")


# Transforms ---------------------------------------------------------------------------------------


def _choices(ranks: Sequence[int], limit: int, seed: int = 0) -> list[tuple[int | None, ...]]:
    """Combinations of in_axes for arguments of these ranks, not all None."""
    # Of many arguments there are millions: none but the chosen ones are listed.
    options = [(None, *range(rank + 1)) for rank in ranks]
    counts = [len(o) for o in options]
    others = math.prod(counts) - 1
    chosen = np.random.default_rng(seed).choice(others, min(limit, others), replace=False)
    return [
        tuple(o[i] for o, i in zip(options, np.unravel_index(n + 1, counts), strict=True))
        for n in sorted(chosen)
    ]


def _stack(elements: Sequence[Sequence[mx.array]], axes: Sequence[int | None]) -> Arrays:
    """The elements' arguments as vmap takes them; without an axis, the first element's."""
    columns = zip(zip(*elements, strict=True), axes, strict=True)
    return [a[0] if axis is None else mx.stack(list(a), axis=axis) for a, axis in columns]


def _looped(fn: Function, axes: Sequence[int | None], size: int) -> Function:
    """What vmap of a function is, as a loop."""

    def call(*args: mx.array) -> Arrays:
        # By mx.split, as MLX's take refuses arrays without elements, and the vjp of x[0] crashes.
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
        limit: Combinations that are tried (a random choice of more).
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
        # Two batches, the second the other way round.
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

    Arguments as those of ``check_vmap``, and the arguments to differentiate.

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
    for axes in _choices([a.ndim for a in elements[0]], limit):
        stacked = _stack(elements, axes)
        loop = _looped(whole, axes, len(elements))
        cotangent = cotangents(loop(*stacked))
        got = pullback(_vmapped(whole, axes), stacked, argnums)
        wanted = pullback(loop, stacked, argnums)(*stacked, *cotangent)
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
    """Compare ``mx.compile``, with shapeless too, with calls that are not compiled.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        resized: Arguments of other shapes, for shapeless.
        shapeless: Whether to compile for any shape, too.
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
    *,
    rtol: float = 1e-5,
) -> None:
    """Compare the vjp under ``mx.checkpoint`` with the plain one.

    Raises:
        AssertionError: A gradient differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))

    def again(*values: mx.array) -> Arrays:
        # MLX differentiates a checkpoint in all its arguments: others are left outside.
        inside = mx.checkpoint(lambda *v: whole(*replaced(values, argnums, v)))
        return list(inside(*(values[i] for i in argnums)))

    given = [*args, *(mx.ones_like(out) for out in whole(*args))]
    under = pullback(Function(again, whole.op, whole.args, whole.outputs), args, argnums)
    plain = pullback(whole, args, argnums)
    check_forward(under, plain, given, what="under mx.checkpoint", source="without", rtol=rtol)


# Dtypes, layouts and sizes ------------------------------------------------------------------------


def check_precision(
    fn: Callable[..., Any],
    args: Sequence[mx.array],
    dtype: mx.Dtype,
    *,
    ulps: float = 8,
    keeps_dtype: bool = False,
) -> None:
    """Compare float16 or bfloat16 with float32, on the same (rounded) arguments.

    Args:
        fn: Takes arrays, returns an array or several.
        args: Its arguments.
        dtype: float16 or bfloat16.
        ulps: Tolerance in units of the dtype's spacing.
        keeps_dtype: Whether outputs must have this dtype.

    Raises:
        AssertionError: An output differs.
    """
    __tracebackhide__ = True
    whole = Function.of(fn, len(args))
    low = [a.astype(dtype) if is_float(a) else a for a in args]
    wanted = whole(*(a.astype(mx.float32) if is_float(a) else a for a in low))
    wanted = [w.astype(dtype) if is_float(w) else w for w in wanted]
    what = f"in {str(dtype).removeprefix('mlx.core.')}"
    rtol = ulps * float(mx.finfo(dtype).eps)
    require_same(whole(*low), wanted, whole, what, "in float32", rtol, keeps_dtype)
