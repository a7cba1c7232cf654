"""Every attribute that a template uses exists.

The types of templates' variables are those that the renderer passes; those of loops and of chains
such as ``op.metal.grid`` follow from the annotations of the classes.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from jinja2 import nodes

from mlxgen.model.op import Condition, DtypeRule, Expr, Grad, Kernel, Parameter
from mlxgen.plugins.languages import c, rust
from mlxgen.plugins.reference import pages
from mlxgen.render.cpp import View
from mlxgen.render.files import TEMPLATES, Internal, Pieces
from mlxgen.render.reference import InPlace, Reference

FOLDERS = [of.folder for of in (TEMPLATES, c.TEMPLATES, rust.TEMPLATES, pages.TEMPLATES)]
PATHS = sorted(path for folder in FOLDERS for path in folder.rglob("*.j2"))
# The variables that the renderer and macros pass, and those of some templates.
VARIABLES: Mapping[str, Any] = {
    "op": View,
    "p": Parameter,
    "mode": Parameter,
    "array": Parameter,
    "params": Sequence[Parameter],
    "check": Condition,
    "grad": Grad,
    "expr": Expr,
    "kernel": Kernel,
    "rule": DtypeRule,
    "inplace": InPlace | None,
    "public": Sequence[Pieces],
    "internal": Sequence[Internal],
    "modules": Sequence[str],
    "methods": Mapping[str, str],
}
OWN: Mapping[str, Mapping[str, Any]] = {
    "bind.cpp.j2": {"ops": Sequence[Pieces]},
    "docstring.j2": {"op": Reference},
    "ffi.rs.j2": {"public": Sequence[rust.Piece]},
    "function.j2": {"f": c.CFunction},
    "functions.cpp.j2": {"ops": Sequence[c.Piece]},
    "header.h.j2": {"public": Sequence[c.Piece]},
    "operator.rs.j2": {"f": rust.RustFunction},
    "operators.rs.j2": {"ops": Sequence[rust.Piece]},
    "package.h.j2": {"ops": Sequence[Pieces]},
    "reference.md.j2": {"op": pages.Page},
    "references.md.j2": {"ops": Sequence[Pieces]},
    "sources.cmake.j2": {"ops": Sequence[Pieces]},
}
# Parameters of macros that have another type than the variable of that name.
MACROS: Mapping[str, Mapping[str, Any]] = {"from_c": {"p": c.CParam}}
SAME = ("list", "sort", "reverse", "unique", "select", "reject", "selectattr", "rejectattr")


class Returns(typing.NamedTuple):
    """A method, by the type of its result."""

    type: Any


@cache
def members(cls: type) -> dict[str, Any]:
    """Return the types of a class's attributes; Any for those without annotation."""
    found: dict[str, Any] = {}
    for name in dir(cls):
        value = getattr(cls, name)
        getter = value.fget if isinstance(value, property) else value
        getter = value.func if isinstance(value, cached_property) else getter
        type_ = Any
        if inspect.isfunction(getter) and getter.__module__.startswith("mlxgen"):
            type_ = typing.get_type_hints(getter).get("return", Any)
        found[name] = Returns(type_) if getter is value and callable(value) else type_
    if issubclass(cls, enum.Enum):
        found |= {"name": str, "value": Any}
    sources = (inspect.getsource(base) for base in cls.__mro__ if base.__module__[:6] == "mlxgen")
    assigned = re.findall(r"self\.(\w+)\b(?=[^=\n]* = )", "".join(sources))
    found |= dict.fromkeys(assigned, Any)
    return found | typing.get_type_hints(cls)


def variants(type_: Any) -> list[Any]:
    """Return the members of a union, without None."""
    if get_origin(type_) in (Union, UnionType):
        return [one for each in get_args(type_) for one in variants(each)]
    return [] if type_ in (None, NoneType) else [type_]


def attribute(type_: Any, name: str) -> Any:
    """Return the type of an attribute; raise AttributeError if no variant has it."""
    found, all_variants = [], variants(type_)
    for one in all_variants:
        cls = get_origin(one) or one
        if one is Any or not isinstance(cls, type):
            return Any
        if cls.__module__ in ("builtins", "collections.abc"):
            cls = {Sequence: list, Mapping: dict}.get(cls, cls)
            if not hasattr(cls, name):
                continue
            if name in ("items", "values", "keys") and get_args(one):
                key, value = get_args(one)
                each = {"items": tuple[key, value], "values": value, "keys": key}[name]
                found.append(Returns(Sequence[each]))
            else:
                found.append(Returns(str) if cls is str else Any)
        elif name in members(cls):
            found.append(members(cls)[name])
    if not found:
        raise AttributeError(f"{' | '.join(map(str, all_variants))} has no attribute '{name}'")
    return found[0] if len(found) == 1 else Any


def items(type_: Any) -> Any:
    """Return the type of the items of a sequence, and of the keys of a mapping."""
    for one in variants(type_):
        args = get_args(one)
        if one is str:
            return str
        if args and get_origin(one) is tuple and args[-1] is not Ellipsis:
            return Union[args]  # noqa: UP007
        return args[0] if args else Any
    return Any


class Checker:
    """Walks a template; ``uses`` has each attribute with the type of its object."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.scope = dict(variables)
        self.uses: list[tuple[str, Any]] = []
        self.errors: list[str] = []

    def type_of(self, node: Any) -> Any:
        """Return the type of an expression, after walking it."""
        method = getattr(self, f"on_{type(node).__name__}", None)
        if method is not None:
            return method(node)
        for child in node.iter_child_nodes():
            self.type_of(child)
        return Any

    def on_Name(self, node: nodes.Name) -> Any:
        return self.scope.get(node.name, Any)

    def on_Const(self, node: nodes.Const) -> Any:
        return type(node.value)

    def on_Getattr(self, node: nodes.Getattr) -> Any:
        of = self.type_of(node.node)
        return self.attribute(of, node.attr, node.lineno)

    def attribute(self, of: Any, name: str, line: int) -> Any:
        self.uses.append((name, of))
        try:
            return attribute(of, name)
        except AttributeError as error:
            self.errors.append(f"line {line}: {error}")
            return Any

    def chain(self, of: Any, names: str, line: int) -> Any:
        """Return the type for a dotted name."""
        for name in names.split("."):
            of = self.attribute(of, name, line)
        return of

    def on_Getitem(self, node: nodes.Getitem) -> Any:
        of = self.type_of(node.node)
        self.type_of(node.arg)
        if isinstance(node.arg, nodes.Slice):
            return of
        args = [get_args(one) for one in variants(of)][:1]
        if args and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, int):
            (types,) = args
            if types[1:] and types[-1] is not Ellipsis:
                return types[node.arg.value]
        return items(of)

    def on_Call(self, node: nodes.Call) -> Any:
        for child in node.iter_child_nodes(exclude=["node"]):
            self.type_of(child)
        called = self.type_of(node.node)
        return called.type if isinstance(called, Returns) else Any

    def on_CondExpr(self, node: nodes.CondExpr) -> Any:
        self.type_of(node.test)
        sides = [self.type_of(side) for side in (node.expr1, node.expr2) if side is not None]
        return Any if Any in sides else Union[tuple(sides)]  # noqa: UP007

    def on_Filter(self, node: nodes.Filter) -> Any:
        of = self.type_of(node.node) if node.node is not None else Any
        for child in node.iter_child_nodes(exclude=["node"]):
            self.type_of(child)
        if node.name in ("first", "last"):
            return items(of)
        if node.name in ("selectattr", "rejectattr"):
            self.chain(items(of), node.args[0].value, node.lineno)
        if node.name == "map" and node.kwargs:
            name = node.kwargs[0].value.value
            if isinstance(name, str):
                return Sequence[self.chain(items(of), name, node.lineno)]
        return of if node.name in SAME else Any

    def bind(self, target: Any, type_: Any) -> None:
        """Give the names of an assignment or a loop their types."""
        if isinstance(target, nodes.Name):
            self.scope[target.name] = type_
        elif isinstance(target, nodes.Tuple):
            types = next((get_args(one) for one in variants(type_)), ())
            fields = getattr(type_, "_fields", ())
            if fields:
                types = tuple(members(type_)[field] for field in fields)
            for i, one in enumerate(target.items):
                self.bind(one, types[i] if len(types) == len(target.items) else Any)

    def on_For(self, node: nodes.For) -> Any:
        before = dict(self.scope)
        self.bind(node.target, items(self.type_of(node.iter)))
        self.scope["loop"] = Any
        for child in node.iter_child_nodes(exclude=["iter", "target"]):
            self.type_of(child)
        self.scope = before

    def on_Assign(self, node: nodes.Assign) -> Any:
        self.bind(node.target, self.type_of(node.node))

    def on_Macro(self, node: nodes.Macro) -> Any:
        before = dict(self.scope)
        own = {**VARIABLES, **MACROS.get(node.name, {})}
        self.scope |= {arg.name: own.get(arg.name, Any) for arg in node.args}
        for child in node.body:
            self.type_of(child)
        self.scope = before


def checked(path: Path, text: str = "") -> Checker:
    """Walk the template, or another text in its place."""
    checker = Checker({**VARIABLES, **OWN.get(path.name, {})})
    checker.type_of(TEMPLATES.environment.parse(text or path.read_text(encoding="utf-8")))
    return checker


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_attributes_exist(path: Path) -> None:
    assert not checked(path).errors


def test_most_types_are_known() -> None:
    """Else the test above would find nothing."""
    uses = [of for path in PATHS for _, of in checked(path).uses]
    known = [of for of in uses if of is not Any]
    assert len(known) > 0.8 * len(uses)


@pytest.mark.parametrize(
    "text",
    [
        "{{ op.clas_name }}",
        "{{ op.metal.gird }}",
        "{% for p in op.params %}{{ p.cp }}{% endfor %}",
        "{{ op.arrays | map(attribute='nam') | join }}",
        "{% for grad, p, joint in op.gradients %}{{ p.positon }}{% endfor %}",
        "{% macro f(rule) %}{{ rule.dtype }}{% endmacro %}",
    ],
)
def test_misspelled_attributes_are_found(text: str) -> None:
    assert len(checked(Path("composite.cpp.j2"), text).errors) == 1


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_lines_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [i for i, line in enumerate(lines, 1) if len(line) > 120]
