"""The facts of the operator reference, for Markdown pages and for docstrings.

Every page and every docstring is rendered from these facts. An entry's own documentation is the
only text that is read here, by ``markdown``: it marks code as docstrings do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..model.dtypes import ACCUMULATOR, DTYPES
from ..model.languages import Package
from ..model.op import Form, GradKind, Integers, Op, shown_axes
from ..model.signature import Arg, Kind
from .cpp import View, mode_text
from .example import example

BACKENDS = {"cpu": "CPU", "gpu": "GPU", "metal": "Metal"}


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
        yield (
            (f", of dtype {SUMS}", "") if dtype.text == ACCUMULATOR else (", of dtype ", dtype.text)
        )
    elif op.has_primitive and group is not None:
        several = len(group.params) > 1
        yield (", of the promoted dtype", "") if several else (", of the dtype of ", arrays[0].name)
    elif i < len(facts) and facts[i].dtype in DTYPES:
        yield ", of dtype ", facts[i].dtype


class DocumentedDtypes(NamedTuple):
    """The dtypes of arguments; those of one item are promoted together, or not promoted."""

    names: list[str]
    dtypes: Sequence[str]  # empty if the text describes them
    text: str


def argument_dtypes(op: Op) -> list[DocumentedDtypes]:
    """Return the dtypes of an operator's arrays."""
    found: dict[tuple[object, ...], DocumentedDtypes] = {}
    rules = {p.name: rule for rule in op.dtype_rules for p in rule.params}
    for p in op.arguments.arrays:
        rule, group, dtypes = rules.get(p.name), "", tuple[str, ...]()
        text = SUMS if p.dtype == ACCUMULATOR else "any"
        if rule is not None and rule.dtypes != DTYPES and p.dtype != ACCUMULATOR:
            group, dtypes = rule.name * rule.promotes, rule.dtypes
            text = INTEGERS.get(rule.integers, "") if group and op.has_primitive else ""
        one = DocumentedDtypes([], dtypes, text)
        found.setdefault((group, dtypes, text), one).names.append(p.name)
    return [*found.values()]


def errors(op: Op) -> list[str]:
    """Return the rules for arguments; a call that breaks one raises ``ValueError``."""
    found = ["Arrays must have the shapes and dtypes above."]
    if not (op.dtype_rules or any(check.array for check in op.checks)):
        found.clear()
    found += ["The shapes must be broadcastable."] * (
        op.broadcasts and len(op.arguments.arrays) > 1
    )
    found += [check.message for check in op.checks if not check.array]
    none = [p for g in op.derivatives.grads if g.kind is GradKind.NONE for p in g.params]
    if names := [p.name for p in none if not p.integral]:
        found.append(f"It cannot be differentiated with respect to {', '.join(names)}.")
    return found


class Reference:
    """An operator as the template of the reference needs it."""

    def __init__(self, op: Op, package: Package, declarations: Mapping[str, str]) -> None:
        self.op, self.entry, self.view = op, op.entry, View(op)
        self.namespace, self.declarations = package.namespace, declarations
        self.arguments, self.results = arguments(op), results(op)
        self.dtypes, self.errors = argument_dtypes(op), errors(op)
        self.example = example(op, package.name)
        self.grads, self.inplace = op.derivatives.grads, inplace(op)

    @property
    def signature(self) -> str:
        """The Python signature; one argument per line if it is long."""
        args, result = python_args(self.op), self.op.signature.python_result
        line = f"{self.op.path}({', '.join(args)}) -> {result}"
        if len(line) <= 72:
            return line
        lines = "".join(f"    {arg},\n" for arg in args)
        return f"{self.op.path}(\n{lines}) -> {result}"

    @property
    def other_languages(self) -> list[tuple[str, str]]:
        """The declarations in other languages, with the languages' names in Markdown."""
        head = f"{self.view.result} {self.namespace}::{self.op.name}"
        return [("cpp", laid_out(head, self.view.declared)), *self.declarations.items()]

    @property
    def summary(self) -> str:
        """The first paragraph of the documentation, on one line."""
        return markdown(" ".join((self.entry.doc or "").strip().partition("\n\n")[0].split()))

    @property
    def aliases(self) -> list[str]:
        """The other names in Python."""
        return [*self.op.paths[1:]]

    @property
    def returns(self) -> str:
        """The documentation of several results as a whole."""
        returns = self.entry.returns
        return returns if isinstance(returns, str) and not self.op.single else ""

    @property
    def cotangents(self) -> list[str]:
        """The names of cotangents in the gradient formulas."""
        used = {name for g in self.grads if g.expr is not None for name in g.expr.names}
        return [name for name in self.op.signature.each_output("grad") if name in used]

    @property
    def mlx_gradient(self) -> str:
        """The operation that MLX differentiates, for an operator without gradients of its own."""
        if "vjp" in self.entry.manual or self.grads or not self.op.arguments.arrays:
            return ""
        return "called function" if self.op.forward.form is Form.BIND else "composition"

    @property
    def backends(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Backend, implementation and the dtypes of its kernel."""
        kernels: dict[str, tuple[str, ...]] = {k.backend: k.dtypes for k in self.op.forward.kernels}
        bound = self.op.forward.form is Form.BIND
        mlx = "C++ function" if bound else "composition of other operators"
        return [
            (BACKENDS[name], "kernel" if name in kernels else mlx, kernels.get(name, ()))
            for name in self.op.backends
        ]


def laid_out(head: str, params: Sequence[str]) -> str:
    """Return a declaration; one parameter per line if it is long."""
    line = f"{head}({', '.join(params)});"
    lines = ",\n".join(f"    {param}" for param in params)
    return line if len(line) <= 88 else f"{head}(\n{lines});"


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
        type, forms = arg.type, op.axes.get(arg.name, [()])
        if arg.name == target:
            return type.python
        if type.kind is Kind.ARRAYS and not type.variadic:
            return "Sequence[scalar | array]"
        scalar = type.is_array and any({*axes} <= {"..."} for axes in forms)
        return f"scalar | {type.python}" if scalar else type.python

    out = f"out: {op.signature.python_result} | None = None"
    more = [out] if "out" in op.entry.variants and not target else []
    return op.signature.python_args(annotation, *more, "stream: StreamOrDevice = None")


_MARKUP = re.compile(
    r"(?P<fence>^(?P<mark>```+|~~~+).*?^(?P=mark)[`~]*\s*?$)"
    r"|::[ ]*\n(?P<literal>(?:[ ]*\n|[ ]+[^\n]+(?:\n|\Z))+)"
    r"|(?P<doctest>^>>> (?:[^\n]+(?:\n|\Z))+)"
    r"|(?P<code>^[ ]{4,}[^\n]*$|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ ]*\n).)+?(?<!`)(?P=ticks)(?!`)"
    r"|\$[^$\n]+\$)"
    r"|(?P<escaped><|^```|^~~~|(?<=\w)\*+(?=\w))",
    re.MULTILINE | re.DOTALL,
)


def markdown(text: str) -> str:
    """Return an entry's documentation as Markdown.

    Code in double backticks, lists, fenced blocks and formulas are the same in Markdown. Literal
    blocks (``::``) and doctests become fenced blocks. Outside of code ``2**3`` and ``<`` are plain
    text, as in a docstring.
    """
    return _MARKUP.sub(_as_markdown, text.strip())


def _as_markdown(found: re.Match[str]) -> str:
    if literal := found["literal"]:
        return f":\n\n```text\n{textwrap.dedent(literal).strip()}\n```\n\n"
    if doctest := found["doctest"]:
        return f"```pycon\n{doctest.strip()}\n```\n"
    if escaped := found["escaped"]:
        return "".join(f"\\{c}" for c in escaped)
    return found[0]
