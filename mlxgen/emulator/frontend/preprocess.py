"""The preprocessor for hand-written C++ and Metal source.

MLX declares its Metal kernels' instantiations with nested macros, so macros have to be expanded
before declarations can be read. Running a compiler for that would make generating depend on one,
and would lose the places that errors point at. `Preprocessor` does the part of C++'s translation
phase 4 that such sources need: it follows includes, evaluates conditionals and expands macros
(`#`, `##`, variadic macros, `__VA_OPT__`, and the rule against recursion).

Prominent characteristics:

* Names that a compiler predefines are unknown unless given in `defines`: sources that declare
  different functions per platform are read as on a platform that defines none of them.
* A token that a macro produced stands where the macro was called; an argument keeps its place.
* Whatever cannot be read is a `SourceError` with a position, and nothing else is ever raised.
"""

from __future__ import annotations

import operator as operators
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...diagnostics import Span
from .tokens import (
    Lexed,
    SourceError,
    Token,
    between,
    join,
    lex,
    made,
    read_source,
    refuse_invalid,
    string_value,
)

OWN_INCLUDES = str(Path(__file__).resolve().parents[2] / "runtime" / "include")
"""The folder of mlxgen's own headers."""

_MAX_DEPTH = 64  # of includes, macro calls and conditions; deeper is a cycle or not written by hand
_MAX_TOKENS = 2_000_000  # made by macros in one file; more are macros that double each other


@dataclass(frozen=True, slots=True)
class Include:
    """What an `#include` names."""

    name: str
    angled: bool
    span: Span


_INCLUDE = re.compile(r'[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)')


def include_of(directive: Sequence[Token]) -> Include | None:
    """What `# include ...` names when it does so literally (not by a macro)."""
    if len(directive) < 3 or directive[1].text != "include":
        return None
    source = directive[0].source
    found = _INCLUDE.match(source.text, directive[1].end)
    if not found:
        return None
    name = found[1] or found[2]
    span = source.span(directive[2].offset, found.end())
    return Include(name, found[1] is None, span)


def find_include(include: Include, includer: str, include_dirs: Sequence[str]) -> str | None:
    """The path of an included file: beside the includer (quoted form), else in `include_dirs`."""
    folders = list(include_dirs)
    if not include.angled:
        folders.insert(0, os.path.dirname(includer))
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, include.name))
        if os.path.isfile(path):
            return path
    return None


def missing_include(include: Include, include_dirs: Sequence[str]) -> SourceError:
    """The error for a quoted include that no folder holds."""
    shown = ["mlxgen's headers" if folder == OWN_INCLUDES else folder for folder in include_dirs]
    folders = ", ".join(shown) or "no folder"
    return SourceError(
        f'cannot find "{include.name}"',
        include.span,
        f"looked beside the file and in {folders}; write <{include.name}> for a system header",
    )


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro; `parameters` is None for one without a parameter list."""

    name: str
    parameters: tuple[str, ...] | None
    variadic: bool  # the last of `parameters` takes all remaining arguments
    body: tuple[Token, ...]


@dataclass(slots=True)
class _Conditional:
    """An open `#if`: may one of its branches be taken, and is the present one?"""

    opened: Token
    taken: bool
    active: bool
    in_else: bool = False


class Preprocessor:
    """Preprocesses one translation unit at a time.

    Args:
        include_dirs: folders where includes are looked for. An angled include that none of them
            holds is left out (a system header); a quoted one is an error.
        defines: macros without parameters that exist from the beginning.
        ignore: prefixes of includes that are left out without being looked for, unless their whole
            name is in `macros_only`.
        macros_only: prefixes of includes of which only the macros are wanted, not the text.
    """

    def __init__(
        self,
        include_dirs: Sequence[str] = (),
        *,
        defines: Mapping[str, str] | None = None,
        ignore: Sequence[str] = (),
        macros_only: Sequence[str] = (),
    ) -> None:
        self.include_dirs = [os.fspath(folder) for folder in include_dirs]
        self.includes: list[str] = []  # the files read, beginning with the one given to run()
        self.macros: dict[str, Macro] = {}
        self._defines = dict(defines or {})
        self._ignore = tuple(ignore)
        self._macros_only = tuple(macros_only)
        self._once: set[str] = set()
        self._out: list[Token] = []
        self._counter = 0
        self._made = 0
        self._depth = 0
        self._call_depth = 0

    def run(self, path: str, text: str | None = None) -> list[Token]:
        """The tokens of the file at `path` (of `text`, where given) after preprocessing."""
        self.macros = {"_Pragma": Macro("_Pragma", ("text",), False, ())}
        for name in ("__LINE__", "__FILE__", "__COUNTER__"):
            self.macros[name] = Macro(name, None, False, ())
        for name, value in self._defines.items():
            body = lex(f"<definition of {name}>", value).tokens
            self.macros[name] = Macro(name, None, False, body)
        self.includes, self._once, self._out = [], set(), []
        self._counter = self._made = self._depth = self._call_depth = 0
        self._file(path, read_source(path) if text is None else text, macros_only=False)
        return self._out

    # -- files and directives

    def _file(self, path: str, text: str, macros_only: bool) -> None:
        if path not in self.includes:
            self.includes.append(path)
        lexed = lex(path, text)
        conditionals: list[_Conditional] = []
        position = 0
        for start, stop in lexed.directives:
            if not macros_only and (not conditionals or conditionals[-1].active):
                self._text(lexed, position, start)
            self._directive(lexed, start, stop, conditionals, macros_only)
            position = stop
        if conditionals:
            raise SourceError("this conditional has no #endif", conditionals[-1].opened.span)
        if not macros_only:
            self._text(lexed, position, len(lexed.tokens))

    def _text(self, lexed: Lexed, start: int, stop: int) -> None:
        tokens = lexed.tokens[start:stop]
        if lexed.has_invalid:
            _check_valid(tokens)
        if any(token.text in self.macros for token in tokens):
            self._out.extend(self.expand(tokens))
        else:
            self._out.extend(tokens)

    def _directive(
        self,
        lexed: Lexed,
        start: int,
        stop: int,
        conditionals: list[_Conditional],
        macros_only: bool,
    ) -> None:
        if stop - start == 1:
            return  # "#" alone is allowed
        line = lexed.tokens[start:stop]
        name, rest = line[1], line[2:]
        active = not conditionals or conditionals[-1].active
        match name.text:
            case "if" | "ifdef" | "ifndef":
                holds = active and self._condition(name, rest)
                conditionals.append(_Conditional(name, taken=holds or not active, active=holds))
                return
            case "elif" | "elifdef" | "elifndef" | "else" | "endif":
                if not conditionals:
                    raise SourceError(f"#{name.text} without #if", name.span)
                if name.text == "endif":
                    conditionals.pop()
                    return
                current = conditionals[-1]
                if current.in_else:
                    raise SourceError(f"#{name.text} after #else", name.span)
                if name.text == "else":
                    current.active, current.in_else = not current.taken, True
                else:
                    current.active = not current.taken and self._condition(name, rest)
                current.taken = current.taken or current.active
                return
        if not active:
            return
        match name.text:
            case "define":
                self._define(name, rest)
            case "undef":
                self.macros.pop(self._single_name(name, rest), None)
            case "include":
                self._include(line, macros_only)
            case "pragma":
                if rest and rest[0].text == "once":
                    self._once.add(os.path.realpath(lexed.source.path))
            case "error" | "warning" | "ident" | "line":
                pass  # an #error depends on names that only the compiler knows
            case _:
                raise SourceError(f"unknown directive #{name.text}", name.span)

    def _single_name(self, directive: Token, rest: Sequence[Token]) -> str:
        if len(rest) != 1 or rest[0].kind != "name":
            raise SourceError(f"#{directive.text} takes one name", directive.span)
        return rest[0].text

    def _include(self, line: tuple[Token, ...], macros_only: bool) -> None:
        include = include_of(line) or self._computed_include(line)
        if include.name.startswith(self._ignore) and include.name not in self._macros_only:
            return
        includer = line[0].source.path
        path = find_include(include, includer, self.include_dirs)
        if path is None:
            if include.angled:
                return
            raise missing_include(include, self.include_dirs)
        if os.path.realpath(path) in self._once:
            return
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise SourceError(
                    f'"{include.name}" includes itself', include.span, "add #pragma once to it"
                )
            text = read_source(path, include.span)
            self._file(path, text, macros_only or include.name.startswith(self._macros_only))
        except SourceError as error:
            if self._depth == 1:
                error.notes += (f"included from {includer}:{include.span.line}",)
            raise
        finally:
            self._depth -= 1

    def _computed_include(self, line: tuple[Token, ...]) -> Include:
        expanded = self.expand(line[2:])
        if expanded:
            span = between(line[2], line[-1])
            name = string_value(expanded)
            if name:
                return Include(name, False, span)
            if expanded[0].text == "<" and expanded[-1].text == ">" and len(expanded) > 2:
                return Include(join(expanded[1:-1]).strip(), True, span)
        raise SourceError('expected "file" or <file> after #include', between(line[1], line[-1]))

    def _define(self, directive: Token, rest: tuple[Token, ...]) -> None:
        _check_valid(rest)
        if not rest or rest[0].kind != "name":
            raise SourceError("#define needs the name of the macro", directive.span)
        name, parameters, variadic, body = rest[0], None, False, rest[1:]
        if body and body[0].text == "(" and not body[0].before:
            close = next((i for i, token in enumerate(body) if token.text == ")"), None)
            if close is None:
                raise SourceError("this macro's parameter list is never closed", body[0].span)
            parameters, variadic = _parameters(body[1:close])
            body = body[close + 1 :]
        for i, token in enumerate(body):
            if token.text == "##" and i in (0, len(body) - 1):
                raise SourceError("## needs an operand on both sides", token.span)
            if token.text == "#" and parameters is not None:
                operand = body[i + 1].text if i + 1 < len(body) else ""
                if operand not in parameters:
                    raise SourceError("# must stand before a parameter of the macro", token.span)
        self.macros[name.text] = Macro(name.text, parameters, variadic, body)

    # -- conditions

    def _condition(self, directive: Token, rest: tuple[Token, ...]) -> bool:
        if directive.text.endswith("def"):
            defined = self._single_name(directive, rest) in self.macros
            return defined != directive.text.endswith("ndef")
        _check_valid(rest)
        if not rest:
            raise SourceError(f"#{directive.text} needs a condition", directive.span)
        tokens: list[Token] = []
        i = 0
        while i < len(rest):
            token = rest[i]
            if token.text == "defined":
                bracket = i + 1 < len(rest) and rest[i + 1].text == "("
                operand = i + 2 if bracket else i + 1
                i = operand + 1 if bracket else operand
                if (
                    i >= len(rest)
                    or rest[operand].kind != "name"
                    or (bracket and rest[i].text != ")")
                ):
                    raise SourceError("defined takes one name", token.span)
                value = "1" if rest[operand].text in self.macros else "0"
                tokens.append(token._replace(kind="number", text=value))
            elif token.text.startswith("__has_") and i + 1 < len(rest) and rest[i + 1].text == "(":
                i = _closing(rest, i + 1)
                value = "1" if self._has(token, rest[i]) else "0"
                tokens.append(token._replace(kind="number", text=value))
            else:
                tokens.append(token)
            i += 1
        return _Condition(self.expand(tokens), directive).value() != 0

    def _has(self, name: Token, close: Token) -> bool:
        """`__has_include` looks in the include folders; other features are taken as missing."""
        text = name.source.text[name.end : close.offset].strip().lstrip("(")
        found = _INCLUDE.match(text) if name.text == "__has_include" else None
        if not found:
            return False
        include = Include(found[1] or found[2], found[1] is None, name.span)
        return find_include(include, name.source.path, self.include_dirs) is not None

    # -- macro expansion

    def expand(self, tokens: Sequence[Token]) -> list[Token]:
        """The tokens with their macros expanded."""
        out: list[Token] = []
        pending = list(reversed(tokens))  # a stack: what stands next is at the end
        macros = self.macros
        while pending:
            token = pending.pop()
            macro = macros.get(token.text)
            if macro is None or token.kind != "name" or macro.name in token.hidden:
                out.append(token)
            elif macro.parameters is None:
                hidden = token.hidden | {macro.name}
                if macro.body:
                    pending.extend(reversed(self._substitute(macro, {}, token, hidden)))
                else:
                    pending.extend(self._dynamic(macro.name, token))
            elif pending and pending[-1].text == "(":
                arguments = self._arguments(macro, token, pending)
                hidden = token.hidden | {macro.name}
                body = self._substitute(macro, arguments, token, hidden)
                pending.extend(reversed(body))
            else:
                out.append(token)
        return out

    def _arguments(self, macro: Macro, call: Token, pending: list[Token]) -> dict[str, list[Token]]:
        """Take a call's arguments from `pending`, which stands at its opening parenthesis."""
        assert macro.parameters is not None
        pending.pop()
        arguments: list[list[Token]] = [[]]
        depth = 0
        while True:
            if not pending:
                raise SourceError(f"this call of macro {macro.name} is never closed", call.span)
            token = pending.pop()
            if token.text == ")" and depth == 0:
                break
            if token.text == "," and depth == 0:
                if not macro.variadic or len(arguments) < len(macro.parameters):
                    arguments.append([])
                    continue
            elif token.text == "(":
                depth += 1
            elif token.text == ")":
                depth -= 1
            arguments[-1].append(token)
        if arguments == [[]] and not macro.parameters:
            arguments = []
        if macro.variadic and len(arguments) == len(macro.parameters) - 1:
            arguments.append([])
        if len(arguments) != len(macro.parameters):
            raise SourceError(
                f"macro {macro.name} takes {len(macro.parameters)} arguments, "
                f"but {len(arguments)} are given",
                call.span,
            )
        return dict(zip(macro.parameters, arguments, strict=True))

    def _substitute(
        self,
        macro: Macro,
        arguments: Mapping[str, list[Token]],
        call: Token,
        hidden: frozenset[str],
    ) -> list[Token]:
        """The macro's body with its arguments put in, at the place of its call."""
        body, parameters = macro.body, macro.parameters or ()
        out: list[Token] = []
        expanded: dict[str, list[Token]] = {}
        paste = False  # the next piece is joined to the one before it, which `left` holds
        left: list[Token] = []
        i = 0
        while i < len(body):
            token = body[i]
            following = body[i + 1] if i + 1 < len(body) else None
            if token.text == "##":
                paste = True
                i += 1
                continue
            piece: list[Token]
            if token.text == "#" and following is not None and macro.parameters is not None:
                text = _stringified(arguments[following.text])
                piece = [made("string", text, token.before, call.source, call.offset, hidden)]
                i += 1
            elif token.text == "__VA_OPT__" and macro.variadic:
                close = _closing(body, i + 1)
                piece = []
                if self._argument(arguments[parameters[-1]], call):
                    inner = Macro(macro.name, parameters, True, body[i + 2 : close])
                    piece = self._substitute(inner, arguments, call, hidden)
                i = close
            elif token.text in arguments:
                raw = arguments[token.text]
                if paste or (following is not None and following.text == "##"):
                    piece = raw
                else:
                    if token.text not in expanded:
                        expanded[token.text] = self._argument(raw, call)
                    piece = expanded[token.text]
                if piece and piece[0].before != token.before:
                    piece = [piece[0]._replace(before=token.before), *piece[1:]]
            else:
                kind, text, before = token[:3]
                piece = [made(kind, text, before, call.source, call.offset, token.hidden)]
            if not paste:
                out.extend(piece)
                left = piece
            elif left and left[-1].text == "," and macro.variadic and token.text == parameters[-1]:
                # GNU's `, ##__VA_ARGS__`: the comma goes where there are no further arguments
                if piece:
                    out.extend(self._argument(piece, call))
                else:
                    out.pop()
            elif left and piece:
                out[-1] = _pasted(out[-1], piece[0], call)
                out.extend(piece[1:])
                left = piece
            else:
                out.extend(piece)
                left = left or piece
            paste = False
            i += 1
        if out:
            out[0] = out[0]._replace(before=call.before)
        self._made += len(out)
        if self._made > _MAX_TOKENS:
            raise SourceError(f"macro {macro.name} expands without end", call.span)
        for i, token in enumerate(out):
            if token.kind == "name":
                kind, text, before, source, offset, old = token
                out[i] = made(kind, text, before, source, offset, old | hidden if old else hidden)
        return out

    def _argument(self, tokens: list[Token], call: Token) -> list[Token]:
        """An argument of a macro call, expanded by itself."""
        self._call_depth += 1
        if self._call_depth > _MAX_DEPTH:
            raise SourceError("macro calls are nested too deeply", call.span)
        expanded = self.expand(tokens)
        self._call_depth -= 1
        return expanded

    def _dynamic(self, name: str, call: Token) -> list[Token]:
        """`__LINE__` and the like, which change with the place of the call."""
        if name == "__LINE__":
            return [call._replace(kind="number", text=str(call.span.line))]
        if name == "__FILE__":
            return [call._replace(kind="string", text=f'"{call.source.path}"')]
        if name == "__COUNTER__":
            self._counter += 1
            return [call._replace(kind="number", text=str(self._counter - 1))]
        return []


def _check_valid(tokens: Iterable[Token]) -> None:
    for token in tokens:
        if token.kind == "invalid":
            refuse_invalid(token)


def _parameters(tokens: Sequence[Token]) -> tuple[tuple[str, ...], bool]:
    """A macro's parameters (between its parentheses), and whether the last is variadic."""
    names: list[str] = []
    variadic = False
    for i, token in enumerate(tokens):
        if i % 2 == 1 and not variadic and token.text == "...":
            variadic = True  # GNU's named variadic parameter, `args...`
        elif i % 2 == 1 and token.text == "," and i + 1 < len(tokens) and not variadic:
            continue
        elif i % 2 == 0 and token.text == "..." and i + 1 == len(tokens):
            names.append("__VA_ARGS__")
            variadic = True
        elif i % 2 == 0 and token.kind == "name" and token.text not in names:
            names.append(token.text)
        else:
            raise SourceError("cannot read this macro's parameter list", token.span)
    return tuple(names), variadic


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """The index of the parenthesis that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(tokens)):
        depth += (tokens[i].text == "(") - (tokens[i].text == ")")
        if depth == 0:
            if i == opening:
                break
            return i
    raise SourceError("expected a pair of parentheses", tokens[min(opening, len(tokens) - 1)].span)


def _stringified(argument: Sequence[Token]) -> str:
    """What `#` makes of an argument: a string literal of its text."""
    pieces = []
    for i, token in enumerate(argument):
        text = token.text
        if token.kind in ("string", "character"):
            text = text.replace("\\", "\\\\").replace('"', '\\"')
        pieces.append(" " + text if i and token.before else text)
    return '"' + "".join(pieces) + '"'


def _pasted(left: Token, right: Token, call: Token) -> Token:
    """What `##` makes of two tokens, which must be one token again."""
    tokens = lex(call.source.path, left.text + right.text).tokens
    if len(tokens) != 1 or tokens[0].kind == "invalid":
        raise SourceError(
            f"## joins {left.text!r} and {right.text!r}, which is not one token", call.span
        )
    return left._replace(kind=tokens[0].kind, text=tokens[0].text)


class _Condition:
    """Evaluates the expanded tokens of an `#if`: C's integer expressions."""

    def __init__(self, tokens: Sequence[Token], directive: Token) -> None:
        self._tokens = list(tokens)
        self._directive = directive
        self._i = 0
        self._depth = 0
        self._dead = 0  # inside operands that && || ?: do not evaluate

    def value(self) -> int:
        """The value of the whole expression."""
        value = self._ternary()
        if self._i < len(self._tokens):
            raise self._error("cannot read the condition from here")
        return value

    def _error(self, message: str) -> SourceError:
        token = self._tokens[self._i] if self._i < len(self._tokens) else self._directive
        return SourceError(message, token.span)

    def _next(self) -> str:
        """The next token's text, or "" at the end; the two tokens of `>>` as one."""
        texts = [token.text for token in self._tokens[self._i : self._i + 2]]
        if texts == [">", ">"] and not self._tokens[self._i + 1].before:
            return ">>"
        return texts[0] if texts else ""

    def _accept(self, text: str) -> bool:
        if self._next() != text:
            return False
        self._i += len(text) if text == ">>" else 1
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(f"expected {text!r} in the condition")

    def _ternary(self) -> int:
        value = self._binary(0)
        if self._accept("?"):
            holds = value != 0
            self._dead += not holds
            yes = self._ternary()
            self._dead -= not holds
            self._expect(":")
            self._dead += holds
            no = self._ternary()
            self._dead -= holds
            value = yes if holds else no
        return value

    def _binary(self, floor: int) -> int:
        left = self._operand()
        while (operator := self._next()) and _PRECEDENCE.get(operator, 0) > floor:
            self._accept(operator)
            skipped = (operator == "&&" and not left) or (operator == "||" and left != 0)
            self._dead += skipped
            right = self._binary(_PRECEDENCE[operator])
            if operator in ("/", "%") and right == 0:
                if not self._dead:
                    raise SourceError("division by zero in the condition", self._directive.span)
                left = 0
            elif operator in ("<<", ">>") and not 0 <= right < 64:
                raise SourceError("cannot shift that far in a condition", self._directive.span)
            else:
                left = int(_APPLY[operator](left, right))
            self._dead -= skipped
        return left

    def _operand(self) -> int:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error("this condition is nested too deeply")
        if self._accept("("):
            value = self._ternary()
            self._expect(")")
        elif self._accept("!") or self._accept("not"):
            value = int(not self._operand())
        elif self._accept("-"):
            value = -self._operand()
        elif self._accept("~"):
            value = ~self._operand()
        elif self._accept("+"):
            value = self._operand()
        else:
            value = self._number()
        self._depth -= 1
        return value

    def _number(self) -> int:
        if self._i >= len(self._tokens):
            raise self._error("the condition ends too early")
        token = self._tokens[self._i]
        number = _integer(token)
        if number is None:
            raise self._error(f"{token.text} cannot stand in a condition")
        self._i += 1
        if token.kind == "name" and self._next() == "(":
            raise SourceError(f"{token.text} is not a macro that the files read define", token.span)
        return number


def _divided(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_APPLY: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: a != 0 or b != 0,
    "&&": lambda a, b: a != 0 and b != 0,
    "|": operators.or_,
    "^": operators.xor,
    "&": operators.and_,
    "==": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    ">": operators.gt,
    "<=": operators.le,
    ">=": operators.ge,
    "<<": operators.lshift,
    ">>": operators.rshift,
    "+": operators.add,
    "-": operators.sub,
    "*": operators.mul,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
}
_LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
_PRECEDENCE = {text: n for n, level in enumerate(_LEVELS, 1) for text in level.split()}

_INTEGER = re.compile(
    r"(0[xX][\da-fA-F]{1,16}|0[bB][01]{1,64}|0[0-7]{0,22}|[1-9]\d{0,18})[uU]?[lLzZ]{0,2}[uU]?$"
)


def _integer(token: Token) -> int | None:
    """The value of a token in a condition: names that are no macros are 0."""
    if token.kind == "name":
        return int(token.text == "true")
    if token.kind == "character":
        text = token.text.strip("'")
        return ord(text) if len(text) == 1 else None
    found = _INTEGER.match(token.text.replace("'", "")) if token.kind == "number" else None
    if not found:
        return None
    digits = found[1]
    return int(digits, 8) if digits.isdigit() and digits[0] == "0" else int(digits, 0)
