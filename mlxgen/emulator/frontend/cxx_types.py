"""Reads types, names and parameters out of C++ and Metal tokens.

Types are compared as text (a kernel's parameter with what the generator passes), so each is brought
to one spelling: `float const *x` and `const float* x` are both of type "const float*", and a Metal
address space comes first, "device const T*".

`Reader` is the base of the scanners in `cxx` and `metal`: it knows brackets, template argument
lists, attributes, qualified names and parameter lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...diagnostics import Span
from .tokens import SourceError, Token, between, lex, string_value

Attribute = int | str | None  # the argument: [[buffer(0)]] has 0, [[kernel]] None
Attributes = Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Param:
    """A function's parameter. Of `device const T* x [[buffer(0)]]`:

    Attributes:
        type: the whole type, normalised: "device const T*".
        name: "x", or "" where it has none.
        base: the type without what follows: "T".
        space: the Metal address space that it points or refers to, or None: "device".
        const: whether what it points or refers to (else the value itself) is const.
        pointer: whether its outermost part is a pointer (or an array).
        reference: whether its outermost part is a reference.
        attributes: {"buffer": 0}.
        default: the text of its default argument, or None.
        span: from its first token to its last.
    """

    type: str
    name: str
    base: str
    space: str | None
    const: bool
    pointer: bool
    reference: bool
    attributes: Attributes
    default: str | None
    span: Span


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTIN = _words(
    "void bool char short int long float double signed unsigned auto wchar_t char8_t char16_t "
    "char32_t __int128 _Float16 __fp16"
)
QUALIFIERS = _words("const volatile restrict __restrict __restrict__")
SPECIFIERS = _words(
    "inline static constexpr consteval constinit extern virtual friend mutable register "
    "thread_local explicit __inline __inline__ __forceinline __extension__"
)
WITH_PARENTHESES = _words(
    "__attribute__ __declspec alignas _Alignas noexcept explicit throw asm __asm__ coherent"
)
CLASS_KEYS = _words("class struct union enum")
NO_NAMES = _words(
    "if else for while do switch case return break continue goto try catch throw new delete "
    "sizeof this public private protected default requires namespace using typedef template"
)
SPACES = _words("device constant threadgroup thread threadgroup_imageblock object_data ray_data")
STAGES = _words("kernel vertex fragment")
_MEANINGLESS = SPECIFIERS | CLASS_KEYS | {"typename"}  # to the identity of a type
UNKNOWN_MACRO = re.compile(r"[A-Z][A-Z0-9_]+$")
_NO_PLAIN_NAMES = NO_NAMES | {"operator"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_DEPTH = 40  # of nested types and template arguments


@dataclass(slots=True)
class Path:
    """A possibly qualified name, `std::vector<array>`, `Axpby::vjp`, `operator+`."""

    start: int
    stop: int
    names: list[str]  # its components without template arguments
    text: str
    arguments: tuple[str, ...] | None  # of the last component


class Reader:
    """Finds its way in the tokens of one translation unit, `unit`.

    Everything works on indices of `tokens`; `texts` are their texts, and `partner` holds for each
    bracket the index of the other one.
    """

    def __init__(self, tokens: Sequence[Token], unit: str, *, metal: bool = False) -> None:
        self.tokens = tokens
        self.texts = [token.text for token in tokens]
        self.partner = self._partners()
        self.unit = unit
        self.metal = metal
        self.spaces = SPACES if metal else frozenset()
        self._angles: dict[int, int | None] = {}
        self._depth = 0  # of what is being read: a limit on recursion

    def _partners(self) -> list[int]:
        partner = [0] * len(self.texts)
        opened: list[int] = []
        for i, text in enumerate(self.texts):
            if text in _CLOSING:
                opened.append(i)
            elif text in (")", "]", "}"):
                if not opened:
                    raise SourceError(f"nothing opens this {text!r}", self.tokens[i].span)
                start = opened.pop()
                if _CLOSING[self.texts[start]] != text:
                    place = self.tokens[start].span
                    raise SourceError(
                        f"{text!r} does not close {self.texts[start]!r} "
                        f"of line {place.line}, column {place.column}",
                        self.tokens[i].span,
                    )
                partner[start], partner[i] = i, start
        if opened:
            raise SourceError(
                f"{self.texts[opened[-1]]!r} is never closed", self.tokens[opened[-1]].span
            )
        return partner

    # -- help for reading

    def error(self, message: str, i: int, help: str | None = None) -> SourceError:
        """An error at token `i` (at the last token, where the text ends too early)."""
        if not self.tokens:
            return SourceError(message, Span(self.unit, 1, 1, 1, 1), help)
        return SourceError(message, self.tokens[min(i, len(self.tokens) - 1)].span, help)

    def span(self, start: int, stop: int) -> Span:
        """The span of the tokens from `start` up to `stop`."""
        return between(self.tokens[start], self.tokens[max(start, stop - 1)])

    def text(self, i: int) -> str:
        """The text of token `i`, "" behind the last."""
        return self.texts[i] if i < len(self.texts) else ""

    def is_name(self, i: int, stop: int) -> bool:
        return i < stop and self.tokens[i].kind == "name"

    def angle(self, i: int) -> int | None:
        """The index of the `>` that closes the `<` at `i`, or None where it means less-than."""
        if i in self._angles:
            return self._angles[i]
        self.enter(i)
        found = None
        j = i + 1
        while j < len(self.texts):
            text = self.texts[j]
            if text == ">":
                found = j
                break
            if text in (")", "]", "}", ";"):
                break
            j = self.over(j)
        self.leave()
        self._angles[i] = found
        return found

    def enter(self, i: int) -> None:
        """Before reading nested text: too deep is an error at token `i`."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error("this is nested too deeply", i)

    def leave(self) -> None:
        """After reading nested text (where an error is caught, the depth is set back)."""
        self._depth -= 1

    def over(self, i: int) -> int:
        """The index behind what begins at `i`: a whole bracket, or one token."""
        text = self.texts[i]
        if text in _CLOSING:
            return self.partner[i] + 1
        if text == "<" and self.tokens[i - 1].kind == "name" and self.texts[i - 1] != "operator":
            return (self.angle(i) or i) + 1
        return i + 1

    def find(self, i: int, stop: int, *texts: str) -> int:
        """The index of the first of `texts` at this level of brackets, or `stop`."""
        while i < stop and self.texts[i] not in texts:
            i = self.over(i)
        return min(i, stop)

    def split(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges between the commas from `start` up to `stop`."""
        if start >= stop:
            return []
        ranges = []
        while (comma := self.find(start, stop, ",")) < stop:
            ranges.append((start, comma))
            start = comma + 1
        ranges.append((start, stop))
        return ranges

    def spelling(self, start: int, stop: int) -> str:
        """The tokens from `start` up to `stop` as uniform text."""
        return spelled(self.texts[start:stop])

    def attributes(self, i: int) -> tuple[dict[str, Attribute], int]:
        """The attributes of the `[[` at `i`, and the index behind their `]]`."""
        stop = self.partner[i + 1]
        if self.partner[i] != stop + 1:
            raise self.error("expected ']]' after the attributes", stop + 1)
        found: dict[str, Attribute] = {}
        for start, end in self.split(i + 2, stop):
            opening = self.find(start, end, "(")
            name = "".join(self.texts[start:opening])
            if not name or opening < end != self.partner[opening] + 1:
                raise self.error("cannot read this attribute", start)
            value: Attribute = None
            if opening < end:
                inner = self.tokens[opening + 1 : end - 1]
                value = string_value(inner)
                if value is None:
                    value = spelled(token.text for token in inner)
                    value = int(value) if re.fullmatch(r"\d{1,9}", value) else value
            found[name] = value
        return found, stop + 2

    def path(self, i: int, stop: int) -> Path:
        """The possibly qualified name at `i`."""
        start = i
        if (
            self.is_name(i, stop)
            and self.text(i + 1) not in ("<", "::")
            and self.texts[i] not in _NO_PLAIN_NAMES
        ):
            return Path(i, i + 1, [self.texts[i]], self.texts[i], None)
        names: list[str] = []
        pieces: list[str] = []
        arguments: tuple[str, ...] | None = None
        if self.texts[i] == "::":
            i += 1
        while True:
            if self.text(i) == "template":
                i += 1
            arguments = None
            if self.text(i) == "operator":
                name, i = self._operator(i, stop)
            elif self.text(i) == "~" and self.is_name(i + 1, stop):
                name, i = "~" + self.texts[i + 1], i + 2
            elif self.is_name(i, stop) and self.texts[i] not in NO_NAMES:
                name, i = self.texts[i], i + 1
            else:
                raise self.error("expected a name", i)
            piece = name
            if i < stop and self.texts[i] == "<" and not name.startswith("operator"):
                close = self.angle(i)
                if close is not None and close < stop:
                    arguments = tuple(self.argument(*r) for r in self.split(i + 1, close))
                    piece += f"<{', '.join(arguments)}>"
                    i = close + 1
            names.append(name)
            pieces.append(piece)
            if i + 1 < stop and self.texts[i] == "::" and self.texts[i + 1] != "*":
                i += 1
                continue
            return Path(start, i, names, "::".join(pieces), arguments)

    def _operator(self, i: int, stop: int) -> tuple[str, int]:
        """The name of the operator function at `i`, and the index of its parameter list."""
        end = i + 1
        if self.text(end) in ("(", "["):
            end = self.partner[end] + 1
        elif self.is_name(end, stop) and self.texts[end] not in ("new", "delete", "co_await"):
            end = self.find(end, stop, "(")
            return f"operator {self.type_text(i + 1, end)}", end
        else:
            while end < stop and self.texts[end] != "(":
                end += 1
        if end == i + 1 or end >= stop:
            raise self.error("cannot read this operator", i)
        return spelled(self.texts[i:end]), end

    def argument(self, start: int, stop: int) -> str:
        """A template argument, normalised if it is a type."""
        if start >= stop:
            raise self.error("expected a template argument", start)
        depth = self._depth
        try:
            return self.type_text(start, stop)
        except SourceError:
            self._depth = depth
            return self.spelling(start, stop)

    # -- types and parameters

    def params(self, i: int) -> tuple[Param, ...]:
        """The parameters in the parentheses at `i`."""
        ranges = self.split(i + 1, self.partner[i])
        if len(ranges) == 1 and self.spelling(*ranges[0]) == "void":
            return ()
        return tuple(self.param(start, stop) for start, stop in ranges)

    def param(self, start: int, stop: int) -> Param:
        """The parameter in the tokens from `start` up to `stop`."""
        if start >= stop:
            raise self.error("expected a parameter", start)
        assign = self.find(start, stop, "=")
        param = self.declared(start, assign)
        default = self.spelling(assign + 1, stop) if assign < stop else None
        return replace(param, default=default) if default is not None else param

    def type_text(self, start: int, stop: int) -> str:
        """The type in the tokens from `start` up to `stop`, normalised."""
        param = self.declared(start, stop)
        if param.name:
            raise self.error("expected a type", start)
        return param.type

    def declared(self, start: int, stop: int, *, drop_macros: bool = False) -> Param:
        """Read a type with an optional name in it.

        With `drop_macros`, a name in capitals in front of a type (`MLX_API array`) is a macro of
        a header that is not read.
        """
        self.enter(start)
        reader = _TypeReader(self, start, stop, drop_macros)
        reader.read()
        self.leave()
        return reader.param()


class _TypeReader:
    """Reads one type, with the name it declares if there is one."""

    def __init__(self, scanner: Reader, start: int, stop: int, drop_macros: bool) -> None:
        self.scanner = scanner
        self.start = start
        self.stop = stop
        self.drop_macros = drop_macros
        self.words: list[str] = []  # unsigned, long, ...
        self.base = ""
        self.name = ""
        self.pack = False
        self.attributes: dict[str, Attribute] = {}
        # the type from the inside out: qualifiers of the base, then of each * and &
        self.levels: list[tuple[str, set[str]]] = [("", set())]
        self.declarator = ""  # of `float (&x)[4]`: "(&)"
        self.suffix = ""  # "[4]", "(int)"

    def read(self) -> None:
        """Read all tokens."""
        s = self.scanner
        spaces = s.spaces
        i = self.start
        while i < self.stop:
            text = s.texts[i]
            following = s.texts[i + 1] if i + 1 < self.stop else ""
            if text == "[" and following == "[":
                found, i = s.attributes(i)
                self.attributes.update(found)
            elif text in WITH_PARENTHESES and following == "(":
                i = s.partner[i + 1] + 1
            elif text in QUALIFIERS or text in spaces:
                self.levels[-1][1].add(text)
                i += 1
            elif text in _MEANINGLESS or (s.metal and text in STAGES):
                i += 1
            elif text in BUILTIN:
                self._word(i)
                i += 1
            elif text in ("*", "&", "&&") and (self.base or self.words) and not self.name:
                self.levels.append((text, set()))
                i += 1
            elif text == "..." and not self.name:
                self.pack = True
                i += 1
            elif text == "decltype" and following == "(":
                end = s.partner[i + 1] + 1
                self._named(i, s.spelling(i, end), False)
                i = end
            elif s.tokens[i].kind == "name" or text == "::":
                path = s.path(i, self.stop)
                self._named(i, path.text, len(path.names) == 1 and path.arguments is None)
                i = path.stop
            elif text == "[":
                i = s.partner[i] + 1
                self.suffix += s.spelling(s.partner[i - 1], i)
            elif text == "(" and (self.base or self.words) and not self.suffix:
                i = self._parentheses(i)
            else:
                raise s.error(f"cannot read this type: unexpected {text!r}", i)

    def _word(self, i: int) -> None:
        text = self.scanner.texts[i]
        if self.base and text != "auto":
            if not self._droppable():
                raise self.scanner.error(f"cannot read this type: unexpected {text!r}", i)
            self.base = ""
        if self.base:  # a constraint, `std::integral auto`
            self.base += " auto"
        else:
            self.words.append(text)

    def _droppable(self) -> bool:
        return self.drop_macros and UNKNOWN_MACRO.match(self.base) is not None

    def _named(self, i: int, text: str, simple: bool) -> None:
        """A name is the type where there is none yet, else what is declared."""
        if not self.words and (not self.base or self._droppable()):
            self.base = text
        elif self.name or not simple or self.suffix:
            raise self.scanner.error(f"cannot read this type: unexpected {text!r}", i)
        else:
            self.name = text

    def _parentheses(self, i: int) -> int:
        """`(*f)(int)`, `(&a)[4]`, or the parameters of a function type."""
        s = self.scanner
        close = s.partner[i]
        inner = [j for j in range(i + 1, close) if s.texts[j] not in s.spaces]
        texts = [s.texts[j] for j in inner]
        operators = [text for text in texts if text in ("*", "&", "&&", "const")]
        names = [j for j in inner if s.tokens[j].kind == "name" and s.texts[j] != "const"]
        if operators and not self.declarator and len(operators) + len(names) == len(inner):
            if len(names) > 1 or self.name:
                raise s.error("cannot read this declarator", i)
            self.declarator = "".join(operators)
            self.name = s.texts[names[0]] if names else ""
            spaces = {s.texts[j] for j in range(i + 1, close) if s.texts[j] in s.spaces}
            self.levels[0][1].update(spaces)
        else:
            types = ", ".join(param.type for param in s.params(i))
            self.suffix += f"({types})"
        return close + 1

    def param(self) -> Param:
        """What was read."""
        s = self.scanner
        base = self.base or _builtin(self.words)
        if self.pack and not base and not self.attributes:
            base, self.pack = "...", False  # C's variadic functions
        if not base:
            raise s.error("expected a type", self.start)
        whole = base + ("..." if self.pack and len(self.levels) == 1 else "")
        for n, (operator, qualifiers) in enumerate(self.levels):
            if n:
                whole += operator
            if qualifiers:
                spaces = sorted(qualifiers & SPACES)
                words = [w for w in (*spaces, "const", "volatile") if w in qualifiers]
                whole = " ".join([whole, *words] if n else [*words, whole])
        if self.pack and len(self.levels) > 1:
            whole += "..."
        if self.declarator:
            whole += f"({self.declarator})"
        whole += self.suffix
        outer = self.declarator or self.levels[-1][0]
        target = self.levels[-1 if self.declarator or len(self.levels) == 1 else -2][1]
        space = sorted(target & SPACES)
        return Param(
            type=whole,
            name=self.name,
            base=base,
            space=space[0] if space else None,
            const="const" in target,
            pointer=outer.startswith("*") or (not self.declarator and "[" in self.suffix),
            reference=outer.startswith("&"),
            attributes=self.attributes,
            default=None,
            span=s.span(self.start, self.stop) if s.tokens else Span(s.unit, 1, 1, 1, 1),
        )


def _builtin(words: list[str]) -> str:
    """The usual spelling of a built-in type: `long unsigned int` is "unsigned long"."""
    rest = sorted(word for word in words if word not in ("signed", "unsigned", "int"))
    if len(rest) == 2 and rest[0] in ("double",):
        rest.reverse()
    unsigned = "unsigned" in words
    if words and not rest:
        rest = ["int"]
    if unsigned:
        rest.insert(0, "unsigned")
    elif rest == ["char"] and "signed" in words:
        rest.insert(0, "signed")
    return " ".join(rest)


def normalise_type(text: str) -> str:
    """The one spelling under which types are compared: `float const *` is "const float*".

    Metal's address spaces are understood. Text that is no type comes back with its white space
    made uniform.
    """
    lexed = lex("<type>", text)
    tokens = [token for token in lexed.tokens if token.kind != "invalid"]
    try:
        return Reader(tokens, "<type>", metal=True).type_text(0, len(tokens))
    except SourceError:
        return spelled([token.text for token in tokens])


def spelled(texts: Iterable[str]) -> str:
    """Tokens as text: white space only between words and after commas."""
    out: list[str] = []
    last = " "
    for text in texts:
        word = text[0].isalnum() or text[0] == "_"
        if last == "," or (word and (last[-1].isalnum() or last[-1] == "_")):
            out.append(" ")
        out.append(text)
        last = text
    return "".join(out)
