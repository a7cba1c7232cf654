"""The types in signatures: one grammar, and a table of what the three spellings differ in.

Recursive descent over strings, neither a parser library nor ``ast``: it costs some 20 microseconds
an operator, and a message can say what *this* language wants at that place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from ..diagnostics import suggest
from ..model.signature import Kind, Type, quoted
from .literals import string_of

Report = Callable[[str, str, int, int, "str | None"], None]
"""What gets the errors of a text: code, message, start and end offset in the text, help."""

ARRAY, ARRAYS, _INT, _INTS = map(Type, (Kind.ARRAY, Kind.ARRAYS, Kind.INT, Kind.INTS))
_FLOAT, _STR, _SHAPE, _AXES = map(Type, (Kind.FLOAT, Kind.STR, Kind.SHAPE, Kind.AXES))
_DTYPE = Type(Kind.DTYPE)
_INT64 = Type(Kind.INT, int64=True)
_COMMON = {"array": ARRAY, "int": _INT, "bool": Type(Kind.BOOL), "axes": _AXES, "Dtype": _DTYPE}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A spelling."""

    name: str
    words: dict[str, Type]  # types that are one word
    generic: dict[str, tuple[str, str]]  # words that have types or strings in brackets
    marks: tuple[str, ...]  # what may follow a type
    results: dict[str, tuple[str, str]]  # how several outputs begin


CPP = Grammar(
    "C++",
    {
        **_COMMON,
        **{"float": Type(Kind.FLOAT, single=True), "double": _FLOAT, "std::string": _STR},
        **{"int32_t": _INT, "int64_t": _INT64, "std::int64_t": _INT64, "Shape": _SHAPE},
    },
    {"std::optional": ("<", ">"), "std::vector": ("<", ">"), "enum": ("(", ")")},
    ("[",),
    {"std::pair": ("<", ">"), "std::tuple": ("<", ">")},
)
PYTHON = Grammar(
    "Python",
    {**_COMMON, "float": _FLOAT, "str": _STR, "shape": _SHAPE, "dtype": _DTYPE},
    dict.fromkeys(("Optional", "Union", "Literal", "list", "Sequence", "tuple"), ("[", "]")),
    ("|",),
    {"tuple": ("[", "]"), "(": ("(", ")")},
)
TORCH = Grammar(
    "torch",
    {
        **{"Tensor": ARRAY, **_COMMON, "float": _FLOAT, "Scalar": _FLOAT, "SymInt": _INT},
        **{"str": _STR, "shape": _SHAPE, "ScalarType": _DTYPE},
    },
    {"enum": ("(", ")")},
    ("[", "?", "("),
    {"(": ("(", ")")},
)
_AKIN = {  # words of other places
    **dict.fromkeys(("Tensor", "tensor", "torch.Tensor", "ndarray", "np.ndarray"), ARRAY),
    **dict.fromkeys(("str", "string", "String", "std::string_view", "char"), _STR),
    **dict.fromkeys(("double", "Scalar", "number", "float32", "float64"), _FLOAT),
    **dict.fromkeys(("size_t", "long", "unsigned", "uint32_t", "integer", "int32"), _INT),
    **dict.fromkeys(("std::pair", "std::tuple", "std::array"), _INTS),
}
_NOT_IN_MLX = ("Generator", "Device", "Layout", "MemoryFormat", "Dimname", "Storage", "QScheme")
NAMESPACE = re.compile(r"mx::|mlx::core::|mx\.|mlx\.core\.|typing\.|collections\.abc\.")

_TOKEN = re.compile(
    r"""\s*(?:[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*          # names, with their namespaces
    |(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\w*                  # numbers, with their suffixes
    |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|->|\.\.\.|\S|\Z)""",
    re.ASCII | re.VERBOSE,
)
_OPEN, _CLOSE = frozenset("([{<"), frozenset(")]}>")
_WORD = re.compile(r"""[\w."']""")
IMMUTABLE = "MLX's arrays are immutable: take {}, and return what is new"


class Bad(Exception):
    """What follows cannot be understood; the reason is reported."""


class Tokens:
    """The tokens of a text, whose places stay known to the character, and errors about them.

    ``error`` reports and goes on. ``bad`` reports and gives the exception that leaves the argument
    or, outside the arguments, the signature.
    """

    def __init__(self, text: str, report: Report) -> None:
        pieces = _TOKEN.findall(text.rstrip())  # each with the blanks before it: none is lost
        self.tokens: list[str] = [piece.lstrip() for piece in pieces]
        self.ends = list(accumulate(map(len, pieces)))
        self.i = 0
        self.report = report
        self.failed = False

    @property
    def token(self) -> str:
        """The current token; empty at the end."""
        return self.tokens[self.i]

    def slice(self, begin: int, end: int) -> tuple[int, int]:
        """The slice of the text that the tokens from ``begin`` to before ``end`` take."""
        start = self.ends[begin] - len(self.tokens[begin])
        return start, max(start, self.ends[end - 1])

    def error(
        self, code: str, message: str, offset: tuple[int, int], help: str | None = None
    ) -> None:
        self.failed = True
        self.report(code, message, *offset, help)

    def bad(self, code: str, message: str, begin: int, help: str | None = None) -> Bad:
        """Report about the tokens from ``begin`` to before the current one, at least one."""
        self.error(code, message, self.slice(begin, max(self.i, begin + 1)), help)
        return Bad()

    def unexpected(self, wanted: str) -> Bad:
        """Report the current token, unless it is but the consequence of an error before."""
        if self.failed:
            return Bad()
        found = f"found '{self.token}'" if self.token else "the text ends"
        return self.bad("MG201", f"expected {wanted}, {found}", self.i)

    def is_name(self) -> bool:
        return self.token.isascii() and self.token.isidentifier()

    def accept(self, token: str) -> bool:
        if self.tokens[self.i] != token:
            return False
        self.i += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.unexpected(f"'{token}'")

    def skip(self) -> str:
        """Go to the comma or bracket that ends what the parser is in; what is skipped.

        Without its blanks, but for those that keep two words or literals apart.
        """
        depth = 0
        text = ""
        while token := self.token:
            depth += (token in _OPEN) - (token in _CLOSE)
            if depth < 0 or (token == "," and depth == 0):
                break
            text += f" {token}" if _WORD.search(text[-1:]) and _WORD.match(token) else token
            self.i += 1
        return text


class Types(Tokens):
    """Types, in any spelling."""

    grammar: Grammar

    def type(self) -> Type:
        """A type: in Python perhaps a union, of which some have a meaning of their own."""
        begin = self.i
        type = self.grammar.words.get(self.tokens[begin])
        if type and self.tokens[begin + 1] not in self.grammar.marks:  # nearly always
            self.i += 1
            return type
        members = self.members()
        types = {member for member in members if isinstance(member, Type)}
        optional = "None" in members
        if "scalar" in members and types == {ARRAY}:
            members.remove("scalar")
        if len(types) == 2 and _INT in types:  # MLX's axes (int | Sequence[int] | None)
            (other,) = types - {_INT}  # and strides (int | tuple[int, int])
            if other == _INTS and optional:
                return _AXES
            if other == _INTS:
                help = "write list[int], or axes, where None means all of them"
                raise self.bad("MG203", "an int or a list of ints is not a type", begin, help)
            if other.kind is Kind.INTS:
                types = {other}
        if len(types) != 1 or "scalar" in members:
            help = "a type is one type, 'one | None', or 'scalar | array'"
            raise self.bad("MG203", "no argument can be of this union of types", begin, help)
        (type,) = types
        return self.optional(type, begin) if optional else type

    def members(self) -> list[Type | str]:
        """The members of a union; None and scalar as words."""
        members = self.member()
        while "|" in self.grammar.marks and self.accept("|"):
            members += self.member()
        return members

    def member(self) -> list[Type | str]:
        """A member of a union, or several where it is a union itself."""
        begin, grammar = self.i, self.grammar
        if not self.token[:1].isalpha():
            raise self.unexpected("a type")
        self.i += 1
        word = NAMESPACE.sub("", self.tokens[begin], count=1)
        type = grammar.words.get(word)
        if grammar is PYTHON and word in ("None", "scalar"):
            return [word]
        if type is None and word not in grammar.generic:
            raise self.unknown_type(word, begin)
        if type is None:
            opening, closing = grammar.generic[word]
            self.expect(opening)
            if word in ("Optional", "std::optional", "Union"):
                members = self.members()
                while word == "Union" and self.accept(","):
                    members += self.members()
                self.expect(closing)
                return members if word == "Union" else [*members, "None"]
            if word in ("enum", "Literal"):
                type = self.choices(begin, closing)
            else:
                type = self.sequence(word, closing, begin)
        if grammar is TORCH and self.accept("("):
            self.skip()
            self.accept(")")
            help = IMMUTABLE.format("'Tensor'")
            raise self.bad("MG213", "aliases and writes have no meaning here", begin, help)
        while self.token in grammar.marks and self.token != "|":
            type = self.marked(type, word, begin)
        return [type]

    def marked(self, type: Type, word: str, begin: int) -> Type:
        """What ``?``, ``[]`` or ``[2]`` make of the type before."""
        if self.accept("?"):
            is_axes = type.kind is Kind.INTS and type.length == 1
            return _AXES if is_axes else self.optional(type, begin)
        self.expect("[")
        if self.grammar is TORCH and self.accept("]"):
            return _SHAPE if word == "SymInt" and type == _INT else self.list_of(type, begin)
        number = self.token
        if not re.fullmatch("[1-9][0-9]?", number):
            raise self.unexpected("a length from 1 to 99")
        self.i += 1
        self.expect("]")
        if type != _INT:
            raise self.bad("MG203", "only a list of ints can have a length", begin)
        return Type(Kind.INTS, length=int(number))

    def optional(self, type: Type, begin: int) -> Type:
        if type.kind is Kind.ARRAYS:
            help = "an empty list says that there are none"
            raise self.bad("MG203", "a list of arrays cannot be optional", begin, help)
        return replace(type, optional=True)

    def list_of(self, type: Type, begin: int) -> Type:
        if type not in (ARRAY, _INT):
            message = f"a list can be of arrays or of ints, not of {type}s"
            raise self.bad("MG203", message, begin)
        return ARRAYS if type == ARRAY else _INTS

    def sequence(self, word: str, closing: str, begin: int) -> Type:
        """``list[int]``, ``tuple[int, int]`` or ``tuple[int, ...]``, after the opening bracket."""
        items = [self.type()]
        any_length = False
        while word == "tuple" and not any_length and self.accept(","):
            any_length = self.accept("...")
            if not any_length:
                items.append(self.type())
        self.expect(closing)
        if word != "tuple":
            return self.list_of(items[0], begin)
        if any(item != _INT for item in items) or (any_length and len(items) > 1):
            help = "take a list[array], or several arguments"
            raise self.bad("MG203", "an argument can be a tuple of ints only", begin, help)
        return _INTS if any_length else Type(Kind.INTS, length=len(items))

    def choices(self, begin: int, closing: str) -> Type:
        """The strings of an ``enum(...)`` or ``Literal[...]``, after its opening bracket."""
        choices: list[str] = []
        while self.token[:1] in ('"', "'") and len(self.token) > 1:
            choice = string_of(self.token)
            self.i += 1
            if choice is None:
                raise self.bad("MG211", 'an escape other than \\\\ \\" \\n \\t', self.i - 1)
            if choice in choices:
                raise self.bad("MG211", f"the string {quoted(choice)} twice", self.i - 1)
            choices.append(choice)
            if not self.accept(","):
                break
        if not self.accept(closing):
            raise self.unexpected(f"a string or '{closing}'")
        if not choices:
            raise self.bad("MG211", "an enumerated string without any string", begin)
        return Type(Kind.ENUM, choices=tuple(choices))

    def unknown_type(self, word: str, begin: int) -> Bad:
        words = self.grammar.words
        known = [*words, *self.grammar.generic]
        akin = _AKIN.get(word)
        near = suggest(word, known)
        if akin == _INTS:
            near = "int[2]"
        elif akin:
            near = next(name for name, type in words.items() if type.kind is akin.kind)
        if near:
            return self.bad("MG203", f"unknown type '{word}' (did you mean '{near}'?)", begin)
        help = f"the types here are {', '.join(known)}"
        if word in _NOT_IN_MLX:
            help = "MLX has nothing like it: leave the argument out"
        return self.bad("MG203", f"unknown type '{word}'", begin, help)
