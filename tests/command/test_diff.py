"""`mlxgen diff`: the changes of an operator, and those that break callers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mlxgen.check.file import resolve
from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.signature import Kind, Type
from mlxgen.plugins.diff.compare import _type, compare
from mlxgen.read.sources import Sources
from mlxgen.read.yaml import Documents
from mlxgen.render.python import op_dict

Op = dict[str, Any]


def argument(name: str, kind: str = "float", default: str | None = None, **more: Any) -> Op:
    return {
        "name": name,
        "type": kind,
        "kind": kind,
        "choices": [],
        "optional": False,
        "default": default,
        "has_default": default is not None,
        "kw_only": False,
        **more,
    }


OP: Op = {
    "python_name": "f",
    "module": "nn",
    "aliases": ["g"],
    "form": "kernels",
    "args": [argument("x", "array"), argument("n", "int", "1")],
    "outputs": [{"type": "array"}],
    "composite": None,
    "kernels": {"cpu": {}, "metal": {}},
    "dtypes": {"x": ["float32", "float16"]},
    "grad": {"x": "grad"},
    "tags": [],
    "variants": ["function", "method"],
    "deprecated": None,
}


def changed(change: Callable[[Op], object], op: Op = OP) -> list[tuple[str, bool]]:
    """Return the kinds of changes after an edit of the operator, and whether they break callers."""
    new = copy.deepcopy(op)
    change(new)
    return [(found.kind, found.breaking) for found in compare([op], [new])]


def arg(number: int, **values: Any) -> Callable[[Op], object]:
    return lambda op: op["args"][number].update(values)


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda op: None, []),
        (lambda op: op.update(python_name="h"), [("removed", True), ("added", False)]),
        (lambda op: op.update(python_name="h", aliases=["f", "g"]),
         [("renamed", False), ("added", False)]),
        (lambda op: op.update(aliases=[]), [("alias-removed", True)]),
        (lambda op: op["args"].pop(), [("argument-removed", True)]),
        (lambda op: op["args"].reverse(), [("argument-order", True)]),
        (lambda op: op["args"].append(argument("m")), [("argument-required", True)]),
        (lambda op: op["args"].append(argument("m", default="2")), [("argument-added", False)]),
        (lambda op: op["args"].insert(1, argument("m", default="2")),
         [("argument-inserted", True)]),
        (arg(1, type="float", kind="float"), [("argument-widened", False)]),
        (arg(1, type="bool", kind="bool"), [("argument-retyped", True)]),
        (arg(1, default="2"), [("default-changed", True)]),
        (arg(1, default=None, has_default=False), [("default-removed", True)]),
        (arg(0, default="None", has_default=True), [("default-added", False)]),
        (arg(1, kw_only=True), [("argument-keyword-only", True)]),
        (arg(1, pos_only=True), [("argument-positional-only", True)]),
        (lambda op: op["dtypes"]["x"].pop(), [("dtypes-removed", True)]),
        (lambda op: op["outputs"].append({"type": "array"}), [("result", True)]),
        (lambda op: op["variants"].pop(), [("method-removed", True)]),
        (lambda op: op["kernels"].pop("metal"), [("backend-removed", True)]),
        (lambda op: op.update(kernels={}, composite="x"), []),
        (lambda op: op["grad"].update(x="none"), [("gradient-removed", True)]),
        (lambda op: op.update(deprecated="use g"), [("deprecated", False)]),
    ],
)  # fmt: skip
def test_changes(change: Callable[[Op], object], found: list[tuple[str, bool]]) -> None:
    assert changed(change) == found


# Types of arguments, in pairs of different kinds, choices, widths, lengths and optionals.
TYPES = [
    *("int x", "int64_t x", "double x", "float x", "bool x", "Scalar x", "const std::string& x"),
    *('enum("a", "b") x', 'enum("a") x', 'std::optional<enum("a", "b")> x', "Dtype x"),
    *("std::vector<int> x", "Shape x", "axes x", "int[2] x", "int[3] x", "int[1] x"),
    *("std::vector<double> x", "std::vector<bool> x", "std::vector<std::vector<int>> x"),
    *("std::optional<int> x", "std::optional<double> x", "std::optional<std::vector<int>> x"),
    *("const array& x", 'std::variant<array, enum("a")> x', "const std::vector<array>& x"),
    "const std::vector<std::optional<array>>& x",
]
VALUES = [
    *(2, 2**40, 2.5, "a", "b", "c", "int8", None, [], [1], [1, 2], [1, 2, 3], [2**40], [0.5]),
    *([True], [[1, 2]]),
]


def resolved(*args: str, dtypes: str = "float32") -> list[Op]:
    """Return an operator `f` for each second argument."""
    rest = f"\n  composite: y\n  dtypes: {dtypes}\n"
    heads = (f"- signature: 'array f{i}(const array& y, {arg})'" for i, arg in enumerate(args))
    return described("".join(head + rest for head in heads))


def described(text: str) -> list[Op]:
    """Return the operators of a file, all with the name `f`."""
    diags = Diagnostics()
    document = Documents.parse({"mlx_ops.yaml": text}, diags)
    assert document is not None
    project = operators.plain_settings(Path("nowhere/mlx_ops.yaml"))
    ops = resolve(document, project, Sources(project, diags, None), diags)
    return [{**op_dict(op), "name": "f", "python_name": "f"} for op in ops]


def test_pairs_of_types() -> None:
    """A change breaks callers unless all values of the old type fit the new one."""
    ops = dict(zip(TYPES, resolved(*TYPES), strict=True))
    types = {text: _type(op["args"][1]) for text, op in ops.items()}

    def takes(type_: Type, value: Any) -> bool:
        if value is None:
            return type_.optional
        if type_.kind is Kind.FLOATS and isinstance(value, list):
            return all(isinstance(one, int | float) for one in value)
        if type_.kind in (Kind.FLOAT, Kind.NUMBER, Kind.ARRAY) and isinstance(value, int | float):
            return True
        return type_.takes(type_.spread(value))

    def accepted(type_: Type) -> list[Any]:
        return [value for value in VALUES if takes(type_, value)]

    widened = 0
    for (old, a), (new, b) in product(ops.items(), repeat=2):
        found = compare([a], [b])
        if types[old] == types[new]:
            assert not found, (old, new)
            continue
        (change,) = found
        lost = [value for value in accepted(types[old]) if value not in accepted(types[new])]
        assert change.breaking or not lost, (old, new, lost)
        widened += not change.breaking
    assert widened == 59


def test_choices_defaults_and_dtypes() -> None:
    def found(old: Op, new: Op) -> list[tuple[str, bool]]:
        return [(change.kind, change.breaking) for change in compare([old], [new])]

    two, one, other, text = resolved(
        'enum("a", "b") x = "a"',
        'enum("a") x = "a"',
        'enum("a", "b") x = "b"',
        'const std::string& x = "a"',
    )
    assert found(two, one) == [("argument-retyped", True)]
    assert found(one, two) == [("argument-widened", False)]
    assert found(two, text) == [("argument-widened", False)]
    assert found(two, other) == [("default-changed", True)]
    (wide,), (narrow,) = resolved("int x", dtypes="[float16, float32]"), resolved("int x")
    assert found(wide, narrow) == [("dtypes-removed", True)]
    assert found(narrow, wide) == []
    empty, pair = resolved("int[2] x = {}", "int[2] x = 1")
    assert found(empty, pair) == [("argument-retyped", True), ("default-changed", True)]
    assert found(pair, empty) == [("argument-widened", False), ("default-changed", True)]
    listed, several = described(
        "- {signature: 'f(x: list[array]) -> array', composite: 'x[0]'}\n"
        "- {signature: 'f_two(*x: array) -> array', composite: 'x[0]'}\n"
    )
    assert found(listed, several) == found(several, listed) == [("argument-retyped", True)]
    long, usual = resolved("int64_t x", "int x")
    (change,) = compare([long], [usual])
    assert change.breaking and change.message.endswith("int of 64 bits -> int")


def test_internal_operators_may_change() -> None:
    op = {**OP, "tags": ["internal"]}
    assert changed(lambda op: op["args"].pop(), op) == [("argument-removed", False)]
    assert [change.breaking for change in compare([op], [])] == [False]
