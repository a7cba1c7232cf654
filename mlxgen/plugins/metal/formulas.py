"""Finds formulas of sizes that give the numbers of all recorded calls.

A formula is the simplest of a few kinds: a constant, a size, a multiple, a quotient that is rounded
up, a bound, a sum, and products of these. With a single call every number is a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

Numbers = tuple[int, ...]  # one for each call
_POWERS = tuple(2**i for i in range(1, 11))  # usual divisors: threads and elements per thread
_MOST_FACTORS = 40


@dataclass
class Sizes:
    """The sizes that differ between calls.

    Attributes:
        named: Their names, with the numbers.
        divisors: Further divisors for quotients, such as numbers of threads.
    """

    named: dict[str, Numbers] = field(default_factory=dict)
    divisors: set[int] = field(default_factory=set)

    def formula(self, numbers: Numbers, *, axis: bool = False) -> str | None:
        """Return a formula for the numbers; None if there is none.

        Args:
            numbers: The number of each call.
            axis: The formula is an axis: of names of sizes, without functions and blanks.
        """
        if len(set(numbers)) == 1:
            return str(numbers[0])
        formulas = self._formulas(numbers, axis)
        found = next((text for text, own in formulas if own == numbers), None)
        if found is None and not axis:
            found = self._bounded(numbers)
        return found.replace(" ", "") if found and axis else found

    def _formulas(self, numbers: Numbers, axis: bool) -> Iterator[tuple[str, Numbers]]:
        """Yield formulas that may give the numbers, simple ones first."""
        named = [(text, own) for text, own in self.named.items() if text.isidentifier() or not axis]
        yield from named
        for text, own in named:
            yield from _scaled(text, own, numbers)
        rounded = [*self._rounded(named)]
        factors = (named + rounded)[:_MOST_FACTORS]
        yield from rounded
        for (one, a), (other, b) in combinations_with_replacement(named, 2):
            yield f"{one} + {other}", tuple(map(sum, zip(a, b, strict=True)))
        for text, own in named:
            more = numbers[0] - own[0]
            yield f"{text} {'+' if more > 0 else '-'} {abs(more)}", tuple(n + more for n in own)
        for count in (2, 3):
            for chosen in combinations_with_replacement(factors, count):
                text = " * ".join(_factor(text) for text, _ in chosen)
                yield from _scaled(text, _product(own for _, own in chosen), numbers)
        for text, own in rounded:
            yield from _scaled(_factor(text), own, numbers)

    def _rounded(self, named: Iterable[tuple[str, Numbers]]) -> Iterator[tuple[str, Numbers]]:
        for text, own in named:
            for k in sorted({*_POWERS, *self.divisors}):
                up = tuple((n + k - 1) // k for n in own)
                if k > 1 and len(set(up)) > 1:
                    yield f"({text} + {k - 1}) // {k}", up

    def _bounded(self, numbers: Numbers) -> str | None:
        for text, own in self.named.items():
            for function, bound in (("min", max(numbers)), ("max", min(numbers))):
                chosen = min if function == "min" else max
                if numbers == tuple(chosen(n, bound) for n in own):
                    return f"{function}({text}, {bound})"
        return None


def _product(numbers: Iterable[Numbers]) -> Numbers:
    found: Numbers = ()
    for own in numbers:
        found = tuple(a * b for a, b in zip(found, own, strict=True)) if found else own
    return found


def _scaled(text: str, own: Numbers, numbers: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Yield a formula times a constant, or divided by one without a remainder."""
    first, wanted = own[0], numbers[0]
    if first == 0 or wanted == 0:
        return
    if wanted % first == 0:
        k = wanted // first
        yield f"{k} * {text}" if k > 1 else text, tuple(k * n for n in own)
    elif first % wanted == 0 and all(n % (first // wanted) == 0 for n in own):
        k = first // wanted
        yield f"{text} // {k}", tuple(n // k for n in own)


def _factor(text: str) -> str:
    return f"({text})" if " " in text else text
