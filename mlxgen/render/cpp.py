"""One operator as templates see it, and the filters that spell things in C++.

A template loops and inserts; whatever depends on more than one fact of an operator is a property of
``View``. Nothing is laid out: `mlxgen show` and the documentation run clang-format.
"""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ..model.cpp import BOOL, INT, CppType
from ..model.dtypes import ACCUMULATOR, CPP_TYPES, FLOATING, computes_integers, element_type
from ..model.kinds import BY_VALUE, Kind
from ..model.op import (
    MOST,
    STREAM,
    Binding,
    Condition,
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

# Control characters as octal escapes, the only ones that end.
_ESCAPES = {c: f"\\{c:03o}" for c in (*range(32), 127)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}
_METAL_NUMBERS = {Kind.FLOAT: "float", Kind.ENUM: "int"}  # others as in C++
_BOUND = {
    Kind.ARRAY: "const mlxgen::ArrayArg&",
    Kind.ARRAYS: "const std::vector<mlxgen::ArrayArg>&",
    Kind.INT: "const mlxgen::IntArg&",
    Kind.SHAPE: "const std::vector<int>&",
    Kind.AXES: "const mlxgen::AxesArg&",
}


def cpp_string(text: str) -> str:
    """A C++ string literal."""
    return f'"{text.translate(_ESCAPES)}"'


def raw_string(text: str, mark: str) -> str:
    """A raw C++ string literal; ``mark`` must not occur in the text."""
    while f"){mark}" in text:
        mark += "_"
    return f'R"{mark}({text}){mark}"'


def cpp_comment(text: str) -> str:
    """A documentation comment, its paragraphs wrapped."""
    text = text.strip().replace("*/", "* /")
    if len(text) <= 73 and text.isprintable():
        return f"/** {text} */"
    lines: list[str] = []
    for line in _joined(text.splitlines()):
        indent = "  " * line.startswith("- ")
        wrapped = textwrap.wrap(line, 77, subsequent_indent=indent, break_long_words=False)
        lines += wrapped or [""]
    if len(lines) == 1 and len(lines[0]) <= 73:
        return f"/** {lines[0]} */"
    body = "\n".join(f" * {line}".rstrip() for line in lines)
    return f"/**\n{body}\n */"


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs as one line each; lists, code and whatever else is indented line by line."""
    plain = re.compile(r"(?!\d+[.)] )[A-Za-z0-9`\"'(\[]")
    for is_plain, group in itertools.groupby(lines, lambda line: plain.match(line) is not None):
        same = list(group)
        yield from [" ".join(same)] if is_plain else same


def element(p: Parameter) -> CppType:
    """The type of an array's elements in a kernel over views."""
    return element_type(p.dtype)


def metal_type(p: Parameter) -> str:
    """An attribute's type in a scalar function of Metal."""
    return _METAL_NUMBERS.get(p.type.kind) or str(p.type.cpp)


def binding_type(p: Parameter) -> str:
    """The type of a parameter of the function that Python calls."""
    bound = "const mlxgen::IntsArg&" if p.type.length else _BOUND.get(p.type.kind)
    if bound and p.type.optional and p.type.kind is not Kind.AXES:
        return f"const std::optional<{bound.removeprefix('const ').removesuffix('&')}>&"
    return bound or str(p.type.cpp_param)


def cast(p: Parameter, kernel: Kernel) -> bool:
    """Whether a scalar function gets a number in the type in which it computes."""
    return p.type.kind is Kind.FLOAT and not computes_integers(kernel.dtypes)


FILTERS = {
    "cpp_comment": cpp_comment,
    "cpp_string": cpp_string,
    "raw_string": raw_string,
    "element": element,
    "metal_type": metal_type,
    "cast": cast,
    "binding_type": binding_type,
    "metal_stem": metal_stem,
    "file_name": os.path.basename,
    "prefix": lambda text, before: before + text,
    "listed": ", ".join,
    "folded": lambda text: " ".join(text.split()),
}
# An absent array's properties.
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


class View:
    """One operator: the model's fields, and what templates need to know beside them."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.params, self.rules = op.arguments.params, op.arguments.rules
        self.arrays, self.attributes = op.arguments.arrays, op.arguments.attributes
        self.grads = op.derivatives.grads
        self.cpu, self.metal = op.forward.kernel("cpu"), op.forward.kernel("metal")
        self.__dict__.update(vars(op), outputs=op.outputs, single=op.single)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.op, name)

    # Names, types and files

    @property
    def result(self) -> str:
        """C++ return type."""
        return "mx::array" if self.op.single else "std::vector<mx::array>"

    @property
    def documentation(self) -> str:
        """The header's comment: the operator, its arguments and results."""
        entry, parts = self.op.entry, [(self.op.entry.doc or f"{self.op.name}.").strip()]

        def items(texts: Mapping[str, str], names: Iterable[str]) -> str:
            of = ((name, self.shown_shape(name), texts.get(name, "")) for name in names)
            return "\n".join(f"- ``{name}``{shape}: {text}" for name, shape, text in of if text)

        if listed := items(entry.args, (p.name for p in self.params)):
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
        """The axes of an array as documentation shows them."""
        return f" {shown_axes(self.op.axes[name])}" if name in self.op.axes else ""

    @property
    def trailing(self) -> list[Parameter]:
        """The last parameters, as far as they have a default."""
        return list(itertools.takewhile(lambda p: p.arg.default, reversed(self.params)))

    def include_lines(self, package: str) -> list[str]:
        """Headers of the source file but the CPU kernel's, sorted."""
        ours = "primitive" if self.op.has_primitive else "op"
        found = {"mlxgen/formula.h", f"mlxgen/{ours}.h", *self.op.includes}
        found |= {f"{package}/{callee}.h" for callee in self.op.calls}
        if self.cpu is not None:
            found = found - {self.cpu.include} | {"mlxgen/cpu.h"}
        return sorted(found)

    # Python

    @property
    def weak(self) -> list[str]:
        """The arguments beside which scalars take their dtype."""
        keys = self.op.forward.expr.keys if self.op.forward.expr else frozenset()
        others = keys | self.whole
        return [p.cpp for p in self.arrays if p.dtype is None and p.name not in others]

    @property
    def whole(self) -> frozenset[str]:
        """The arguments that checks want to be integers: scalars and NumPy's stay what they are."""
        return frozenset[str]().union(*(check.whole for check in self.op.checks))

    @property
    def first_keyword(self) -> Parameter | None:
        """The first argument that Python takes by keyword only."""
        return next((p for p in self.params if p.arg.kw_only), None)

    # The primitive

    @property
    def base(self) -> str:
        """Its base class in mlxgen/primitive.h, a template."""
        return "Elementwise" if self.op.elementwise else "Operator"

    @property
    def base_arguments(self) -> list[str]:
        """The template arguments of its base class."""
        counts = [str(len(self.arrays)), str(len(self.op.outputs))]
        return [self.op.class_name, *(counts if self.op.elementwise else [])]

    @property
    def constants(self) -> dict[str, str]:
        """What the base class is told, where it is not what it takes for granted."""
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
        """Its members: the attributes, and which inputs are there."""
        members = [Member(p.cpp, p.type.cpp) for p in self.attributes]
        counted = (p for p in self.arrays if not p.is_plain)
        return [*members, *(Member(p.counter, BOOL if p.present else INT) for p in counted)]

    @property
    def targets(self) -> list[str]:
        """Where a scalar function's results go."""
        return ["to"] if len(self.op.outputs) == 1 else [f"to_{o.name}" for o in self.op.outputs]

    @property
    def results(self) -> list[tuple[str, CppType]]:
        """The outputs of a kernel over views, with the types of their elements."""
        assert self.cpu is not None
        names = ["out"] if len(self.op.outputs) == 1 else self.targets
        return list(zip(names, self.cpu.elements, strict=True))

    @property
    def cpu_types(self) -> str:
        """The types for which the CPU kernel is compiled."""
        assert self.cpu is not None
        if self.cpu.dtypes == FLOATING:
            return "mlxgen::Floating"
        return f"mlxgen::Types<{', '.join(str(CPP_TYPES[dtype]) for dtype in self.cpu.dtypes)}>"

    @property
    def has_group(self) -> bool:
        """Whether some arguments are promoted together."""
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
        """The dtypes of the outputs of a kernel that is not elementwise."""
        rules = self.op.output_rules.dtypes or (None,) * len(self.op.outputs)
        # What is given is an input by now, and may have got another dtype.
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
        """What the shape function needs: the arguments that its formulas name."""
        return [p for p in self.params if p.name in self.shape_names]

    @cached_property
    def shape_names(self) -> set[str]:
        """The names that the formulas of shapes have."""
        return self.holes(rule.expr for rule in self.op.output_rules.shapes)

    # Metal

    @property
    def metal_names(self) -> set[str]:
        """Arguments that a hand-written kernel's launch needs as locals."""
        assert self.metal is not None
        names = {b.of for b in self.metal.bindings} | self.metal.holes
        bound = names | {p.name for p, _ in self.lengths_in(names)}
        absent = any(p.present and p.name in bound for p in self.arrays)
        return bound | {p.name for p in self.instead if absent}

    @property
    def instead(self) -> list[Parameter]:
        """The array that is bound where an optional one is absent, if one is always there."""
        return [p for p in self.arrays if not p.present][:1]

    @property
    def optional(self) -> set[str]:
        """The arrays that may be absent."""
        return {p.name for p in self.arrays if p.present}

    @cached_property
    def in_launch(self) -> Mapping[str, str]:
        """Names in a launch, where arguments are locals."""
        assert self.metal is not None
        outputs = {o.name: f"outputs[{i}]" for i, o in enumerate(self.op.outputs)}
        templates = {t.name: f"template_{t.name}" for t in self.metal.templates}
        constants = {name: f"const_{name}" for name, _ in self.metal.constants}
        return {**self.in_primitive, **outputs, **templates, **constants, MOST: MOST}

    def bound(self, binding: Binding) -> str:
        """C++ of what a buffer of a launch holds."""
        p, cpp = self.op.arguments.by_name.get(binding.of), self.in_launch[binding.of]
        part = binding.part
        if p is None or not p.type.is_array:
            # The index of an enumerated string is a local of the launch.
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
    def unzeroed(self) -> list[int]:
        """The outputs of a hand-written kernel that only its threads write."""
        assert self.metal is not None
        return [i for i in range(len(self.op.outputs)) if i not in self.metal.zero]

    # What names of formulas are called

    @cached_property
    def in_call(self) -> Mapping[str, str]:
        """In the op function."""
        lengths = {name: length.cpp for name, length in self.op.arguments.lengths.items()}
        return {STREAM: "s", **lengths, **{p.name: p.cpp for p in self.params}}

    @cached_property
    def in_primitive(self) -> Mapping[str, str]:
        """In a primitive's functions, where arrays are locals."""
        return {**self.in_call, **{p.name: p.member for p in self.attributes}}

    def in_gradient(self, grad: Grad) -> Mapping[str, str]:
        """In a formula of gradients."""
        found = dict(self.in_primitive if self.op.has_primitive else self.in_call)
        found |= self._each("grad", "cotangents") | self._each("result", "outputs")
        for p in grad.params:
            asked = f"mlxgen::contains(argnums, {p.position})"
            found[f"asked_{p.name}"] = f"({p.present} && {asked})" if p.present else asked
        return found | _given(grad.params)

    def in_jvp(self, p: Parameter) -> Mapping[str, str]:
        """In the formula of an argument's part of the jvp, which may be that of its gradient."""
        found = {**self.in_primitive, **self._each("result", "outputs"), "tangent": "tangents[i]"}
        for name, i in self.op.signature.each_output("grad").items():
            found[name] = "tangents[i]" if i == 0 else "std::vector<mx::array>{tangents[i]}"
        return found | _given([p])

    def _each(self, word: str, several: str) -> dict[str, str]:
        each = self.op.signature.each_output(word)
        return {name: several if i is None else f"{several}[{i}]" for name, i in each.items()}

    def holes(self, exprs: Iterable[Expr | None]) -> set[str]:
        """Names that the C++ of formulas has; arrays too whose lengths it has."""
        found = {name for expr in exprs if expr is not None for name in expr.holes}
        return found | {
            self.op.arguments.lengths[name].array
            for name in found & self.op.arguments.lengths.keys()
        }

    def lengths_in(self, names: Container[str]) -> list[tuple[Parameter, Length]]:
        """The lengths among these names, with the arrays whose they are."""
        of = self.op.arguments
        return [(of.by_name[x.array], x) for name, x in of.lengths.items() if name in names]

    def lengths_after(self, check: Condition) -> list[tuple[Parameter, Length]]:
        """The lengths that the op function takes from the array that a check is about."""
        exprs = [c.expr for c in self.op.checks if c is not check]
        exprs += [rule.expr for rule in self.op.output_rules.dtypes if rule]
        exprs += [t.expr for kernel in self.op.forward.kernels for t in kernel.templates]
        if self.op.forward.expr and not (self.op.has_primitive or self.op.derivatives.own):
            exprs.append(self.op.forward.expr)
        names = self.holes(exprs)
        return [(p, x) for p, x in self.lengths_in(names) if p.name == check.array]

    def uses_results(self, exprs: Iterable[Expr | None]) -> bool:
        """True if formulas name results of the operator."""
        return not self.holes(exprs).isdisjoint(self.op.signature.each_output("result"))

    def uses_grads(self, exprs: Iterable[Expr | None]) -> bool:
        """True if formulas name cotangents, or the tangent."""
        return not self.holes(exprs).isdisjoint({*self.op.signature.each_output("grad"), "tangent"})

    # Gradients

    @property
    def gradient_parameters(self) -> set[str]:
        """Which parameters the functions of gradients use."""
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
        """Whether every gradient is the composite's."""
        return bool(self.grads) and all(g.kind is GradKind.COMPOSITE for g in self.grads)

    @cached_property
    def joint(self) -> list[tuple[str, Grad]]:
        """The gradients that are computed together, with the name of their local."""
        found = [g for g in self.grads if g.joint]
        names = ["joint"] if len(found) == 1 else [f"joint{i}" for i in range(len(found))]
        return list(zip(names, found, strict=True))

    @property
    def by_position(self) -> int:
        """The number of leading arguments whose gradient stands at their position in one result."""
        count = 0
        for _, p, joint in self.gradients:
            if joint != ("joint", count) or not p.is_plain or p.place != count:
                break
            count += 1
        return count if count > 1 else 0

    @cached_property
    def gradients(self) -> list[tuple[Grad, Parameter, tuple[str, int] | None]]:
        """Every argument with its gradient, and where that is among those computed together."""
        joint = {p.name: (n, i) for n, g in self.joint for i, p in enumerate(g.params)}
        return [(g, p, joint.get(p.name)) for g in self.grads for p in g.params]

    @property
    def ends_gradients(self) -> bool:
        """Whether it is of a gradient, by its name, and has none: that is once differentiable."""
        none = all(g.kind is GradKind.NONE for g in self.grads)
        return none and self.op.entry.internal and "_vjp" in self.op.name

    @property
    def gradient_names(self) -> set[str]:
        """What the formulas of gradients name; functions take all arguments."""
        if any(g.kind is GradKind.FUNCTION for g in self.grads):
            return {p.name for p in self.arrays}
        return self.holes(g.expr for g in self.grads)

    @property
    def undifferentiable(self) -> set[str]:
        """The arguments that the entry declares `none` for."""
        return {p.name for g in self.grads if g.kind is GradKind.NONE for p in g.params}

    @property
    def tangents(self) -> list[tuple[Parameter, Expr | None]]:
        """The arguments that contribute to the jvp, or (None) must not be asked for."""
        given = {p.name: e for p, e in self.op.derivatives.tangents}
        zeros = {p.name for g in self.grads if g.kind is GradKind.ZERO for p in g.params}
        left = [p for p in self.arrays if p.name not in given.keys() | zeros]
        return [*self.op.derivatives.tangents, *((p, None) for p in left)]


def _given(params: Sequence[Parameter]) -> dict[str, str]:
    """An optional array is there when its own derivative is asked for."""
    return {p.name: f"(*{p.cpp})" for p in params if p.present and len(params) == 1}
