"""What changed between two versions of the operators, and whether it breaks callers.

Compares the resolved model (two YAML files, or ``ops.json`` of two builds), from the point of view
of someone who calls the functions from Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

OpDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference."""

    op: str
    kind: str
    message: str
    breaking: bool

    def to_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        return asdict(self)


def compare(old: Sequence[OpDict], new: Sequence[OpDict]) -> list[Change]:
    """All changes, in the order of the old file and then of the new one.

    Args:
        old: Operators as ``render.op_dict`` gives them.
        new: The same, later.

    Returns:
        The changes. Those of operators tagged ``experimental`` or ``internal`` are not breaking.
    """
    before = {_path(op): op for op in old}
    after = {_path(op): op for op in new}
    reachable = {name for op in new for name in [_path(op), *_aliases(op)]}
    changes: list[Change] = []
    for path, op in before.items():
        free = bool({"experimental", "internal"} & set(op["tags"]))
        found = after.get(path)
        if found is None:
            if path in reachable:
                changes.append(
                    Change(path, "renamed", "is now an alias of another operator", False)
                )
                continue
            changes.append(Change(path, "removed", "operator removed", not free))
            continue
        changes += [
            c if c.breaking is False or not free else Change(c.op, c.kind, c.message, False)
            for c in _operator(path, op, found, reachable)
        ]
    for path in after:
        if path not in before:
            changes.append(Change(path, "added", "operator added", False))
    return changes


def _path(op: OpDict) -> str:
    return f"{op['module']}.{op['python_name']}" if op["module"] else str(op["python_name"])


def _aliases(op: OpDict) -> list[str]:
    prefix = f"{op['module']}." if op["module"] else ""
    return [prefix + alias for alias in op["aliases"]]


def _operator(path: str, old: OpDict, new: OpDict, reachable: set[str]) -> list[Change]:
    out: list[Change] = []

    def change(kind: str, message: str, breaking: bool) -> None:
        out.append(Change(path, kind, message, breaking))

    before = {a["name"]: a for a in old["args"]}
    after = {a["name"]: a for a in new["args"]}
    for name, arg in before.items():
        now = after.get(name)
        if now is None:
            change("argument-removed", f"argument '{name}' removed", True)
            continue
        if _type(arg) != _type(now):
            widened = _widened(arg, now)
            change(
                "argument-widened" if widened else "argument-retyped",
                f"argument '{name}': {_type(arg)} -> {_type(now)}",
                not widened,
            )
        if arg["has_default"] and not now["has_default"]:
            change("default-removed", f"argument '{name}' lost its default {arg['default']}", True)
        elif arg["has_default"] and arg["default"] != now["default"]:
            change(
                "default-changed",
                f"argument '{name}': default {arg['default']} -> {now['default']}",
                True,
            )
        elif not arg["has_default"] and now["has_default"]:
            change("default-added", f"argument '{name}' got the default {now['default']}", False)
        if not arg["kw_only"] and now["kw_only"]:
            change("argument-keyword-only", f"argument '{name}' is keyword-only now", True)
        if arg["kw_only"] and not now["kw_only"]:
            change("argument-positional", f"argument '{name}' may be positional now", False)
        lost = set(old["dtypes"].get(name, ())) - set(new["dtypes"].get(name, ()))
        if lost and new["form"] == "kernels":
            change("dtypes-removed", f"argument '{name}' no longer takes {_join(lost)}", True)
    positional = [n for n, a in before.items() if not a["kw_only"] and n in after]
    now_positional = [n for n, a in after.items() if not a["kw_only"]]
    kept = [n for n in now_positional if n in positional]
    if kept != [n for n in positional if n in now_positional]:
        change("argument-order", f"arguments are now in the order {_join(now_positional)}", True)
    for position, (name, arg) in enumerate(after.items()):
        if name in before:
            continue
        if not arg["has_default"]:
            change("argument-required", f"new argument '{name}' has no default", True)
        elif not arg["kw_only"] and any(
            n in positional for n in list(after)[position + 1 :] if not after[n]["kw_only"]
        ):
            change("argument-inserted", f"new argument '{name}' stands before older ones", True)
        else:
            change("argument-added", f"new argument '{name}' = {arg['default']}", False)
    results = [o["type"] for o in old["outputs"]], [o["type"] for o in new["outputs"]]
    if results[0] != results[1]:
        change("result", f"returns {_join(results[1])} instead of {_join(results[0])}", True)
    for alias in _aliases(old):
        if alias not in reachable:
            change("alias-removed", f"alias '{alias}' removed", True)
    if "method" in old["variants"] and "method" not in new["variants"]:
        change("method-removed", "no longer a method of mx.array", True)
    for backend in old["kernels"]:
        if backend not in new["kernels"] and new["composite"] is None and new["form"] == "kernels":
            change("backend-removed", f"no kernel for {backend} any more", True)
    for name, text in old["grad"].items():
        now = new["grad"].get(name)
        if now == "none" and text != "none" and name in after:
            change("gradient-removed", f"no longer differentiable in '{name}'", True)
    if new["deprecated"] and not old["deprecated"]:
        change("deprecated", f"deprecated: {new['deprecated']}", False)
    return out


def _type(arg: OpDict) -> str:
    return str(arg["type"])


def _widened(old: OpDict, new: OpDict) -> bool:
    """Whether every value that was accepted still is."""
    if old["optional"] and not new["optional"]:
        return False
    if old["kind"] == new["kind"]:
        return old["kind"] != "enum" or set(old["choices"]) <= set(new["choices"])
    pairs = {
        ("int", "float"),
        ("bool", "int"),
        ("bool", "float"),
        ("enum", "str"),
        ("int", "array"),
        ("float", "array"),
        ("bool", "array"),
        ("ints", "axes"),
        ("int", "axes"),
    }
    return (old["kind"], new["kind"]) in pairs


def _join(names: Any) -> str:
    return ", ".join(sorted(names) if isinstance(names, set) else names)
