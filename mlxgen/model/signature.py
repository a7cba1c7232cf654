"""Signatures: what an operator takes and returns, as one model with three spellings.

=======  ===============================================================
C++      ``array axpby(const array& x, const array& y, float alpha = 1)``
Python   ``axpby(x: array, y: array, *, alpha: float = 1.0) -> array``
torch    ``axpby(Tensor x, Tensor y, *, float alpha=1) -> Tensor``
=======  ===============================================================

Characteristics of this layer:

- Types say what a value is (``Kind``); how some language spells it is a property.
- A signature prints back in every spelling to text that parses to the same signature, as far as
  the spelling can say it: C++ knows no keyword-only arguments and no names of outputs, Python and
  torch do not tell ``float`` from ``double``.
- Generated C++ stands where ``namespace mx = mlx::core``: the properties called ``cpp`` say
  ``mx::array``. The C++ spelling of entries (``Signature.cpp``) says ``array``.
- The parser is in signature_parser.py; this file is what everybody else needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from .kinds import KINDS
from .kinds import Kind as Kind  # most of its users want Type too

Report = Callable[[str, str, int, int, "str | None"], None]
"""What gets the errors of a text: code, message, start and end offset in the text, help."""

Spelling = Literal["any", "cpp", "python"]

RESERVED = {
    "stream": "every operator has a stream argument already",
    "s": "generated C++ calls the stream so",
    **dict.fromkeys(("grad", "grads", "grad_out"), "gradient formulas call the cotangent so"),
    **dict.fromkeys(("tangent", "tangents"), "jvp formulas call the tangent so"),
    **dict.fromkeys(("result", "results"), "formulas call what the operator returns so"),
    "out": "kernels call the output so",
    "self": "methods in Python call their object so",
    "T": "kernels call their element type so",
    **dict.fromkeys(
        ("primals", "cotangents", "argnums", "inputs", "outputs"),
        "a method of every Primitive has a parameter of that name",
    ),
    **dict.fromkeys(("mx", "mlx", "mlxgen", "std"), "generated C++ has a namespace of that name"),
}
"""Names that an argument cannot have, and why (nor an output, except ``out``)."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an argument or output. Axes are always optional: None is all of them."""

    kind: Kind
    optional: bool = False
    choices: tuple[str, ...] = ()  # ENUM: the strings allowed
    single: bool = False  # FLOAT: C++ float rather than double
    int64: bool = False  # INT: C++ int64_t rather than int
    length: int | None = None  # INTS: exactly so many (in Python one int stands for all of them)

    def __post_init__(self) -> None:
        if self.kind is Kind.AXES:
            object.__setattr__(self, "optional", True)

    def __str__(self) -> str:
        return f"optional {self.kind.value}" if self.optional else self.kind.value

    @property
    def is_array(self) -> bool:
        """Whether it is an array or a list of arrays (else it is an attribute)."""
        return self.kind in (Kind.ARRAY, Kind.ARRAYS)

    @property
    def cpp(self) -> str:
        """The type of a value in generated C++."""
        name = "float" if self.single else "int64_t" if self.int64 else KINDS[self.kind].cpp
        return f"std::optional<{name}>" if self.optional else name

    @property
    def cpp_param(self) -> str:
        """The type of a parameter in generated C++: numbers by value, others by const reference."""
        by_value = KINDS[self.kind].by_value
        return self.cpp if by_value else f"const {self.cpp}&"

    @property
    def python(self) -> str:
        """The annotation of a parameter in a stub, as in MLX's own."""
        name = KINDS[self.kind].python.format(self.listed_choices)
        if self.length is not None:
            name = f"int | tuple[{', '.join(['int'] * self.length)}]"
        return f"{name} | None" if self.optional else name

    @property
    def torch(self) -> str:
        """The type in torch's schema language, to which ``enum("a", "b")`` is added."""
        name = KINDS[self.kind].torch.format(self.listed_choices)
        if self.length is not None:
            name = f"int[{self.length}]"
        return f"{name}?" if self.optional else name

    @property
    def listed_choices(self) -> str:
        """The strings of an ENUM, quoted and with commas."""
        return ", ".join(map(quoted, self.choices))

    def _cpp_spelling(self) -> str:
        """The type of a parameter in the C++ spelling of entries."""
        if self.kind is Kind.AXES:
            return "axes"
        if self.kind is not Kind.ENUM and self.length is None:
            return self.cpp_param.replace("mx::", "")
        name = replace(self, optional=False).torch
        return f"std::optional<{name}>" if self.optional else name

    def _python_spelling(self) -> str:
        """The type of a parameter in the Python spelling of entries."""
        if self.kind is Kind.AXES:
            return "axes"
        if self.kind is Kind.SHAPE:
            return "shape | None" if self.optional else "shape"
        return self.python


@dataclass(frozen=True, slots=True, eq=False)
class Default:
    """The default of an argument, as a Python value: None, a tuple of ints..., a dtype's name."""

    value: None | bool | int | float | str | tuple[int, ...]  # noqa: RUF036
    type: Type

    def __eq__(self, other: object) -> bool:
        # By text, so that nan equals nan, and 1 does not equal True.
        same = isinstance(other, Default) and repr(self.value) == repr(other.value)
        return same and isinstance(other, Default) and self.type == other.type

    def __hash__(self) -> int:
        return hash((repr(self.value), self.type))

    @property
    def cpp(self) -> str:
        """The default in generated C++."""
        value = self.value
        if value is None:
            return "std::nullopt"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return _cpp_float(value, self.type.single)
        if isinstance(value, tuple):
            prefix = KINDS[self.type.kind].cpp if self.type.optional else ""
            return f"{prefix}{{{', '.join(map(str, value))}}}"
        if self.type.kind is Kind.DTYPE:
            return f"mx::{value}"
        return quoted(value) if isinstance(value, str) else str(value)

    @property
    def python(self) -> str:
        """The default in Python, where dtypes, inf and nan are names of mlx.core."""
        is_text = isinstance(self.value, str) and self.type.kind is not Kind.DTYPE
        return quoted(str(self.value)) if is_text else str(self.value)

    @property
    def torch(self) -> str:
        """The default in torch's schema language."""
        return str(list(self.value)) if isinstance(self.value, tuple) else self.python


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument; ``offset`` is the slice of the signature's text that declares it."""

    name: str
    type: Type
    default: Default | None = None
    kw_only: bool = False
    offset: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Output:
    """An output: an array, or a list of arrays, which is then the only one."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operator takes and returns.

    ``named_outputs``: the text names the outputs (else they are ``out``, or ``out0, out1...``).
    ``named_args`` is false after a nameless C++ signature, whose arguments are ``a, b, c...``.
    """

    name: str | None
    args: tuple[Arg, ...]
    outputs: tuple[Output, ...]
    named_outputs: bool = False
    named_args: bool = True

    @property
    def arrays(self) -> tuple[Arg, ...]:
        """The arguments that are arrays or lists of arrays."""
        return tuple(arg for arg in self.args if arg.type.is_array)

    @property
    def attributes(self) -> tuple[Arg, ...]:
        """The other arguments."""
        return tuple(arg for arg in self.args if not arg.type.is_array)

    def arg(self, name: str) -> Arg | None:
        """The argument of that name."""
        return next((arg for arg in self.args if arg.name == name), None)

    @property
    def cpp_result(self) -> str:
        """The result in the C++ spelling (generated functions with several return a vector)."""
        types = [output.type.cpp for output in self.outputs]
        if len(types) == 1:
            return types[0]
        return f"std::{'pair' if len(types) == 2 else 'tuple'}<{', '.join(types)}>"

    @property
    def python_result(self) -> str:
        """The annotation of what the Python function returns."""
        types = [output.type.python for output in self.outputs]
        return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"

    def cpp(self) -> str:
        """The signature in the C++ spelling of entries."""
        args = []
        for arg in self.args:
            default = f" = {arg.default.cpp.removeprefix('mx::')}" if arg.default else ""
            args.append(f"{arg.type._cpp_spelling()} {arg.name}{default}")
        head = f"{self.cpp_result} {self.name or ''}".rstrip()
        return f"{head.replace('mx::', '')}({', '.join(args)})"

    def python(self) -> str:
        """The signature in the Python spelling of entries."""
        args = []
        for arg in self.args:
            default = f" = {arg.default.python}" if arg.default else ""
            args.append(f"{arg.name}: {arg.type._python_spelling()}{default}")
        result = self.python_result
        if self.named_outputs:
            outputs = (f"{output.name}: {output.type.python}" for output in self.outputs)
            result = f"({', '.join(outputs)})"
        return f"{self.name or ''}({', '.join(self._starred(args))}) -> {result}"

    def torch(self) -> str:
        """The signature in torch's spelling."""
        args = []
        for arg in self.args:
            default = f"={arg.default.torch}" if arg.default else ""
            args.append(f"{arg.type.torch} {arg.name}{default}")
        outputs = [output.type.torch for output in self.outputs]
        if self.named_outputs:
            outputs = [f"{output.type.torch} {output.name}" for output in self.outputs]
        result = ", ".join(outputs)
        if self.named_outputs or len(outputs) > 1:
            result = f"({result})"
        return f"{self.name or ''}({', '.join(self._starred(args))}) -> {result}"

    def _starred(self, args: list[str]) -> list[str]:
        """``args`` with the ``*`` before the first keyword-only one."""
        first = next((i for i, arg in enumerate(self.args) if arg.kw_only), len(args))
        return args[:first] + ["*"] * (first < len(args)) + args[first:]


def parse_signature(text: str, spelling: Spelling, report: Report) -> Signature | None:
    """The signature that ``text`` spells, or None if anything in it was reported (MG2xx).

    ``spelling`` is ``"any"`` (the three are told apart by their form) or what the key demands.
    """
    from ..read.signature import Parser  # which needs the classes above

    return Parser(text, report).parse(spelling)


def combine(cpp: Signature, python: Signature, report: Report) -> Signature | None:
    """One signature of an entry's ``cpp_signature`` and ``python_signature``, or None (MG218).

    Names, defaults, keyword-only marks and names of outputs are the Python one's, widths of numbers
    the C++ one's. Offsets are in the Python text.
    """
    wrong: list[tuple[str, tuple[int, int]]] = []
    args = []
    for theirs, ours in zip(cpp.args, python.args, strict=False):
        type = _combined(theirs.type, ours.type)
        if cpp.named_args and theirs.name != ours.name:
            wrong.append((f"'{ours.name}' is called '{theirs.name}' there", ours.offset))
        elif type is None:
            what = f"'{ours.name}' is {with_article(theirs.type)} there"
            wrong.append((f"{what} and {with_article(ours.type)} here", ours.offset))
        else:
            default = ours.default and Default(ours.default.value, type)
            if default and theirs.default and default != Default(theirs.default.value, type):
                what = f"the default of '{ours.name}' is {theirs.default.cpp} there"
                wrong.append((what, ours.offset))
            args.append(replace(ours, type=type, default=default))
    last = python.args[-1].offset if python.args else (0, 1)
    if len(cpp.args) != len(python.args):
        wrong.append((f"it has {len(cpp.args)} arguments, and {len(python.args)} are here", last))
    if [output.type for output in cpp.outputs] != [output.type for output in python.outputs]:
        results = f"it returns {cpp.cpp_result.replace('mx::', '')} and this {python.python_result}"
        wrong.append((results, last))
    for message, offset in wrong:
        report("MG218", f"unlike cpp_signature: {message}", *offset, None)
    return None if wrong else replace(python, args=tuple(args), name=python.name or cpp.name)


def _combined(cpp: Type, python: Type) -> Type | None:
    """The type that both spell (Python's ``list[int]`` may be C++'s ``Shape``), or None."""
    if cpp == python:
        return python
    kinds = (cpp.kind, python.kind)
    if cpp.optional == python.optional:
        if kinds in ((Kind.FLOAT, Kind.FLOAT), (Kind.INT, Kind.INT)):
            return cpp
        if kinds == (Kind.SHAPE, Kind.INTS) and python.length is None:
            return cpp
        if kinds == (Kind.STR, Kind.ENUM) or (kinds == (Kind.INTS,) * 2 and cpp.length is None):
            return python
    return None


ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
_ESCAPES = str.maketrans(ESCAPES)


def quoted(text: str) -> str:
    """A string literal of C++ and Python alike."""
    return f'"{text.translate(_ESCAPES)}"'


def with_article(type: Type) -> str:
    """``an int``, ``a float``: for messages."""
    return f"{'an' if str(type)[0] in 'aeio' else 'a'} {type}"


def _cpp_float(value: float, single: bool) -> str:
    if math.isfinite(value):
        return repr(value) + "f" * single
    limits = f"std::numeric_limits<{'float' if single else 'double'}>"
    sign = "-" if value < 0 else ""
    return f"{limits}::quiet_NaN()" if math.isnan(value) else f"{sign}{limits}::infinity()"
