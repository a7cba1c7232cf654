"""C++ types and declarations as data, printed with the namespaces of their context.

MLX's names have the namespace ``mx`` in generated code, ``mlx::core`` in hand-written files, and
``mlxgen`` in kernels. Kernels are templates over the element type ``T``; a function without a
template has a concrete type instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Namespaces(NamedTuple):
    """The spelling of namespaces in a context."""

    mlx: str = "mx::"
    mlxgen: str = "mlxgen::"
    std: str = "std::"


GENERATED = Namespaces()
BY_HAND = Namespaces("mlx::core::")
KERNEL = Namespaces("mlxgen::", "")  # mlxgen/kernel.h has using-declarations for mlxgen's names
ENTRY = Namespaces("")
NO_NAMESPACES = Namespaces("", "", "")


class CppType(NamedTuple):
    """A type of C++ or Metal."""

    name: str
    home: str = ""  # its namespace: mlx, mlxgen or std
    of: tuple[CppType, ...] = ()  # its template arguments
    mark: str = ""  # "*" or "&"
    const: bool = False
    space: str = ""  # the address space that it points or refers to, in Metal

    def text(self, namespaces: Namespaces = GENERATED, same: Mapping[str, str] = {}) -> str:
        """Return the type as text. ``same``: preferred names of synonyms."""
        home: str = getattr(namespaces, self.home) if self.home else ""
        of = ", ".join(type.text(namespaces, same) for type in self.of)
        name = home + same.get(self.name, self.name) + (f"<{of}>" if of else "") + self.mark
        return " ".join(filter(None, (self.space, "const" * self.const, name)))

    def __str__(self) -> str:
        return self.text()

    def filled(self, element: CppType) -> CppType:
        """Replace T by a concrete element type."""
        of = tuple(type.filled(element) for type in self.of)
        if self.name != ELEMENT.name:
            return self._replace(of=of)
        return element._replace(mark=self.mark, const=self.const, space=self.space)

    @property
    def by_reference(self) -> CppType:
        """The const reference to this type."""
        return CppType(self.name, self.home, self.of, "&", True, self.space)


ELEMENT = CppType("T")
VOID, BOOL, INT, INT64 = map(CppType, ("void", "bool", "int", "int64_t"))
FLOAT, DOUBLE = CppType("float"), CppType("double")
NUMBER = CppType("Scalar", "mlxgen")
ARRAY = CppType("array", "mlx")
ARRAYS = CppType("vector", "std", (ARRAY,))


class Declared(NamedTuple):
    """A parameter of a declaration."""

    type: CppType
    name: str
    is_output: bool = False  # the function writes to it


class Declaration(NamedTuple):
    """The declaration of a hand-written function that matches an entry."""

    name: str
    result: CppType
    params: tuple[Declared, ...]
    namespaces: Namespaces
    template: str = ""  # its template parameters: "typename T"
    is_kernel: bool = False  # [[kernel]]
    missing_in: Path | None = None  # the folder that has no function of that name

    @property
    def head(self) -> str:
        """The declaration without its template and attribute."""
        params = ", ".join(f"{p.type.text(self.namespaces)} {p.name}" for p in self.params)
        return f"{self.result.text(self.namespaces)} {self.name}({params})"

    def __str__(self) -> str:
        template = f"template <{self.template}> " if self.template else ""
        return f"{template}{'[[kernel]] ' * self.is_kernel}{self.head}"
