"""Reads hand-written Metal kernels.

What the generator must know of a `.metal` file: the parameters of its kernels, because it binds
buffers by their names, and which kernels there are in the end, because a template has to be
instantiated for every dtype. `MetalScanner` finds both, in either spelling of each:

    [[kernel]] void f(...)
    kernel void f(...)

    template [[host_name("f_float32")]] [[kernel]] decltype(f<float>) f<float>;
    template [[host_name("f_float32")]] [[kernel]] void f<float>(device float* x, ...);
    instantiate_kernel("f_float32", f, float)    // MLX's macro for the first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...diagnostics import Span
from .cxx import Function, Head, Scanner, deduced, find_function
from .cxx_types import Attribute, Path
from .tokens import SourceError, Token

# What Metal's compiler and <metal_stdlib> define. Versions newer than this are not assumed.
DEFINES = {"__METAL__": "1", "__METAL_VERSION__": "310", "METAL_FUNC": "inline"}


@dataclass(frozen=True, slots=True)
class Instantiation:
    """A kernel under the name by which the host finds it.

    Attributes:
        host_name: "segment_sum_float32"; the function's name for a kernel that is no template.
        function: the kernel function as it is written there, without arguments.
        arguments: its template arguments, normalised: ("float",); () for one that is no template.
        unit: the path given to the scan.
        span: the kernel's name, or the macro call that makes it.
    """

    host_name: str
    function: str
    arguments: tuple[str, ...]
    unit: str
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionConstant:
    """A `constant bool has_w [[function_constant(20)]];`, which the host must give a value."""

    name: str
    type: str
    index: Attribute
    span: Span


class MetalScanner(Scanner):
    """Reads one translation unit's functions, and its instantiations by host name."""

    macro_headers: Mapping[str, str] = {
        "instantiate_kernel": '"mlx/backend/metal/kernels/defines.h"'
    }

    def __init__(self, tokens: Sequence[Token], unit: str) -> None:
        super().__init__(tokens, unit, metal=True)
        self.instantiations: dict[str, Instantiation] = {}
        self.constants: list[FunctionConstant] = []

    def found_function(self, function: Function) -> None:
        """A kernel that is no template can be called under its own name."""
        super().found_function(function)
        if function.is_kernel and function.is_definition and not function.template:
            host_name = function.attributes.get("host_name") or function.qualified_name
            self._add(str(host_name), function.name, function.specialization or (), function.span)

    def found_variable(self, head: Head) -> None:
        """Function constants are parameters of a kernel as well."""
        if head.path is not None and "function_constant" in head.attributes:
            self.constants.append(
                FunctionConstant(
                    head.path.text,
                    self.type_before(head),
                    head.attributes["function_constant"],
                    self.span(head.path.start, head.path.stop),
                )
            )

    def explicit_instantiation(self, i: int, stop: int) -> int:
        """Read `template [[host_name("n")]] [[kernel]] ... f<float>...;`."""
        end = self.semicolon(i, stop)
        head = self.head(i + 1, end)
        host_name = head.attributes.get("host_name")
        if head.is_class or (head.stage != "kernel" and host_name is None):
            return end
        path = head.path
        if path is None:
            raise self.error("expected the kernel that this instantiates", head.stop)
        if not isinstance(host_name, str):
            raise self.error(
                f"the instantiation of {path.text} has no host_name",
                path.start,
                'without [[host_name("...")]] the host cannot find the kernel',
            )
        span = self.span(path.start, path.stop)
        arguments = self._deduced(path, head) if path.arguments is None else path.arguments
        self._add(host_name, "::".join(path.names), arguments, span)
        return end

    def _deduced(self, path: Path, head: Head) -> tuple[str, ...]:
        """The template arguments of an instantiation that gives the parameters only."""
        given = self.params(head.stop) if self.text(head.stop) == "(" else ()
        for function in find_function(self.functions, "::".join(path.names)):
            if function.template and len(function.params) == len(given):
                values = deduced(function, [param.type for param in given])
                if values is not None:
                    return values
        raise self.error(
            f"cannot tell the template arguments of this instantiation of {path.text}",
            path.start,
            f"write them: {path.text}<...>",
        )

    def _add(self, host_name: str, function: str, arguments: tuple[str, ...], span: Span) -> None:
        earlier = self.instantiations.get(host_name)
        if earlier is not None:
            raise SourceError(f'host_name "{host_name}" exists already, from {earlier.span}', span)
        found = Instantiation(host_name, function, arguments, self.unit, span)
        self.instantiations[host_name] = found
