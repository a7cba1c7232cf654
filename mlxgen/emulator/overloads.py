"""Overloads that differ by address spaces alone, alike in C++: the second one goes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .frontend.metal import MetalScanner
from .frontend.tokens import Token

DROPPED = frozenset({"device", "thread", "threadgroup"})
SPACES = DROPPED | {"constant"}


class Overloads(MetalScanner):
    """Reads one translation unit and finds functions that become the same."""

    def __init__(self, tokens: Sequence[Token], unit: str) -> None:
        super().__init__(tokens, unit)
        # what takes a token's place; the token itself where there is nothing
        self._new: dict[int, str] = {}
        self._skipped: list[tuple[int, int]] = []
        self._in_class = False

    def _skip(self, start: int, stop: int) -> None:
        self._skipped.append((start, stop))

    def _scope_of_tokens(self, i: int, stop: int) -> None:
        """Remove the second of two functions that became the same, in one scope."""
        seen: dict[str, tuple[int, str]] = {}
        while i < stop:
            i = self._member(i, stop, seen)

    def _member(self, i: int, stop: int, seen: dict[str, tuple[int, str]]) -> int:
        texts = self.texts
        start = i
        is_class = has_parameters = has_value = False
        last_paren = -1
        while i < stop:
            text = texts[i]
            if text == ";":
                return i + 1
            if text == ":" and texts[i - 1] in ("public", "private", "protected"):
                return i + 1
            if text == "namespace":
                j = self.find(i, stop, "{", ";")
                if self.text(j) == "{":
                    self._scope_of_tokens(j + 1, self.partner[j])
                    return self.partner[j] + 1
                return j + 1
            if text == "=" and not has_parameters and texts[i - 1] != "operator":
                has_value = True
            if text in ("struct", "class", "union") and not has_parameters:
                is_class = True
            if text == "enum":
                j = self.find(i, stop, "{", ";")
                if self.text(j) == "{":
                    return self.semicolon(j, stop)
                return j + 1
            if text == "template" and self.text(i + 1) == "<":
                i = self._over_template(i)
                continue
            if text == "(" and not has_value:
                has_parameters = has_parameters or not is_class or texts[i - 1] != "alignas"
                last_paren = self.partner[i]
                i = last_paren + 1
                if is_class and texts[i - 1] == ")" and self.text(i) in ("{", ";"):
                    is_class = False
                continue
            if text == ":" and has_parameters and last_paren >= 0:
                i = self._over_initialisers(i + 1, stop)
                self._found(start, last_paren + 1, self.partner[i] + 1, seen)
                return self.partner[i] + 1
            if text == "{":
                if has_value:
                    i = self.partner[i] + 1
                    continue
                if is_class and not has_parameters:
                    outer, self._in_class = self._in_class, True
                    self._scope_of_tokens(i + 1, self.partner[i])
                    self._in_class = outer
                    i = self.partner[i] + 1
                    continue
                if has_parameters:
                    self._found(start, last_paren + 1, self.partner[i] + 1, seen)
                    return self.partner[i] + 1
                i = self.partner[i] + 1
                continue
            i = self.over(i)
        return stop

    def _over_initialisers(self, i: int, stop: int) -> int:
        """The index of the `{` of a constructor's body."""
        while i < stop:
            while i < stop and self.texts[i] not in ("(", "{"):
                i = self.over(i)
            i = self.partner[i] + 1
            if self.text(i) == ",":
                i += 1
                continue
            if self.text(i) == "{":
                return i
            raise self.error("cannot read this constructor", i)
        raise self.error("cannot read this constructor", i)

    def _found(self, start: int, tail: int, end: int, seen: dict[str, tuple[int, str]]) -> None:
        """A function definition, whose parameters end at `tail`."""
        key = self._normal(start, tail)
        key = re.sub(r"^(?:(?:inline|static|constexpr) )*", "", key)
        key += " const" if "const" in self.texts[tail : tail + 2] else ""
        rest = self._normal(tail, end)
        if key not in seen:
            seen[key] = (start, rest)
            return
        first, other = seen[key]
        if not any(text in SPACES for text in self.texts[start:tail]) and not any(
            text in SPACES for text in self.texts[tail : tail + 2]
        ):
            return  # the compiler says what is wrong with it
        if rest != other:
            place = self.tokens[first].span
            raise self.error(
                "this function differs from another one by address spaces only, and does "
                f"something else ({place.file}:{place.line}); the emulation cannot tell them apart",
                start,
            )
        self._skip(start, end)

    def _normal(self, start: int, stop: int) -> str:
        """The tokens as C++ will see them."""
        out = []
        for i in range(start, stop):
            text = self._new.get(i, self.texts[i])
            if self.texts[i] in SPACES and text != "const":
                continue
            if text:
                out.append(text)
        return " ".join(out)

    def _over_template(self, i: int) -> int:
        """The index behind the parameters of the `template` at `i`."""
        if self.text(i + 2) == ">" and self._in_class:
            # gcc takes explicit specialisations at namespace scope only; as a function
            # that is no template this one is preferred as well
            self._new[i] = self._new[i + 1] = self._new[i + 2] = ""
        close = self.angle(i + 1)
        if close is None:
            raise self.error("this template parameter list is never closed", i + 1)
        return close + 1
