"""Finds the changes between two versions of the operators, and those that break callers.

It compares resolved operators (of two YAML files, or ``ops.json`` of two builds) from the
perspective of Python callers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...model.kinds import KINDS, REAL, Kind
from ...model.op import dotted_names
from ...model.signature import Type

_join = ", ".join
OpDict = dict[str, Any]
# The kind of a change, its description, and whether it breaks callers.
Found = tuple[str, str, bool]


class Change(NamedTuple):
    """One difference."""

    op: str
    kind: str
    message: str
    breaking: bool


def compare(old: Sequence[OpDict], new: Sequence[OpDict]) -> list[Change]:
    """Return all changes, in the order of the old file and then of the new one.

    Args:
        old: Operators as returned by ``render.op_dict``.
        new: The later version.

    Returns:
        The changes. Those of operators tagged ``internal`` are not breaking.
    """
    before, after = _named(old, new), _named(new, old)
    reachable = {path for op in new for path in _paths(op)}
    changes = []
    for label, op in before.items():
        path = _paths(op)[0]
        free = "internal" in op["tags"]
        found: Iterable[Found] = [("removed", "operator removed", True)]
        if label in after:
            found = _operator(op, after[label], reachable)
        elif path in _paths_of(new):
            found = [("overload-removed", "overload removed", True)]
        elif path in reachable:
            found = [("renamed", "is now an alias of another operator", False)]
        changes += [Change(label, kind, text, breaks and not free) for kind, text, breaks in found]
    added = [label for label in after if label not in before]
    known = _paths_of(old)
    for label in added:
        what = "overload" if _paths(after[label])[0] in known else "operator"
        changes.append(Change(label, "added", f"{what} added", False))
    return changes


def _paths_of(ops: Iterable[OpDict]) -> set[str]:
    """Return the dotted Python names of operators, without aliases."""
    return {_paths(op)[0] for op in ops}


def _named(ops: Sequence[OpDict], others: Sequence[OpDict]) -> dict[str, OpDict]:
    """Return operators by their Python names; overloads in either version also by those in C++."""
    counts = [Counter(_paths(op)[0] for op in version) for version in (ops, others)]
    found = {}
    for op in ops:
        path = _paths(op)[0]
        several = any(count[path] > 1 for count in counts)
        found[f"{path} ({op['name']})" if several else path] = op
    return found


def _paths(op: OpDict) -> list[str]:
    """Return the operator's dotted Python names: its name and its aliases."""
    module = f"{op['module']}." if op["module"] else ""
    return [module + op["python_name"], *dotted_names(op["aliases"], op["module"])]


def _operator(old: OpDict, new: OpDict, reachable: set[str]) -> Iterator[Found]:
    before = {a["name"]: a for a in old["args"]}
    after = {a["name"]: a for a in new["args"]}
    for name, arg in before.items():
        if name not in after:
            yield "argument-removed", f"argument '{name}' removed", True
            continue
        yield from _argument(name, arg, after[name])
        kept = new["dtypes"].get(name)  # of arrays
        lost = set(old["dtypes"].get(name, ())) - set(kept or ())
        if lost and kept:
            message = f"argument '{name}' no longer accepts {_join(sorted(lost))}"
            yield "dtypes-removed", message, True
    yield from _positions(before, after)
    was, now = ([o["type"] for o in op["outputs"]] for op in (old, new))
    if was != now:
        yield "result", f"returns {_join(now)} instead of {_join(was)}", True
    for alias in _paths(old)[1:]:
        if alias not in reachable:
            yield "alias-removed", f"alias '{alias}' removed", True
    if "method" in old["variants"] and "method" not in new["variants"]:
        yield "method-removed", "no longer a method of mx.array", True
    if "inplace" in old["variants"] and "inplace" not in new["variants"]:
        yield "inplace-removed", "no longer has an in-place variant", True
    if "out" in old["variants"] and "out" not in new["variants"]:
        yield "out-removed", "no longer has the argument `out`", True
    for backend in old["kernels"]:
        if backend not in new["kernels"] and new["composite"] is None and new["form"] == "kernels":
            yield "backend-removed", f"no longer has a kernel for {backend}", True
    for name, text in old["grad"].items():
        if new["grad"].get(name) == "none" and text != "none" and name in after:
            yield "gradient-removed", f"no longer differentiable in '{name}'", True
    if new["deprecated"] and not old["deprecated"]:
        yield "deprecated", f"deprecated: {new['deprecated']}", False


def _argument(name: str, old: OpDict, new: OpDict) -> Iterator[Found]:
    what = f"argument '{name}'"
    was, now = _type(old), _type(new)
    if was != now:
        wider = _takes_all(now, was)
        kind = "argument-widened" if wider else "argument-retyped"
        texts = [f"{type.python} of 64 bits" if type.int64 else type.python for type in (was, now)]
        yield kind, f"{what}: {texts[0]} -> {texts[1]}", not wider
    if old["has_default"] and not new["has_default"]:
        yield "default-removed", f"{what} lost its default {old['default']}", True
    elif not old["has_default"] and new["has_default"]:
        yield "default-added", f"{what} gained the default {new['default']}", False
    elif old["default"] != new["default"]:
        yield "default-changed", f"{what}: default {old['default']} -> {new['default']}", True
    if not old["kw_only"] and new["kw_only"]:
        yield "argument-keyword-only", f"{what} is now keyword-only", True
    if old["kw_only"] and not new["kw_only"]:
        yield "argument-positional", f"{what} can now be positional", False
    if new.get("pos_only") and not old.get("pos_only"):
        yield "argument-positional-only", f"{what} is now positional-only", True


def _positions(before: dict[str, OpDict], after: dict[str, OpDict]) -> Iterator[Found]:
    """Yield changes of the arguments' order, and new arguments."""
    old = [name for name, arg in before.items() if not arg["kw_only"] and name in after]
    new = [name for name, arg in after.items() if not arg["kw_only"]]
    if [name for name in new if name in old] != [name for name in old if name in new]:
        yield "argument-order", f"arguments are now in the order {_join(new)}", True
    for name, arg in after.items():
        if name in before:
            continue
        if not arg["has_default"]:
            yield "argument-required", f"new argument '{name}' has no default", True
        elif name in new and any(later in old for later in new[new.index(name) :]):
            yield "argument-inserted", f"new argument '{name}' precedes older ones", True
        else:
            yield "argument-added", f"new argument '{name}' = {arg['default']}", False


def _takes_all(new: Type, old: Type) -> bool:
    """Return whether an argument of the new type accepts every value of the old type."""
    kind = new.kind is old.kind or new.kind in KINDS[old.kind].wider
    length = (
        new.length == old.length
        or (old.length, new.length) == (None, 1)
        or (old.length == 1 and new.kind is Kind.AXES)
    )
    # One int in place of a list, or a string in place of an array.
    one = old.kind is Kind.INT and new.kind is Kind.INTS and new.length is not None
    string = old.kind is Kind.ENUM and new.is_union
    return (
        (one or string or (kind and length))
        and (new.optional or not old.optional)
        and (new.int64 or not old.int64 or new.kind in (*REAL, Kind.ARRAY))
        and (new.kind is Kind.STR or set(old.choices) <= set(new.choices))
        and (new.empty or not old.empty)
        and new.variadic == old.variadic
    )


def _type(arg: OpDict) -> Type:
    """Return the type of an argument; Python does not distinguish floats by their width."""
    given = {"choices": arg["choices"], "optional": arg["optional"], **arg.get("resolved", {})}
    kind, choices = Kind(given.pop("kind", arg["kind"])), tuple(given.pop("choices"))
    return replace(Type(kind, choices=choices, **given), single=False)
