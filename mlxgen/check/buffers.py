"""The buffers of a hand-written ``[[kernel]]``, bound by the names of its parameters.

A parameter is named after what it holds:

=====================  ==========================================  =========================
name                   declaration                                 holds
=====================  ==========================================  =========================
an argument            ``device const T* x``                       an array
an output              ``device T* out``, ``device atomic<float>*``  what the kernel writes
an attribute           ``constant float& eps``                     a number, bool or choice
a constant             ``constant int& rows``                      a formula of the entry
``has_<argument>``     ``constant bool& has_weight``               whether it was given
``<array>_shape``      ``constant const int* x_shape``             its lengths
``<array>_strides``    ``constant const int64_t* x_strides``       its strides
``<array>_ndim``       ``constant int& x_ndim``                    how many axes it has
``<array>_size``       ``constant int64_t& x_size``                how many elements
=====================  ==========================================  =========================

Arrays come in the order of the entry, arguments before outputs. All problems of a kernel are
collected, each with its place in the Metal file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..diagnostics import Span, did_you_mean
from ..model.dtypes import METAL_TYPES
from ..model.kinds import KINDS, METAL_INTS
from ..model.op import Binding, Expr, Parameter
from ..model.signature import Kind, with_article
from ..read.cpp import Function, Param

if TYPE_CHECKING:
    from .resolve import OpResolver

# Metal types of numbers that `set_bytes` may fill, and the C++ type of the same size.
_PROPERTIES = ("shape", "strides", "ndim", "size")
_ATOMIC = re.compile(r"^(metal::)?(atomic|mlx_atomic)<(.*)>$")
MAX_BUFFERS = 31
MAX_THREADS = 1024  # of a threadgroup


class Misfit(Exception):
    """Why a parameter cannot be bound."""


class Buffers:
    """What binds the parameters of one kernel, and what is wrong with them.

    Args:
        op: The entry.
        function: The kernel.
        constants: Formulas that the entry gives to parameters.
        outputs: The dtype of each output; None: the kernel's template parameter.
        dtypes: Those for which the kernel is compiled.
    """

    def __init__(
        self,
        op: OpResolver,
        function: Function,
        constants: Mapping[str, Expr],
        outputs: Sequence[str | None],
        dtypes: Sequence[str],
    ) -> None:
        self.function = function
        self.template = function.template[0] if function.template else None
        # Without a template the kernel has one dtype.
        self.only = None if self.template else dtypes[0]
        self.arrays = {p.name: p for p in op.arrays}
        self.attributes = {p.name: p for p in op.params if not p.type.is_array}
        self.constants = constants
        names = [o.name for o in op.signature.outputs]
        self.outputs = {name: (i, outputs[i]) for i, name in enumerate(names)}
        self.bindings: list[Binding] = []
        self.problems: list[tuple[str, Span]] = []
        self._bind_all()

    def _bind_all(self) -> None:
        used: dict[int, str] = {}
        following = 0  # the index of a parameter that has none
        for param in self.function.params:
            if "threadgroup" in param.attributes:
                self.problems.append(
                    (
                        f"'{param.name}' is threadgroup memory given by the launch; declare an "
                        "array of fixed size inside the kernel",
                        param.span,
                    )
                )
            if param.attributes and "buffer" not in param.attributes:
                continue
            given = param.attributes.get("buffer", following)
            index = given if isinstance(given, int) else following
            following = index + 1
            if index in used:
                what = f"'{used[index]}' and '{param.name}' both have [[buffer({index})]]"
                self.problems.append((what, param.span))
            used.setdefault(index, param.name)
            try:
                self.bindings.append(self.binding(param, index))
            except Misfit as misfit:
                self.problems.append((str(misfit), param.span))
        self._check_all(used)

    def _check_all(self, used: Mapping[int, str]) -> None:
        """What no single parameter shows: gaps, missing arrays, their order."""
        here = self.function.span
        gaps = [i for i in range(max(used, default=0)) if i not in used]
        if gaps:
            self.problems.append((f"no parameter has [[buffer({gaps[0]})]]", here))
        if len(used) > MAX_BUFFERS:
            what = f"it has {len(used)} buffers, and Metal allows {MAX_BUFFERS}"
            self.problems.append((what, here))
        wanted = [*self.arrays, *self.outputs]
        names = [p.name for p in self.function.params]
        for name in wanted:
            if name not in names:
                self.problems.append((f"it has no parameter '{name}'", here))
        given = [name for name in names if name in wanted]
        wanted = [name for name in wanted if name in given]
        if given != wanted:
            what = f"its arrays are in the order {', '.join(given)}, not {', '.join(wanted)}"
            self.problems.append((what, here))

    def binding(self, param: Param, index: int) -> Binding:
        """What a parameter holds; raises ``Misfit``."""
        name = param.name
        owner, _, suffix = name.rpartition("_")
        if name in self.arrays:
            return Binding(index, "input", self.input(param, self.arrays[name]))
        if name in self.outputs:
            return Binding(index, "output", self.output(param))
        if name in self.constants:
            return _set_bytes(param, METAL_INTS, f"const_{name}", index)
        if name in self.attributes:
            return self.attribute(param, self.attributes[name], index)
        if name.startswith("has_") and name[4:] in self.arrays:
            return self.presence(param, self.arrays[name[4:]], index)
        if suffix in _PROPERTIES and (owner in self.arrays or owner in self.outputs):
            return self.array_property(param, owner, suffix, index)
        known = [*self.arrays, *self.outputs, *self.attributes, *self.constants]
        raise Misfit(
            f"nothing is called '{name}'{did_you_mean(name, known)}; name it after an argument or "
            "output, or list it under `constants`"
        )

    def input(self, param: Param, p: Parameter) -> str:
        """The array that an input's parameter holds, another one where it is absent."""
        dtype = p.dtype or self.only
        if param.space not in ("device", "constant") or not param.pointer:
            raise Misfit(f"'{p.name}' must be `device const {metal_type(dtype)}*`")
        if not param.const and param.space != "constant":
            raise Misfit(f"the input '{p.name}' must be const")
        self.check_element(param, param.base, dtype)
        if not p.type.optional:
            return p.cpp
        first = next((q.cpp for q in self.arrays.values() if not q.type.optional), "outputs[0]")
        return f"{p.cpp} ? *{p.cpp} : {first}"

    def output(self, param: Param) -> str:
        """The array that an output's parameter holds."""
        i, dtype = self.outputs[param.name]
        dtype = dtype or self.only
        if param.const or not param.pointer or param.space != "device":
            raise Misfit(f"the output '{param.name}' must be `device {metal_type(dtype)}*`")
        self.check_element(param, _ATOMIC.sub(r"\3", param.base), dtype)
        return f"outputs[{i}]"

    def check_element(self, param: Param, base: str, dtype: str | None) -> None:
        """Whether a buffer's element type is the dtype's, or the template parameter's for None."""
        fits = base == self.template if dtype is None else base in METAL_TYPES.get(dtype, ())
        if not fits:
            wanted = metal_type(dtype)
            raise Misfit(f"'{param.name}' is `{param.type}`, and the entry has {wanted} there")

    def attribute(self, param: Param, p: Parameter, index: int) -> Binding:
        """Binds a number, a bool or the index of a choice."""
        if not KINDS[p.type.kind].metal or p.type.optional:
            raise Misfit(f"a Metal kernel cannot take '{p.name}', {with_article(p.type)}")
        # The index of an enumerated string is a local of the launch.
        value = p.cpp if p.type.kind is Kind.ENUM else p.member
        return _set_bytes(param, KINDS[p.type.kind].metal, value, index)

    def presence(self, param: Param, p: Parameter, index: int) -> Binding:
        """Binds whether an optional array was given."""
        if not p.type.optional:
            raise Misfit(f"'{p.name}' is always there, so that nothing is called '{param.name}'")
        return _set_bytes(param, KINDS[Kind.BOOL].metal, f"{p.cpp}.has_value()", index)

    def array_property(self, param: Param, owner: str, suffix: str, index: int) -> Binding:
        """Binds an array's shape, strides, number of axes or size."""
        if owner in self.arrays:
            p = self.arrays[owner]
            if p.type.optional:
                raise Misfit(f"'{owner}' is optional, so that nothing is called '{param.name}'")
            array = p.cpp
        else:
            array = f"outputs[{self.outputs[owner][0]}]"
        if suffix in ("ndim", "size"):
            return _set_bytes(param, METAL_INTS, f"{array}.{suffix}()", index)
        element = ("int", "int32_t") if suffix == "shape" else ("int64_t", "long")
        if param.space != "constant" or not param.pointer or param.base not in element:
            raise Misfit(f"'{param.name}' must be `constant const {element[0]}*`")
        return Binding(index, "vector", f"{array}.{suffix}()")


def declaration(
    op: OpResolver,
    name: str,
    constants: Iterable[str],
    outputs: Sequence[str | None],
    only: str | None = None,
) -> str:
    """A kernel that fits an entry; ``only``: the dtype of one that is no template."""
    parts = [f"device const {metal_type(p.dtype or only)}* {p.name}" for p in op.arrays]
    parts += [
        f"device {metal_type(dtype or only)}* {output.name}"
        for output, dtype in zip(op.signature.outputs, outputs, strict=True)
    ]
    for p in op.params:
        if KINDS[p.type.kind].metal and not p.type.optional:
            parts.append(f"constant {KINDS[p.type.kind].metal_type}& {p.name}")
    parts += [f"constant int& {name}" for name in constants]
    template = "" if only else "template <typename T> "
    return f"{template}[[kernel]] void {name}({', '.join(parts)})"


def metal_type(dtype: str | None) -> str:
    """A dtype in Metal's words; the template parameter for None."""
    return METAL_TYPES[dtype][0] if dtype in METAL_TYPES and dtype else "T"


def _set_bytes(param: Param, types: Mapping[str, str], value: str, index: int) -> Binding:
    """Binds a number, whose parameter has one of the types."""
    if param.space != "constant" or not param.reference or param.base not in types:
        raise Misfit(f"'{param.name}' must be `constant {next(iter(types))}&`")
    return Binding(index, "bytes", value, types[param.base])
