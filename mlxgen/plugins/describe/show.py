"""The parts of an operator's output, for ``mlxgen show``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...model.languages import Package, exists, language
from ...model.op import Op
from ...render.files import MetalText, bindings, docstring, metal_element, pieces
from ...render.format import formatted
from ...render.python import op_dict, python_def
from ...render.reference import Reference

# The parts that ``part`` can render, except interfaces for other languages, with their languages.
PARTS: Mapping[str, str] = {
    "header": "cpp",
    "source": "cpp",
    "binding": "cpp",
    "stub": "python",
    "doc": "rst",
    "metal": "cpp",
    "json": "json",
}


def is_part(name: str) -> bool:
    """Return whether ``part`` can render a part."""
    return name in PARTS or exists(name)


def part(op: Op, name: str, package: Package, metal_text: MetalText) -> str:
    """Render one part of an op's output, for ``mlxgen show``."""
    if name == "stub":
        return f"def {op.python_name}{python_def(op)}: ...\n"
    if name == "doc":
        return docstring(Reference(op, package), package) + "\n"
    if name == "json":
        return json.dumps(op_dict(op), indent=1, ensure_ascii=False) + "\n"
    if name == "metal":
        kernel = op.forward.kernel("metal")
        if kernel is None:
            return f"// {op.name} has no Metal kernel\n"
        text = metal_text(kernel.include, kernel.shared)
        return f"{text}\n// For each element: {metal_element(op)};\n" if kernel.scalar else text
    if name not in PARTS and op.entry.internal:
        return f"/* {op.name} is internal: {name.capitalize()} cannot call it */\n"
    if name not in PARTS:
        return language(name).renderer.code(op, package)
    made = pieces(op, package)
    texts = {"header": made.header, "source": made.source}
    return formatted(texts.get(name) or bindings([made], 0, package))
