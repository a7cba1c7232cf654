"""Parses the types in signatures: one grammar, and tables for the three spellings.

The parser is a recursive descent over tokens. It uses neither a parser library nor ``ast``, so that
it takes about 20 microseconds per operator, and messages can name the expected token of a spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from ..diagnostics import Guess, Report, did_you_mean
from ..model.kinds import KINDS
from ..model.signature import Kind, Type, quoted
from . import MESSAGES
from .literals import string_of
from .names import clash

# Receives the errors: code, message, start and end offset in the text, help.

ARRAY, ARRAYS, _INT, _INTS = map(Type, (Kind.ARRAY, Kind.ARRAYS, Kind.INT, Kind.INTS))
_AXES, _SHAPE, _PAIR = Type(Kind.AXES), Type(Kind.SHAPE), Type(Kind.INTS, length=2)
_FLOAT, _BOOL, _NUMBER = map(Type, (Kind.FLOAT, Kind.BOOL, Kind.NUMBER))
_TUPLE = Type(Kind.ARRAYS, tupled=True)
_INT_OR_INTS = Type(Kind.INTS, length=1)
_FLOATS, _BOOLS = Type(Kind.FLOATS), Type(Kind.BOOLS)
_LISTS = {
    **{
        ARRAY: ARRAYS,
        _INT: _INTS,
        _INTS: Type(Kind.NESTED),
        _FLOAT: _FLOATS,
        _NUMBER: _FLOATS,
        _BOOL: _BOOLS,
    },
    Type(Kind.ARRAY, optional=True): Type(Kind.OPTIONALS),
}
# Parts of types that are not types themselves, represented by types without a spelling.
_SCALAR, _NONE, _MORE = (Type(Kind.ARRAY, length=n) for n in range(3))
_BESIDE_ARRAYS, _BESIDE_OTHERS = {_NONE, _SCALAR}, {_NONE}
_PARTS = {"scalar": _SCALAR, "None": _NONE, "...": _MORE}

# A type, and its words in C++, Python and torch.
_WORDS: tuple[tuple[Type, tuple[str, str, str]], ...] = (
    *((Type(kind), row.words) for kind, row in KINDS.items()),
    (Type(Kind.INT, int64=True), ("int64_t std::int64_t", "", "")),
    (Type(Kind.FLOAT, single=True), ("float", "", "")),
    (Type(Kind.INTS, length=2), ("int[2]", "", "int[2]")),
)
_UNIONS = {
    frozenset({ARRAYS}): "optional_list",
    frozenset({_MORE}): "ellipsis",
    frozenset({ARRAY, Type(Kind.STR)}): "union_str",
}
_NOT_IN_MLX = re.compile("Generator|Device|Stream|Layout|MemoryFormat|Dimname|Storage|QScheme")
NAMESPACE = re.compile(r"mx::|mlx::core::|mx\.|mlx\.core\.|typing\.|collections\.abc\.")


class Grammar(NamedTuple):
    """A spelling."""

    name: str
    words: dict[str, Type]  # types of one word
    brackets: dict[str, tuple[str, str]]  # words with arguments, and their brackets
    results: dict[str, tuple[str, str]]  # first words of several outputs, and their brackets
    marks: tuple[str, ...]  # tokens that may follow a type
    form: str  # an example of an argument or output


def _grammar(column: int, name: str, brackets: str, results: str, marks: str, form: str) -> Grammar:
    words = {word: type for type, words in _WORDS for word in words[column].split()}
    return Grammar(name, words, _pairs(brackets), _pairs(results), tuple(marks), form)


def _pairs(items: str) -> dict[str, tuple[str, str]]:
    return {item[:-2]: (item[-2], item[-1]) for item in items.split()}


_OF_CPP = "std::optional<> std::vector<> std::variant<> enum()"
CPP = _grammar(0, "C++", _OF_CPP, "std::pair<> std::tuple<>", "[", "const array& x")
_GENERIC = "Optional[] Union[] Literal[] list[] Sequence[] tuple[]"
PYTHON = _grammar(1, "Python", _GENERIC, "tuple[] (()", "|", "x: array")
TORCH = _grammar(2, "torch", "enum()", "(()", "[?(", "Tensor x")
# Words that occur only in types.
TYPE_WORDS = {"const", *CPP.words, *CPP.brackets, *TORCH.words}

_TOKEN = re.compile(
    r"""\s*(?:[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*          # names, with their namespaces
    |(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\w*                  # numbers, with their suffixes
    |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|->|=>|-[ ]>|\.\.\.|\S|\Z)""",
    re.ASCII | re.VERBOSE,
)
_BLANK = " \t\n\r\f\v"  # no other space separates tokens
_OPEN = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CLOSE = frozenset(_OPEN.values())
_LIMIT, _DEEPEST = 10_000, 50
_RESULTS = ("array", "Tensor", "void", "std::pair", "std::tuple", "std::vector")


# The types of words in any spelling, of which another one may lack the word.
_ELSEWHERE = {word: type for one in (CPP, TORCH, PYTHON) for word, type in one.words.items()}
_ELSEWHERE |= {"number": _NUMBER, "Number": _NUMBER, "scalar": _NUMBER}


def _spelled(type: Type, grammar: Grammar) -> str:
    """Return a type in a spelling, or ""."""
    word = next((word for word, own in grammar.words.items() if own == type), "")
    return word or (type.python if grammar is PYTHON else "")


class Bad(Exception):
    """Raised if the rest cannot be parsed, after the reason was reported."""


class Tokens:
    """The tokens of the text with their exact locations, and methods that report errors."""

    grammar: Grammar

    def __init__(self, text: str, report: Report) -> None:
        pieces = _TOKEN.findall(text[:_LIMIT].rstrip(_BLANK))  # each with the spaces before it
        self.tokens: list[str] = [piece.lstrip(_BLANK) for piece in pieces]
        self.ends = list(accumulate(map(len, pieces)))
        self.i = 0
        self.text = text
        self.report = report
        self.failed = False

    def check_text(self) -> None:
        """Reject text that is invalid in every spelling.

        Without this check, one mistake would cause many messages.
        """
        if len(self.text) > _LIMIT:
            raise self.error("too_long", (0, 60), count=len(self.text), limit=_LIMIT)
        opened: list[int] = []
        for i, token in enumerate(self.tokens):
            if len(token) > 1 or (token in "{}" and not opened):
                continue
            if token in _OPEN:
                opened.append(i)
                if len(opened) > _DEEPEST:
                    raise self.error("too_deep", self.place(i), limit=_DEEPEST)
            elif token in _CLOSE and not opened:
                raise self.error("closes_nothing", self.place(i), token=token)
            elif token in _CLOSE and _OPEN[self.tokens[opened[-1]]] == token:
                opened.pop()
            elif token in _CLOSE:
                break
            elif token in ("'", '"'):
                raise self.error("quote_left_open", self.place(i))
            elif not token.isascii():
                key = "space" if token.isspace() else "" if token.isprintable() else "invisible"
                raise self.error("not_ASCII", self.place(i), key, token=token, number=ord(token))
        if opened:
            token = self.tokens[opened[-1]]
            raise self.error("left_open", self.place(opened[-1]), token=token, closing=_OPEN[token])

    @property
    def token(self) -> str:
        """The current token; empty at the end."""
        return self.tokens[self.i]

    def place(self, i: int) -> tuple[int, int]:
        """Return the slice of the text of token ``i``."""
        return self.ends[i] - len(self.tokens[i]), self.ends[i]

    def since(self, begin: int) -> tuple[int, int]:
        """Return the slice of the text from token ``begin`` up to the current one, at least one."""
        start, end = self.place(begin)
        return start, max(end, self.ends[max(begin, self.i - 1)])

    def error(self, mistake: str, at: int | tuple[int, int], *keys: str, **parts: object) -> Bad:
        """Report a ``mistake`` of messages.yaml at a slice, or since a token.

        Raising the result stops the parser of the argument or, outside of arguments, of the
        signature.
        """
        self.failed = True
        said = MESSAGES(mistake, *keys, **parts)
        self.report(said, *(self.since(at) if isinstance(at, int) else at))
        return Bad()

    def unexpected(self, wanted: str) -> Bad:
        """Report the current token, unless an earlier error probably caused the problem."""
        if self.failed:
            return Bad()
        found = f"'{self.token}'" if self.token else "the end of the signature"
        keys = f"{self.grammar.name}{self.token}", self.token
        return self.error("unexpected", self.i, *keys, wanted=wanted, found=found)

    def accept(self, token: str) -> bool:
        if self.tokens[self.i] != token:
            return False
        self.i += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.unexpected(f"'{token}'")

    def several(self, closing: str) -> Iterator[None]:
        """Yield before each item of a list with commas, and parse the closing bracket."""
        while self.token != closing:
            yield
            if not self.accept(","):
                break
        self.expect(closing)

    def skip(self) -> str:
        """Skip to the comma or bracket that ends the current item; return the skipped text."""
        depth, begin = 0, self.i
        while token := self.token:
            depth += (token in _OPEN) - (token in _CLOSE)
            if depth < 0 or (token == "," and depth == 0):
                break
            self.i += 1
        return self.text[slice(*self.since(begin))] if self.i > begin else ""


class Types(Tokens):
    """Types, in any spelling. Unions are sets of types until they are known in whole."""

    def detect(self) -> Grammar:
        """Which spelling: C++ begins with the result, Python has colons, torch has neither."""
        head = self.tokens[: self.tokens.index("(")]
        after = self.tokens[len(head) + 1 :]
        word = NAMESPACE.sub("", head[0], count=1) if head else ""
        in_cpp = len(head) > 1 or word in _RESULTS or "const" in after
        if "->" not in after and head[:1] != ["def"] and in_cpp:
            return CPP
        if len(head) > 1 and word in _RESULTS:
            raise self.error("two_results", self.place(len(head) + 1 + after.index("->")))
        if after[0] in ("*", "/"):
            after = after[2:]
        typed = [NAMESPACE.sub("", word, count=1) in TYPE_WORDS for word in after[:2]]
        if after[0] == ")":
            return TORCH if "Tensor" in after else PYTHON
        in_torch = typed[0] and after[1] not in (":", ",", "=", ")")
        return TORCH if in_torch or (":" not in after and not typed[1]) else PYTHON

    def type(self) -> Type:
        begin = self.i
        type = self.grammar.words.get(self.tokens[begin])
        if type and self.tokens[begin + 1] not in self.grammar.marks:  # nearly always
            self.i += 1
            return type
        return self.one(self.union(), begin)

    def union(self) -> set[Type]:
        members = self.member()
        while self.grammar is PYTHON and self.accept("|"):
            members |= self.member()
        return members

    def one(self, members: set[Type], begin: int) -> Type:
        """Return the type that a union means."""
        optional = _NONE in members
        types = members - (_BESIDE_ARRAYS if ARRAY in members else _BESIDE_OTHERS)
        if len(types) == 2 and ARRAY in types and types & {ARRAYS, _TUPLE}:
            (several,) = types - {ARRAY}
            types = {replace(several, unwrapped=True)}
        strings = [type for type in types if type.kind is Kind.ENUM]
        if ARRAY in types and types.difference(strings) <= {ARRAY, _INT, _FLOAT, _BOOL}:
            if strings[1:]:
                raise self.error("literals", begin)
            # Every array accepts numbers, which are weakly typed.
            types = {replace(ARRAY, choices=strings[0].choices) if strings else ARRAY}
        if types == {_INT, _INTS}:
            types = {_INT_OR_INTS}
        if any(type.kind is Kind.INTS and type.length for type in types):
            types.discard(_INT)  # MLX's strides: int | tuple[int, int]
        if {_INT, _FLOAT} <= types <= {_INT, _FLOAT, _BOOL}:
            types = {_NUMBER}
        type = next(iter(types)) if len(types) == 1 else _NONE
        if type in _PARTS.values() or (optional and type.kind is Kind.ARRAYS):
            raise self.error(_UNIONS.get(frozenset(types), "union"), begin)
        return replace(type, optional=True) if optional else type

    def member(self) -> set[Type]:
        """Parse a member of a union, or several if it is a union itself."""
        begin = self.i
        word = NAMESPACE.sub("", self.token, count=1)
        if not word[:1].isalpha() and word not in _PARTS:
            raise self.unexpected("a type")
        self.i += 1
        if type := self.grammar.words.get(word) or _PARTS.get(word):
            members = {type}
        elif word in self.grammar.brackets:
            members = self.bracketed(word, begin)
        else:
            raise self.unknown_type(word, begin)
        while self.grammar is not PYTHON and self.token in self.grammar.marks:
            members = self.marked(members, begin)
        return members

    def marked(self, members: set[Type], begin: int) -> set[Type]:
        """Parse ``?``, ``[]`` or ``[2]`` after a type."""
        if self.accept("?"):
            return members | {_NONE}
        if self.accept("("):  # Tensor(a) shares memory, which is invisible in MLX
            if "!" in self.skip():
                self.accept(")")
                raise self.error("alias", begin)
            self.expect(")")
            return members
        self.expect("[")
        if self.grammar is TORCH and self.accept("]"):
            return self.list_of(members, begin)
        length = self.token
        if not re.fullmatch("[1-9][0-9]?", length):
            raise self.unexpected("a length from 1 to 99")
        self.i += 1
        self.expect("]")
        return self.ints([members] * int(length), begin)

    def bracketed(self, word: str, begin: int) -> set[Type]:
        """Parse the brackets of a word; return the members of the resulting type."""
        opening, closing = self.grammar.brackets[word]
        self.expect(opening)
        if word in ("enum", "Literal"):
            return self.choices(closing, begin)
        items = [self.union() for _ in self.several(closing)]
        if word in ("Union", "std::variant"):
            return set().union(*items)
        if word == "tuple" and items[1:] != [{_MORE}]:
            return self.ints(items, begin)
        if word != "tuple" and len(items) != 1:
            raise self.error("several_in_brackets", begin, word=word)
        if word == "tuple" and items[0] == {ARRAY}:
            return {_TUPLE}
        if word in ("Optional", "std::optional"):
            return items[0] | {_NONE}
        return self.list_of(items[0], begin)

    def list_of(self, members: set[Type], begin: int) -> set[Type]:
        type = self.one(members, begin)
        if type not in _LISTS:
            raise self.error("list", begin)
        return {_LISTS[type]}

    def ints(self, items: list[set[Type]], begin: int) -> set[Type]:
        if items and all(item == {_BOOL} for item in items):
            return {_BOOLS}
        if not items or any(item != {_INT} for item in items):
            raise self.error("tuple", begin, self.grammar.name)
        return {Type(Kind.INTS, length=len(items))}

    def choices(self, closing: str, begin: int) -> set[Type]:
        """Parse the strings of an ``enum(...)`` or ``Literal[...]``, after its opening bracket."""
        choices: list[str] = []
        for _ in self.several(closing):
            if self.token[:1] not in ('"', "'"):
                raise self.unexpected(f"a string or '{closing}'")
            choice = string_of(self.token)
            if choice is None:
                raise self.error("escape", self.i)
            if choice in choices:
                raise self.error("string_twice", self.i, choice=quoted(choice))
            choices.append(choice)
            self.i += 1
        if not choices:
            raise self.error("no_strings", begin)
        return {Type(Kind.ENUM, choices=tuple(choices))}

    def unknown_type(self, word: str, begin: int) -> Bad:
        grammar = self.grammar
        known = {name.removeprefix("std::"): name for name in (*grammar.words, *grammar.brackets)}
        known |= {"None": "None"} if grammar is PYTHON else {}
        bare = word.removeprefix("std::")
        is_near = bare in known and bare != "array"
        guess = Guess(bare, certain=True) if is_near else did_you_mean(bare, known)
        missing = "unknown_type"
        if _NOT_IN_MLX.fullmatch(word):
            guess, missing = Guess(None), "type_of_torch_alone"
        if clash(word, "an operator"):
            missing = "word_of_cpp"
        if grammar is PYTHON and {self.tokens[begin - 1], self.token} <= {"(", ",", ")"}:
            missing = "no_type"  # the name of one of several outputs
        mistake = "misspelled_type" if guess else missing
        guess = replace(guess, word=known.get(guess.word or ""))
        if (same := _ELSEWHERE.get(word)) and (own := _spelled(same, grammar)):
            guess, mistake = Guess(own, certain=True), "misspelled_type"
        listed = ", ".join(known.values())
        return self.error(mistake, begin, word, word=word, name=word, guess=guess, known=listed)
