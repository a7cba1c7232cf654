"""Renders the Python side of an operator: signature, docstring, checks, and line of ops.json."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..model.op import Form, GradKind, Op, shown_axes
from ..model.signature import Kind, Type


def python_def(op: Op) -> str:
    """Return the Python signature in the style of MLX's stubs."""

    def annotation(type: Type) -> str:
        if type.kind is Kind.ARRAYS:
            return "Sequence[scalar | array]"
        return f"scalar | {type.python}" if type.is_array else type.python

    args = op.signature.python_args(annotation, "stream: StreamOrDevice = None")
    return f"({args}) -> {op.signature.python_result}"


def docstring(op: Op) -> str:
    """Return the docstring in MLX's style."""
    entry = op.entry
    result = op.signature.python_result
    parts = [(entry.doc or f"{op.python_name}.").strip()]
    if entry.deprecated:
        parts.append(f"Deprecated: {entry.deprecated}")
    args = []
    for p in op.arguments.params:
        type = p.type.python if not p.type.is_array else ("list(array)" if p.is_list else "array")
        optional = ", optional" if p.arg.default is not None or p.type.optional else ""
        text = entry.args.get(p.name, "Input array." if p.type.is_array else "")
        if p.arg.default is not None and p.arg.default.value is not None:
            text = f"{text} Default: ``{p.arg.default.python}``.".strip()
        shape = _of_shape(op, p.name)
        args.append(_item(f"{p.name} ({type}{shape}{optional}): {text}".rstrip()))
    if args:
        parts.append("Args:\n" + "\n".join(args))
    returns = entry.returns
    if isinstance(returns, dict):
        lines = [
            f"{o.name}{_of_shape(op, o.name)}: {returns.get(o.name, '')}".rstrip()
            for o in op.outputs
        ]
        parts.append("Returns:\n" + _item(f"{result}: " + "; ".join(lines)))
    else:
        text = returns or ("The output array." if op.single else "The outputs.")
        shape = _of_shape(op, op.outputs[0].name) if op.single else ""
        parts.append("Returns:\n" + _item(f"{result}{shape}: {text}"))
    return "\n\n".join(parts)


def _of_shape(op: Op, name: str) -> str:
    return f" of shape {shown_axes(op.axes[name])}" if name in op.axes else ""


def _item(text: str) -> str:
    if len(text) <= 84 and "\n" not in text and "  " not in text and "\t" not in text:
        return "    " + text.strip()
    return textwrap.fill(
        text, 88, initial_indent="    ", subsequent_indent="      ", break_long_words=False
    )


def check_samples(op: Op) -> Sequence[Mapping[str, Any]]:
    """Return the samples of the generated checks: those of the entry, or a default one."""
    if not op.arguments.arrays:
        return []
    if not op.entry.samples and all(
        p.arg.default or p.type.optional for p in op.arguments.attributes
    ):
        return [{}]
    return op.entry.samples


def gradient_summary(op: Op) -> str:
    """Describe an operator's gradient in a few words, for the reference."""
    kinds = {g.kind for g in op.derivatives.grads}
    if "vjp" in op.entry.manual:
        return "hand-written"
    if not kinds or kinds == {GradKind.COMPOSITE}:
        return "of the composite" if op.forward.expr is not None else "MLX's own"
    if kinds == {GradKind.NONE}:
        return "none"
    return "function" if GradKind.FUNCTION in kinds else "formula"


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
        "args": [
            {
                "name": p.name,
                "type": p.type.python,
                "kind": p.type.kind.value,
                "choices": list(p.type.choices),
                "optional": p.type.optional,
                "default": p.arg.default.python if p.arg.default is not None else None,
                "has_default": p.arg.default is not None,
                "kw_only": p.arg.kw_only,
                "pos_only": p.arg.pos_only,
                "dtype": p.dtype,
            }
            for p in op.arguments.params
        ],
        "outputs": [{"name": o.name, "type": o.type.python} for o in op.outputs],
        "axes": {name: [list(terms) for terms in of] for name, of in op.axes.items()},
        "lengths": {
            name: [length.array, length.axis] for name, length in op.arguments.lengths.items()
        },
        "composite": op.entry.composite,
        "kernels": {
            k.backend: {
                "kernel": k.name,
                "dtypes": list(k.dtypes),
                "template": {t.name: list(t.values) for t in k.templates},
            }
            for k in op.forward.kernels
        },
        "dtypes": {p.name: list(r.dtypes) for r in op.arguments.rules for p in r.params}
        if op.forward.form is Form.KERNELS
        else {},
        "elementwise": op.elementwise,
        "grad": {p.name: g.text for g in op.derivatives.grads for p in g.params},
        "jvp": op.derivatives.jvp.value,
        "jvp_args": [p.name for p, _ in op.derivatives.tangents],
        "vmap": op.derivatives.vmap.value,
        "doc": op.entry.doc,
        "tags": sorted(op.entry.tags),
        "variants": list(op.entry.variants),
        "deprecated": op.entry.deprecated,
        "line": op.line,
    }
