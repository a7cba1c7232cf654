"""The view of an operator for templates, and the filters that print C++.

Templates only loop and insert. A property of ``View`` derives everything that depends on more than
one fact of an operator. The output has no layout: `mlxgen show` and the documentation run
clang-format.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ..model.cpp import BOOL, INT, CppType
from ..model.dtypes import ACCUMULATOR, CPP_TYPES, FLOATING, computes_integers, element_type
from ..model.kinds import BY_VALUE, KINDS, REAL, Kind
from ..model.op import (
    GROUP,
    MOST,
    STREAM,
    Binding,
    Condition,
    DtypeRule,
    Expr,
    Grad,
    GradKind,
    Jvp,
    Kernel,
    Length,
    Op,
    Parameter,
    Property,
    Vmap,
    metal_stem,
    shown_axes,
)
from ..model.signature import Arg, quoted

# Control characters as octal escapes, the only escapes with a fixed length.
_ESCAPES = {c: f"\\{c:03o}" for c in (*range(32), 127)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}
_METAL_NUMBERS = {**dict.fromkeys(REAL, "float"), Kind.ENUM: "int"}  # other kinds as in C++


def cpp_string(text: str) -> str:
    """Return a C++ string literal."""
    return f'"{text.translate(_ESCAPES)}"'


def raw_string(text: str, mark: str) -> str:
    """Return a raw C++ string literal, with a delimiter that begins with ``mark``."""
    while f"){mark}" in text:
        mark += "_"
    return f'R"{mark}({text}){mark}"'


def cpp_comment(text: str) -> str:
    """Return a documentation comment with wrapped paragraphs."""
    text = text.strip().replace("*/", "* /").replace("/*", "/ *")
    if len(text) <= 73 and text.isprintable():
        return f"/** {text} */"
    lines = wrapped(text, 77)
    if len(lines) == 1 and len(lines[0]) <= 73:
        return f"/** {lines[0]} */"
    body = "\n".join(f" * {line}".rstrip() for line in lines)
    return f"/**\n{body}\n */"


def wrapped(text: str, width: int) -> list[str]:
    """Return documentation as lines: paragraphs wrapped, code and lists line by line."""
    lines: list[str] = []
    for line in _joined(text.splitlines()):
        indent = "  " * line.startswith("- ")
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False) or [
            ""
        ]
    return lines


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of each paragraph; lists, code and indented text stay line by line."""
    plain = re.compile(r"(?!\d+[.)] )[A-Za-z0-9`\"'(\[]")
    for is_plain, group in itertools.groupby(lines, lambda line: plain.match(line) is not None):
        same = list(group)
        yield from [" ".join(same)] if is_plain else same


def element(p: Parameter) -> CppType:
    """Return the type of an array's elements in a kernel over views."""
    return element_type(p.dtype)


def metal_type(p: Parameter) -> str:
    """Return an attribute's type in a scalar function on Metal."""
    return _METAL_NUMBERS.get(p.type.kind) or str(p.type.cpp)


def binding_type(p: Parameter) -> str:
    """Return the type of a parameter of the function that Python calls."""
    if p.type.variadic:
        return "const nb::args&"
    bound = "const mlxgen::IntsArg&" if p.type.length else KINDS[p.type.kind].bound
    type = p.type
    if p.arg.declared:
        bound, type = "const mlxgen::StringOrArray&", p.arg.declared.type
    if bound and type.optional and type.kind is not Kind.AXES:
        return f"const std::optional<{bound.removeprefix('const ').removesuffix('&')}>&"
    return bound or str(p.type.cpp_param)


def mode_text(arg: Arg) -> str:
    """Return the documentation of the string that replaces an array; empty for other arguments."""
    several = "One of " * (len(arg.type.choices) > 1)
    listed = ", ".join(f"``{quoted(choice)}``" for choice in arg.type.choices)
    return f"{several}{listed}, in place of ``{arg.mode_of}``." if arg.mode_of else ""


def cast(p: Parameter, kernel: Kernel) -> bool:
    """Return whether a number is cast to the type in which a scalar function computes."""
    return p.type.kind in REAL and not computes_integers(kernel.dtypes)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "cpp_comment": cpp_comment,
    "cpp_string": cpp_string,
    "raw_string": raw_string,
    "element": element,
    "metal_type": metal_type,
    "cast": cast,
    "binding_type": binding_type,
    "metal_stem": metal_stem,
    "prefix": lambda text, before: before + text,
    "listed": ", ".join,
    "folded": lambda text: " ".join(text.split()),
}
# The properties of an absent array.
_ABSENT = {
    Property.SHAPE: "mx::Shape()",
    Property.STRIDES: "mx::Strides()",
    Property.NDIM: "0",
    Property.SIZE: "0",
}


class Member(NamedTuple):
    """A member of a primitive."""

    given: str  # name of the constructor's parameter
    type: CppType

    @property
    def name(self) -> str:
        """Name of the member."""
        return f"{self.given}_"

    @property
    def passed(self) -> CppType:
        """Type of the constructor's parameter."""
        return self.type if self.type in BY_VALUE else self.type.by_reference


class View(Op):
    """An operator for templates: the model, and properties that are derived for C++."""

    op: Op
    params: Sequence[Parameter]
    rules: Sequence[DtypeRule]
    arrays: Sequence[Parameter]
    attributes: Sequence[Parameter]
    grads: Sequence[Grad]
    cpu: Kernel | None
    metal: Kernel | None

    def __init__(self, op: Op) -> None:
        self.__dict__.update(vars(op))
        self.op = op
        self.params, self.rules = op.arguments.params, op.arguments.rules
        self.arrays, self.attributes = op.arguments.arrays, op.arguments.attributes
        self.grads = op.derivatives.grads
        self.cpu, self.metal = op.forward.kernel("cpu"), op.forward.kernel("metal")

    # Names, types and files

    @property
    def result(self) -> str:
        """The C++ return type."""
        return "mx::array" if self.op.single else "std::vector<mx::array>"

    @property
    def documentation(self) -> str:
        """The comment in the header: the operator, its arguments and results."""
        entry, parts = self.op.entry, [(self.op.entry.doc or f"{self.op.name}.").strip()]

        def items(texts: Mapping[str, str], names: Iterable[str]) -> str:
            of = ((name, self.shown_shape(name), texts.get(name, "")) for name in names)
            return "\n".join(f"- ``{name}``{shape}: {text}" for name, shape, text in of if text)

        texts = {p.name: mode_text(p.arg) for p in self.params} | dict(entry.args)
        if listed := items(texts, (p.name for p in self.params)):
            parts.append(f"Arguments:\n\n{listed}")
        if isinstance(entry.returns, dict) and len(self.op.outputs) > 1:
            names = [output.name for output in self.op.outputs]
            parts.append(f"Returns, in this order:\n\n{items(entry.returns, names)}")
        elif isinstance(entry.returns, dict):
            parts.append(f"Returns {next(iter(entry.returns.values()))}")
        elif entry.returns:
            parts.append(f"Returns {entry.returns}")
        return "\n\n".join(parts)

    def shown_shape(self, name: str) -> str:
        """Return the axes of an array for documentation."""
        return f" {shown_axes(self.op.axes[name])}" if name in self.op.axes else ""

    @property
    def in_python(self) -> list[Parameter]:
        """The arguments in Python: of a string and an array that are one, the array."""
        return [p for p in self.params if not p.arg.mode_of]

    @property
    def from_unions(self) -> list[tuple[Parameter, Parameter]]:
        """The strings and arrays that are one argument in Python."""
        of = self.op.arguments.by_name
        return [(p, of[p.arg.mode_of]) for p in self.params if p.arg.mode_of]

    @property
    def trailing(self) -> list[Parameter]:
        """The trailing parameters with a default."""
        return list(itertools.takewhile(lambda p: p.arg.default, reversed(self.params)))

    @property
    def declared(self) -> list[str]:
        """The declarations of all parameters in the header."""
        found = []
        for p in self.params:
            default = f" = {p.arg.default.cpp}" if p.arg.default and p in self.trailing else ""
            found.append(f"{p.type.cpp_param} {p.declared}{default}")
        return [*found, "mx::StreamOrDevice s = {}"]

    def include_lines(self, package: str) -> list[str]:
        """Return the headers of the source file except the CPU kernel's, sorted."""
        ours = "primitive" if self.op.has_primitive else "op"
        found = {"mlxgen/formula.h", f"mlxgen/{ours}.h", *self.op.includes}
        found |= {f"{package}/{callee}.h" for callee in self.op.calls}
        if self.cpu is not None:
            found = found - {self.cpu.include} | {"mlxgen/cpu.h"}
        return sorted(found)

    # Python

    @property
    def weak(self) -> dict[str, list[str]]:
        """The variables with the dtypes of scalars, and the arguments that determine them."""
        keys = self.op.forward.expr.keys if self.op.forward.expr else frozenset()
        others = keys | self.whole
        groups = {
            self.scalar_dtype(rule.params[0]): [p.cpp for p in rule.params if p.name not in others]
            for rule in self.rules
            if rule.promotes
        }
        return {variable: arguments for variable, arguments in groups.items() if arguments}

    def returned(self, call: str) -> str:
        """Return what Python gets, for the call of the C++ function."""
        type = self.op.outputs[0].type
        if type.unwrapped:
            return f"mlxgen::{'array_or_tuple' if type.tupled else 'array_or_list'}({call})"
        return f"mlxgen::as_tuple({call})" if type.tupled or len(self.op.outputs) > 1 else call

    def scalar_dtype(self, p: Parameter) -> str:
        """Return the variable with the dtype of a scalar that is passed for a promoted argument."""
        first = next(rule for rule in self.rules if rule.name == p.rule).params[0]
        return "like" if p.rule == GROUP else f"{first.cpp}_dtype"

    @property
    def whole(self) -> frozenset[str]:
        """The arguments that checks require to be integers, so that scalars are not converted."""
        return frozenset[str]().union(*(check.whole for check in self.op.checks))

    @property
    def first_keyword(self) -> Parameter | None:
        """The first keyword-only argument in Python."""
        return None if self.variadic else next((p for p in self.in_python if p.arg.kw_only), None)

    @property
    def variadic(self) -> Parameter | None:
        """The argument for any number of arrays, after which all are keyword-only in nanobind."""
        return next((p for p in self.params if p.type.variadic), None)

    # The primitive

    @property
    def base(self) -> str:
        """The base class in mlxgen/primitive.h, a template."""
        return "Elementwise" if self.op.elementwise else "Operator"

    @property
    def base_arguments(self) -> list[str]:
        """The template arguments of the base class."""
        counts = [str(len(self.arrays)), str(len(self.op.outputs))]
        return [self.op.class_name, *(counts if self.op.elementwise else [])]

    @property
    def constants(self) -> dict[str, str]:
        """The constants that override defaults of the base class."""
        found = {}
        jvp, vmap = self.op.derivatives.jvp, self.op.derivatives.vmap
        usual_jvp = Jvp.ELEMENTWISE if self.op.elementwise else Jvp.VJP
        if jvp is not usual_jvp and jvp in (Jvp.LINEAR, Jvp.VJP, Jvp.COMPOSITE):
            found["kJvp"] = f"mlxgen::Jvp::{jvp.value}"
        usual = Vmap.ELEMENTWISE if self.op.elementwise else Vmap.SEQUENTIAL
        if vmap not in (usual, Vmap.MANUAL):
            found["kVmap"] = f"mlxgen::Vmap::{vmap.value}"
        if jvp is Jvp.ELEMENTWISE and self.uses_results(g.expr for g in self.grads):
            found["kUsesOutputs"] = "true"
        whole = self.all_composite and jvp is Jvp.COMPOSITE
        if whole and vmap not in (Vmap.MANUAL, Vmap.NONE):
            found["kIsComposite"] = "true"
        return found

    @cached_property
    def state(self) -> list[Member]:
        """The members: attributes, and the presence or number of inputs."""
        members = [Member(p.cpp, p.type.cpp) for p in self.attributes]
        counted = (p for p in self.arrays if not p.is_plain)
        return [*members, *(Member(p.counter, BOOL if p.present else INT) for p in counted)]

    @property
    def targets(self) -> list[str]:
        """The variables for the results of a scalar function."""
        return ["to"] if len(self.op.outputs) == 1 else [f"to_{o.name}" for o in self.op.outputs]

    @property
    def passed(self) -> list[Parameter]:
        """The arguments that kernels receive: all but donated arrays."""
        return [p for p in self.params if p.name not in self.op.output_rules.donors]

    @property
    def initial_names(self) -> set[str]:
        """The names in formulas of initial values."""
        return self.holes(each.number for each in self.op.output_rules.initial)

    @property
    def results(self) -> list[tuple[str, CppType]]:
        """The outputs of a kernel over views, with their element types."""
        assert self.cpu is not None
        names = ["out"] if len(self.op.outputs) == 1 else self.targets
        return list(zip(names, self.cpu.elements, strict=True))

    @property
    def cpu_types(self) -> str:
        """The types that the CPU kernel is compiled for."""
        assert self.cpu is not None
        if self.cpu.dtypes == FLOATING:
            return "mlxgen::Floating"
        return f"mlxgen::Types<{', '.join(str(CPP_TYPES[dtype]) for dtype in self.cpu.dtypes)}>"

    @property
    def has_group(self) -> bool:
        """True if some arguments are promoted together."""
        return self.op.arguments.group is not None

    @property
    def typed(self) -> str:
        """The position of an input whose dtype is the kernel's type parameter."""
        if (group := self.op.arguments.group) is None:
            return "0"
        params = group.params
        return next((p for p in params if not p.present), params[0]).position

    @property
    def output_dtypes(self) -> list[str]:
        """The dtypes of the outputs of a non-elementwise kernel."""
        rules = self.op.output_rules.dtypes or (None,) * len(self.op.outputs)
        # Arguments are inputs at this point, and may have been converted to another dtype.
        inputs = {p.name: f"inputs[{p.position_in_call}]" for p in self.arrays if p.is_plain}
        sums = {ACCUMULATOR: "mx::promote_types(dtype, mx::float32)"}
        places = {**self.in_call, **inputs, **sums}
        return [rule.expr.cpp(places) if rule else "dtype" for rule in rules]

    @property
    def dtype_of_inputs(self) -> bool:
        """True if the first output has the dtype of an input."""
        return bool(
            self.holes(r.expr for r in self.op.output_rules.dtypes[:1] if r) - {ACCUMULATOR}
        )

    @property
    def shape_params(self) -> list[Parameter]:
        """The arguments of the shape function: those that its formulas use."""
        return [p for p in self.params if p.name in self.shape_names]

    @cached_property
    def shape_names(self) -> set[str]:
        """The names in the formulas of shapes."""
        return self.holes(rule.expr for rule in self.op.output_rules.shapes)

    # Metal

    @property
    def metal_names(self) -> set[str]:
        """The arguments that the launch of a hand-written kernel needs as variables."""
        assert self.metal is not None
        names = {b.of for b in self.metal.bindings} | self.metal.holes
        bound = names | {p.name for p, _ in self.lengths_in(names)}
        absent = any(p.present and p.name in bound for p in self.arrays)
        return bound | {p.name for p in self.instead if absent}

    @property
    def instead(self) -> list[Parameter]:
        """The required array that is bound in place of an absent one, if any."""
        return [p for p in self.arrays if not p.present][:1]

    @property
    def optional(self) -> set[str]:
        """The arrays that may be absent."""
        return {p.name for p in self.arrays if p.present}

    @cached_property
    def in_launch(self) -> Mapping[str, str]:
        """The C++ of names in a launch, where arguments are variables."""
        assert self.metal is not None
        outputs = {o.name: f"outputs[{i}]" for i, o in enumerate(self.op.outputs)}
        templates = {t.name: f"template_{t.name}" for t in self.metal.templates}
        constants = {name: f"const_{name}" for name, _ in self.metal.constants}
        return {**self.in_primitive, **outputs, **templates, **constants, MOST: MOST}

    def bound(self, binding: Binding) -> str:
        """Return the C++ for the content of a launch's buffer."""
        p, cpp = self.op.arguments.by_name.get(binding.of), self.in_launch[binding.of]
        part = binding.part
        if p is None or not p.type.is_array:
            # The index of an enumerated string is a variable of the launch.
            cpp = p.cpp if p is not None and p.is_choice else cpp
            return f"{cpp}.{part.value}()" if part in _ABSENT else cpp
        if part is Property.GIVEN:
            return f"{cpp}.has_value()"
        if part in _ABSENT:
            value = f"{cpp}.{part.value}()"
            return f"{cpp} ? {cpp}->{part.value}() : {_ABSENT[part]}" if p.present else value
        others = [p.cpp for p in self.instead] or ["outputs[0]"]
        return f"{cpp}, {others[0]}" if p.present else cpp

    @property
    def uninitialized(self) -> list[int]:
        """The outputs of a hand-written kernel without initial values."""
        assert self.metal is not None
        filled = {*self.metal.zero, *(each.output for each in self.op.output_rules.initial)}
        return [i for i in range(len(self.op.outputs)) if i not in filled]

    # C++ of names in formulas
    @cached_property
    def in_call(self) -> Mapping[str, str]:
        """The C++ of names in the op function."""
        lengths = {name: length.cpp for name, length in self.op.arguments.lengths.items()}
        return {STREAM: "s", **lengths, **{p.name: p.cpp for p in self.params}}

    @cached_property
    def in_primitive(self) -> Mapping[str, str]:
        """The C++ of names in a primitive's functions, where arrays are variables."""
        return {**self.in_call, **{p.name: p.member for p in self.attributes}}

    def in_gradient(self, grad: Grad) -> Mapping[str, str]:
        """Return the C++ of names in a gradient formula."""
        found = dict(self.in_primitive if self.op.has_primitive else self.in_call)
        found |= self._each("grad", "cotangents") | self._each("result", "outputs")
        for p in grad.params:
            asked = f"mlxgen::contains(argnums, {p.position})"
            found[f"asked_{p.name}"] = f"({p.present} && {asked})" if p.present else asked
        return found

    @cached_property
    def in_jvp(self) -> Mapping[str, str]:
        """The C++ of names in jvp formulas."""
        found = {**self.in_primitive, **self._each("result", "outputs"), "tangent": "tangents[i]"}
        for name, i in self.op.signature.each_output("grad").items():
            found[name] = "tangents[i]" if i == 0 else "std::vector<mx::array>{tangents[i]}"
        return found

    def _each(self, word: str, several: str) -> dict[str, str]:
        each = self.op.signature.each_output(word)
        return {name: several if i is None else f"{several}[{i}]" for name, i in each.items()}

    def holes(self, exprs: Iterable[Expr | None]) -> set[str]:
        """Return the holes of formulas, including arrays that determine sizes of axes."""
        found = {name for expr in exprs if expr is not None for name in expr.holes}
        return found | {
            self.op.arguments.lengths[name].array
            for name in found & self.op.arguments.lengths.keys()
        }

    def lengths_in(self, names: Container[str]) -> list[tuple[Parameter, Length]]:
        """Return the sizes of axes among these names, with the arrays that determine them."""
        of = self.op.arguments
        return [(of.by_name[x.array], x) for name, x in of.lengths.items() if name in names]

    def lengths_after(self, check: Condition) -> list[tuple[Parameter, Length]]:
        """Return the sizes that the op function reads from an array after the check of its axes."""
        exprs = [c.expr for c in self.op.checks if c is not check]
        exprs += [rule.expr for rule in self.op.output_rules.dtypes if rule]
        templates = [t for kernel in self.op.forward.kernels for t in kernel.templates]
        exprs += [t.expr for t in templates if t.expr]
        if self.op.forward.expr and not (self.op.has_primitive or self.op.derivatives.own):
            exprs.append(self.op.forward.expr)
        names = self.holes(exprs)
        return [(p, x) for p, x in self.lengths_in(names) if p.name == check.array]

    def uses_results(self, exprs: Iterable[Expr | None]) -> bool:
        """Return whether formulas use results of the operator."""
        return not self.holes(exprs).isdisjoint(self.op.signature.each_output("result"))

    def uses_grads(self, exprs: Iterable[Expr | None]) -> bool:
        """Return whether formulas use cotangents or the tangent."""
        return not self.holes(exprs).isdisjoint({*self.op.signature.each_output("grad"), "tangent"})

    # Gradients

    @property
    def gradient_parameters(self) -> set[str]:
        """The parameters that the functions of gradients use."""
        kinds, exprs = {g.kind for g in self.grads}, [g.expr for g in self.grads]
        by_function, composite = GradKind.FUNCTION in kinds, GradKind.COMPOSITE in kinds
        used = {
            "arg": len(self.gradients) > 1 or bool(self.joint) or composite,
            "primals": composite or any(p.name in self.gradient_names for p in self.arrays),
            "cotangents": composite or by_function or self.uses_grads(exprs),
            "outputs": by_function or self.uses_results(exprs),
            "s": STREAM in self.holes(exprs),
        }
        return {name for name, is_used in used.items() if is_used}

    @property
    def all_composite(self) -> bool:
        """True if the composite provides every gradient."""
        return bool(self.grads) and all(g.kind is GradKind.COMPOSITE for g in self.grads)

    @cached_property
    def joint(self) -> list[tuple[str, Grad]]:
        """The joint gradients, with the names of their variables."""
        found = [g for g in self.grads if g.joint]
        names = ["joint"] if len(found) == 1 else [f"joint{i}" for i in range(len(found))]
        return list(zip(names, found, strict=True))

    @cached_property
    def common(self) -> dict[str, tuple[str, str]]:
        """The variables of several gradients, computed once in a vjp: type and C++ by name."""
        exprs = [(grad, grad.expr) for grad in self.grads if grad.expr is not None]
        uses = Counter(name for _, expr in exprs for name, _ in expr.locals)
        return {
            name: (local.variable, local.cpp(self.in_gradient(grad)))
            for grad, expr in exprs
            for name, local in expr.locals
            if uses[name] > 1
        }

    @property
    def by_position(self) -> int:
        """The number of leading arguments whose joint gradient has the same position."""
        count = 0
        for _, p, joint in self.gradients:
            if joint != ("joint", count) or not p.is_plain or p.place != count:
                break
            count += 1
        return count if count > 1 else 0

    @cached_property
    def gradients(self) -> list[tuple[Grad, Parameter, tuple[str, int] | None]]:
        """All arguments with their gradients, and the position of a joint gradient.

        The runtime has zeros for integers, unless no other argument exists.
        """
        joint = {p.name: (n, i) for n, g in self.joint for i, p in enumerate(g.params)}
        every = [(g, p, joint.get(p.name)) for g in self.grads for p in g.params]
        return [each for each in every if not each[1].integral] or every

    @property
    def gradient_names(self) -> set[str]:
        """The names in formulas of gradients; hand-written functions use all arguments."""
        if any(g.kind is GradKind.FUNCTION for g in self.grads):
            return {p.name for p in self.arrays}
        return self.holes(g.expr for g in self.grads)

    @property
    def undifferentiable(self) -> set[str]:
        """The arguments with gradient `none`."""
        return {p.name for g in self.grads if g.kind is GradKind.NONE for p in g.params}

    @property
    def tangents(self) -> list[tuple[Parameter, Expr | None]]:
        """The arguments with their jvp formulas; None if differentiating raises."""
        given = {p.name: e for p, e in self.op.derivatives.tangents}
        zeros = {p.name for g in self.grads if g.kind is GradKind.ZERO for p in g.params}
        left = [p for p in self.arrays if p.name not in given.keys() | zeros]
        return [*self.op.derivatives.tangents, *((p, None) for p in left)]
