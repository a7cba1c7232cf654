"""The conditions of `#if`: C's integer expressions."""

from __future__ import annotations

import operator as operators
import re
from collections.abc import Callable, Sequence

from .tokens import SourceError, Token

MAX_DEPTH = 64  # of includes, macro calls and conditions; deeper is a cycle or not written by hand


class Condition:
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
        if self._depth > MAX_DEPTH:
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
