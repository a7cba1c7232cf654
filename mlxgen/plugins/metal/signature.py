"""The Metal function around a kernel's source, as MLX writes it for each call.

The rules are those of MLX's `metal_kernel`: buffers in the order of the names; inputs of fewer than
8 elements are `constant`, others `device`; an input without axes is a reference; `x_shape`,
`x_strides` and `x_ndim` are buffers, and thread positions parameters, if the source contains their
names. Parts of the user are marked by `#line`, so that messages have the user's lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_CONSTANT = 8  # elements of an input that is `constant`

ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}


def named_type(name: str) -> str:
    """Return Metal's name of a dtype of this name."""
    return {"bool": "bool", "float32": "float"}.get(name, f"{name}_t")


def type_name(dtype: Any) -> str:
    """Return Metal's name of one of MLX's dtypes."""
    return named_type(str(dtype).rpartition(".")[2])


@dataclass(frozen=True)
class Declared:
    """The arguments of `mx.fast.metal_kernel`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str
    header: str
    contiguous: bool
    atomic: bool

    @property
    def infos(self) -> list[list[bool]]:
        """The use of the shape, the strides and the rank of each input in the source."""
        words = ("shape", "strides", "ndim")
        return [[f"{name}_{word}" in self.source for word in words] for name in self.inputs]


@dataclass(frozen=True)
class Form:
    """The facts about a call that its function depends on.

    Attributes:
        inputs: The type of each input, with "s" for no axes or "c" for few elements.
        outputs: The type of each output.
        template: The names of the template parameters with "typename", "int" or "bool", and the
            values.
    """

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    template: tuple[tuple[str, str, str], ...]


def function_name(kernel: Declared, form: Form) -> str:
    """Return the function's name, which is that of MLX."""
    values = [value for _, _, value in form.template]
    types = [kind + how for kind, how in form.inputs]
    return "_".join(["custom_kernel", kernel.name, *values, *types, *form.outputs])


def _buffers(kernel: Declared, form: Form) -> list[str]:
    found: list[str] = []

    def add(text: str) -> None:
        found.append(f"  {text} [[buffer({len(found)})]]")

    extra = ("int* {}_shape", "int64_t* {}_strides", "int& {}_ndim")
    for name, (kind, how), info in zip(kernel.inputs, form.inputs, kernel.infos, strict=True):
        space = "constant" if how else "device"
        # An input without axes has one element, and one without elements may have axes.
        add(f"const {space} {kind}{'&' if how == 's' else '*'} {name}")
        for text, used in zip(extra, info, strict=True):
            if used and how != "s":
                add(f"const constant {text.format(name)}")
    for name, kind in zip(kernel.outputs, form.outputs, strict=True):
        add(f"device {f'atomic<{kind}>' if kernel.atomic else kind}* {name}")
    return found


def function(kernel: Declared, form: Form, *, lines: bool) -> str:
    """Return the source of the function.

    Args:
        lines: Mark the parts of the user by `#line`, and name the instance like the kernel;
            otherwise the text is MLX's.
    """

    def mark(part: str) -> str:
        return f'\n#line 1 "{kernel.name}.{part}"\n' if lines else ""

    name = function_name(kernel, form)
    used = [
        f"  {kind} {attribute} [[{attribute}]]"
        for attribute, kind in ATTRIBUTES.items()
        if attribute in kernel.source
    ]
    text = mark("header") + kernel.header + mark("signature")
    if form.template:
        text += f"template <{', '.join(f'{kind} {n}' for n, kind, _ in form.template)}>\n"
    host = kernel.name if lines else name
    if lines and not form.template:
        text += f'[[host_name("{host}")]] '
    parameters = ",\n".join([*_buffers(kernel, form), *used])
    text += f"[[kernel]] void {name}(\n{parameters}) {{\n"
    text += mark("source") + kernel.source + mark("end") + "\n}\n"
    if form.template:
        instance = f"{name}<{', '.join(value for _, _, value in form.template)}>"
        text += f'\ntemplate [[host_name("{host}")]] [[kernel]] decltype({instance}) {instance};\n'
    return text


def form_of(
    inputs: Sequence[Any], outputs: Sequence[Any], template: Sequence[tuple[str, str, str]]
) -> Form:
    """Return the form of a call with arrays `inputs`, outputs of dtypes and template arguments."""
    kinds = tuple(
        (type_name(a.dtype), "s" if a.ndim == 0 else "c" if a.size < MOST_CONSTANT else "")
        for a in inputs
    )
    return Form(kinds, tuple(map(type_name, outputs)), tuple(template))
