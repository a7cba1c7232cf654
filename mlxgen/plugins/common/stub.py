"""The text of a missing kernel, for `mlxgen add` and for the editor."""

from __future__ import annotations

from pathlib import Path

from ...model.cpp import ELEMENT, GENERATED, VOID, Declaration
from ...read.settings import Settings


def kernel_stub(settings: Settings, wanted: Declaration, shared: bool) -> tuple[Path, str]:
    """Return a missing kernel's path and text; ``shared`` means for the CPU and Metal."""
    metal, name = wanted.missing_in == settings.metal, wanted.name
    views = any(p.type.name == "Out" for p in wanted.params)
    shared = shared and not (metal or views)
    if views and not {"In", "Out"}.isdisjoint(p.name for p in wanted.params):  # which hide them
        wanted = wanted._replace(namespaces=GENERATED)
    template = f"template <{wanted.template}>\n" if wanted.template else ""
    function = template + (_metal_kernel if wanted.is_kernel else _function)(wanted)
    if metal:
        path = settings.metal / f"{name.removesuffix('_metal')}.metal"
        text = f"#include <metal_stdlib>\n\nusing namespace metal;\n\n{function}"
    else:
        path = settings.csrc / f"{name}.h"
        header = "kernel" if views else "scalar" if shared else None
        include = f'#include "mlxgen/{header}.h"\n\n' if header else ""
        inside = settings.namespace if shared else f"{settings.namespace}::cpu"
        text = f"#pragma once\n\n{include}namespace {inside} {{\n\n{function}\n"
        text += f"}} // namespace {inside}\n"
    where = "Metal" if metal else "the CPU and Metal" if shared else "the CPU"
    return path, f"// {name}, for {where}.\n\n{text}"


def _free(wanted: Declaration, *names: str) -> str:
    """Return a name that no parameter has."""
    taken = {p.name for p in wanted.params}
    return next(name for name in (*names, "index_") if name not in taken)


def _function(wanted: Declaration) -> str:
    """Return a function with the right types that returns a placeholder."""
    first = next((p.name for p in wanted.params if p.type == ELEMENT), "0")
    i = _free(wanted, "i", "j", "k")
    lines = [f"  return {first}; // one element: compute it here"] * (wanted.result != VOID)
    for type, name, is_output in wanted.params:
        if type.name == "Out":
            lines.append(f"  for (int64_t {i} = 0; {i} < {name}.size(); ++{i}) {{")
            lines.append(f"    {name}.data[{i}] = {{}}; // compute it here\n  }}")
        elif is_output:
            lines.append(f"  {name} = {first}; // one element: compute it here")
    return "\n".join((f"{wanted.head} {{", *lines, "}\n"))


def _metal_kernel(wanted: Declaration) -> str:
    """Return a Metal [[kernel]] with the right types that writes placeholders."""
    i = _free(wanted, "i", "j", "k")
    params, lines = [], []
    for n, (type, name, is_output) in enumerate(wanted.params):
        params.append(f"    {type.text()} {name} [[buffer({n})]],\n")
        if is_output:
            element = type._replace(space="", mark="").text()
            lines.append(f"  {name}[{i}] = {element}(0); // compute it here\n")
    position = f"    uint {i} [[thread_position_in_grid]]) {{\n"
    return f"[[kernel]] void {wanted.name}(\n{''.join([*params, position, *lines])}}}\n"
