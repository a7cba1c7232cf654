"""Compares derivatives of a function of arrays with difference quotients.

Differences are central and of order 8, in float64 on the CPU. There MLX's exp, sin and cos have
relative errors of up to 3e-8 and erf of 1.4e-7, which a quotient divides by the step. The step is
therefore wide, 0.01. The same calls also give a quotient of order 6. The difference between the two
quotients measures the noise, and shows if the step is too wide at a point (near a pole, a kink or
the edge of the domain); a tenth of the step is then tried. The remaining tolerance is far below the
effect of a wrong sign, factor or term. Functions without float64 are differentiated in float32,
with a larger tolerance.

A complex number is treated as two real ones. The gradient of a real function L of z is dL/dRe z + i
dL/dIm z, as in PyTorch: the vjp multiplies cotangents by the conjugate of the derivative.

A vjp is linear in its cotangent, and a jvp in its tangent. Each is called with several: one with
zeros, a large and a small one, and one with a NaN, which must propagate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from .compare import (
    Arrays,
    Floats,
    Function,
    Mismatch,
    Place,
    element_of,
    is_float,
    is_inexact,
    replaced,
    require_close,
    require_like,
    subsets,
    to_numpy,
)

STENCIL = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
"""Weights of f(x + k h) - f(x - k h), k = 1, 2...: first derivative, order 8."""

SHORTER = (3 / 4, -3 / 20, 1 / 60, 0)
"""Weights of the central difference of order 6."""

STEP = 0.01
"""The step h; where it is too wide, a tenth of it is tried, and so on."""

ATTEMPTS = 5

RTOL = {mx.float64: 1e-4, mx.float32: 2e-3}
"""Tolerance of derivatives, relative to the derivative, which is limited by the function."""

NOISE = 50
"""Maximum error of a quotient per difference between the two orders. The ratio of their noise is
11 to 1, and the measured difference is random."""

SETTLED = 0.1
"""A smaller step is tried if the two orders differ by more than this fraction of RTOL."""

ROUGH = 10
"""A difference above this fraction of RTOL is a kink, not noise."""

ENOUGH = 8
"""The largest of this many numbers estimates their scale."""

COORDINATES = 48
"""Moved elements of an argument; of a larger argument, a random choice, and all at once."""

DIFFERENCES = "by finite differences"


class Remedy(NamedTuple):
    """Suggestions for a function that cannot be differentiated at a point."""

    outside: str
    edge: str
    kink: str


SAMPLES = Remedy(
    "if this is correct, change the sample (low, high, values, away_from)",
    "if this is correct, change the sample (low, high, away_from)",
    "the finite differences change with half the step: if the function is not smooth here, change "
    "the sample (low, high, away_from)",
)
"""For the generated checks."""


class Jacobian(NamedTuple):
    """Difference quotients of an argument: a row for each element that was moved.

    The elements are the numbers of the flat argument; a complex number counts as two. If there is
    a direction, the last row is the derivative along it.
    """

    at: list[int]
    direction: Floats | None
    rows: Floats
    tolerances: Floats
    rough: list[bool]  # True if the quotients of both orders differ for every step

    def of(self, flat: Floats) -> Floats:
        """Return a gradient in the form of the rows."""
        along = [] if self.direction is None else [flat @ self.direction]
        return np.concatenate([flat[self.at], along])


class _Quotient(NamedTuple):
    values: Floats
    errors: Floats  # the difference from the stencil of lower order
    sizes: Floats
    step: float

    @property
    def unsettled(self) -> float:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            relative = self.errors / (np.abs(self.values) + self.sizes)
        finite = np.isfinite(self.values)
        return math.inf if not finite.all() else float(np.nan_to_num(relative).max(initial=0))


class Probe(NamedTuple):
    """Cotangents or tangents, and a description of their special property."""

    text: str
    values: list[Floats]


class Point:
    """A function's inexact outputs for given arguments, and their derivatives there.

    Args:
        fn: The function.
        args: Its arguments; floating ones are converted to `dtype`.
        dtype: float64 or float32.
        steps: Step of the differences, or one per argument.
        limit: Elements of each argument that are moved.
        seed: Seed of the random numbers.
        rtol: Tolerance, relative to the derivative; RTOL by default.
        atol: Absolute tolerance.
        advice: Suggestions for messages.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[mx.array],
        dtype: mx.Dtype,
        steps: float | Sequence[float] = STEP,
        limit: int = COORDINATES,
        *,
        seed: int = 0,
        rtol: float | None = None,
        atol: float = 0.0,
        advice: Remedy = SAMPLES,
    ) -> None:
        whole = Function.of(fn, len(args))
        self.args = [a.astype(dtype) if is_float(a) else a for a in args]
        self.dtype = dtype
        self.steps = list(steps) if isinstance(steps, Sequence) else [steps] * len(args)
        self.limit, self.seed, self.given_rtol, self.atol = limit, seed, rtol, atol
        self.advice = advice
        self.rng = np.random.default_rng((len(args), seed))
        every = whole(*self.args)
        kept = [i for i, out in enumerate(every) if is_inexact(out)]

        def inexact(*values: mx.array) -> Arrays:
            outputs = whole(*values)
            return [outputs[i] for i in kept]

        names = tuple(whole.output(i) for i in kept)
        self.fn = replace(whole, call=inexact, outputs=names)
        self.outputs = [every[i] for i in kept]
        # complex64 is MLX's only complex dtype.
        complexes = any(a.dtype == mx.complex64 for a in (*self.args, *self.outputs))
        self.precision = mx.float32 if complexes else dtype
        self.rtol = RTOL[self.precision] if rtol is None else rtol
        self.flat = flat_of(self.outputs)
        # With infinite arguments there is no reference for the outputs.
        self.is_finite = whole.is_finite and all(np.isfinite(to_numpy(a)).all() for a in self.args)
        self._jacobians: dict[int, Jacobian] = {}
        if self.is_finite:
            self._require_finite()

    def _require_finite(self) -> None:
        """Require finite outputs; elements of a mask are infinite next to the arguments, too."""
        wrong = ~np.isfinite(self.flat)
        if wrong.any() and not wrong.all() and not np.isnan(self.flat).any():
            pairs = [*zip(self.args, self.steps, strict=True)]
            for sign in (1, -1):
                near = [a + sign * step if is_inexact(a) else a for a, step in pairs]
                wrong &= flat_of(self.fn(*near)) != self.flat
        if wrong.any():
            element = _output_element(self, int(np.flatnonzero(wrong)[0]))
            value = f"{self.flat[wrong][0]}"
            text = f"{element} is {value}: the function cannot be differentiated here"
            hint = self.advice.outside
            raise Mismatch(self.fn.op, text, "", element, value, "a finite number", hint)

    def another(self, fn: Function, args: Arrays, steps: Sequence[float], limit: int) -> Point:
        """Return the point of another function with the same settings."""
        options: dict[str, Any] = {"seed": self.seed, "rtol": self.given_rtol, "atol": self.atol}
        return Point(fn, args, self.dtype, steps, limit, advice=self.advice, **options)

    def argnums(self, given: Iterable[int] | None) -> list[int]:
        """Return the requested arguments; by default all inexact ones."""
        every = [i for i, a in enumerate(self.args) if is_inexact(a)]
        return every if given is None else list(given)

    def comparable(self, got: Floats, wanted: Floats) -> Floats:
        """Return derivatives; those that infinite arguments make infinite or NaN count as right."""
        if self.is_finite:
            return got
        return np.where(np.isfinite(got) & np.isfinite(wanted), got, wanted)

    def random(self, like: mx.array) -> Floats:
        """Return numbers of both signs and of moderate size; 0 where `like` is infinite."""
        flat = flat_of([like])
        values = self.rng.uniform(0.5, 1.5, flat.shape) * self.rng.choice([-1, 1], flat.shape)
        return np.where(np.isfinite(flat), values, 0)

    def probes(self, likes: Sequence[mx.array], what: str) -> list[Probe]:
        """Return cotangents or tangents; a linear function scales with each of them."""
        plain = [self.random(like) for like in likes]
        sparse = []
        for values in plain:
            kept: Any = self.rng.random(values.shape) < 0.5
            for keeps in (True, False) if values.size else ():
                kept[self.rng.integers(values.size)] = keeps
            sparse.append(np.where(kept, values, 0))
        return [
            Probe("", plain),
            Probe(f" with zeros in the {what}", sparse),
            Probe(f" with a {what} of 1000 times the size", [1e3 * v for v in plain]),
            Probe(f" with a {what} of 0.001 times the size", [1e-3 * v for v in plain]),
        ]

    def element(self, argnum: int, coordinate: int) -> str:
        """Return the name of an element of an argument."""
        a = self.args[argnum]
        parts = 2 if a.dtype == mx.complex64 else 1
        name = element_of(self.fn.arg(argnum), a, coordinate // parts)
        return name + ("", ".imag")[coordinate % parts]

    # -------------------------------------------------------------------------- differences

    def jacobian(self, argnum: int) -> Jacobian:
        """Return the difference quotients of an argument, which are computed once."""
        if argnum not in self._jacobians:
            self._jacobians[argnum] = self._jacobian(argnum)
        return self._jacobians[argnum]

    def _jacobian(self, argnum: int) -> Jacobian:
        base = flat_of([self.args[argnum]])
        chosen = self.rng.permutation(base.size)[: self.limit]
        at = sorted(chosen[np.isfinite(base[chosen])].tolist())
        quotients = [self._settled(argnum, i) for i in at]
        tolerance = RTOL[self.precision]
        direction = None
        if base.size > self.limit and self.is_finite:
            # The derivative along a direction reveals errors in elements that are not chosen.
            toward = self.rng.uniform(0.5, 1, base.shape) * self.rng.choice([-1, 1], base.shape)
            along = self._settled(argnum, toward)
            if along.unsettled <= SETTLED * tolerance:
                direction = toward
                quotients.append(along)
        rough = [q.unsettled > ROUGH * tolerance for q in quotients]
        if not quotients:
            none = np.zeros((0, self.flat.size))
            return Jacobian(at, direction, none, none, [])
        rows = np.stack([q.values for q in quotients])
        noise = self._noise(argnum, at, quotients)
        return Jacobian(at, direction, rows, self.rtol * np.abs(rows) + noise + self.atol, rough)

    def _settled(self, argnum: int, move: int | Floats) -> _Quotient:
        """Return a quotient with the step for which the two orders agree, or agree best."""
        step = self.steps[argnum]
        best = self._quotient(argnum, move, step)
        if not self.is_finite:
            return best
        for attempt in range(1, ATTEMPTS):
            if best.unsettled <= SETTLED * RTOL[self.precision]:
                break
            found = self._quotient(argnum, move, step / 10**attempt)
            best = found if found.unsettled < best.unsettled else best
        if math.isinf(best.unsettled) and isinstance(move, int):
            element = self.element(argnum, move)
            value = f"{flat_of([self.args[argnum]])[move]:.6g}"
            text = f"the function is not finite next to {element} = {value}"
            raise Mismatch(self.fn.op, text, self.fn.arg(argnum), element, hint=self.advice.edge)
        return best

    def _moved(self, argnum: int, move: int | Floats, by: Sequence[float]) -> list[Floats]:
        """Return the outputs with an element, or all along a direction, moved by these steps."""
        like = self.args[argnum]
        base = flat_of([like])
        found = []
        for length in by:
            values = base.copy()
            if isinstance(move, int):
                values[move] += length
            else:
                values += length * move
            found.append(self.fn(*replaced(self.args, [argnum], [unflat(values, like)])))
        mx.eval(found)  # all at once
        return [flat_of(outputs) for outputs in found]

    def _quotient(self, argnum: int, move: int | Floats, step: float) -> _Quotient:
        outputs = self.flat
        same = ~np.isfinite(outputs)
        values, shorter, sizes = (np.zeros_like(outputs) for _ in range(3))
        signs = [sign * k for k in range(1, len(STENCIL) + 1) for sign in (1, -1)]
        moved = self._moved(argnum, move, [sign * step for sign in signs])
        for sign, out in zip(signs, moved, strict=True):
            k = abs(sign) - 1
            out[same & _equal(out, outputs)] = 0
            with np.errstate(invalid="ignore"):  # infinite, but finite before the move
                along = out / step if sign > 0 else -out / step
                values += STENCIL[k] * along
                shorter += SHORTER[k] * along
            sizes = np.maximum(sizes, np.abs(out))
        with np.errstate(invalid="ignore"):
            return _Quotient(values, np.abs(values - shorter), sizes, step)

    def _noise(self, argnum: int, at: Sequence[int], quotients: Sequence[_Quotient]) -> Floats:
        """Estimate the errors of quotients by the function's rounding, rows x outputs."""
        tolerance = RTOL[self.precision]
        settled = [q for q in quotients if q.unsettled <= SETTLED * tolerance]
        level = 0.03 * float(mx.finfo(self.precision).eps)  # relative to an output, times the step
        each = np.zeros(quotients[0].sizes.shape)  # of each output, times the step
        count = 0

        def measure(q: _Quotient) -> None:
            nonlocal level, each, count
            moved = (q.values != 0) & (q.sizes > 0) & np.isfinite(q.values)
            errors = np.where(moved, q.errors * q.step, 0)
            level = max(level, float((errors[moved] / q.sizes[moved]).max(initial=0)))
            each = np.maximum(each, errors)
            count += int(moved.sum())

        for q in settled:
            measure(q)
        # A few numbers may be small by chance: further steps give more numbers.
        for i, shrink in itertools.product(at if count < ENOUGH else (), (0.93, 0.85, 0.77, 0.71)):
            if 0 < count < ENOUGH:
                measure(self._quotient(argnum, i, settled[0].step * shrink))
        noise = []
        for q in quotients:
            most = tolerance * q.sizes
            with np.errstate(invalid="ignore"):
                if q.unsettled > ROUGH * tolerance:
                    found = np.minimum(NOISE * q.errors, most)
                else:
                    common = np.minimum(NOISE * level * q.sizes / q.step, most)
                    found = np.maximum(common, NOISE * np.maximum(each / q.step, q.errors))
            # An output that did not change has no noise either.
            noise.append(np.where(q.values != 0, found, 1e-6 * most))
        return np.stack(noise)

    def is_kink(self, argnum: int, coordinate: int, flat: Floats) -> bool:
        """Return true if the one-sided derivatives differ for all small steps."""
        with np.errstate(invalid="ignore"):
            jumps = []
            for step in (self.steps[argnum] / 10, self.steps[argnum] / 80):
                right, left = self._moved(argnum, coordinate, [step, -step])
                bend = np.where(np.isfinite(self.flat), right + left - 2 * self.flat, 0)
                jumps.append(abs(bend @ flat) / step)
        return bool(jumps[1] > max(0.5 * jumps[0], 1e-2 * np.abs(flat).max(initial=0)))


def flat_of(arrays: Sequence[mx.array]) -> Floats:
    """Return all numbers of some arrays; complex numbers count as two."""
    parts = [np.ascontiguousarray(to_numpy(a)).reshape(-1).view(np.float64) for a in arrays]
    return np.concatenate([np.zeros(0), *parts])


def unflat(flat: Floats, like: mx.array) -> mx.array:
    """Return the array with these numbers."""
    if like.dtype == mx.complex64:
        return mx.array(flat.view(np.complex128).astype(np.complex64).reshape(like.shape))
    return mx.array(flat.reshape(like.shape), dtype=like.dtype)


def _equal(a: Floats, b: Floats) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def pullback(fn: Callable[..., Any], args: Sequence[mx.array], argnums: Sequence[int]) -> Function:
    """Return the vjp as a function of arrays: all arguments, then a cotangent per output."""
    whole = Function.of(fn, len(args))

    def call(*values: mx.array) -> Arrays:
        primals = values[: len(args)]
        gradients = mx.vjp(
            lambda *v: whole(*replaced(primals, argnums, v)),
            [primals[i] for i in argnums],
            list(values[len(args) :]),
        )[1]
        # MLX's vjp and vmap are wrong for functions that return the same array twice.
        return [g + 0 for g in gradients]

    cotangents = tuple(f"cotangent of {name}" for name in whole.outputs)
    gradients = tuple(f"the gradient of {whole.arg(i)}" for i in argnums)
    names = (*whole.args, *cotangents)
    return replace(whole, call=call, op=f"vjp of {whole.op}", args=names, outputs=gradients)


# The vjp ------------------------------------------------------------------------------------------


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
        argnums: The arguments to differentiate; all floating and complex ones by default.
        step: Step of the differences, or one per argument.
        dtype: The dtype of the computation: float64, or float32 for functions without float64.
        limit: Elements of each argument that are moved (a random choice if there are more).

    Raises:
        AssertionError: A gradient has the wrong shape, dtype or value, or is not linear in the
            cotangent.
    """
    __tracebackhide__ = True
    with mx.stream(mx.cpu):
        point = Point(fn, args, dtype, step, limit)
        compare_vjp(point, point.argnums(argnums))


def compare_vjp(point: Point, chosen: Sequence[int]) -> None:
    """Run ``check_vjp`` for a point."""
    __tracebackhide__ = True
    args = point.args
    probes = point.probes(point.outputs, "cotangent")
    for subset in subsets(chosen):
        pull = pullback(point.fn, args, subset)
        together = f" (argnums {tuple(subset)})" * (len(subset) > 1)
        pulled = [pull(*args, *_unflat_all(probe.values, point.outputs)) for probe in probes]
        mx.eval(pulled)  # all at once
        for probe, gradients in zip(probes, pulled, strict=True):
            flat = np.concatenate([np.zeros(0), *probe.values])
            for i, gradient in zip(subset, gradients, strict=True):
                name = point.fn.arg(i)
                what = f"vjp of '{name}'{together}{probe.text}"
                of = f"{what}: the gradient"
                require_like(gradient, args[i], point.fn, of, "for the argument", name)
                _compare_gradient(point, i, gradient, flat, what, probe is probes[0])
        for i in subset if point.is_finite else ():
            _nan_cotangent(point, pull, subset, i, probes[0], together)


def _unflat_all(values: Sequence[Floats], likes: Sequence[mx.array]) -> Arrays:
    return [unflat(v, like) for v, like in zip(values, likes, strict=True)]


def _compare_gradient(
    point: Point, i: int, gradient: mx.array, flat: Floats, what: str, plain: bool
) -> None:
    __tracebackhide__ = True
    jacobian = point.jacobian(i)
    wanted = jacobian.rows @ flat
    tolerance = jacobian.tolerances @ np.abs(flat)
    got = point.comparable(jacobian.of(flat_of([gradient])), wanted)

    def where(worst: int) -> Place:
        if worst >= len(jacobian.at):
            text = f"{what}: the derivative along a random direction in '{point.fn.arg(i)}'"
            return Place(text, point.fn.arg(i), "(all)")
        element = point.element(i, jacobian.at[worst])
        value = flat_of([point.args[i]])[jacobian.at[worst]]
        return Place(f"{what}: the gradient at {element} = {value:.6g}", point.fn.arg(i), element)

    def hint(worst: int) -> str:
        if worst < len(jacobian.at) and (
            jacobian.rough[worst] or point.is_kink(i, jacobian.at[worst], flat)
        ):
            return point.advice.kink
        if not plain:
            return "another cotangent gives the right result; a vjp must be linear in the cotangent"
        return _relation(got, wanted, tolerance) or _transposed(
            point.args[i], jacobian, got, wanted, tolerance
        )

    require_close(got, wanted, tolerance, point.fn, where, DIFFERENCES, hint)


def _relation(got: Floats, wanted: Floats, tolerance: Floats) -> str:
    """Describe a property that all wrong numbers share, or return ""."""
    with np.errstate(all="ignore"):
        if not np.isfinite(got).all() or not np.isfinite(wanted).all():
            return ""
        if not got.any():
            return "all are 0: the gradient was lost"
        factor = float(got @ wanted / (wanted @ wanted))
        near = np.abs(got - factor * wanted) <= 3 * max(1, abs(factor)) * tolerance
        if np.count_nonzero(np.abs(wanted) > 10 * tolerance) < 2 or not near.all():
            return ""
    return f"all are {factor:.4g} times the expected values"


def _transposed(
    x: mx.array, jacobian: Jacobian, got: Floats, wanted: Floats, tolerance: Floats
) -> str:
    if x.ndim == 2 and x.shape[0] == x.shape[1] and len(jacobian.at) == x.size == got.size:
        other = got.reshape(x.shape).T.ravel()
        if (np.abs(other - wanted) <= 3 * tolerance).all():
            return "it is transposed"
    return ""


def _nan_cotangent(
    point: Point,
    pull: Function,
    subset: Sequence[int],
    i: int,
    probe: Probe,
    together: str,
) -> None:
    """Check that a NaN in the cotangent propagates to gradients with a nonzero derivative."""
    __tracebackhide__ = True
    jacobian = point.jacobian(i)
    strong = np.abs(jacobian.rows) > 10 * jacobian.tolerances
    if not strong.any():
        return
    output = int(point.rng.choice(np.flatnonzero(strong.any(axis=0))))
    flat = np.concatenate(probe.values)
    flat[output] = np.nan
    values = np.split(flat, np.cumsum([v.size for v in probe.values])[:-1])
    gradients = pull(*point.args, *_unflat_all(values, point.outputs))
    got = flat_of([gradients[list(subset).index(i)]])
    name = point.fn.arg(i)
    for row, coordinate in enumerate(jacobian.at):
        if strong[row, output] and np.isfinite(got[coordinate]):
            element = point.element(i, coordinate)
            text = (
                f"vjp of '{name}'{together} with a NaN in the cotangent: the gradient at {element} "
                f"is {got[coordinate]:.9g}, but must be nan: a vjp is linear in the cotangent"
            )
            number = f"{got[coordinate]:.9g}"
            hint = "a NaN must propagate"
            raise Mismatch(point.fn.op, text, name, element, number, "nan", hint)


def require_finite(fn: Callable[..., Any], args: Sequence[mx.array], dtype: mx.Dtype) -> None:
    """Check that a function is finite at the arguments at which it is differentiated.

    Raises:
        AssertionError: An output is NaN, or all are infinite, though the arguments are finite.
    """
    with mx.stream(mx.cpu):
        Point(fn, args, dtype)


# The jvp ------------------------------------------------------------------------------------------


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

    The arguments are those of ``check_vjp``.

    Raises:
        AssertionError: The tangent of an output has the wrong shape, dtype or value, or is not
            linear in the tangents of the arguments.
    """
    __tracebackhide__ = True
    with mx.stream(mx.cpu):
        point = Point(fn, args, dtype, step, limit)
        compare_jvp(point, point.argnums(argnums))


def compare_jvp(point: Point, chosen: Sequence[int]) -> None:
    """Run ``check_jvp`` for a point."""
    __tracebackhide__ = True
    args = point.args
    jacobians = {i: point.jacobian(i) for i in chosen}
    probes = point.probes([args[i] for i in chosen], "tangent")
    for subset in subsets(chosen):
        along = ", ".join(f"'{point.fn.arg(i)}'" for i in subset)
        alone = jacobians[subset[0]].direction if len(subset) == 1 else None
        for probe in probes:
            tangents = {}
            wanted = tolerance = np.zeros(point.flat.size)
            for i in subset:
                jacobian, at = jacobians[i], jacobians[i].at
                values = np.zeros_like(probe.values[chosen.index(i)])
                values[at] = probe.values[chosen.index(i)][at]
                tangents[i] = values
                rows = slice(len(at))
                wanted = wanted + values[at] @ jacobian.rows[rows]
                tolerance = tolerance + np.abs(values[at]) @ jacobian.tolerances[rows]
            _compare_tangents(point, subset, tangents, wanted, tolerance, along, probe.text)
        if alone is not None:
            (i,) = subset
            row = jacobians[i].rows[-1], jacobians[i].tolerances[-1]
            _compare_tangents(point, subset, {i: alone}, *row, along, "")
        for i in subset if point.is_finite else ():
            _nan_tangent(point, subset, i, along)


def _tangents(point: Point, subset: Sequence[int], given: dict[int, Floats]) -> Arrays:
    args = point.args

    def restricted(*values: mx.array) -> Arrays:
        return point.fn(*replaced(args, subset, values))

    tangents = [unflat(given[i], args[i]) for i in subset]
    return list(mx.jvp(restricted, [args[i] for i in subset], tangents)[1])


def _compare_tangents(
    point: Point,
    subset: Sequence[int],
    given: dict[int, Floats],
    wanted: Floats,
    tolerance: Floats,
    along: str,
    special: str,
) -> None:
    __tracebackhide__ = True
    jvps = _tangents(point, subset, given)
    what = f"jvp along {along}{special}"
    names = ", ".join(point.fn.arg(i) for i in subset)
    for k, (out, jvp) in enumerate(zip(point.outputs, jvps, strict=True)):
        of = f"{what}: the tangent of {point.fn.output(k)}"
        require_like(jvp, out, point.fn, of, "for the output", names)

    def where(worst: int) -> Place:
        element = _output_element(point, worst)
        return Place(f"{what}: the tangent of {element}", names, element)

    def hint(worst: int) -> str:
        if special:
            return "another tangent gives the right result; a jvp must be linear in the tangent"
        return _relation(got, wanted, tolerance)

    got = np.where(np.isfinite(point.flat), flat_of(jvps), wanted)
    got = point.comparable(got, wanted)
    require_close(got, wanted, tolerance, point.fn, where, DIFFERENCES, hint)


def _output_element(point: Point, coordinate: int) -> str:
    for k, out in enumerate(point.outputs):
        parts = 2 if out.dtype == mx.complex64 else 1
        if coordinate < parts * out.size:
            name = element_of(point.fn.output(k), out, coordinate // parts)
            return name + ("", ".imag")[coordinate % parts]
        coordinate -= parts * out.size
    raise IndexError(coordinate)


def _nan_tangent(point: Point, subset: Sequence[int], i: int, along: str) -> None:
    """Check that a NaN in a tangent propagates to the outputs that depend on it."""
    __tracebackhide__ = True
    jacobian = point.jacobian(i)
    count = len(jacobian.at)
    strong = np.abs(jacobian.rows[:count]) > 10 * jacobian.tolerances[:count]
    if not strong.any():
        return
    row = int(point.rng.choice(np.flatnonzero(strong.any(axis=1))))
    given = {j: point.random(point.args[j]) for j in subset}
    given[i][jacobian.at[row]] = np.nan
    got = flat_of(_tangents(point, subset, given))
    wrong = np.flatnonzero(strong[row] & np.isfinite(got))
    if wrong.size:
        element = _output_element(point, int(wrong[0]))
        number = f"{got[wrong[0]]:.9g}"
        text = (
            f"jvp along {along} with a NaN in the tangent of '{point.fn.arg(i)}': the tangent of "
            f"{element} is {number}, but must be nan: a jvp is linear in the tangent"
        )
        hint = "a NaN must propagate"
        raise Mismatch(point.fn.op, text, point.fn.arg(i), element, number, "nan", hint)


# The second derivative ----------------------------------------------------------------------------


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

    The arguments are those of ``check_vjp``, and the arguments in which gradients are
    differentiated; by default the same.

    Raises:
        AssertionError: As from ``check_vjp``; the message calls the operator "vjp of ...".
    """
    __tracebackhide__ = True
    with mx.stream(mx.cpu):
        point = Point(fn, args, dtype, step)
        compare_second(point, point.argnums(argnums), within, limit)


def compare_second(
    point: Point, chosen: Sequence[int], within: Iterable[int] | None = None, limit: int = 12
) -> None:
    """Run ``check_second`` for a point."""
    __tracebackhide__ = True
    count = len(point.args) + len(point.outputs)
    cotangents = [unflat(point.random(out), out) for out in point.outputs]
    given = [*point.args, *cotangents]
    steps = [*point.steps, *[STEP] * len(point.outputs)]
    pull = point.another(pullback(point.fn, point.args, chosen), given, steps, limit)
    inner = chosen if within is None else within
    compare_vjp(pull, [*inner, *range(len(point.args), count)])


def check_not_differentiable(fn: Callable[..., Any], args: Sequence[mx.array], argnum: int) -> None:
    """Check that differentiating an argument raises an error that names operator and argument.

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
            if part not in str(error):
                raise Mismatch(whole.op, f"vjp of '{name}': no {part} in: {error}") from None
        return
    raise Mismatch(whole.op, f"vjp of '{name}': no error, although it is not differentiable")
