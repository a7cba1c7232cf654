"""The C interface of operators: data, which the Rust crate also uses, and the files of a library.

It follows mlx-c: handles that hold a pointer to a C++ object, results first, all arguments
explicit, the stream last, and a return code. The types are those of ``mlxgen/c_types.h``: mlx-c's
own, and ``mlxgen_*`` for kinds of arguments that mlx-c does not have.

A function has the operator's C++ name, which is unique: ``mlxops::axpby`` is ``mlxops_axpby``, and
the overload ``pick.dim`` is ``mlxops_pick_dim``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...model.cpp import CppType
from ...model.dtypes import CPP_TYPES
from ...model.kinds import KINDS, Kind
from ...model.languages import Clash, Package
from ...model.op import Op
from ...model.signature import INT64_MIN, Default, Type
from ...render.cpp import FILTERS, View, cpp_string
from ...render.files import sharded
from ...render.format import formatted
from ...render.templates import Templates
from ..common.markdown import laid_out

TEMPLATES = Templates(Path(__file__).parent / "templates" / "c", FILTERS, ["arguments.j2"])
SHARD = 64  # approximate number of operators per file

# The functions of every package that make and read arrays and report errors (header.h.j2).
# An operator of such a name has the suffix `_op` in C.
HELPERS = frozenset(
    """set_error_handler last_error
    array_new array_new_data array_set array_free array_eval array_itemsize array_size array_nbytes
    array_ndim array_shape array_dtype array_copy
    vector_array_new vector_array_new_data vector_array_free vector_array_append_value
    vector_array_size vector_array_get
    default_cpu_stream_new default_gpu_stream_new stream_free""".split()  # noqa: SIM905
)


class Passed(enum.Enum):
    """The form in which C passes an argument."""

    HANDLE = "handle"  # mlx_array or mlx_vector_array; a null handle is an absent array
    VALUE = "value"  # a number, a dtype, or a struct {value, has_value}
    TEXT = "text"  # const char*; NULL is None
    LIST = "list"  # a pointer and a size; a null pointer is None
    LISTS = "lists"  # the items of all lists, a pointer to the sizes, and the number of lists


class Spelling(NamedTuple):
    """The C types of a kind."""

    passed: Passed
    name: str  # of a value, or of the items of a list
    optional: str = ""  # of an optional VALUE
    make: str = ""  # the end of the names of functions that make an optional VALUE


_INTS = Spelling(Passed.LIST, "int")
_FLOAT32 = Spelling(Passed.VALUE, "float", "mlx_optional_float", "float")
_INT64 = Spelling(Passed.VALUE, "int64_t", "mlxgen_optional_int64", "int64")
SPELLINGS: Mapping[Kind, Spelling] = {
    Kind.ARRAY: Spelling(Passed.HANDLE, "mlx_array"),
    Kind.ARRAYS: Spelling(Passed.HANDLE, "mlx_vector_array"),
    Kind.OPTIONALS: Spelling(Passed.LIST, "mlx_array"),  # a vector has no place for null handles
    Kind.FLOAT: Spelling(Passed.VALUE, "double", "mlxgen_optional_double", "double"),
    Kind.INT: Spelling(Passed.VALUE, "int", "mlx_optional_int", "int"),
    Kind.BOOL: Spelling(Passed.VALUE, "bool", "mlxgen_optional_bool", "bool"),
    Kind.NUMBER: Spelling(Passed.VALUE, "mlxgen_number", "mlxgen_optional_number", "number"),
    Kind.STR: Spelling(Passed.TEXT, "char"),
    Kind.ENUM: Spelling(Passed.TEXT, "char"),
    Kind.INTS: _INTS,
    Kind.FLOATS: Spelling(Passed.LIST, "double"),
    Kind.BOOLS: Spelling(Passed.LIST, "bool"),
    Kind.NESTED: Spelling(Passed.LISTS, "int"),
    Kind.SHAPE: _INTS,
    Kind.AXES: _INTS,
    Kind.DTYPE: Spelling(Passed.VALUE, "mlx_dtype", "mlx_optional_dtype", "dtype"),
}


# Names of parameters that C, its standard headers or the generated functions use. The names in
# C++ (read/names.txt) already avoid those of C++ and its macros.
_TAKEN = {
    *("I", "complex", "imaginary", "restrict", "typeof", "typeof_unqual", "size_t", "mlx_stream"),
    *("res", "s", "call", "results"),
} | {name for of in (*SPELLINGS.values(), _FLOAT32, _INT64) for name in (of.name, of.optional)}


def spelling(type: Type) -> Spelling:
    """Return the C types of an argument."""
    return _FLOAT32 if type.single else _INT64 if type.int64 else SPELLINGS[type.kind]


class CDefault(NamedTuple):
    """The default of an argument as a macro."""

    macro: str
    value: str  # of a list: its values and its size
    items: str = ""  # the values of a list, for an array ``values``
    values: str = ""


@dataclass(frozen=True, slots=True)
class CParam:
    """A parameter; of a list two, the second of which is its size; of lists three."""

    name: str
    label: str  # the argument's name in the entry and in messages
    type: Type
    passed: Passed
    c: str  # the type of the value, or of the items of a list
    size: str  # the name of the size of a list, or of the number of lists, else empty
    sizes: str  # the name of the sizes of lists, else empty
    default: CDefault | None  # None also for an array and for lists, which no macro can make
    value: Default | None  # the default as data

    @property
    def nullable(self) -> bool:
        """True if a null handle or pointer is valid."""
        return self.type.optional and self.passed is not Passed.VALUE

    @property
    def list(self) -> CppType:
        """The type of a list in C++."""
        return KINDS[self.type.kind].cpp

    @property
    def declared(self) -> tuple[str, ...]:
        """The declarations."""
        null = " /* may be null */" if self.nullable else ""
        if self.passed is Passed.VALUE:
            return (f"{self.c} {self.name}",)
        if self.passed is Passed.HANDLE:
            return (f"const {self.c} {self.name}{null}",)
        if self.sizes:
            items, sizes = f"const {self.c}* {self.name}", f"const size_t* {self.sizes}{null}"
            return (items, sizes, f"size_t {self.size}")
        first = f"const {self.c}* {self.name}{null}"
        return (first, f"size_t {self.size}") if self.size else (first,)


class CResult(NamedTuple):
    """A result: a pointer to a handle, which the caller owns."""

    name: str
    c: str  # the type of the handle
    label: str  # the output's name in the entry


@dataclass(frozen=True, slots=True)
class CFunction:
    """A function of the C interface."""

    name: str
    op: Op
    cpp: str  # the C++ function
    params: tuple[CParam, ...]
    results: tuple[CResult, ...]

    @property
    def label(self) -> str:
        """The operator's name in messages."""
        return self.op.python_name

    @property
    def declared(self) -> list[str]:
        """The declarations of all parameters."""
        results = (f"{result.c}* {result.name}" for result in self.results)
        params = (text for param in self.params for text in param.declared)
        return [*results, *params, "const mlx_stream s"]

    @property
    def defaults(self) -> list[CParam]:
        """The parameters with a default."""
        return [param for param in self.params if param.default]

    @property
    def documentation(self) -> str:
        """The documentation: that of C++, choices and the results."""
        view = View(self.op)
        listed = {mode.name for mode, _ in view.from_unions}  # in the documentation of C++
        choices = [
            f"- ``{p.name}``: one of {p.type.listed_choices}"
            for p in self.params
            if p.type.choices and p.label not in listed
        ]
        parts = [view.documentation]
        parts += ["Choices:\n\n" + "\n".join(choices)] if choices else []
        if len(self.results) > 1:
            names = ", ".join(f"``{r.name}`` is ``{r.label}``" for r in self.results)
            parts.append(f"Results: {names}.")
        return "\n\n".join(parts)


def c_function(op: Op, package: Package) -> CFunction:
    """Return the C function of a public operator."""
    name = f"{package.name}_{_apart(op.name)}"
    one = len(op.outputs) == 1
    return CFunction(
        name=name,
        op=op,
        cpp=f"{package.namespace}::{op.name}",
        params=tuple(_params(op, name)),
        results=tuple(
            CResult("res" if one else f"res_{i}", SPELLINGS[o.type.kind].name, o.name)
            for i, o in enumerate(op.outputs)
        ),
    )


def _apart(name: str) -> str:
    """Return an operator's name, with a suffix if it would be that of a helper."""
    plain = name
    while plain.endswith("_op"):
        plain = plain[: -len("_op")]
    return f"{name}_op" if plain in HELPERS else name


def _params(op: Op, function: str) -> Iterable[CParam]:
    reserved = _TAKEN | {f"res_{i}" for i in range(len(op.outputs))}
    taken = {*reserved, *(p.declared for p in op.arguments.params)}
    for p in op.arguments.params:
        of, default = spelling(p.type), p.arg.default
        name = _free(f"{p.declared}_arg", taken) if p.declared in reserved else p.declared
        optional = p.type.optional and of.passed is Passed.VALUE
        lists = of.passed is Passed.LISTS
        # An array with a number as default is a required argument here.
        value = default if p.type.optional or p.type.kind is not Kind.ARRAY else None
        yield CParam(
            name=name,
            label=p.name,
            type=p.type,
            passed=of.passed,
            c=of.optional if optional else of.name,
            size=_free(f"{name}_num", taken) if lists or of.passed is Passed.LIST else "",
            sizes=_free(f"{name}_sizes", taken) if lists else "",
            # No name contains two underscores, so that macros of different operators differ.
            default=_default(value, f"{function}__{p.name}") if value and not lists else None,
            value=value,
        )


def _free(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, and take it."""
    while name in taken:
        name += "_arg"
    taken.add(name)
    return name


def _default(default: Default, macro: str) -> CDefault:
    """Return the macro for a default."""
    of, value = spelling(default.type), default.value
    if of.passed is Passed.LIST:
        if not isinstance(value, tuple) or not (value or default.type.optional):
            return CDefault(macro, "NULL, 0")
        items = ", ".join(_item(item, default.type) for item in value) or "0"
        return CDefault(macro, f"{macro}_values, {len(value)}", items, f"{macro}_values")
    if of.passed is Passed.HANDLE:
        return CDefault(macro, f"mlxgen_no_{of.name.removeprefix('mlx_')}()")
    if value is None:
        return CDefault(macro, "NULL" if of.passed is Passed.TEXT else f"mlxgen_no_{of.make}()")
    text = _item(value, default.type)
    if default.type.optional and of.passed is Passed.VALUE:
        return CDefault(macro, f"mlxgen_some_{of.make}({text})")
    return CDefault(macro, text)


# C replaces trigraphs such as ??( in strings.
_TRIGRAPHS = {ord("?"): r"\?"}


def _item(value: object, type: Type) -> str:
    """Return a value, or an item of a list, in C."""
    if type.kind is Kind.NUMBER:
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        return f"mlxgen_{kind}({_number(value, single=False)})"
    if type.kind is Kind.DTYPE:
        return f"MLX_{str(value).rstrip('_').upper()}"
    if isinstance(value, str):
        return cpp_string(value).translate(_TRIGRAPHS) if "??" in value else cpp_string(value)
    return _number(value, type.single)


def _number(value: object, single: bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
    text = INT64_MIN if value == -(2**63) else repr(value) + "f" * single
    return f"({text})" if text[0] == "-" else text


class Piece(NamedTuple):
    """The function of an operator in the files of the library."""

    name: str  # of the operator
    deprecated: bool
    declaration: str
    definition: str


def piece(op: Op, package: Package) -> tuple[str, Piece]:
    """Return the declaration for the reference, and the function."""
    function = c_function(op, package)
    shown = laid_out(f"int {function.name}", function.declared)
    return shown, Piece(op.name, bool(op.entry.deprecated), *_blocks(function, package))


def _blocks(function: CFunction, package: Package) -> list[str]:
    return TEMPLATES.blocks("function.j2", package, f=function)


def code(op: Op, package: Package) -> str:
    """Return the declaration and the definition of a function."""
    return formatted("\n".join(_blocks(c_function(op, package), package)))


def files(pieces: Sequence[Any], package: Package) -> dict[str, str]:
    """Return the header and the sources of the C library."""
    public = [Piece(*of) for of in pieces]
    guard, elements = f"{package.name.upper()}_C_H", CPP_TYPES.items()
    header = TEMPLATES.render("header.h.j2", package, guard=guard, public=public)
    found = {
        f"include/{package.name}_c.h": header,
        "c/arrays.cpp": TEMPLATES.render("arrays.cpp.j2", package, elements=elements),
    }
    for i, members in enumerate(sharded(public, SHARD, lambda p: p.name)):
        found[f"c/functions_{i}.cpp"] = TEMPLATES.render("functions.cpp.j2", package, ops=members)
    return found


def clashes(pieces: Sequence[Any]) -> Iterable[Clash]:
    """Return nothing: a function has the operator's C++ name, which is unique."""
    return ()
