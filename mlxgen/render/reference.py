"""The facts of the operator reference, for docstrings and other documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..model.dtypes import ACCUMULATOR, DTYPES
from ..model.languages import Package
from ..model.numbers import ArrayFacts, Impossible, evaluated
from ..model.op import GradKind, Integers, Op, shown_axes
from ..model.signature import Arg, Kind
from .cpp import mode_text
from .example import example

# Facts about an array: words and code, such as " of shape " and "(B, T)".
Facts = Sequence[tuple[str, str]]

SUMS = "float32, or float64 if another argument is float64"
INTEGERS = {Integers.FLOAT32: "integers become float32", Integers.ERROR: "integers are errors"}


class DocumentedArgument(NamedTuple):
    """An argument with its documentation."""

    name: str
    type: str  # in Python; "array" or "list(array)" for arrays
    is_array: bool
    shape: str  # such as "(B, T)"; empty if the entry names no axes
    facts: Facts
    optional: bool
    default: str  # in Python; empty without one, and for None
    text: str


def arguments(op: Op) -> list[DocumentedArgument]:
    """Return the arguments of an operator."""
    return [documented(op, arg) for arg in op.signature.declared]


def documented(op: Op, arg: Arg) -> DocumentedArgument:
    """Return the documentation of one argument."""
    type, default = arg.type, arg.default
    given = default is not None and default.value is not None
    array = "list(array)" if type.kind is Kind.ARRAYS and not type.variadic else "array"
    of_arrays = type.is_array and not type.is_union
    text = mode_text(arg) or ("Input array." if of_arrays else "")
    text = "Input array, or one of these strings." if type.is_union else text
    shape, any_shape = _shape(op, arg.name), op.broadcasts and type.is_array
    return DocumentedArgument(
        name=arg.name,
        type=array if of_arrays else type.python,
        is_array=of_arrays,
        shape=shape,
        facts=[(" of shape ", shape)] if shape else [(" of any shape", "")] * any_shape,
        optional=default is not None or type.optional or type.variadic,
        default=default.python if default is not None and given else "",
        text=op.entry.args.get(arg.name, text),
    )


class DocumentedResult(NamedTuple):
    """A result with its documentation."""

    name: str
    type: str
    shape: str
    facts: Facts
    text: str


def results(op: Op) -> list[DocumentedResult]:
    """Return the results of an operator."""
    returns = op.entry.returns
    if isinstance(returns, dict):
        each = returns
    else:
        each = {op.outputs[0].name: returns or "The output array."} if op.single else {}
    return [
        DocumentedResult(
            *(o.name, o.type.python, _shape(op, o.name), [*_facts(op, i)], each.get(o.name, ""))
        )
        for i, o in enumerate(op.outputs)
    ]


def _shape(op: Op, name: str) -> str:
    return shown_axes(op.axes[name]) if name in op.axes else ""


def _facts(op: Op, i: int) -> Iterator[tuple[str, str]]:
    """Yield the shape and the dtype of a result, as far as they are known."""
    arrays, group, rules = op.arguments.arrays, op.arguments.group, op.output_rules
    shape, dtype = (of[i] if of else None for of in (rules.shapes, rules.dtypes))
    if text := _shape(op, op.outputs[i].name) or (shape.text if shape is not None else ""):
        yield " of shape ", text
    elif op.broadcasts:
        several = len(arrays) > 1
        yield (" of the common shape", "") if several else (" of the shape of ", arrays[0].name)
    facts = op.forward.expr.facts if op.forward.expr is not None else ()
    if dtype is not None:
        words, code = (SUMS, "") if dtype.text == ACCUMULATOR else ("", dtype.text)
        yield f", of dtype {words}", code
    elif op.has_primitive and group is not None:
        first, *others = group.params
        yield (", of the promoted dtype", "") if others else (", of the dtype of ", first.name)
    elif i < len(facts) and facts[i].dtype in DTYPES:
        yield ", of dtype ", facts[i].dtype


def argument_dtypes(op: Op) -> list[tuple[list[str], Sequence[str], str]]:
    """Return arrays with their dtypes, and text about these or in place of them.

    The arrays of one item are promoted together, or none is promoted.
    """
    found: dict[tuple[Sequence[str], str, str], list[str]] = {}
    rules = {p.name: rule for rule in op.dtype_rules for p in rule.params}
    for p in op.arguments.arrays:
        rule, group, dtypes = rules.get(p.name), "", tuple[str, ...]()
        text = "any" if rule is not None else "any that the called functions accept"
        if p.dtype == ACCUMULATOR:
            text = SUMS
        elif rule is not None and rule.dtypes != DTYPES:
            group, dtypes = rule.name * rule.promotes, rule.dtypes
            text = INTEGERS.get(rule.integers, "") if group and op.has_primitive else ""
        found.setdefault((dtypes, text, group), []).append(p.name)
    return [(names, dtypes, text) for (dtypes, text, _), names in found.items()]


def errors(op: Op) -> list[str]:
    """Return the rules for arguments; a call that breaks one raises ``ValueError``."""
    limited, several = any(check.array for check in op.checks), len(op.arguments.arrays) > 1
    found = ["Arrays must have the shapes and dtypes above."] * bool(op.dtype_rules or limited)
    found += ["The shapes must be broadcastable."] * (op.broadcasts and several)
    found += [check.message for check in op.checks if not check.array]
    none = [p for g in op.derivatives.grads if g.kind is GradKind.NONE for p in g.params]
    if names := [p.name for p in none if not p.integral]:
        found.append(f"It cannot be differentiated with respect to {', '.join(names)}.")
    return found


class Reference:
    """An operator as the template of its docstring needs it."""

    def __init__(self, op: Op, package: Package) -> None:
        self.op, self.entry = op, op.entry
        self.arguments, self.results = arguments(op), results(op)
        self.dtypes, self.errors = argument_dtypes(op), errors(op)
        self.example = example(op, package.name)


class InPlace(NamedTuple):
    """The in-place variant of an operator."""

    target: str  # the argument that gets the new value
    place: int
    python_def: str
    doc: str


def inplace(op: Op) -> InPlace | None:
    """Return the in-place variant of an operator, if it has one."""
    if "inplace" not in op.entry.variants or op.signature.target is None:
        return None
    place, target = op.signature.target
    python_def = f"({', '.join(python_args(op, target))}) -> {op.signature.python_result}"
    doc = f"Give ``{target}`` the value of :func:`{op.python_name}`, and return it."
    return InPlace(target, place, python_def, doc)


def python_args(op: Op, target: str = "") -> list[str]:
    """Return the arguments with their annotations, as in MLX's stubs.

    With ``target``, the arguments of the in-place variant for that argument.
    """

    def annotation(arg: Arg) -> str:
        type = arg.type
        if arg.name == target:
            return type.python
        if type.kind is Kind.ARRAYS and not type.variadic:
            return "Sequence[scalar | array]"
        scalar = type.is_array and _accepts_scalars(op, arg.name)
        return f"scalar | {type.python}" if scalar else type.python

    out = f"out: {op.signature.python_result} | None = None"
    more = [out] if "out" in op.entry.variants and not target else []
    return op.signature.python_args(annotation, *more, "stream: StreamOrDevice = None")


def _accepts_scalars(op: Op, name: str) -> bool:
    """Return false if the axes of an array, or a check, require that it has axes."""
    if name in op.axes:
        return any({*axes} <= {"..."} for axes in op.axes[name])
    scalar = {name: ArrayFacts((), None)}
    try:
        return all(evaluated(check.tree, scalar, None) is not False for check in op.checks)
    except Impossible:
        return False
