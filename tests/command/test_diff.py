"""`mlxgen diff`: the changes of an operator, and those that break callers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from mlxgen.command.diff import compare

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


def test_internal_operators_may_change() -> None:
    op = {**OP, "tags": ["internal"]}
    assert changed(lambda op: op["args"].pop(), op) == [("argument-removed", False)]
    assert [change.breaking for change in compare([op], [])] == [False]
