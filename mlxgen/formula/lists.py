"""Translates tuples, lists, indices, slices and comprehensions in formulas.

A literal tuple stays a list of values until its use determines whether it is a shape, a list of
arrays, or something else. Indices of arrays become ``mlxgen::index``, and comprehensions become
``mlxgen::map`` with a lambda.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

from ..model.kinds import ValueKind
from ..model.op import Fact
from . import explain
from .explain import Wrong, require
from .facts import axes_of, category, either, indexed, known, length, operands, sliced, total
from .mlx import CONSTANTS, MODULES, PythonParam, bind
from .translator import Translator, both, rejected
from .values import (
    LEVEL,
    LISTS,
    NOTHING,
    Cpp,
    Value,
    binary,
    braces,
    call,
    constant,
    cpp,
    dereferenced,
    fit,
    fit_all,
    member,
    named,
    narrow,
    present,
    unary,
)

UPDATES = ("add", "multiply", "maximum", "minimum")

MANY = 100  # maximum number of items of a repeated list
# The C++ of the items of a list, by its kind.
ITEMS: Mapping[ValueKind, tuple[ValueKind, str]] = {
    "arrays": ("array", "const mx::array&"),
    "optionals": ("array", "const std::optional<mx::array>&"),
    "floats": ("float", "double"),
    "bools": ("bool", "bool"),
    "shape": ("int", "int"),
    "ints": ("int", "int"),
    "nested": ("ints", "const std::vector<int>&"),
}
# The kind of a comprehension by the kind of its elements.
COLLECTED: Mapping[ValueKind, ValueKind] = {
    "array": "arrays",
    "int": "shape",
    "bool": "bools",
    "float": "floats",
}


def _is_whole(node: ast.AST) -> bool:
    """Return whether this is `:`, which keeps a whole axis."""
    return isinstance(node, ast.Slice) and not any((node.lower, node.upper, node.step))


class Lists(Translator):
    """Visits lists and expressions with lists."""

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> Value:
        """Return the value of a tuple or list, which may contain stars: ``(*x.shape[:-1], 1)``."""
        if not any(isinstance(element, ast.Starred) for element in node.elts):
            return Value("tuple", NOTHING, node, items=self.each(self.visit_item, node.elts))

        def part(element: ast.expr) -> Value:
            if not isinstance(element, ast.Starred):
                return Value("tuple", NOTHING, node, items=[self.visit_item(element)])
            value = self.visit(element.value)
            if not (value.is_ints or value.is_arrays):
                raise Wrong("star", element, value=value)
            return value

        parts: list[Value] = []
        for value in self.each(part, node.elts):
            if parts and parts[-1].kind == value.kind == "tuple":
                value = Value("tuple", NOTHING, node, items=[*parts.pop().items, *value.items])
            parts.append(value)
        if not (all(p.is_ints for p in parts) or all(p.is_arrays for p in parts)):
            raise Wrong("mixed_stars", node)
        return parts[0] if len(parts) == 1 else concatenated(parts, node)

    visit_List = visit_Tuple

    def visit_item(self, node: ast.expr) -> Value:
        """Return an item of a tuple or list with its uses, which an index may drop."""
        start = len(self.used)
        value = self.visit(node)
        return replace(value, used=(start, len(self.used)))

    # Indices of lists

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        start = len(self.used)
        value = replace(self.visit(node.value), used=(start, len(self.used)))
        require(value)
        if value.kind == "array":
            return self.index_array(value, node)
        if value.kind not in ("tuple", "shape", "ints", "floats", "bools", "nested", "arrays"):
            raise Wrong("not_indexed", node, value.kind, value=value)
        if value.of is not None and value.of.name:
            self.used.append(("sized", value.of.name))
        if isinstance(node.slice, ast.Slice):
            return self.slice_list(value, node.slice, node)
        return self.item(value, self.visit(node.slice), node)

    def item(self, value: Value, index: Value, node: ast.Subscript) -> Value:
        """Return the value of ``list[i]``."""
        require(index)
        if index.kind != "int":
            raise Wrong("list_index", node.slice, value=index)
        count = value.length
        if value.kind == "ints" and index.const is not None:
            self.check_index(value, index.const, node.slice)
        if value.kind == "shape" and index.const is not None:
            axes_of(index.const, length(value), node.slice)
        if index.const is not None and count is not None:
            at: int = index.const
            if not -count <= at < count:
                raise Wrong("out_of_range", node.slice, at=at, count=count)
            at %= count
            if value.kind == "tuple":
                self.drop(value.items, [value.items[at]])
                return replace(value.items[at], at=node)
            if names := self.scope.names[value.name].items if value.name else ():
                self.drop([value])
                return self.visit(ast.copy_location(ast.Name(names[at]), node))
            fact = list(operands([value]))[at]
            if value.type == "tuple":
                return Value("array", call(f"std::get<{at}>", value.cpp), node, fact=fact)
            if value.cpp.level >= LEVEL["call"]:
                like = "name" if value.cpp.level == LEVEL["name"] else "call"
                return Value("array", cpp(value.cpp, f"[{at}]", like=like), node, fact=fact)
        if value.kind == "shape" and value.of is not None:
            # The errors of the member shape(i) name neither axis nor array.
            return Value("int", call("mlxgen::dim", value.of.cpp, narrow(index)), node)
        found = self.rule("item", [value, index], node)
        if found is None:
            raise Wrong("constant_index", node)
        return found

    def check_index(self, value: Value, index: int, at: ast.expr) -> None:
        """Report a constant index beyond the integers of an argument such as ``int[2]``."""
        name = self.scope.names.get(value.name or "")
        count = name.type.length if name and not name.type.empty else None
        if count and count > 1 and not -count <= index < count:  # 1: any number of ints
            raise Wrong("out_of_range", at, at=index, count=count)

    def slice_list(self, value: Value, slice_: ast.Slice, node: ast.expr) -> Value:
        """Return the value of ``list[1:]``."""
        bounds = self.bounds(slice_)
        if value.kind == "tuple" and all(b.kind == "none" or b.const is not None for b in bounds):
            start, stop, step = [bound.const for bound in bounds]
            kept = value.items[start:stop:step]
            self.drop(value.items, kept)
            return Value("tuple", NOTHING, node, items=kept)
        kind: ValueKind = "shape" if value.is_ints else "arrays"
        sequence = fit(value, kind)
        if sequence is None:
            raise Wrong("not_sliced", node, value=value)
        written = written_bounds(bounds) or ["std::nullopt"]
        arrays = operands([value])
        fact = Fact(sliced(value, bounds)) if kind == "shape" else reduce(either, arrays)
        return Value(kind, call("mlxgen::slice", sequence, *written), node, fact=fact)

    def bounds(self, node: ast.Slice) -> list[Value]:
        """Return start, stop and step of a slice, or None for each."""
        parts = [part or ast.Constant(None) for part in (node.lower, node.upper, node.step)]
        bounds = self.each(self.visit, parts)
        for bound in bounds:
            if bound.kind not in ("int", "none"):
                raise Wrong("slice_bound", bound.at, value=bound)
            require(bound)
        if bounds[2].const == 0:
            raise Wrong("slice_step", bounds[2].at)
        return bounds

    # Indices of arrays

    def index_array(self, value: Value, node: ast.Subscript) -> Value:
        """Return the value of ``x[...]``."""
        index, stream = self.all(partial(self.indices, node.slice), partial(self.stream, node))
        self.used.append(("mlx", "slice"))
        if not all(part.kind in ("none", "ellipsis") or _is_whole(part.at) for part in index):
            self.traced("slice")
        indexed_ = call("mlxgen::index", value.cpp, written_index(index), stream)
        found = self.note(Value("array", indexed_, node), "take", [value, *index])
        return replace(found, fact=known(found)._replace(rank=indexed(value, index, node)))

    def indices(self, node: ast.expr, new_axes: bool = True) -> list[Value]:
        """Return the items of an index: arrays of ints, or ints, slices, None and an ellipsis.

        An int next to arrays is one of them.
        """
        elements = node.elts if isinstance(node, ast.Tuple) else [node]
        ellipses = [e for e in elements if isinstance(e, ast.Constant) and e.value is Ellipsis]

        def part(element: ast.expr) -> Value:
            if isinstance(element, ast.Slice):
                bounds = written_bounds(self.bounds(element))
                return Value("slice", braces("mlxgen::Slice", *bounds), element)
            if element in ellipses:
                if element is not ellipses[0]:
                    raise Wrong("ellipses", element)
                return Value("ellipsis", named("mlxgen::ellipsis"), element)
            value = self.visit(element)
            require(value)
            if value.kind == "array":
                if category(known(value).dtype) == "bool":
                    raise Wrong("mask", element)
                return value
            if value.kind == "none" and new_axes:
                return replace(value, cpp=named("mlxgen::newaxis"))
            if value.kind != "int":
                raise Wrong("index", value.at, value.kind, value=value)
            return replace(value, cpp=narrow(value))

        parts = self.each(part, elements)
        others = [p for p in parts if p.kind not in ("array", "int")]
        if others and len(others) < len(parts) and any(p.kind == "array" for p in parts):
            raise Wrong("index_beside_array", others[0].at)
        return parts

    def update_array(self, at: ast.Subscript, array: ast.expr, node: ast.Call, name: str) -> Value:
        """Return the value of ``x.at[...].add(values)``, the adjoint of an index."""
        value, index, args, stream = self.all(
            partial(self.visit, array),
            partial(self.indices, at.slice, new_axes=False),
            partial(self.arguments, node, name),
            partial(self.stream, node),
        )
        if not value.is_array:
            raise explain.argument("at", "x", "array", value)
        if name not in UPDATES:
            raise Wrong("unknown_update", node.func, name=name, known=", ".join(UPDATES))
        updates = bind([PythonParam("value", "/", "scalar | array")], args)["value"]
        given_values = fit(updates, "weak")
        if given_values is None:
            raise explain.argument(name, "value", "scalar | array", updates)
        self.used.append(("mlx", "scatter"))
        self.traced("scatter")
        updated = call(f"mlxgen::at_{name}", value.cpp, written_index(index), given_values, stream)
        given, names = [value, updates, *index], ["a", "values", *[""] * len(index)]
        return self.note(Value("array", updated, node), f"at_{name}", given, names)

    # Comprehensions

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> Value:
        """Translate ``[f(a) for a in arrays]`` to a call of mlxgen::map with a lambda."""
        if len(node.generators) != 1:
            raise Wrong("several_loops", node)
        loop = node.generators[0]
        if loop.is_async:
            raise Wrong("Await", node)
        lists = self.loop_lists(loop.iter)
        names = self.loop_names(loop.target, len(lists))
        before, known, params = dict(self.locals), self.known, []
        for target, list_ in zip(names, lists, strict=True):
            name = target.id if target.id.isascii() else str(len(self.locals))
            variable = f"_each_{name}"  # not a valid name of an argument
            kind, passed = ITEMS[list_.kind]
            params.append(f"{passed} {variable}")
            item = Value(kind, named(variable), target, fact=list_.fact)
            if list_.kind == "optionals":
                item = replace(item, optional=True, name=target.id)
            self.locals[target.id] = item
        always, self.always = self.always, set()  # the list may be empty
        try:
            tests = self.each(self.visit, loop.ifs)
            self.known = reduce(both, [self.facts(test, True) for test in loop.ifs], known)
            element = self.visit(node.elt)
            tests = self.each(condition, tests)
        finally:
            self.locals, self.known, self.always = before, known, always
        head = f"[&]({', '.join(params)})"
        parts = [value.cpp for value in lists]
        if tests:
            if len(lists) > 1:
                raise Wrong("filtered_lists", loop.ifs[0])
            test = joined("&&", tests, node).cpp
            parts = [call("mlxgen::filter", parts[0], cpp(head, " { return ", test, "; }"))]
        require(element)
        collected = "pairs" if element.is_ints else COLLECTED.get(element.kind)
        slot = {"pairs": "pair", "floats": "double"}.get(collected or "", element.kind)
        body = fit(element, slot)
        if collected is None or body is None:
            raise Wrong("collect", element.at, value=element)
        if len(lists) == 1 and collected == lists[0].kind and body == item.cpp:  # all of the list
            return Value(collected, parts[0], node, fact=element.fact)
        mapped = call("mlxgen::map", *parts, cpp(head, " { return ", body, "; }"))
        return Value(collected, mapped, node, fact=element.fact)

    visit_GeneratorExp = visit_ListComp

    def loop_lists(self, node: ast.expr) -> list[Value]:
        """Return the lists that a comprehension loops over, several for ``zip``."""
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or name not in self.scope.api.loops:
            return [loop_list(self.visit(node))]
        args = self.arguments(node, name)
        (params,) = self.scope.api.loops[name]
        given = [*bind(params, args).values()]
        if name == "range":
            counted = self.rule("range", given, node)
            if counted is None:
                no_int = next((value for value in given if value.kind != "int"), given[0])
                raise rejected(name, params[0], no_int)
            return [counted]
        lists = self.each(loop_list, given)
        if name == "enumerate":
            count = Value("int", call("mlxgen::len", lists[0].cpp), node)
            lists[:0] = filter(None, [self.rule("range", [count], node)])
        return lists

    def loop_names(self, target: ast.expr, count: int) -> list[ast.Name]:
        """Return the variables of a loop, one per list."""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(targets) != count:
            raise Wrong("loop_count", target, values=count, names=len(targets))
        found: dict[str, ast.Name] = {}
        for t in targets:
            if not isinstance(t, ast.Name):
                raise Wrong("loop_variable", t)
            known = {*self.scope.names, *self.scope.lengths, *self.scope.lets, *self.locals}
            known |= {
                "mx",
                *MODULES,
                *CONSTANTS,
                *(name.mode for name in self.scope.names.values()),
            }
            if t.id in known:
                raise Wrong("taken", t, name=t.id)
            if t.id in found:
                raise Wrong("twice", t, name=t.id)
            found[t.id] = t
        return list(found.values())


def condition(value: Value) -> Value:
    """Check that a value is a condition; a list is true if it is not empty."""
    if value.kind == "tuple":
        return constant(bool(value.items), value.at)
    if value.kind == "truth":
        return replace(value, kind="bool")
    if value.kind in LISTS and (not value.optional or value.name):
        plain = dereferenced(value) if value.optional else value
        tests = [present(value.cpp)] * value.optional
        test = binary("&&", *tests, unary("!", member(plain.cpp, "empty")))
        return Value("bool", test, value.at)
    if value.kind != "bool" or value.optional:
        raise explain.condition(value)
    return value


def joined(sign: str, tests: Sequence[Value], node: ast.expr) -> Value:
    """Join conditions by ``&&`` or ``||``."""
    return Value("bool", binary(sign, *[test.cpp for test in tests]), node)


def concatenated(parts: Sequence[Value], node: ast.expr) -> Value:
    """Concatenate lists of ints or of arrays."""
    if all(p.kind == "tuple" for p in parts):
        return Value("tuple", NOTHING, node, items=[i for p in parts for i in p.items])
    kind: ValueKind = "shape" if all(p.is_ints for p in parts) else "arrays"
    known = [p.length for p in parts if p.length is not None]
    count = sum(known) if kind == "arrays" and len(known) == len(parts) else None
    lists = fit_all(parts, kind) or []
    fact = Fact(total(parts)) if kind == "shape" else reduce(either, operands(parts))
    return Value(kind, call("mlxgen::concat", *lists), node, count=count, fact=fact)


def repeated(left: Value, right: Value) -> Sequence[Value]:
    """Return the copies of a list in ``[x] * 2``."""
    listed, times = (right, left) if left.kind == "int" else (left, right)
    count: int = times.const or 0 if listed.kind == "tuple" and times.kind == "int" else 0
    return [listed] * count if count * len(listed.items) <= MANY else []


def written_index(parts: Sequence[Value]) -> Cpp:
    """Return an index in C++: an array of ints, arrays, or a list in braces."""
    if [part.kind for part in parts] == ["array"]:
        return parts[0].cpp
    if any(part.kind == "array" for part in parts):
        arrays = [p.cpp if p.kind == "array" else call("mx::array", p.cpp) for p in parts]
        return braces("std::vector<mx::array>", *arrays)
    return braces("", *[value.cpp for value in parts])


def written_bounds(bounds: Sequence[Value]) -> Sequence[str | Cpp]:
    """Return start, stop and step of a slice in C++, without trailing omitted ones."""
    while bounds and bounds[-1].kind == "none":
        bounds = bounds[:-1]
    return [narrow(bound) for bound in bounds]


def loop_list(value: Value) -> Value:
    """Check and convert a list to loop over."""
    require(value)
    kind = "arrays" if value.is_arrays else value.kind if value.kind != "tuple" else "shape"
    fitted = fit(value, kind) if kind in ITEMS else None
    if fitted is None or value.length == 0:
        raise Wrong("loop_over", value.at, value=value)
    fact = reduce(either, operands([value])) if kind == "arrays" else None
    return Value(kind, fitted, value.at, count=value.count, fact=fact)
