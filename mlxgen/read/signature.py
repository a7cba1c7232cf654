"""The reader of signatures, in three spellings that are told apart by their form.

Mistakes are reported with the slice of the text they stand in, those of several arguments in one
go, and nothing is accepted and ignored but a trailing stream argument, which every operator has
anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..diagnostics import suggest
from ..model.signature import Arg, Default, Kind, Output, Signature, Type, quoted, with_article
from .literals import default_help, default_of, string_of
from .names import RESERVED, clash
from .types import (
    ARRAY,
    ARRAYS,
    CPP,
    IMMUTABLE,
    NAMESPACE,
    PYTHON,
    TORCH,
    Bad,
    Grammar,
    Report,
    Types,
)

Spelling = Literal["any", "cpp", "python"]

_DEMANDED = {"cpp": CPP, "python": PYTHON}
_NAMELESS = [name for name in "abcdefghijklmnopqrstuvwxyz" if name not in RESERVED]
_EXAMPLE = "a signature looks like 'f(x: array, y: array) -> array'"


def parse_signature(text: str, spelling: Spelling, report: Report) -> Signature | None:
    """The signature that ``text`` spells, or None if anything in it was reported (MG2xx).

    ``spelling`` is ``"any"`` (the three are told apart by their form) or what the key demands.
    """
    parser = _Parser(text, report)
    try:
        signature = parser.signature(spelling)
    except Bad:
        return None
    return None if parser.failed else signature


class _Parser(Types):
    """A whole signature."""

    def signature(self, asked: Spelling) -> Signature:
        end = len(self.tokens) - 1
        if "(" not in self.tokens:
            self.i = end
            raise self.bad("MG201", "the arguments in parentheses are missing", 0, _EXAMPLE)
        self.grammar = self.detect()
        name = self.grammar.name
        if _DEMANDED.get(asked, self.grammar) is not self.grammar:
            self.i = end
            message = f"this is {name}'s spelling, which {asked}_signature does not take"
            raise self.bad("MG202", message, 0, "the key 'signature' takes C++, Python and torch")
        if self.grammar is CPP:
            outputs, named = self.result()
            op = self.own_name()
            args = self.arguments()
            self.accept(";")
        else:
            self.accept("def")
            op = self.own_name()
            args = self.arguments()
            if not self.accept("->"):
                result = "Tensor" if self.grammar is TORCH else "array"
                help = f"write '-> {result}' after the arguments"
                raise self.bad("MG209", "the signature does not say what it returns", self.i, help)
            outputs, named = self.result()
            if self.grammar is PYTHON and self.accept(":"):
                self.accept("...")
        if self.token:
            raise self.unexpected("the end of the signature")
        self.check(args, outputs)
        nameless = bool(args) and not args[0].name
        if nameless:
            args = [replace(arg, name=name) for arg, name in zip(args, _NAMELESS, strict=False)]
        return Signature(op, tuple(args), tuple(outputs), named, named_args=not nameless)

    def detect(self) -> Grammar:
        """Which spelling: C++ begins with the result, Python has colons, torch has neither."""
        head = self.tokens[: self.tokens.index("(")]
        after = self.tokens[len(head) + 1 :]
        if "->" not in after and head[:1] != ["def"]:
            word = NAMESPACE.sub("", head[0], count=1) if head else ""
            if len(head) > 1 or word in ("array", "void"):
                return CPP
        is_torch = "Tensor" in after if after[0] == ")" else ":" not in after
        return TORCH if is_torch else PYTHON

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
            name = arg.name
            if name and name in seen:
                self.error("MG204", f"there are two arguments '{name}'", arg.offset)
            elif name in returned and name not in RESERVED:  # which is reported
                message = f"'{name}' is an argument and an output"
                self.error("MG204", message, arg.offset, "rename one of them")
            elif name.startswith("grad_") and name[5:] in returned and name not in RESERVED:
                message = f"'{name}' cannot be the name of an argument"
                reason = f"gradient formulas call the cotangent of '{name[5:]}' so"
                self.error("MG208", f"{message}: {reason}", arg.offset)
            if default_before and not arg.default and not arg.kw_only:
                message = f"'{name}' has no default, and an argument before it has one"
                help = "give it a default too, or move it forward"
                self.error("MG205", message, arg.offset, help)
            seen.add(name)
            default_before = default_before or arg.default is not None

    def own_name(self) -> str | None:
        """The operator's name, if there is one."""
        name = self.token
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
        name = self.token
        if reason := clash(name, what):
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
        while self.token not in (")", ""):
            begin = self.i
            try:
                if self.grammar is not CPP and self.token in ("*", "/"):
                    star = self.marker(star)
                elif arg := self.argument(star is not None):
                    args.append(arg)
                else:
                    stream = begin
                if self.token not in (",", ")"):
                    raise self.unexpected("',' or ')'")
            except Bad:
                self.i = begin
                self.skip()
            if not self.accept(","):
                break
            if stream == begin and self.token != ")":
                message = "the stream must be the last argument"
                self.error("MG216", message, self.slice(begin, self.i - 1))
        if self.tokens[self.i - 1] == "," and self.grammar is not PYTHON:
            raise self.unexpected("an argument")
        self.expect(")")
        nothing_follows = stream is None and not any(arg.kw_only for arg in args)
        if star is not None and nothing_follows and not self.failed:
            self.error("MG215", "no argument follows the '*'", self.slice(star, star + 1))
        return args

    def marker(self, star: int | None) -> int | None:
        """``*`` before keyword-only arguments; ``/`` after positional-only ones says nothing."""
        at = self.i
        self.i += 1
        if self.token not in (",", ")"):
            self.skip()
            help = "take a list of arrays: 'arrays: list[array]'"
            raise self.bad("MG214", "an operator takes a fixed number of arguments", at, help)
        if self.tokens[at] == "/":
            return star
        if star is not None:
            raise self.bad("MG215", "there is a '*' already", at)
        return at

    def argument(self, kw_only: bool) -> Arg | None:
        """An argument with its type, name and default; None for a stream."""
        begin, grammar = self.i, self.grammar
        word, following = self.tokens[begin : begin + 2]
        if grammar is PYTHON:
            stream = word == "stream"
            typeless = following != ":"
        else:
            type_word = following if word == "const" else word
            stream = grammar is CPP and type_word.endswith("StreamOrDevice")
            typeless = grammar is TORCH and word not in grammar.words and following in ",=)"
        if stream:
            self.skip()
            return None
        if typeless and self.is_name():
            other = f" or 'Tensor {word}'" if grammar is TORCH else ""
            help = f"write '{word}: array'{other} if it is an array"
            raise self.bad("MG212", f"the argument '{word}' has no type", begin, help)
        if grammar is PYTHON:
            name = self.name("an argument")
            self.expect(":")
            type = self.type()
        else:
            type = self.passed_type() if grammar is CPP else self.type()
            has_name = self.token not in (",", ")", "=")
            if grammar is TORCH and not has_name:
                help = "write it after the type"
                raise self.bad("MG212", "this argument has no name", begin, help)
            name = self.name("an argument") if has_name else ""
        default = None
        if self.accept("="):
            at = self.i
            text = self.skip()
            if not text:
                raise self.unexpected("a default")
            default = default_of(text, type, grammar.name)
            if default is None:
                self.bad_default(text, type, self.slice(at, self.i))
        return Arg(name, type, default, kw_only, self.slice(begin, self.i))

    def passed_type(self) -> Type:
        """The type of a C++ parameter, which may be a const reference."""
        begin = self.i
        const = self.accept("const")
        type = self.type()
        const = self.accept("const") or const
        if self.token == "*" or (self.token == "&" and not const):
            self.i += 1
            help = IMMUTABLE.format("const array&")
            raise self.bad("MG213", "an operator cannot write to its arguments", begin, help)
        self.accept("&")
        return type

    def bad_default(self, text: str, type: Type, offset: tuple[int, int]) -> None:
        spelling = self.grammar.name
        none = "std::nullopt" if spelling == "C++" else "None"
        value = string_of(text)
        help: str | None
        if type.is_array and type.optional:
            message = f"an optional array can only have the default {none}"
            self.error("MG210", message, offset)
        elif type.is_array:
            help = "make it optional if it may be left out" if type == ARRAY else None
            self.error("MG210", f"{with_article(type)} cannot have a default", offset, help)
        elif type.kind is Kind.ENUM and value is not None:
            near = suggest(value, type.choices)
            help = f"did you mean {quoted(near)}?" if near else f"it has {type.listed_choices}"
            message = f"the enumerated string does not have its default {text}"
            self.error("MG211", message, offset, help)
        else:
            help = default_help(type, spelling)
            if text == none:
                help = "make the type optional to allow it"
            message = f"'{text}' is not a default for {with_article(type)}"
            self.error("MG206", message, offset, help)

    # ---- results -------------------------------------------------------------------------------

    def result(self) -> tuple[list[Output], bool]:
        """The outputs, and whether they are named; else they are out, or out0, out1..."""
        begin = self.i
        word = self.token
        if word in ("void", "None"):
            self.i += 1
            raise self.bad("MG209", "an operator returns an array", begin)
        items: list[tuple[str, Type, int]] = []
        if word not in self.grammar.results:
            items.append(("", self.type(), begin))
        else:
            opening, closing = self.grammar.results[word]
            self.i += 1
            if word != opening:
                self.expect(opening)
            while self.token != closing:
                items.append(self.output(closing))
                if not self.accept(","):
                    break
            self.expect(closing)
            one = len(items) == 1 and word != "("
            if self.grammar is CPP and (one or (word == "std::pair" and len(items) > 2)):
                help = "write array for one output, std::pair for two, std::tuple for more"
                raise self.bad("MG209", f"{word} cannot hold {len(items)} outputs", begin, help)
            if one or not items:
                help = "write '-> array' for one output"
                raise self.bad("MG209", "an operator returns an array, or several", begin, help)
        named = [bool(name) for name, _, _ in items]
        if len(set(named)) > 1:
            raise self.bad("MG212", "some outputs have names, and others have not", begin)
        return self.outputs(items), named[0]

    def output(self, closing: str) -> tuple[str, Type, int]:
        """One of several outputs: its name, if it has one, its type and place."""
        at = self.i
        name = ""
        if self.grammar is PYTHON and self.tokens[at + 1 : at + 2] == [":"]:
            name = self.name("an output")
            self.expect(":")
        type = self.type()
        if self.grammar is TORCH and self.token not in (",", closing):
            name = self.name("an output")
        return name, type, at

    def outputs(self, items: list[tuple[str, Type, int]]) -> list[Output]:
        outputs: list[Output] = []
        for i, (name, type, at) in enumerate(items):
            offset = self.slice(at, at + 1)
            if type == ARRAYS and len(items) > 1:
                self.error("MG209", "a list of arrays can only be the whole result", offset)
            elif type not in (ARRAY, ARRAYS):
                help = "an operator returns arrays, or one list of arrays"
                self.error("MG209", f"an output cannot be {with_article(type)}", offset, help)
            if name and any(name == output.name for output in outputs):
                self.error("MG204", f"there are two outputs '{name}'", offset)
            outputs.append(Output(name or ("out" if len(items) == 1 else f"out{i}"), type))
        return outputs


# ---- two signatures of one operator ------------------------------------------------------------


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
