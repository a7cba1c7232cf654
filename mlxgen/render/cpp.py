"""One operator as templates see it, and the filters that spell things in C++.

A template loops and inserts; whatever depends on more than one fact of an operator is a property of
``View``. Nothing is laid out: `mlxgen show` and the documentation run clang-format.
"""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from typing import Any

from ..model.dtypes import ACCUMULATOR, CPP_TYPES, FLOATING, computes_integers
from ..model.kinds import BY_VALUE, Kind
from ..model.op import Expr, Grad, GradKind, Kernel, Op, Parameter, metal_stem

# Control characters as octal escapes, the only ones that end.
_ESCAPES = {c: f"\\{c:03o}" for c in (*range(32), 127)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}
_METAL_NUMBERS = {Kind.FLOAT: "float", Kind.ENUM: "int"}  # others as in C++
_BOUND = {
    Kind.ARRAY: "const mlxgen::ArrayArg&",
    Kind.ARRAYS: "const std::vector<mlxgen::ArrayArg>&",
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
        lines += textwrap.wrap(line, 77, break_long_words=False) or [""]
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


def element(p: Parameter) -> str:
    """The type of an array's elements in a kernel over views."""
    if p.dtype == ACCUMULATOR:
        return "mlxgen::accum_t<T>"
    return CPP_TYPES[p.dtype] if p.dtype else "T"


def metal_type(p: Parameter) -> str:
    """An attribute's type in a scalar function of Metal."""
    return _METAL_NUMBERS.get(p.type.kind, p.type.cpp)


def binding_type(p: Parameter) -> str:
    """The type of a parameter of the function that Python calls."""
    bound = "const mlxgen::IntsArg&" if p.type.length else _BOUND.get(p.type.kind)
    if bound and p.type.optional and p.type.kind is not Kind.AXES:
        return f"const std::optional<{bound.removeprefix('const ').removesuffix('&')}>&"
    return bound or p.type.cpp_param


def cast(p: Parameter, kernel: Kernel) -> bool:
    """Whether a scalar function gets a number in the type in which it computes."""
    return p.type.kind is Kind.FLOAT and not computes_integers(kernel.dtypes)


@cache
def _naming(name: str) -> Callable[[str], object]:
    return re.compile(rf"\b{name}\b").search


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
    "names": lambda exprs: _names(exprs),
    "prefix": lambda text, before: before + text,
    "listed": ", ".join,
    "folded": lambda text: " ".join(text.split()),
}
TESTS = {"naming": lambda text, name: _naming(name)(text) is not None}


def _names(exprs: Iterable[Expr | None]) -> set[str]:
    """What formulas name."""
    return {name for expr in exprs if expr is not None for name in expr.names}


class View:
    """One operator: the model's fields, and what templates need to know beside them."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.arrays = op.arrays
        self.attributes = op.attributes
        self.cpu, self.metal = op.kernel("cpu"), op.kernel("metal")
        self.__dict__.update(op._asdict(), outputs=op.outputs, single=op.single)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.op, name)

    # Names, types and files

    @property
    def result(self) -> str:
        """C++ return type."""
        return "mx::array" if self.op.single else "std::vector<mx::array>"

    @property
    def trailing(self) -> list[Parameter]:
        """The last parameters, as far as they have a default."""
        return list(itertools.takewhile(lambda p: p.arg.default, reversed(self.op.params)))

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
        keys = self.op.forward.keys if self.op.forward else frozenset()
        others = keys | self.whole
        return [p.cpp for p in self.arrays if p.dtype is None and p.name not in others]

    @property
    def whole(self) -> frozenset[str]:
        """The arguments that checks want to be integers: scalars and NumPy's stay what they are."""
        return frozenset[str]().union(*(check.whole for check in self.op.checks))

    @property
    def first_keyword(self) -> Parameter | None:
        """The first argument that Python takes by keyword only."""
        return next((p for p in self.op.params if p.arg.kw_only), None)

    # The primitive

    @property
    def base(self) -> str:
        """Its base class in mlxgen/primitive.h."""
        name = self.op.class_name
        if self.op.elementwise:
            return f"Elementwise<{name}, {len(self.arrays)}, {len(self.op.outputs)}>"
        return f"Operator<{name}>"

    @property
    def constants(self) -> dict[str, str]:
        """What the base class is told, where it is not what it takes for granted."""
        found = {}
        usual = "elementwise" if self.op.elementwise else "vjp"
        if self.op.jvp != usual and self.op.jvp in ("linear", "vjp", "composite"):
            found["kJvp"] = f"mlxgen::Jvp::{self.op.jvp}"
        usual = "elementwise" if self.op.elementwise else "sequential"
        if self.op.vmap not in (usual, "manual"):
            found["kVmap"] = f"mlxgen::Vmap::{self.op.vmap}"
        if self.op.jvp == "elementwise" and any(
            name.startswith("result") for name in _names(g.expr for g in self.op.grads)
        ):
            found["kUsesOutputs"] = "true"
        whole = self.all_composite and self.op.jvp == "composite"
        if whole and self.op.vmap not in ("manual", "none"):
            found["kIsComposite"] = "true"
        return found

    @cached_property
    def state(self) -> list[tuple[str, str, str]]:
        """Members: the attributes, and which inputs are there: name, type, type as a parameter."""
        members = [(p.member, p.type.cpp) for p in self.attributes]
        members += [(p.size, "bool" if p.present else "int") for p in self.arrays if not p.is_plain]
        return [(n, t, t if t in BY_VALUE else f"const {t}&") for n, t in members]

    @property
    def targets(self) -> list[str]:
        """Where a scalar function's results go."""
        return ["to"] if len(self.op.outputs) == 1 else [f"to_{o.name}" for o in self.op.outputs]

    @property
    def results(self) -> list[tuple[str, str]]:
        """The outputs of a kernel over views, with the types of their elements."""
        assert self.cpu is not None
        names = ["out"] if len(self.op.outputs) == 1 else self.targets
        return [(n, _qualified(e)) for n, e in zip(names, self.cpu.elements, strict=True)]

    @property
    def cpu_types(self) -> str:
        """The types for which the CPU kernel is compiled."""
        assert self.cpu is not None
        if self.cpu.dtypes == FLOATING:
            return "mlxgen::Floating"
        return f"mlxgen::Types<{', '.join(CPP_TYPES[dtype] for dtype in self.cpu.dtypes)}>"

    @property
    def has_group(self) -> bool:
        """Whether some arguments are promoted together."""
        return bool(self.op.rules) and self.op.rules[0].name == "kDtypes"

    @property
    def typed(self) -> str:
        """The position of an input whose dtype is the kernel's type parameter."""
        if not self.has_group:
            return "0"
        params = self.op.rules[0].params
        return next((p for p in params if not p.present), params[0]).position

    @property
    def output_dtypes(self) -> list[str]:
        """The dtypes of the outputs of a kernel that is not elementwise."""
        rules = self.op.out_dtypes or (None,) * len(self.op.outputs)
        return [rule.expr.cpp if rule else "dtype" for rule in rules]

    @property
    def shape_params(self) -> list[Parameter]:
        """What the shape function needs: the arguments that its formulas name."""
        names = _names(rule.expr for rule in self.op.shapes)
        return [p for p in self.op.params if p.name in names]

    # Metal

    @property
    def metal_names(self) -> set[str]:
        """Arguments that a hand-written kernel's launch needs as locals."""
        assert self.metal is not None
        text = "\n".join(b.value for b in self.metal.bindings)
        bound = {p.name for p in self.arrays if re.search(rf"\b{re.escape(p.cpp)}\b", text)}
        return bound | self.metal.uses

    @property
    def unzeroed(self) -> list[int]:
        """The outputs of a hand-written kernel that only its threads write."""
        assert self.metal is not None
        return [i for i in range(len(self.op.outputs)) if i not in self.metal.zero]

    # Gradients

    @property
    def all_composite(self) -> bool:
        """Whether every gradient is the composite's."""
        return bool(self.op.grads) and all(g.kind is GradKind.COMPOSITE for g in self.op.grads)

    @cached_property
    def joint(self) -> list[tuple[str, Grad]]:
        """The gradients that are computed together, with the name of their local."""
        found = [g for g in self.op.grads if g.joint]
        names = ["joint"] if len(found) == 1 else [f"joint{i}" for i in range(len(found))]
        return list(zip(names, found, strict=True))

    @cached_property
    def gradients(self) -> list[tuple[Grad, Parameter, tuple[str, int] | None]]:
        """Every argument with its gradient, and where that is among those computed together."""
        joint = {p.name: (n, i) for n, g in self.joint for i, p in enumerate(g.params)}
        return [(g, p, joint.get(p.name)) for g in self.op.grads for p in g.params]

    @property
    def ends_gradients(self) -> bool:
        """Whether it is of a gradient, by its name, and has none: that is once differentiable."""
        none = all(g.kind is GradKind.NONE for g in self.op.grads)
        return none and "internal" in self.op.tags and "_vjp" in self.op.name

    @property
    def gradient_names(self) -> set[str]:
        """What the formulas of gradients name; functions take all arguments."""
        if any(g.kind is GradKind.FUNCTION for g in self.op.grads):
            return {p.name for p in self.arrays}
        return _names(g.expr for g in self.op.grads)

    @property
    def undifferentiable(self) -> set[str]:
        """The arguments that the entry declares `none` for."""
        return {p.name for g in self.op.grads if g.kind is GradKind.NONE for p in g.params}

    @property
    def tangents(self) -> list[tuple[Parameter, Expr | None]]:
        """The arguments that contribute to the jvp, or (None) must not be asked for."""
        given = {p.name: e for p, e in self.op.jvp_exprs}
        zeros = {p.name for g in self.op.grads if g.kind is GradKind.ZERO for p in g.params}
        left = [p for p in self.arrays if p.name not in given.keys() | zeros]
        return [*self.op.jvp_exprs, *((p, None) for p in left)]


def _qualified(element: str) -> str:
    return "mlxgen::accum_t<T>" if element == "accum_t<T>" else element
