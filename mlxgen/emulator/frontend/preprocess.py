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

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .conditions import MAX_DEPTH, Condition
from .includes import INCLUDE, Include, find_include, include_of, missing_include
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

_MAX_TOKENS = 2_000_000  # made by macros in one file; more are macros that double each other


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
            if self._depth > MAX_DEPTH:
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
        return Condition(self.expand(tokens), directive).value() != 0

    def _has(self, name: Token, close: Token) -> bool:
        """`__has_include` looks in the include folders; other features are taken as missing."""
        text = name.source.text[name.end : close.offset].strip().lstrip("(")
        found = INCLUDE.match(text) if name.text == "__has_include" else None
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
            if token.text == "##":
                paste = True
                i += 1
                continue
            following = body[i + 1] if i + 1 < len(body) else None
            joined = paste or (following is not None and following.text == "##")
            piece, i = self._piece(macro, arguments, call, hidden, i, None if joined else expanded)
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

    def _piece(
        self,
        macro: Macro,
        arguments: Mapping[str, list[Token]],
        call: Token,
        hidden: frozenset[str],
        i: int,
        expanded: dict[str, list[Token]] | None,
    ) -> tuple[list[Token], int]:
        """What the token `i` of a macro's body stands for, and the last token that it took.

        `expanded`: arguments that have been; None beside `##`, which takes them as written.
        """
        body, parameters = macro.body, macro.parameters or ()
        token = body[i]
        following = body[i + 1] if i + 1 < len(body) else None
        if token.text == "#" and following is not None and macro.parameters is not None:
            text = _stringified(arguments[following.text])
            return [made("string", text, token.before, call.source, call.offset, hidden)], i + 1
        if token.text == "__VA_OPT__" and macro.variadic:
            close = _closing(body, i + 1)
            if not self._argument(arguments[parameters[-1]], call):
                return [], close
            inner = Macro(macro.name, parameters, True, body[i + 2 : close])
            return self._substitute(inner, arguments, call, hidden), close
        if token.text not in arguments:
            kind, text, before = token[:3]
            return [made(kind, text, before, call.source, call.offset, token.hidden)], i
        piece = arguments[token.text]
        if expanded is not None:
            if token.text not in expanded:
                expanded[token.text] = self._argument(piece, call)
            piece = expanded[token.text]
        if piece and piece[0].before != token.before:
            piece = [piece[0]._replace(before=token.before), *piece[1:]]
        return piece, i

    def _argument(self, tokens: list[Token], call: Token) -> list[Token]:
        """An argument of a macro call, expanded by itself."""
        self._call_depth += 1
        if self._call_depth > MAX_DEPTH:
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
