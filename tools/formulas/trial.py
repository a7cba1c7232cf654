"""Tests if the samples of a file kill a mutant of one of its formulas.

The checks are those that are generated with a package. They test functions whose gradients are
evaluated in Python. Finite differences take most of the time; they do not depend on the mutated
formula, and are computed once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import unittest.mock
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen import testing
from mlxgen.model.kinds import Kind
from mlxgen.model.op import GradKind, Op
from mlxgen.render.python import check_samples, op_dict
from mlxgen.testing import cases
from mlxgen.testing.cases import Case, Subject
from mlxgen.testing.derivatives import Jacobian, Point, flat_of, unflat

from .mutants import Mutant, mutants
from .operators import Operators, gradient_names

CHECKS: dict[str, Callable[[Subject], None]] = {
    "vjp": cases._check_vjp,
    "jvp": cases._check_jvp,
    "second": cases._check_second,
}
"""The generated checks that depend on formulas most directly."""

DENSE = 400
"""Random arguments for which an equivalent formula must return the same."""


@dataclass(frozen=True)
class Formula:
    """A formula of a gradient or jvp, and its location."""

    op: Op
    args: str  # the arguments whose gradients it defines
    text: str
    is_jvp: bool = False
    joint: bool = False

    @property
    def place(self) -> str:
        """The description of its location."""
        return f"{self.op.name}: {'jvp' if self.is_jvp else 'grad'} of {self.args}"

    def mutants(self) -> list[Mutant]:
        """Return the mutants of the formula."""
        names = [p.name for p in self.op.arguments.arrays if not (p.is_list or p.integral)]
        outputs = [o.name for o in self.op.outputs]
        alike = [names]
        if self.is_jvp:
            alike[0].append("tangent")
        elif len(outputs) > 1:
            alike += [[f"grad_{o}" for o in outputs], [f"result_{o}" for o in outputs]]
        else:
            alike[0] += ["grad", "result"]
        kinds = {(p.type.kind, p.type.choices) for p in self.op.arguments.attributes}
        for kind in kinds:
            alike.append(
                [
                    p.name
                    for p in self.op.arguments.attributes
                    if (p.type.kind, p.type.choices) == kind
                ]
            )
        return mutants(self.text, alike, self.joint)


def formulas(operators: Operators) -> list[Formula]:
    """Return all formulas of gradients and jvps of a file."""
    found = []
    for op in operators.ops.values():
        for grad in op.derivatives.grads:
            if grad.kind is GradKind.FORMULA:
                args = ", ".join(p.name for p in grad.params)
                found.append(Formula(op, args, grad.text, joint=grad.joint))
        for arg, text in operators.jvps.get(op.name, {}).items():
            found.append(Formula(op, arg, text, is_jvp=True))
    return found


class Trial:
    """The generated checks of all operators, for use with mutated formulas."""

    def __init__(
        self,
        operators: Operators,
        points: Sequence[Mapping[str, Any]] = (),
        skipped: Collection[str] = (),
    ) -> None:
        self.operators = operators
        self.points = points  # known gradients: of `op` with respect to its arrays, `at` numbers
        self.skipped = skipped  # operators whose gradients are neither mutated nor checked
        self.subjects: dict[str, list[Subject]] = {}
        for op in operators.ops.values():
            function, about = operators.functions[op.name], op_dict(op)
            self.subjects[op.name] = [
                Subject(None, about, Case(function, sample), number)  # type: ignore[arg-type]
                for number, sample in enumerate(check_samples(op))
                if ("internal" not in op.entry.tags or op.entry.samples) and op.name not in skipped
            ]
            for subject in self.subjects[op.name]:  # its composite is evaluated as the function
                vars(subject)["reference"] = None
        self._killers: dict[tuple[str, str, int], Subject] = {}  # by check, operator and sample
        self._differences: dict[Any, Jacobian] = {}
        self.gradient_calls = {op.name: set(_called(op)) for op in operators.ops.values()}
        self.composite_calls = {
            op.name: set(op.forward.expr.ops if op.forward.expr and _is_composed(op) else ())
            for op in operators.ops.values()
        }
        evaluated = {
            op.name: set(
                op.forward.expr.ops if op.forward.expr and not operators.calls_package(op) else ()
            )
            for op in operators.ops.values()
        }
        calls = [self.gradient_calls, evaluated]
        # For each operator, the functions unknown to Python, which smooth functions replace.
        self.guessed = {op: _all(op, calls) & operators.unknown for op in operators.ops}

    def wrongly_skipped(self) -> Iterator[str]:
        """Yield skipped names that are not operators, or that depend on nothing unknown."""
        for name in self.skipped:
            if not self.guessed.get(name):
                yield name

    def broken(self, ops: Collection[str] = ()) -> Iterator[str]:
        """Yield the failures without a mutant, of the checks that have killed one so far."""
        for (check, _, _), subject in self._killers.items():
            if problem := self._run(check, subject):
                yield problem
        for point in self._points_of(ops or self.operators.ops):
            if problem := self._wrong_at(point):
                yield problem

    def notices(self, formula: Formula, mutant: Mutant) -> bool:
        """Return true if a check fails with the mutant."""
        self.operators.changed = {(formula.op.name, formula.text): mutant.text}
        try:
            for check, subject in self._concerned(formula):
                if self._run(check, subject):
                    self._killers[check, subject.op["name"], subject.number] = subject
                    return True
            return any(map(self._wrong_at, self._points_of(self._direct(formula))))
        finally:
            self.operators.changed = {}

    def _concerned(self, formula: Formula) -> Iterator[tuple[str, Subject]]:
        """Yield the checks that call a formula, the most effective first."""
        name = formula.op.name
        if formula.is_jvp:
            yield from (("jvp", s) for s in self.subjects[name])
            return
        direct = self._direct(formula)
        for op in direct:
            yield from (("vjp", s) for s in self.subjects[op])
        for op in set(self.operators.ops) - set(direct):
            inner = set().union(*(self.gradient_calls[part] for part in self._composed(op)))
            if any(name in self._composed(part) for part in inner):
                yield from (("second", s) for s in self.subjects[op])

    def _direct(self, formula: Formula) -> list[str]:
        """Return the operators whose gradients call a formula of one."""
        return [op for op in self.operators.ops if formula.op.name in self._composed(op)]

    def _points_of(self, ops: Collection[str]) -> list[Mapping[str, Any]]:
        return [point for point in self.points if point["op"] in ops]

    def _wrong_at(self, point: Mapping[str, Any]) -> str:
        """Describe the error of a gradient at a point, or return ""."""
        function = self.operators.functions[point["op"]]
        with mx.stream(mx.cpu):
            primals = [mx.array(x, dtype=mx.float32) for x in point["at"]]
            try:
                got = [mx.grad(function, argnums=i)(*primals).item() for i in range(len(primals))]
            except Exception as error:
                return str(error)
        if np.allclose(got, point["gradient"], 1e-5, 0):
            return ""
        return f"{point['op']} at {point['at']}: the gradient is {got}, not {point['gradient']}"

    def _composed(self, name: str) -> set[str]:
        """Return an operator and those in its composite, which are differentiated with it."""
        return _all(name, [self.composite_calls])

    def _run(self, check: str, s: Subject) -> str:
        """Return the error of a check, or ""."""
        try:
            with self._remembered(f"{check} {s.path} {s.number}", bool(self.guessed[s.op["name"]])):
                CHECKS[check](s)
        except Exception as error:
            return f"{s.path}, sample {s.number}, {check}: {error}"
        return ""

    @contextmanager
    def _remembered(self, key: str, guessed: bool) -> Iterator[None]:
        """Compute the finite differences only once for each check.

        They are differences of the function, or of a gradient by its operator's own formulas. The
        mutated formula is neither of these in the checks of `_concerned`. If the function is
        unknown (``guessed``), the unchanged formulas replace the differences.
        """
        compute = _by_formulas if guessed else Point._jacobian

        def jacobian(point: Point, argnum: int) -> Jacobian:
            place = (key, point.fn.args, point.fn.outputs, argnum, point.limit, tuple(point.steps))
            if place not in self._differences:
                changed, self.operators.changed = self.operators.changed, {}
                self._differences[place] = compute(point, argnum)
                self.operators.changed = changed
            return self._differences[place]

        with unittest.mock.patch.object(Point, "_jacobian", jacobian):
            yield

    # Equivalent formulas

    def equivalent(self, formula: Formula, mutant: Mutant) -> bool:
        """Return true if a mutant equals the formula for all tested arguments.

        These are numbers of every size, zero, one, infinities, NaN, and equal arguments, for every
        sample's attributes and shapes, and for all choices of strings.
        """
        samples = check_samples(formula.op) or [{}]
        tried = False
        for sample in samples:
            for values in self._dense(formula, sample):
                try:
                    wanted = self._value(formula, formula.text, values)
                except Exception:
                    continue
                tried = True
                try:
                    got = self._value(formula, mutant.text, values)
                except Exception:
                    return False
                if not _same(got, wanted):
                    return False
        return tried

    def _value(self, formula: Formula, text: str, values: Mapping[str, Any]) -> Any:
        with mx.stream(mx.cpu):
            found = self.operators.evaluated(formula.op, text, dict(values))
            found = list(found) if isinstance(found, list | tuple) else [found]
            mx.eval(found)
        return found

    def _dense(self, formula: Formula, sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield values of all names that a formula can use."""
        op = formula.op
        given = Subject(None, op_dict(op), Case(_nothing, sample), 0)  # type: ignore[arg-type]
        shapes = [slot.shape for slot in given.slots]
        for attributes in _attributes(op, sample):
            for seed, long in itertools.product(range(3), (True, False)):
                rng = np.random.default_rng(seed)
                arrays = [
                    _numbers(rng, (DENSE,) if long else shape, slot.dtype or mx.float64)
                    for slot, shape in zip(given.slots, shapes, strict=True)
                ]
                values = {**dict.fromkeys(p.name for p in op.arguments.arrays), **attributes}
                values |= {k: v for k, v in given.keywords(arrays).items() if k not in attributes}
                with contextlib.suppress(Exception), mx.stream(mx.cpu):
                    results = self.operators.functions[op.name](**values)
                    results = list(results) if isinstance(results, list | tuple) else [results]
                    grads = [_numbers(rng, out.shape, out.dtype) for out in results]
                    tangents = [a for a in arrays if a.dtype == mx.float64]
                    values["tangent"] = _numbers(rng, tangents[0].shape, mx.float64)
                    yield values | gradient_names(op, grads, results)


def _nothing(**_: Any) -> None:
    raise NotImplementedError


def _attributes(op: Op, sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the other arguments: those of the sample, and all choices."""
    listed = []
    for p in op.arguments.attributes:
        usual = {Kind.INT: (0, 1, 2, 3), Kind.FLOAT: (0.7, -1.3)}.get(p.type.kind, ())
        default = (p.arg.default.value,) if p.arg.default else ()
        known = [sample[p.name]] if p.name in sample else [*default, *usual]
        known += [*p.type.choices, *((True, False) if p.type.kind is Kind.BOOL else ())]
        listed.append(list(dict.fromkeys(known)))
    for values in itertools.product(*listed):
        yield dict(zip((p.name for p in op.arguments.attributes), values, strict=True))


def _numbers(rng: np.random.Generator, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Return numbers of all sizes, and special ones."""
    if not mx.issubdtype(dtype, mx.inexact):
        return mx.array(rng.integers(-2, 7, shape), dtype=dtype)
    size = math.prod(shape)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan, 1e-300, 1e300]
    pools = (
        rng.normal(size=size),
        rng.uniform(0, 1, size),
        10 ** rng.uniform(-6, 2, size) * rng.choice([-1, 1], size),
        rng.choice(special if size == DENSE else special[:5], size),
    )
    return mx.array(np.choose(rng.integers(0, 4, size), pools).reshape(shape), dtype=dtype)


def _numpy(value: Any) -> Any:
    """Return an array, or the number that a formula of numbers alone gives."""
    return testing.to_numpy(value) if isinstance(value, mx.array) else np.asarray(value)


def _same(got: Sequence[mx.array], wanted: Sequence[mx.array]) -> bool:
    pairs = zip(got, wanted, strict=True)
    return len(got) == len(wanted) and all(
        a.shape == b.shape and np.allclose(a, b, 1e-9, 0, equal_nan=True)
        for a, b in ((_numpy(a), _numpy(b)) for a, b in pairs)
    )


def _by_formulas(point: Point, argnum: int) -> Jacobian:
    """Return the result of `Point._jacobian`, from the vjp instead of differences."""
    chosen = point.rng.permutation(point.args[argnum].size)[: point.limit]
    at = sorted(chosen.tolist())
    pull = testing.pullback(point.fn, point.args, [argnum])
    columns = []
    for unit in np.eye(point.flat.size):
        parts = np.split(unit, np.cumsum([out.size for out in point.outputs])[:-1])
        cotangents = [unflat(part, out) for part, out in zip(parts, point.outputs, strict=True)]
        columns.append(flat_of(pull(*point.args, *cotangents))[at])
    rows = np.array(columns).T
    sizes = np.where(rows != 0, np.abs(point.flat), 1e-6 * np.abs(point.flat))
    return Jacobian(at, None, rows, point.rtol * (np.abs(rows) + sizes), [False] * len(at))


def _is_composed(op: Op) -> bool:
    """Return true if an operator is differentiated through its composite."""
    return not op.has_primitive or any(g.kind is GradKind.COMPOSITE for g in op.derivatives.grads)


def _all(name: str, calls: Sequence[Mapping[str, set[str]]]) -> set[str]:
    """Return an operator and all that it calls, directly or indirectly."""
    found: set[str] = set()
    pending = [name]
    while pending:
        part = pending.pop()
        if part not in found:
            found.add(part)
            pending += [called for kind in calls for called in kind[part]]
    return found


def _called(op: Op) -> set[str]:
    """Return the entries that an operator's gradients call."""
    return {name for g in op.derivatives.grads if g.expr for name in g.expr.ops}
