"""The parser of signatures: three grammars that share tokens, names, defaults and rules.

They differ in how a type and a result are written, and in the order of type and name. Mistakes are
reported with the slice of the text they stand in, those of several arguments in one go, and nothing
is accepted and ignored but a trailing stream argument, which every operator has anyway.

Recursive descent over strings, neither a parser library nor ``ast``: it costs some 20 microseconds
an operator, and a message can say what *this* language wants at that place.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from ..diagnostics import suggest
from ..model.dtypes import DTYPES
from ..model.signature import (
    ESCAPES,
    RESERVED,
    Arg,
    Default,
    Kind,
    Output,
    Report,
    Signature,
    Spelling,
    Type,
    quoted,
    with_article,
)

# ---- words -------------------------------------------------------------------------------------

_ARRAY, _ARRAYS, _INT, _INTS = map(Type, (Kind.ARRAY, Kind.ARRAYS, Kind.INT, Kind.INTS))
_FLOAT, _BOOL, _STR, _SHAPE = map(Type, (Kind.FLOAT, Kind.BOOL, Kind.STR, Kind.SHAPE))
_AXES, _DTYPE = map(Type, (Kind.AXES, Kind.DTYPE))
_INT64 = Type(Kind.INT, int64=True)

_COMMON = {"array": _ARRAY, "int": _INT, "bool": _BOOL, "axes": _AXES, "Dtype": _DTYPE}
_WORDS: dict[str, dict[str, Type]] = {  # types that are one word
    "C++": {
        **_COMMON,
        **{"float": Type(Kind.FLOAT, single=True), "double": _FLOAT, "std::string": _STR},
        **{"int32_t": _INT, "int64_t": _INT64, "std::int64_t": _INT64, "Shape": _SHAPE},
    },
    "Python": {**_COMMON, "float": _FLOAT, "str": _STR, "shape": _SHAPE, "dtype": _DTYPE},
    "torch": {
        **{"Tensor": _ARRAY, **_COMMON, "float": _FLOAT, "Scalar": _FLOAT, "SymInt": _INT},
        **{"str": _STR, "shape": _SHAPE, "ScalarType": _DTYPE},
    },
}
_GENERIC: dict[str, tuple[str, ...]] = {
    "C++": ("std::optional", "std::vector", "enum"),
    "Python": ("Optional", "Union", "Literal", "list", "Sequence", "tuple"),
    "torch": ("enum",),
}
_AKIN = {  # words of other places
    **dict.fromkeys(("Tensor", "tensor", "torch.Tensor", "ndarray", "np.ndarray"), _ARRAY),
    **dict.fromkeys(("str", "string", "String", "std::string_view", "char"), _STR),
    **dict.fromkeys(("double", "Scalar", "number", "float32", "float64"), _FLOAT),
    **dict.fromkeys(("size_t", "long", "unsigned", "uint32_t", "integer", "int32"), _INT),
    **dict.fromkeys(("std::pair", "std::tuple", "std::array"), _INTS),
}
_NOT_IN_MLX = ("Generator", "Device", "Layout", "MemoryFormat", "Dimname", "Storage", "QScheme")
_NAMESPACE = re.compile(r"mx::|mlx::core::|mx\.|mlx\.core\.|typing\.|collections\.abc\.")

_CPP_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
    co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq
    """.split()  # noqa: SIM905
)
# Macros of the headers that generated C++ includes. Those in capitals differ between systems.
_MACRO = re.compile(
    r"[A-Z][A-Z0-9_]+|Py[A-Z_]\w*|(?:PRI|SCN)[diouxX]\w+|M_[A-Z0-9]\w*|(?:SYS|NB)_\w*"
    r"|linux|unix|errno|assert|assert_perror|offsetof|alloca|issubnormal|math_errhandling"
    r"|stdin|stdout|stderr|strn?dupa|va_\w+|[hl]e\d\dto\w+|be\d\dtoh|hto[bl]e\d\d|st_[acm]time"
    r"|timer(?:add|clear|cmp|isset|sub)|pthread_cleanup_\w+|sched_priority|[LP]_(?:c|t)\w+"
    r"|L_cuserid|(?:bfloat|half|complex|fp16_bf16)_binop\w*",
    re.ASCII,
)
_NAMELESS = [name for name in "abcdefghijklmnopqrstuvwxyz" if name not in RESERVED]


@lru_cache(maxsize=4096)
def clash(name: str, what: str) -> str | None:
    """Why ``name`` cannot be the name of ``what``: what else Python, C++ or mlxgen use it for."""
    if keyword.iskeyword(name):
        return "it is a reserved word of Python"
    if name in _CPP_KEYWORDS:
        return "it is a reserved word of C++"
    if _MACRO.fullmatch(name):
        return "C++ has macros of such names"
    if name[0] == "_" or "__" in name:
        return "C++ keeps names with such underscores"
    if what == "an operator" or (name, what) == ("out", "an output"):
        return None
    return RESERVED.get(name)


# ---- defaults ----------------------------------------------------------------------------------

_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,18})", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(
    r"""([-+]?)(?:(?:math\.|mx\.|np\.)?(?:inf|nan)|INFINITY|NAN|float\(["'](-?)(?:inf|nan)["']\)
    |std::numeric_limits<(?:float|double)>::(?:infinity|quiet_NaN)\(\))""",
    re.VERBOSE,
)
_STRING = re.compile(r""" "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' """, re.VERBOSE)
_WORD = re.compile(r"""[\w."']""")
_CPP_LIST = re.compile(r"(?:std::vector<int>|(?:mx::|mlx::core::)?Shape)(?=\{)")
_CPP_SUFFIX = re.compile(r"(?<=[\d.])[fFlL]$")
_UNESCAPE = {**{escape[-1]: char for char, escape in ESCAPES.items()}, "'": "'"}
_CONSTANTS: dict[str, dict[str, bool | None]] = {
    "C++": {"true": True, "false": False, "std::nullopt": None},
    "Python": {"True": True, "False": False, "None": None},
    "torch": {"True": True, "False": False, "None": None},
}
_BRACKETS = {"C++": ("{}",), "Python": ("[]", "()"), "torch": ("[]",)}


class _NoLiteral:
    """What a text is that is no literal."""


_Literal = bool | int | float | str | tuple[int, ...] | None


def _joined(tokens: list[str]) -> str:
    """The text of tokens without blanks, but for those that keep two words or literals apart."""
    text = ""
    for token in tokens:
        text += f" {token}" if _WORD.search(text[-1:]) and _WORD.match(token) else token
    return text


def _literal(text: str, spelling: str) -> _Literal | _NoLiteral:
    """The value of a literal, as ``_joined`` writes it, in one of the spellings."""
    if text in _CONSTANTS[spelling]:
        return _CONSTANTS[spelling][text]
    if _STRING.fullmatch(text) and (text[0] == '"' or spelling != "C++"):
        return _string(text)
    if spelling == "C++":
        text = _CPP_SUFFIX.sub("", _CPP_LIST.sub("", text))
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return _NoLiteral() if text.lstrip("+-").isdigit() else float(text)  # 010
    not_finite = _NOT_FINITE.fullmatch(text)
    if not_finite:
        negative = (not_finite[1] == "-") != (not_finite[2] == "-")
        return math.nan if "nan" in text.lower() else -math.inf if negative else math.inf
    if text[0] + text[-1] in _BRACKETS[spelling]:
        items = text[1:-1].split(",") if text[1:-1] else []
        if text[0] == "(" and len(items) == 1:
            return _NoLiteral()  # (1) is no tuple
        if len(items) > 1 and not items[-1]:
            items.pop()
        if all(map(_INTEGER.fullmatch, items)):
            return tuple(map(int, items))
    return _NoLiteral()


def _string(text: str) -> str | _NoLiteral:
    """The value of a string literal; no escapes but those of quotes, backslash, \\n and \\t."""
    if any(char not in _UNESCAPE for char in re.findall(r"\\(.)", text)):
        return _NoLiteral()
    return re.sub(r"\\(.)", lambda match: _UNESCAPE[match[1]], text[1:-1])


@lru_cache(maxsize=4096)
def _default(text: str, type: Type, spelling: str) -> Default | None:
    """The default that ``text`` says, or None if it is none for ``type``."""
    value = _literal(text, spelling)
    kind = type.kind
    if type.optional and (value is None or (value == () and spelling == "C++")):
        return Default(None, type)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is Kind.DTYPE:
        value = _NAMESPACE.sub("", text, count=1)
        fits = value in DTYPES
    elif kind is Kind.FLOAT and number:
        value = float(value)  # type: ignore[arg-type]
        fits = True
    elif kind is Kind.INT and number:
        fits = _fits(value, 64 if type.int64 else 32)
    elif kind is Kind.BOOL:
        fits = isinstance(value, bool)
    elif kind is Kind.STR:
        fits = isinstance(value, str)
    elif kind is Kind.ENUM:
        fits = value in type.choices
    elif kind in (Kind.INTS, Kind.SHAPE, Kind.AXES):
        if number and (kind is Kind.AXES or type.length):
            value = (value,) * (type.length or 1)  # type: ignore[assignment]
        fits = isinstance(value, tuple) and type.length in (None, len(value))
        fits = fits and all(map(_fits, value))  # type: ignore[arg-type]
    else:
        fits = False
    return Default(value, type) if fits else None  # type: ignore[arg-type]


def _fits(value: object, bits: int = 32) -> bool:
    limit = 1 << (bits - 1)
    return isinstance(value, int) and -limit <= value < limit


def _default_help(type: Type, spelling: str) -> str:
    """What a default of ``type`` looks like."""
    if type.kind is Kind.BOOL:
        return "write true or false" if spelling == "C++" else "write True or False"
    if type.kind in (Kind.INTS, Kind.SHAPE, Kind.AXES):
        brackets = _BRACKETS[spelling][0]
        return f"write {brackets[0]}{', '.join(['1'] * (type.length or 2))}{brackets[1]}"
    return {
        Kind.FLOAT: "write a number such as 1.0, 1e-5, inf or nan",
        Kind.INT: f"write a whole number of {64 if type.int64 else 32} bits",
        Kind.STR: "write a string in double quotes",
        Kind.ENUM: f"write one of {type.listed_choices}",
        Kind.DTYPE: f"write one of {', '.join(DTYPES)}",
    }[type.kind]


# ---- the parser --------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*          # names, with their namespaces
    |(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\w*                  # numbers, with their suffixes
    |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|->|\.\.\.|\S|\Z)""",
    re.ASCII | re.VERBOSE,
)
_DEMANDED = {"cpp": "C++", "python": "Python"}
_OPEN, _CLOSE = frozenset("([{<"), frozenset(")]}>")
_EXAMPLE = "a signature looks like 'f(x: array, y: array) -> array'"
_IMMUTABLE = "MLX's arrays are immutable: take it as it is, and return what is new"


class _Bad(Exception):
    """What follows cannot be understood; the reason is reported."""


class Parser:
    """Recursive descent over the tokens of one signature, whose text stays known to the character.

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
        self.spelling = ""
        self.words: dict[str, Type] = {}

    def parse(self, asked: Spelling) -> Signature | None:
        """The signature, or None if anything was reported."""
        try:
            signature = self.signature(asked)
        except _Bad:
            return None
        return None if self.failed else signature

    # ---- tokens and errors ---------------------------------------------------------------------

    def slice(self, begin: int, end: int) -> tuple[int, int]:
        """The slice of the text that the tokens from ``begin`` to before ``end`` take."""
        start = self.ends[begin] - len(self.tokens[begin])
        return start, max(start, self.ends[end - 1])

    def error(
        self, code: str, message: str, offset: tuple[int, int], help: str | None = None
    ) -> None:
        self.failed = True
        self.report(code, message, *offset, help)

    def bad(self, code: str, message: str, begin: int, help: str | None = None) -> _Bad:
        """Report about the tokens from ``begin`` to before the current one, at least one."""
        self.error(code, message, self.slice(begin, max(self.i, begin + 1)), help)
        return _Bad()

    def unexpected(self, wanted: str) -> _Bad:
        """Report the current token, unless it is but the consequence of an error before."""
        if self.failed:
            return _Bad()
        token = self.tokens[self.i]
        found = f"found '{token}'" if token else "the text ends"
        return self.bad("MG201", f"expected {wanted}, {found}", self.i)

    def is_name(self) -> bool:
        token = self.tokens[self.i]
        return token.isascii() and token.isidentifier()

    def accept(self, token: str) -> bool:
        if self.tokens[self.i] != token:
            return False
        self.i += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.unexpected(f"'{token}'")

    def skip(self) -> None:
        """Go to the comma or bracket that ends what the parser is in."""
        depth = 0
        while token := self.tokens[self.i]:
            if token in _OPEN:
                depth += 1
            elif token in _CLOSE:
                depth -= 1
            if depth < 0 or (token == "," and depth == 0):
                return
            self.i += 1

    # ---- the whole -----------------------------------------------------------------------------

    def signature(self, asked: Spelling) -> Signature:
        if "(" not in self.tokens:
            self.i = len(self.tokens) - 1
            raise self.bad("MG201", "the arguments in parentheses are missing", 0, _EXAMPLE)
        self.spelling = self.detect()
        if _DEMANDED.get(asked, self.spelling) != self.spelling:
            self.i = len(self.tokens) - 1
            message = f"this is {self.spelling}'s spelling, which {asked}_signature does not take"
            raise self.bad("MG202", message, 0, "the key 'signature' takes C++, Python and torch")
        self.words = _WORDS[self.spelling]
        if self.spelling == "C++":
            outputs, named = self.cpp_result(), False
            name = self.own_name()
            args = self.arguments()
            self.accept(";")
        else:
            self.accept("def")
            name = self.own_name()
            args = self.arguments()
            if not self.accept("->"):
                result = "Tensor" if self.spelling == "torch" else "array"
                help = f"write '-> {result}' after the arguments"
                raise self.bad("MG209", "the signature does not say what it returns", self.i, help)
            outputs, named = self.result()
            if self.spelling == "Python" and self.accept(":"):
                self.accept("...")
        if self.tokens[self.i]:
            raise self.unexpected("the end of the signature")
        self.check(args, outputs)
        nameless = bool(args) and not args[0].name
        if nameless:
            args = [replace(arg, name=name) for arg, name in zip(args, _NAMELESS, strict=False)]
        return Signature(name, tuple(args), tuple(outputs), named, named_args=not nameless)

    def detect(self) -> str:
        """Which spelling: C++ begins with the result, Python has colons, torch has neither."""
        head = self.tokens[: self.tokens.index("(")]
        after = self.tokens[len(head) + 1 :]
        if "->" not in after and head[:1] != ["def"]:
            word = _NAMESPACE.sub("", head[0], count=1) if head else ""
            if len(head) > 1 or word in ("array", "void"):
                return "C++"
        is_torch = "Tensor" in after if after[0] == ")" else ":" not in after
        return "torch" if is_torch else "Python"

    def check(self, args: list[Arg], outputs: list[Output]) -> None:
        """The rules that look at several arguments and outputs."""
        nameless = [arg for arg in args if not arg.name]
        if 0 < len(nameless) < len(args):
            message = "this argument has no name, and others have"
            self.error("MG212", message, nameless[0].offset, "name all arguments or none")
        elif len(nameless) > len(_NAMELESS):
            message = f"more than {len(_NAMELESS)} arguments without names"
            self.error("MG217", message, nameless[len(_NAMELESS)].offset)
        seen: set[str] = set()
        returned = {output.name for output in outputs}
        default_before = False
        for arg in args:
            if arg.name and arg.name in seen:
                self.error("MG204", f"there are two arguments '{arg.name}'", arg.offset)
            elif arg.name in RESERVED:
                pass  # which is reported
            elif arg.name in returned:
                message = f"'{arg.name}' is an argument and an output"
                self.error("MG204", message, arg.offset, "rename one of them")
            elif arg.name.startswith("grad_") and arg.name[5:] in returned:
                message = f"'{arg.name}' cannot be the name of an argument"
                reason = f"gradient formulas call the cotangent of '{arg.name[5:]}' so"
                self.error("MG208", f"{message}: {reason}", arg.offset)
            if default_before and not arg.default and not arg.kw_only:
                message = f"'{arg.name}' has no default, and an argument before it has one"
                help = "give it a default too, or move it forward"
                self.error("MG205", message, arg.offset, help)
            seen.add(arg.name)
            default_before = default_before or arg.default is not None

    def own_name(self) -> str | None:
        """The operator's name, if there is one."""
        name = self.tokens[self.i]
        if name == "(":
            return None
        if not self.is_name():
            if "." in name and name[0] != ".":
                help = f"leave out '{name[name.index('.') :]}'"
                raise self.bad("MG207", f"'{name}' cannot be the name of an operator", self.i, help)
            raise self.unexpected("the name of the operator")
        return self.name("an operator")

    def name(self, what: str) -> str:
        """The current token as the name of ``what``; reported if C++, Python or mlxgen uses it."""
        if not self.is_name():
            raise self.unexpected(f"the name of {what}")
        name = self.tokens[self.i]
        reason = clash(name, what)
        if reason:
            message = f"'{name}' cannot be the name of {what}: {reason}"
            code = "MG208" if name in RESERVED else "MG207"
            self.error(code, message, self.slice(self.i, self.i + 1))
        self.i += 1
        return name

    # ---- arguments -----------------------------------------------------------------------------

    def arguments(self) -> list[Arg]:
        self.expect("(")
        args: list[Arg] = []
        star: int | None = None
        stream: int | None = None
        read = {"C++": self.cpp_arg, "Python": self.python_arg, "torch": self.torch_arg}
        while self.tokens[self.i] not in (")", ""):
            begin = self.i
            try:
                if self.spelling != "C++" and self.tokens[begin] in ("*", "/"):
                    star = self.marker(star)
                elif arg := read[self.spelling](begin, star is not None):
                    args.append(arg)
                else:
                    stream = begin
                if self.tokens[self.i] not in (",", ")"):
                    raise self.unexpected("',' or ')'")
            except _Bad:
                self.i = begin
                self.skip()
            if not self.accept(","):
                break
            if stream == begin and self.tokens[self.i] != ")":
                message = "the stream must be the last argument"
                self.error("MG216", message, self.slice(begin, self.i - 1))
        if self.tokens[self.i - 1] == "," and self.spelling != "Python":
            raise self.unexpected("an argument")
        self.expect(")")
        nothing_follows = stream is None and not any(arg.kw_only for arg in args)
        if star is not None and nothing_follows and not self.failed:
            self.error("MG215", "no argument follows the '*'", self.slice(star, star + 1))
        return args

    def marker(self, star: int | None) -> int | None:
        """``*`` before keyword-only arguments; ``/`` after positional-only ones says nothing."""
        at = self.i
        is_star = self.accept("*")
        if not is_star:
            self.i += 1
        if self.tokens[self.i] not in (",", ")"):
            self.skip()
            help = "take a list of arrays: 'arrays: list[array]'"
            raise self.bad("MG214", "an operator takes a fixed number of arguments", at, help)
        if is_star and star is not None:
            raise self.bad("MG215", "there is a '*' already", at)
        return at if is_star else star

    def cpp_arg(self, begin: int, kw_only: bool) -> Arg | None:
        word = self.tokens[begin + 1 if self.tokens[begin] == "const" else begin]
        if _NAMESPACE.sub("", word, count=1) == "StreamOrDevice":
            self.skip()
            return None
        type = self.cpp_type()
        name = "" if self.tokens[self.i] in (",", ")", "=") else self.name("an argument")
        return self.arg(begin, name, type, kw_only)

    def python_arg(self, begin: int, kw_only: bool) -> Arg | None:
        name = self.tokens[begin]
        if name == "stream":
            self.skip()
            return None
        if self.is_name() and self.tokens[begin + 1] != ":":
            help = f"write '{name}: array' if it is an array"
            raise self.bad("MG212", f"the argument '{name}' has no type", begin, help)
        name = self.name("an argument")
        self.expect(":")
        return self.arg(begin, name, self.python_type(), kw_only)

    def torch_arg(self, begin: int, kw_only: bool) -> Arg | None:
        word = self.tokens[begin]
        if word not in self.words and self.is_name() and self.tokens[begin + 1] in ",=)":
            help = f"write '{word}: array' or 'Tensor {word}' if it is an array"
            raise self.bad("MG212", f"the argument '{word}' has no type", begin, help)
        type = self.torch_type()
        if self.tokens[self.i] in (",", ")", "="):
            raise self.bad("MG212", "this argument has no name", begin, "write it after the type")
        return self.arg(begin, self.name("an argument"), type, kw_only)

    def arg(self, begin: int, name: str, type: Type, kw_only: bool) -> Arg:
        """The argument that began at ``begin``, with its default, if it has one."""
        default = None
        if self.accept("="):
            at = self.i
            self.skip()
            text = _joined(self.tokens[at : self.i])
            if not text:
                raise self.unexpected("a default")
            default = _default(text, type, self.spelling)
            if default is None:
                self.bad_default(text, type, at)
        return Arg(name, type, default, kw_only, self.slice(begin, self.i))

    def bad_default(self, text: str, type: Type, at: int) -> None:
        offset = self.slice(at, self.i)
        none = "std::nullopt" if self.spelling == "C++" else "None"
        value = _literal(text, self.spelling)
        if type.is_array and type.optional:
            message = f"an optional array can only have the default {none}"
            self.error("MG210", message, offset)
        elif type.is_array:
            help = "make it optional if it may be left out" if type == _ARRAY else None
            self.error("MG210", f"{with_article(type)} cannot have a default", offset, help)
        elif type.kind is Kind.ENUM and isinstance(value, str):
            near = suggest(value, type.choices)
            help = f"did you mean {quoted(near)}?" if near else f"it has {type.listed_choices}"
            message = f"the enumerated string does not have its default {text}"
            self.error("MG211", message, offset, help)
        else:
            help = _default_help(type, self.spelling)
            if value is None:
                help = "make the type optional to allow it"
            message = f"'{text}' is not a default for {with_article(type)}"
            self.error("MG206", message, offset, help)

    # ---- types ---------------------------------------------------------------------------------

    def word(self) -> str:
        """The current token as the word that begins a type, without MLX's namespaces."""
        if not self.tokens[self.i] or not (self.tokens[self.i][0].isalpha()):
            raise self.unexpected("a type")
        self.i += 1
        return _NAMESPACE.sub("", self.tokens[self.i - 1], count=1)

    def unknown_type(self, word: str, begin: int) -> _Bad:
        known = [*self.words, *_GENERIC[self.spelling]]
        akin = _AKIN.get(word)
        near = suggest(word, known)
        if akin == _INTS:
            near = "int[2]"
        elif akin:
            near = next(name for name, type in self.words.items() if type.kind is akin.kind)
        if near:
            return self.bad("MG203", f"unknown type '{word}' (did you mean '{near}'?)", begin)
        help = f"the types here are {', '.join(known)}"
        if word in _NOT_IN_MLX:
            help = "MLX has nothing like it: leave the argument out"
        return self.bad("MG203", f"unknown type '{word}'", begin, help)

    def optional(self, type: Type, begin: int) -> Type:
        if type.kind is Kind.ARRAYS:
            help = "an empty list says that there are none"
            raise self.bad("MG203", "a list of arrays cannot be optional", begin, help)
        return replace(type, optional=True)

    def list_of(self, type: Type, begin: int) -> Type:
        if type not in (_ARRAY, _INT):
            message = f"a list can be of arrays or of ints, not of {type}s"
            raise self.bad("MG203", message, begin)
        return _ARRAYS if type == _ARRAY else _INTS

    def choices(self, begin: int, closing: str) -> Type:
        """The strings of an ``enum(...)`` or ``Literal[...]``, after its opening bracket."""
        choices: list[str] = []
        while self.tokens[self.i][:1] in ('"', "'") and len(self.tokens[self.i]) > 1:
            choice = _string(self.tokens[self.i])
            self.i += 1
            if not isinstance(choice, str):
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

    def length(self, type: Type, begin: int) -> Type:
        """The number in ``int[2]``, after its opening bracket."""
        number = self.tokens[self.i]
        if not re.fullmatch("[1-9][0-9]?", number):
            raise self.unexpected("a length from 1 to 99")
        self.i += 1
        self.expect("]")
        if type != _INT:
            raise self.bad("MG203", "only a list of ints can have a length", begin)
        return Type(Kind.INTS, length=int(number))

    def cpp_type(self) -> Type:
        """The type of a C++ parameter."""
        begin = self.i
        const = self.accept("const")
        type = self.cpp_value()
        const = self.accept("const") or const
        if self.tokens[self.i] == "*" or (self.tokens[self.i] == "&" and not const):
            self.i += 1
            message = "an operator cannot write to its arguments"
            raise self.bad(
                "MG213", message, begin, _IMMUTABLE.replace("it as it is", "const array&")
            )
        self.accept("&")
        return type

    def cpp_value(self) -> Type:
        begin = self.i
        word = self.word()
        type = self.words.get(word)
        if type:
            return self.length(type, begin) if self.accept("[") else type
        if word == "enum":
            self.expect("(")
            return self.choices(begin, ")")
        if word not in _GENERIC["C++"]:
            raise self.unknown_type(word, begin)
        self.expect("<")
        inner = self.cpp_value()
        self.expect(">")
        return (self.optional if word == "std::optional" else self.list_of)(inner, begin)

    def python_type(self) -> Type:
        """One type, perhaps with None, or one of the unions that have a meaning of their own."""
        begin = self.i
        type = self.words.get(self.tokens[begin])
        if type and self.tokens[begin + 1] != "|":  # nearly always
            self.i += 1
            return type
        members = self.python_union()
        types = {member for member in members if isinstance(member, Type)}
        optional = "None" in members
        if "scalar" in members and types == {_ARRAY}:
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

    def python_union(self) -> list[Type | str]:
        members = self.python_member()
        while self.accept("|"):
            members += self.python_member()
        return members

    def python_member(self) -> list[Type | str]:
        """A member of a union, or several where it is a union itself; None and scalar as words."""
        begin = self.i
        word = self.word()
        if word in self.words:
            return [self.words[word]]
        if word in ("None", "scalar"):
            return [word]
        if word not in _GENERIC["Python"]:
            raise self.unknown_type(word, begin)
        self.expect("[")
        if word == "Literal":
            return [self.choices(begin, "]")]
        if word == "tuple":
            return [self.python_tuple(begin)]
        if word in ("list", "Sequence"):
            item = self.python_type()
            self.expect("]")
            return [self.list_of(item, begin)]
        members = self.python_union()
        while word == "Union" and self.accept(","):
            members += self.python_union()
        self.expect("]")
        return [*members, "None"] if word == "Optional" else members

    def python_tuple(self, begin: int) -> Type:
        """``tuple[int, int]`` or ``tuple[int, ...]``, after the bracket."""
        items = [self.python_type()]
        any_length = False
        while self.accept(",") and not any_length:
            any_length = self.accept("...")
            if not any_length:
                items.append(self.python_type())
        self.expect("]")
        if any(item != _INT for item in items) or (any_length and len(items) > 1):
            help = "take a list[array], or several arguments"
            raise self.bad("MG203", "an argument can be a tuple of ints only", begin, help)
        return _INTS if any_length else Type(Kind.INTS, length=len(items))

    def torch_type(self) -> Type:
        begin = self.i
        word = self.word()
        if word == "enum":
            self.expect("(")
            type = self.choices(begin, ")")
        elif word in self.words:
            type = self.words[word]
        else:
            raise self.unknown_type(word, begin)
        if self.accept("("):
            self.skip()
            self.accept(")")
            help = _IMMUTABLE.replace("it as it is", "'Tensor'")
            raise self.bad("MG213", "aliases and writes have no meaning here", begin, help)
        while self.tokens[self.i] in ("[", "?"):
            if self.accept("?"):
                is_axes = type.kind is Kind.INTS and type.length == 1
                type = _AXES if is_axes else self.optional(type, begin)
                continue
            self.i += 1
            if not self.accept("]"):
                type = self.length(type, begin)
            elif word == "SymInt" and type == _INT:
                type = _SHAPE
            else:
                type = self.list_of(type, begin)
        return type

    # ---- results -------------------------------------------------------------------------------

    def cpp_result(self) -> list[Output]:
        begin = self.i
        word = self.tokens[begin]
        if word not in ("std::pair", "std::tuple"):
            if self.accept("void"):
                raise self.bad("MG209", "an operator returns an array", begin)
            return self.outputs([("", self.cpp_value(), begin)])
        self.i += 1
        self.expect("<")
        items: list[tuple[str, Type, int]] = []
        while not items or self.accept(","):
            at = self.i
            items.append(("", self.cpp_value(), at))
        self.expect(">")
        if len(items) == 1 or (word == "std::pair" and len(items) > 2):
            help = "write array for one output, std::pair for two, std::tuple for more"
            raise self.bad("MG209", f"{word} cannot hold {len(items)} outputs", begin, help)
        return self.outputs(items)

    def result(self) -> tuple[list[Output], bool]:
        """Outputs of Python's and torch's spelling, and whether they are named."""
        begin = self.i
        python = self.spelling == "Python"
        if python and self.tokens[begin : begin + 2] == ["tuple", "["]:
            self.i += 2
            closing = "]"
        elif self.accept("("):
            closing = ")"
        elif self.accept("None"):
            raise self.bad("MG209", "an operator returns an array", begin)
        else:
            type = self.python_type() if python else self.torch_type()
            return self.outputs([("", type, begin)]), False
        items: list[tuple[str, Type, int]] = []
        while self.tokens[self.i] != closing:
            at = self.i
            name = ""
            if python and self.tokens[at + 1] == ":":
                name = self.name("an output")
                self.expect(":")
            type = self.python_type() if python else self.torch_type()
            if not python and self.tokens[self.i] not in (",", closing):
                name = self.name("an output")
            items.append((name, type, at))
            if not self.accept(","):
                break
        self.expect(closing)
        if not items or (closing == "]" and len(items) == 1):
            help = "write '-> array' for one output"
            raise self.bad("MG209", "an operator returns an array, or several", begin, help)
        names = {name for name, _, _ in items}
        if "" in names and len(names) > 1:
            raise self.bad("MG212", "some outputs have names, and others have not", begin)
        return self.outputs(items), "" not in names

    def outputs(self, items: Iterable[tuple[str, Type, int]]) -> list[Output]:
        """Outputs of names, types and places; without a name they are out, or out0, out1..."""
        items = list(items)
        outputs: list[Output] = []
        for i, (name, type, at) in enumerate(items):
            offset = self.slice(at, at + 1)
            if type == _ARRAYS and len(items) > 1:
                self.error("MG209", "a list of arrays can only be the whole result", offset)
            elif type not in (_ARRAY, _ARRAYS):
                help = "an operator returns arrays, or one list of arrays"
                self.error("MG209", f"an output cannot be {with_article(type)}", offset, help)
            if name and any(name == output.name for output in outputs):
                self.error("MG204", f"there are two outputs '{name}'", offset)
            outputs.append(Output(name or ("out" if len(items) == 1 else f"out{i}"), type))
        return outputs
