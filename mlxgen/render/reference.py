"""The facts of the operator reference, for Markdown pages and for docstrings.

Every page and every docstring is rendered from these facts. An entry's own documentation is the
only text that is read here, by ``markdown``: it marks code as docstrings do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..model.dtypes import ACCUMULATOR
from ..model.op import GROUP, DtypeRule, Form, Op, shown_axes
from ..model.signature import Arg, Kind
from .cpp import View, mode_text

BACKENDS = {"cpu": "CPU", "gpu": "GPU", "metal": "Metal"}


class DocumentedArgument(NamedTuple):
    """An argument with its documentation."""

    name: str
    type: str  # in Python; "array" or "list(array)" for arrays
    is_array: bool
    shape: str  # such as "(B, T)"; empty if the entry names no axes
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
    return DocumentedArgument(
        name=arg.name,
        type=array if of_arrays else type.python,
        is_array=of_arrays,
        shape=_shape(op, arg.name),
        optional=default is not None or type.optional or type.variadic,
        default=default.python if default is not None and given else "",
        text=op.entry.args.get(arg.name, text),
    )


class DocumentedResult(NamedTuple):
    """A result with its documentation."""

    name: str
    type: str
    shape: str
    text: str


def results(op: Op) -> list[DocumentedResult]:
    """Return the results of an operator."""
    returns = op.entry.returns
    if isinstance(returns, dict):
        each = returns
    else:
        each = {op.outputs[0].name: returns or "The output array."} if op.single else {}
    return [
        DocumentedResult(o.name, o.type.python, _shape(op, o.name), each.get(o.name, ""))
        for o in op.outputs
    ]


def _shape(op: Op, name: str) -> str:
    return shown_axes(op.axes[name]) if name in op.axes else ""


class Reference:
    """An operator as the template of the reference needs it."""

    def __init__(self, op: Op, namespace: str, declarations: Mapping[str, str]) -> None:
        self.op, self.entry, self.view = op, op.entry, View(op)
        self.namespace, self.declarations = namespace, declarations
        self.arguments, self.results = arguments(op), results(op)
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
    def errors(self) -> list[str]:
        """The rules for arguments, without those of the shapes among the arguments."""
        return [check.message for check in self.op.checks if not check.array]

    @property
    def checks_shapes(self) -> bool:
        """True if arrays must have the shapes among the arguments."""
        return any(check.array for check in self.op.checks)

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

    @property
    def dtypes(self) -> list[tuple[list[str], tuple[str, ...]]]:
        """The dtypes of arguments other than those of the kernels."""
        return [
            ([p.name for p in rule.params], _dtypes(rule))
            for rule in self.op.dtype_rules
            if rule.name != GROUP or not self.op.has_primitive
        ]

    @property
    def integers(self) -> str:
        """The conversion of integer arguments, for an operator with kernels."""
        rule = self.op.arguments.group
        return rule.integers.value if rule is not None and self.op.has_primitive else ""


def laid_out(head: str, params: Sequence[str]) -> str:
    """Return a declaration; one parameter per line if it is long."""
    line = f"{head}({', '.join(params)});"
    lines = ",\n".join(f"    {param}" for param in params)
    return line if len(line) <= 88 else f"{head}(\n{lines});"


def _dtypes(rule: DtypeRule) -> tuple[str, ...]:
    """Return the dtypes of one rule; no dtypes for the accumulator dtype."""
    return () if rule.params[0].dtype == ACCUMULATOR else rule.dtypes


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
        return f"scalar | {type.python}" if type.is_array else type.python

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
