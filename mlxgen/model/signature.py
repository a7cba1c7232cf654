"""Signatures: the arguments and outputs of an operator, with three spellings.

    C++      array axpby(const array& x, const array& y, float alpha = 1)
    Python   axpby(x: array, y: array, *, alpha: float = 1.0) -> array
    torch    axpby(Tensor x, Tensor y, *, float alpha=1) -> Tensor

A type has a ``Kind``; its spellings are properties. read/signature.py parses a signature printed in
C++ or Python to the same signature, except for facts that a spelling cannot express: C++ has no
keyword-only arguments or names of outputs; Python and torch do not distinguish ``float`` and
``double``. Properties called ``cpp`` are for generated code (``mx::array``), and
``Signature.cpp()`` is the C++ spelling of entries (``array``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .cpp import ENTRY, FLOAT, INT64, CppType
from .dtypes import DTYPES
from .kinds import KINDS
from .kinds import Kind as Kind  # most users of Kind also need Type
from .names import free


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an argument or output. Axes are always optional: None means all axes.

    Optional ints that one int can replace (``int[1]?``) are axes."""

    kind: Kind
    optional: bool = False
    choices: tuple[str, ...] = ()  # ENUM: the allowed strings; ARRAY: those in place of an array
    single: bool = False  # FLOAT: C++ float instead of double
    int64: bool = False  # INT: C++ int64_t instead of int
    # INTS: the number, which one int or a list of one can replace; 1: one int or any list.
    length: int | None = None
    empty: bool = False  # INTS: the list can also be empty, like its default
    # ARRAYS: of an argument, Python passes any number of positional arguments (``*arrays``).
    variadic: bool = False
    # ARRAYS, of an output: Python gets a tuple instead of a list, and a single array by itself.
    tupled: bool = False
    unwrapped: bool = False

    def __post_init__(self) -> None:
        if self.kind is Kind.INTS and self.optional and self.length == 1:
            object.__setattr__(self, "kind", Kind.AXES)
            object.__setattr__(self, "length", None)
        if self.kind is Kind.AXES:
            object.__setattr__(self, "optional", True)

    def __str__(self) -> str:
        name = f"{self.kind.label} or string" if self.is_union else self.kind.label
        return f"optional {name}" if self.optional else name

    @property
    def is_array(self) -> bool:
        """True for an array or a list of arrays (all others are attributes)."""
        return self.kind in (Kind.ARRAY, Kind.ARRAYS)

    @property
    def is_union(self) -> bool:
        """True for an array or one of several strings, which is two arguments in C++."""
        return self.kind is Kind.ARRAY and bool(self.choices)

    @property
    def cpp(self) -> CppType:
        """The type of a value in C++."""
        type = FLOAT if self.single else INT64 if self.int64 else KINDS[self.kind].cpp
        return CppType("optional", "std", (type,)) if self.optional else type

    @property
    def cpp_param(self) -> CppType:
        """The type of a parameter in C++: numbers by value, others by const reference."""
        return self.cpp if KINDS[self.kind].by_value else self.cpp.by_reference

    @property
    def python(self) -> str:
        """The annotation of a parameter in a stub, as in MLX's own."""
        name = KINDS[self.kind].python
        if self.variadic:
            name = "array"
        if self.tupled:
            name = "tuple[array, ...]"
        if self.unwrapped:
            name = f"array | {name}"
        if self.is_union:
            name = f"array | Literal[{self.listed_choices}]"
        elif self.choices:
            name = name.format(self.listed_choices)
        if self.length is not None:
            name = f"int | tuple[{', '.join(['int'] * self.length)}]"
        if self.length == 1:
            name = "int | Sequence[int]"
        if self.empty:
            name += " | tuple[()]"
        return f"{name} | None" if self.optional else name

    def wide(self, types: Iterable[CppType]) -> tuple[CppType, ...]:
        """Return the types of a kernel's parameter that can represent every value of this type."""
        return tuple(t for t in types if not (self.int64 and t.name in ("int", "uint")))

    @property
    def listed_choices(self) -> str:
        """The strings of an ENUM, quoted and with commas."""
        return ", ".join(map(quoted, self.choices))

    def spread(self, value: object) -> object:
        """Return the list that one int, or a list of one, stands for; else the value itself."""
        if isinstance(value, int) and (self.kind is Kind.AXES or self.length):
            value = (value,)
        if isinstance(value, list | tuple) and len(value) == 1:
            return (value[0],) * (self.length or 1)
        return value

    def takes(self, value: object) -> bool:
        """Return whether a Python value, other than None or an array, has this type."""
        if isinstance(value, list | tuple):
            right_length = self.length in (None, 1) or len(value) in (1, self.length)
            fits = right_length or (self.empty and not value)
            item = KINDS[self.kind].item
            return fits and item is not None and all(map(Type(item).takes, value))
        if self.is_union:
            return value in self.choices
        if type(value) not in KINDS[self.kind].values:  # a bool is not an int here
            return False
        if self.kind is Kind.INT or (self.kind is Kind.NUMBER and isinstance(value, int)):
            limit = 1 << (63 if self.int64 or self.kind is Kind.NUMBER else 31)
            return value in range(-limit, limit)
        return value in {Kind.ENUM: self.choices, Kind.DTYPE: DTYPES}.get(self.kind, (value,))

    def _cpp_spelling(self) -> str:
        """Return the type of a parameter in the C++ spelling of entries."""
        name = f"enum({self.listed_choices})" if self.choices else f"int[{self.length}]"
        if self.is_union:
            name = f"std::variant<array, {name}>"
        if self.kind is Kind.AXES:
            return "axes"
        if not self.choices and self.length is None:
            return self.cpp_param.text(ENTRY)
        return f"std::optional<{name}>" if self.optional else name

    def _python_spelling(self) -> str:
        """Return the type of a parameter in the Python spelling of entries."""
        if self.kind is Kind.AXES:
            return "axes"
        if self.kind is Kind.SHAPE:
            return "shape | None" if self.optional else "shape"
        return replace(self, empty=False).python  # the default tells


@dataclass(frozen=True, slots=True, eq=False)
class Default:
    """The default of an argument, as a Python value; a dtype is represented by its name."""

    value: None | bool | int | float | str | tuple[float | tuple[int, ...], ...]  # noqa: RUF036
    type: Type

    def __eq__(self, other: object) -> bool:
        # Compares representations, so that nan equals nan, and 1 does not equal True.
        return isinstance(other, Default) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def cpp(self) -> str:
        """The default in generated C++."""
        is_array = self.type.kind is Kind.ARRAY and isinstance(self.value, int | float)
        return f"mx::array({self.literal})" if is_array else self.literal

    @property
    def literal(self) -> str:
        """The default in generated C++, where a number is the default of an array."""
        value = self.value
        if value is None:
            return "std::nullopt"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return _cpp_float(value, self.type.single or self.type.kind is Kind.ARRAY)
        if isinstance(value, tuple):
            row = KINDS[self.type.kind]
            assert row.item is not None
            prefix, item = row.cpp if self.type.optional else "", Type(row.item)
            return f"{prefix}{{{', '.join(Default(one, item).literal for one in value)}}}"
        if self.type.kind is Kind.DTYPE:
            return f"mx::{value}"
        if value == -(2**63):
            return INT64_MIN
        return quoted(value) if isinstance(value, str) else str(value)

    @property
    def python(self) -> str:
        """The default in Python, where dtypes, inf and nan are names of mlx.core."""
        is_text = isinstance(self.value, str) and self.type.kind is not Kind.DTYPE
        return quoted(str(self.value)) if is_text else str(self.value)


class Arg(NamedTuple):
    """An argument; ``offset`` is the slice of the signature's text that declares it.

    An argument of Python that is an array or a string is two arguments of the operator: an optional
    string and an optional array, of which one is given. Both have it as ``declared``.
    """

    name: str
    type: Type
    default: Default | None = None
    kw_only: bool = False
    offset: tuple[int, int] = (0, 0)
    pos_only: bool = False
    declared: Arg | None = None

    @property
    def mode_of(self) -> str:
        """The name of the array that the string replaces; empty for other arguments."""
        is_mode = self.declared is not None and self.type.kind is Kind.ENUM
        return self.declared.name if is_mode and self.declared is not None else ""


def split(args: Sequence[Arg], taken: Iterable[str]) -> tuple[Arg, ...]:
    """Return the operator's arguments for those that an entry declares.

    The string precedes the array, so that a call of C++ that passes an array also passes the
    string. ``taken``: names that no argument may get, in addition to those of arguments.
    """
    used, found = {*taken, *(arg.name for arg in args)}, list[Arg]()
    for arg in args:
        if not arg.type.is_union:
            found.append(arg)
            continue
        name = free(f"{arg.name}_mode", "arg", used.__contains__)
        used.add(name)
        mode = Type(Kind.ENUM, optional=True, choices=arg.type.choices)
        for part, type in ((name, mode), (arg.name, Type(Kind.ARRAY, optional=True))):
            default = None
            if arg.default is not None:
                default = Default(arg.default.value if type is mode else None, type)
            found.append(arg._replace(name=part, type=type, default=default, declared=arg))
    return tuple(found)


def parted(args: Sequence[Arg], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample of declared arguments by the names of the operator's arguments.

    A required array or string that it omits is an array.
    """
    found = dict(values)
    for arg in args:
        if arg.declared is not None and arg.mode_of:
            optional = arg.declared.type.optional or arg.declared.default
            value = values.get(arg.mode_of, None if optional else {})
            if isinstance(value, str):
                found |= {arg.name: value, arg.mode_of: None}
            elif value is not None:
                found[arg.mode_of] = value
    return found


class Output(NamedTuple):
    """An output: an array, or a list of arrays, which is then the only one."""

    name: str
    type: Type


class Signature(NamedTuple):
    """The signature of an operator.

    ``args``: the arguments in C++; ``declared`` are those in Python and in the entry.
    ``named_outputs``: the text names the outputs (else they are ``out``, or ``out0, out1...``).
    ``named_args``: false for a C++ signature without names, whose arguments are ``a, b, c...``.
    ``python_name``: the name in Python if the text has another one, as torch's ``add.Tensor``.
    """

    name: str | None
    args: tuple[Arg, ...]
    outputs: tuple[Output, ...]
    named_outputs: bool = False
    named_args: bool = True
    python_name: str | None = None

    @property
    def arrays(self) -> tuple[Arg, ...]:
        """The arguments that are arrays or lists of arrays."""
        return tuple(arg for arg in self.args if arg.type.is_array)

    @property
    def declared(self) -> tuple[Arg, ...]:
        """The arguments that the entry declares, which are those in Python."""
        return tuple(arg.declared or arg for arg in self.args if not arg.mode_of)

    @property
    def by_position(self) -> int:
        """The number of leading arguments that can only be passed by position in some calls.

        All arguments before ``*arrays`` are, with these, if there are any."""
        star = next((i + 1 for i, arg in enumerate(self.declared) if arg.type.variadic), 0)
        return max(star, sum(arg.pos_only for arg in self.declared))

    @property
    def target(self) -> tuple[int, str] | None:
        """The place and name of the argument to which the in-place variant gives the value."""
        places = ((i, arg.name) for i, arg in enumerate(self.declared) if arg.type.is_array)
        return next(places, None)

    def each_output(self, word: str) -> dict[str, int | None]:
        """Return the names in gradient formulas that ``word`` (``grad`` or ``result``) forms.

        The values are indices of outputs; None is the list of all.
        """
        if self.outputs[0].type.kind is Kind.ARRAYS:
            return {f"{word}s": None}
        found: dict[str, int | None] = {word: 0} if len(self.outputs) == 1 else {}
        if found and word == "grad":
            found["grad_out"] = 0
        each = {f"{word}_{output.name}": i for i, output in enumerate(self.outputs)}
        return {**found, f"{word}s": None, **each}

    @property
    def cpp_result(self) -> str:
        """The return type in the C++ spelling (generated functions return a vector instead)."""
        types = tuple(output.type.cpp for output in self.outputs)
        several = CppType("pair" if len(types) == 2 else "tuple", "std", types)
        return (types[0] if len(types) == 1 else several).text(ENTRY)

    @property
    def python_result(self) -> str:
        """The annotation of the Python function's result."""
        types = [output.type.python for output in self.outputs]
        return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"

    def python_args(self, annotation: Callable[[Arg], str], *more: str) -> list[str]:
        """Return Python's arguments, with ``/`` and ``*``.

        Args:
            annotation: The spelling of an argument's type.
            more: Additional keyword-only arguments.
        """
        args, declared = [], self.declared
        for arg in declared:
            default = f" = {arg.default.python}" if arg.default else ""
            star = "*" * arg.type.variadic
            args.append(f"{star}{arg.name}: {annotation(arg)}{default}")
        first = sum(arg.pos_only for arg in declared)
        last = sum(not arg.kw_only for arg in declared)
        rest = [*args[last:], *more]
        star_alone = bool(rest) and not any(arg.type.variadic for arg in declared)
        return [*args[:first], *["/"][: first > 0], *args[first:last], *["*"] * star_alone, *rest]

    def cpp(self) -> str:
        """Return the signature in the C++ spelling of entries."""
        args = []
        for arg in self.declared:
            default = f" = {arg.default.cpp.removeprefix('mx::')}" if arg.default else ""
            args.append(f"{arg.type._cpp_spelling()} {arg.name}{default}")
        head = f"{self.cpp_result} {self.name or ''}".rstrip()
        return f"{head}({', '.join(args)})"

    def python(self) -> str:
        """Return the signature in the Python spelling of entries."""
        result = self.python_result
        if self.named_outputs:
            outputs = (f"{output.name}: {output.type.python}" for output in self.outputs)
            result = f"({', '.join(outputs)})"
        args = ", ".join(self.python_args(lambda arg: arg.type._python_spelling()))
        return f"{self.python_name or self.name or ''}({args}) -> {result}"


# C++ has no literal for this number, because a minus is an operator there.
INT64_MIN = "INT64_MIN"
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
# Other control characters; three octal digits, or four others, end an escape in both languages.
_CONTROL = {
    code: f"\\{code:03o}" if code < 0x80 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
}
_ESCAPES = _CONTROL | str.maketrans(ESCAPES)


def quoted(text: str) -> str:
    """Return a string literal that is valid in C++ and Python."""
    return f'"{text.translate(_ESCAPES)}"'


def _cpp_float(value: float, single: bool) -> str:
    if math.isfinite(value):
        return repr(value) + "f" * single
    limits = f"std::numeric_limits<{'float' if single else 'double'}>"
    sign = "-" if value < 0 else ""
    return f"{limits}::quiet_NaN()" if math.isnan(value) else f"{sign}{limits}::infinity()"
