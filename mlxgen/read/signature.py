"""Parses signatures in C++, Python or torch spelling, which it detects.

One call reports the mistakes of all arguments, each at its slice of the signature. Only a trailing
stream argument is accepted and ignored, because every operator has one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from typing import Literal

from ..diagnostics import Guess, Rendered, Report
from ..model.signature import Arg, Default, Kind, Output, Signature, Type, split
from . import MESSAGES
from .literals import default_of, default_problem
from .names import PACKAGES, RESERVED, better, clash, overload
from .types import ARRAY, ARRAYS, CPP, NAMESPACE, PYTHON, TORCH, TYPE_WORDS, Bad, Types

Spelling = Literal["any", "cpp", "python"]

_DEMANDED = {"cpp": CPP, "python": PYTHON}
_MOST = 100
_STREAM = re.compile(r"(?:\w+(?:::|\.))*Stream(?:OrDevice)?")  # MLX's types of streams
_NAMELESS = [name for name in "abcdefghijklmnopqrstuvwxyz" if name not in RESERVED]


def parse_signature(text: str, spelling: Spelling, report: Report) -> Signature | None:
    """Parse a signature; return None if an error was reported (MG2xx).

    ``spelling`` is ``"any"`` (detected) or the spelling that the key requires.
    """
    parser = _Parser(text, report)
    try:
        parser.check_text()
        signature = parser.signature(spelling)
    except Bad:
        return None
    return None if parser.failed else signature


class _Parser(Types):
    """The parser of a whole signature."""

    def signature(self, asked: Spelling) -> Signature:
        if "(" not in self.tokens:
            self.i = len(self.tokens) - 1
            raise self.error("no_arguments", 0)
        self.grammar = self.detect()
        if _DEMANDED.get(asked, self.grammar) is not self.grammar:
            self.i = len(self.tokens) - 1
            raise self.error("other_spelling", 0, name=self.grammar.name, asked=asked)
        if self.grammar is CPP:
            if self.tokens[1] == "(" and self.token not in (*CPP.words, "void"):
                raise self.error("no_result", 0, "C++")
            outputs, named = self.result()
            (op, in_python), args = self.own_name(), self.arguments()
            self.accept(";")
        else:
            self.accept("def")
            (op, in_python), args = self.own_name(), self.arguments()
            if self.token in ("", ":", ";") and "->" not in self.tokens:
                raise self.error("no_result", self.i)
            self.expect("->")
            outputs, named = self.result()
            if self.grammar is PYTHON and self.accept(":"):
                self.accept("...")
        if self.token:
            raise self.unexpected("the end of the signature")
        named_args = not args or bool(args[0].name)
        if not named and len(outputs) == 1 and any(arg.name == "out" for arg in args):
            outputs = [outputs[0]._replace(name="output")]
        returned = {output.name for output in outputs}
        every = split(self.checked(args, returned), returned)
        return Signature(op, every, tuple(outputs), named, named_args, in_python)

    def own_name(self) -> tuple[str | None, str | None]:
        """Parse the operator's name, if any, and its name in Python, if that differs."""
        if self.grammar is TORCH and (names := overload(self.token)):
            for name in names:
                self.usable(name, "an operator")
            self.i += 1
            return names
        first, *others = re.split(r"\.|::", self.token)
        if first and others:
            mistake = "qualified" if "::" in self.token or first in PACKAGES else "in_module"
            about = {"token": self.token, "name": others[-1]}
            about["module"] = ".".join([first, *others[:-1]])
            raise self.error(mistake, self.i, "overload" * bool(overload(self.token)), **about)
        return (None if self.token == "(" else self.name("an operator")), None

    def name(self, what: str) -> str:
        """Parse the name of ``what``; report a reserved name."""
        name = self.token
        if not (name.isascii() and name.isidentifier()):
            raise self.unexpected(f"the name of {what}")
        self.usable(name, what)
        self.i += 1
        return name

    def usable(self, name: str, what: str) -> None:
        """Report a reserved name."""
        if reason := clash(name, what):
            mistake = "name_of_ours" if name in RESERVED else "name_of_others"
            about = {"name": name, "what": what, "reason": reason, "better": better(name, what)}
            error = self.error(mistake, self.i, **about)
            if what != "an operator":
                raise error

    # ---- arguments -----------------------------------------------------------------------------

    def arguments(self) -> list[Arg]:
        self.expect("(")
        args: list[Arg] = []
        star = False
        while self.token not in (")", ""):
            begin = self.i
            try:
                if self.token in ("*", "/") and (
                    self.grammar is not CPP or self.tokens[begin + 1] in (",", ")")
                ):
                    star = self.marker(star, args)
                elif arg := self.argument(star):
                    args.append(arg)
                elif self.token == "," and self.tokens[self.i + 1] != ")":
                    self.error("stream_inside", begin)
                if self.token not in (",", ")"):
                    raise self.unexpected("',' or ')'")
            except Bad:
                self.i = begin
                self.skip()
            if not self.accept(","):
                break
        self.expect(")")
        if len(args) > _MOST:
            raise self.error("too_many", args[_MOST].offset, limit=_MOST)
        return args

    def marker(self, star: bool, args: list[Arg]) -> bool:
        """Parse ``*`` before keyword-only arguments, or ``/`` after positional-only ones."""
        at = self.i
        self.i += 1
        if self.token not in (",", ")"):
            return self.variadic(star, at, args)
        if self.grammar is CPP:
            raise self.error("marker_in_C++", at, token=self.tokens[at])
        if self.tokens[at] == "/":
            if star or not args or args[0].pos_only:
                raise self.error("slash", at)
            args[:] = [arg._replace(pos_only=True) for arg in args]
            return star
        if star:
            raise self.error("two_stars", at)
        if ")" in self.tokens[self.i : self.i + 2]:
            raise self.error("star_at_end", at)
        return True

    def variadic(self, star: bool, at: int, args: list[Arg]) -> bool:
        """Parse ``*arrays: array``, after its star; the following arguments are keyword-only."""
        usual = self.tokens[at] == "*" and self.grammar is PYTHON and self.token.isidentifier()
        arg = self.argument(False) if usual else None
        if arg is None or arg.type != ARRAY or arg.default is not None:
            self.skip()
            raise self.error("variable_number", at)
        if star:
            raise self.error("two_stars", at)
        type_ = replace(ARRAYS, variadic=True)
        args.append(arg._replace(type=type_, offset=self.since(at)))
        return True

    def argument(self, kw_only: bool) -> Arg | None:
        """Parse an argument with its type, name and default; return None for a stream."""
        begin, grammar = self.i, self.grammar
        word, following = self.tokens[begin : begin + 2]
        at = begin + (2 if grammar is PYTHON else word == "const")  # the type
        if word == "stream" or "".join(self.tokens[at : at + 1]).endswith("StreamOrDevice"):
            self.skip()
            if any(map(_STREAM.fullmatch, takewhile("=".__ne__, self.tokens[at : self.i]))):
                return None
            self.i = begin
        beside = following not in (",", "=", ")") and NAMESPACE.sub("", word) in TYPE_WORDS
        if following == ":" if grammar is not PYTHON else following != ":" and beside:
            raise self.mixed(begin)
        if grammar is not CPP and word not in grammar.words and following in (",", "=", ")"):
            name = self.name("an argument")
            mistake = "no_type_in_torch" if grammar is TORCH else "no_type"
            raise self.error(mistake, begin, name=name)
        if grammar is PYTHON:
            name = self.name("an argument")
            self.expect(":")
            type = self.type()
        else:
            type = self.passed_type() if grammar is CPP else self.type()
            name = "" if self.token in (",", ")", "=") else self.name("an argument")
        if type.unwrapped:
            raise self.error("union", begin)
        type = replace(type, tupled=False) if type.tupled else type
        default = None
        if self.accept("="):
            at = self.i
            text = self.skip()
            if not text:
                raise self.unexpected("a default")
            if (type.length or 1) > 1 and not type.optional and text in ("[]", "()", "{}"):
                type = replace(type, empty=True)
            default = default_of(text, type, grammar.name)
            if default is None:
                mistake, keys, parts = default_problem(text, type, grammar.name)
                self.error(mistake, at, *keys, **parts)
                default = Default(None, type)  # for the check of the following arguments
        return Arg(name, type, default, kw_only, self.since(begin))

    def mixed(self, begin: int) -> Bad:
        """Report the first argument in another spelling than the signature."""
        self.skip()
        about = {"name": self.grammar.name, "form": self.grammar.form}
        return Bad() if self.failed else self.error("mixed", begin, **about)

    def passed_type(self) -> Type:
        """Parse the type of a C++ parameter, which may be a const reference."""
        begin = self.i
        const = self.accept("const")
        type = self.type()
        const = self.accept("const") or const
        if self.token == "*" or (self.token == "&" and not const):
            self.i += 1
            raise self.error("reference", begin)
        self.accept("&")
        return type

    def checked(self, args: list[Arg], returned: set[str]) -> list[Arg]:
        """Check the rules about several arguments; return all arguments with names."""
        nameless = [arg for arg in args if not arg.name]
        if len(nameless) not in (0, len(args)):
            raise self.error("no_name", nameless[0].offset)
        if len(nameless) > len(_NAMELESS):
            place = nameless[len(_NAMELESS)].offset
            raise self.error("too_many_nameless", place, count=len(_NAMELESS))
        if nameless:
            args = [arg._replace(name=name) for arg, name in zip(args, _NAMELESS, strict=False)]
        seen: set[str] = set()
        default_before = False
        for arg in args:
            name = arg.name
            if name in seen:
                self.error("two_arguments", arg.offset, name=name)
            elif name in returned:
                self.error("argument_and_output", arg.offset, name=name)
            if default_before and not arg.default and not arg.kw_only and name not in seen:
                self.error("default_before", arg.offset, name=name)
            seen.add(name)
            default_before = default_before or arg.default is not None
        return args

    # ---- results -------------------------------------------------------------------------------

    def result(self) -> tuple[list[Output], bool]:
        """Parse the outputs; also return whether they are named (else out, or out0, out1...)."""
        begin, word = self.i, self.token
        items: list[tuple[str, Type, tuple[int, int]]] = []
        counts = range(1, 2)
        listed = self.tokens[begin + 3 : begin + 5] == [",", "..."]  # tuple[array, ...]
        if word in self.grammar.results and not listed:
            opening, closing = self.grammar.results[word]
            self.i += word != opening
            self.expect(opening)
            items = [self.output() for _ in self.several(closing)]
            counts = range(1 if word == "(" else 2, 3 if word == "std::pair" else 99)
        elif f"std::{word}" in self.grammar.results:
            guess = Guess(f"std::{word}", certain=True)
            raise self.error("misspelled_type", begin, word=word, guess=guess)
        elif not (self.accept("void") or self.accept("None")):
            place = self.since(begin)
            items = [("", self.result_type(), place)]
        if len(items) not in counts:
            in_cpp = "_in_C++" if self.grammar is CPP else ""
            raise self.error(f"number_of_outputs{in_cpp}", begin)
        outputs: list[Output] = []
        for i, (name, type, place) in enumerate(items):
            if type != ARRAY and (type.kind is not Kind.ARRAYS or len(items) > 1):
                self.error("output", place, type=type)
            if name in [output.name for output in outputs]:
                self.error("two_outputs", place, name=name)
            outputs.append(Output(name or ("out" if len(items) == 1 else f"out{i}"), type))
        named = [bool(name) for name, _, _ in items]
        if len(set(named)) > 1:
            raise self.error("some_outputs_named", begin)
        return outputs, named[0]

    def result_type(self) -> Type:
        """Parse the type of a single result; report several outputs without parentheses."""
        begin = self.i
        is_name = self.token.isidentifier() and self.token not in self.grammar.words
        bare = self.token in ("[", "{") or (is_name and self.tokens[begin + 1] == ":")
        type = ARRAY if bare else self.type()
        named = self.token.isidentifier() and self.tokens[self.i + 1] in ("", ",")
        if bare or (self.grammar is not CPP and (named or self.token == ",")):
            self.i = len(self.tokens) - 1
            first, second = (self.grammar.form.replace("x", name) for name in "ab")
            raise self.error("bare_outputs", begin, first=first, second=second)
        return type

    def output(self) -> tuple[str, Type, tuple[int, int]]:
        """Parse one of several outputs: name or "", type and location."""
        begin = self.i
        name, place = "", self.place(begin)
        if self.grammar is PYTHON and self.tokens[self.i + 1 : self.i + 2] == [":"]:
            name = self.name("an output")
            self.expect(":")
        type = self.type()
        if self.grammar is PYTHON and self.token.isidentifier() and not name:
            raise self.mixed(begin)
        if self.grammar is TORCH and self.token not in (",", ")"):
            name = self.name("an output")
        return name, type, place


# ---- two signatures of one operator ------------------------------------------------------------


def combine(cpp: Signature, python: Signature, report: Report) -> Signature | None:
    """Combine ``cpp_signature`` and ``python_signature``; return None if they differ (MG218).

    Names, defaults, keyword-only marks and names of outputs come from the Python signature, widths
    of numbers from the C++ signature. Offsets refer to the Python signature.
    """
    wrong: list[tuple[Rendered, tuple[int, int]]] = []
    args = []
    for theirs, ours in zip(cpp.declared, python.declared, strict=False):
        type = _combined(theirs.type, ours.type)
        default = Default(ours.default.value, type) if ours.default and type else None
        args.append(ours._replace(type=type or ours.type, default=default))
        if cpp.named_args and theirs.name != ours.name:
            other_name = MESSAGES("other_name", name=ours.name, theirs=theirs.name)
            wrong.append((other_name, ours.offset))
        elif type is None:
            types = {"theirs": theirs.type, "ours": ours.type}
            wrong.append((MESSAGES("other_type", name=ours.name, **types), ours.offset))
        elif default and theirs.default and default != Default(theirs.default.value, type):
            other_default = MESSAGES("other_default", name=ours.name, theirs=theirs.default.cpp)
            wrong.append((other_default, ours.offset))
    last = python.args[-1].offset if python.args else (0, 1)
    counts = {"theirs": len(cpp.declared), "ours": len(python.declared)}
    if counts["theirs"] != counts["ours"]:
        wrong.append((MESSAGES("other_count", **counts), last))
    if [o.type.kind for o in cpp.outputs] != [o.type.kind for o in python.outputs]:
        results = {"theirs": cpp.cpp_result, "ours": python.python_result}
        wrong.append((MESSAGES("other_outputs", **results), last))
    for said, offset in wrong:
        report(said, *offset)
    args_of_op = split(args, (output.name for output in python.outputs))
    return None if wrong else python._replace(args=args_of_op, name=python.name or cpp.name)


def _combined(cpp: Type, python: Type) -> Type | None:
    """Return the more specific of two types, or None if they contradict each other."""
    if cpp.is_union != python.is_union:
        return None
    vague = {Kind.SHAPE: Kind.INTS, Kind.ENUM: Kind.STR}
    in_python = replace(cpp, kind=vague.get(cpp.kind, cpp.kind), single=False, int64=False)
    if python in (cpp, in_python):
        return cpp
    kind = vague.get(python.kind, python.kind)
    in_cpp = replace(python, kind=kind, choices=(), length=None, empty=False, variadic=False)
    return python if cpp == in_cpp else None
