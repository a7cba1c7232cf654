"""Renders the Python side of an operator: signature, docstring, checks, and line of ops.json."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from ..model.op import Form, Op
from ..model.signature import Type
from .reference import python_args


def python_def(op: Op) -> str:
    """Return the Python signature, as in MLX's stubs."""
    return f"({', '.join(python_args(op))}) -> {op.signature.python_result}"


def docstring_item(text: str) -> str:
    """Return an item of a docstring's section, indented and wrapped."""
    if len(text) <= 84 and "\n" not in text and "  " not in text and "\t" not in text:
        return "    " + text.strip()
    return textwrap.fill(
        text, 88, initial_indent="    ", subsequent_indent="      ", break_long_words=False
    )


def check_samples(op: Op) -> Sequence[Mapping[str, Any]]:
    """Return the samples of the generated checks: those of the entry, or a default one.

    Every string that can replace an array is in one of them. Without samples of the entry, the
    array is, too.
    """
    if not op.arguments.arrays:
        return []
    found = [*op.entry.samples]
    if not found and all(p.arg.default or p.type.optional for p in op.arguments.attributes):
        found = [{}]
    for arg in op.signature.declared if found else ():
        if arg.type.is_union:
            default = arg.default.value if arg.default else None
            given = [sample.get(arg.name, default) for sample in found]
            missing: list[Any] = [string for string in arg.type.choices if string not in given]
            if not op.entry.samples and (arg.type.optional or arg.default):
                missing.append({})
            found += [{**found[0], arg.name: value} for value in missing]
    return found


@cache
def type_dict(type: Type) -> Mapping[str, Any]:
    """Return the fields of a type that differ from their defaults."""
    default = Type(type.kind)
    given = {"kind": type.kind.value}
    for one in fields(type):
        value = getattr(type, one.name)
        if value != getattr(default, one.name):
            given[one.name] = value
    return given


def _described(op: Op, i: int) -> dict[str, str]:
    """Return the rules of a composite's result, with which the generated checks compare it."""
    of = {"shape": op.output_rules.shapes, "dtype": op.output_rules.dtypes}
    rules = [(key, each[i]) for key, each in of.items() if each and not op.has_primitive]
    return {key: ast.unparse(rule.tree) for key, rule in rules if rule and rule.tree}


def op_dict(op: Op) -> dict[str, Any]:
    """Return an operator as data for ``ops.json`` and ``mlxgen diff``."""
    return {
        "name": op.name,
        "python_name": op.python_name,
        "module": op.entry.module or "",
        "aliases": list(op.entry.aliases),
        "signature": op.signature.python(),
        "cpp_signature": op.signature.cpp(),
        "form": op.forward.form.value,
        "of_mlx": op.forward.form is Form.BIND and not op.forward.include,
        "args": [
            {
                "name": arg.name,
                "type": arg.type.python,
                "kind": arg.type.kind.value,
                "choices": list(arg.type.choices),
                "optional": arg.type.optional,
                "default": arg.default.python if arg.default is not None else None,
                "has_default": arg.default is not None,
                "kw_only": arg.kw_only,
                "pos_only": arg.pos_only,
                "dtype": op.arguments.by_name[arg.name].dtype,
                # For packages that use this one (read/used.py).
                "resolved": type_dict(arg.type),
                "value": arg.default.value if arg.default is not None else None,
            }
            for arg in op.signature.declared
        ],
        "outputs": [
            {"name": o.name, "type": o.type.python, "resolved": type_dict(o.type)}
            | _described(op, i)
            for i, o in enumerate(op.outputs)
        ],
        "pure": op.pure,
        "axes": {name: [list(terms) for terms in of] for name, of in op.axes.items()},
        "lengths": {
            name: [length.array, length.axis] for name, length in op.arguments.lengths.items()
        },
        "let": dict(op.entry.let),
        "composite": op.entry.composite,
        "kernels": {
            k.backend: {
                "kernel": k.name,
                "dtypes": list(k.dtypes),
                "template": {t.name: list(t.values) for t in k.templates},
            }
            for k in op.forward.kernels
        },
        "dtypes": {p.name: list(r.dtypes) for r in op.dtype_rules for p in r.params},
        "elementwise": op.elementwise,
        "grad": {p.name: g.text for g in op.derivatives.grads for p in g.params},
        "jvp": op.derivatives.jvp.value,
        "jvp_args": [p.name for p, _ in op.derivatives.tangents],
        "vmap": op.derivatives.vmap.value,
        "doc": op.entry.doc,
        "tags": sorted(op.entry.tags),
        "variants": list(op.entry.variants),
        "deprecated": op.entry.deprecated,
        "file": op.file,
        "line": op.line,
    }
