"""Finds formulas of sizes that give the numbers of all recorded calls.

A formula is the simplest of a few kinds: a constant, a size, a multiple, a product, and for three
different numbers also a quotient that is rounded up, a sum or a bound. With a single call every
number is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import NamedTuple

Numbers = tuple[int, ...]  # one for each call
_POWERS = tuple(2**i for i in range(1, 11))  # usual divisors: threads and elements per thread
_MOST_FACTORS = 40
_ENOUGH = 3  # different numbers; two are often a sum or a rounded quotient by chance


class Formula(NamedTuple):
    """A formula and its numbers.

    Attributes:
        text: The formula.
        numbers: Its number in each call.
        whole: It is a name, a number or a call, which needs no brackets as an operand.
        constant: The number, if it is one.
    """

    text: str
    numbers: Numbers
    whole: bool = True
    constant: int | None = None

    @property
    def operand(self) -> str:
        """The formula as an operand."""
        return self.text if self.whole else f"({self.text})"


@dataclass
class Sizes:
    """The sizes that differ between calls.

    Attributes:
        named: Their names, with the numbers.
        more: Further sizes, such as `x.size`, which axes cannot contain.
        divisors: Further divisors for quotients, such as numbers of threads.
    """

    named: dict[str, Numbers] = field(default_factory=dict)
    more: dict[str, Numbers] = field(default_factory=dict)
    divisors: set[int] = field(default_factory=set)

    def formula(self, numbers: Numbers, *, axis: bool = False) -> Formula | None:
        """Return a formula for the numbers; None if there is none.

        Args:
            numbers: The number of each call.
            axis: The formula is an axis: of names of sizes, without functions and spaces.
        """
        if len(set(numbers)) == 1:
            return Formula(str(numbers[0]), numbers, constant=numbers[0])
        given = self.named if axis else self.named | self.more
        sizes = [Formula(text, own) for text, own in given.items()]
        search = _Search(numbers, sizes, self.divisors, "" if axis else " ")
        formulas = search.formulas() if axis else search.with_bounds()
        return next((formula for formula in formulas if formula.numbers == numbers), None)


class _Search(NamedTuple):
    """The search for a formula; `space` is around its operators."""

    numbers: Numbers
    sizes: Sequence[Formula]
    divisors: set[int]
    space: str

    def formulas(self) -> Iterator[Formula]:
        """Yield formulas that may give the numbers, simple ones first."""
        yield from self.sizes
        for size in self.sizes:
            yield from self._scaled(size)
        rounded: list[Formula] = []
        if self._are_enough:
            rounded += (f for size in self.sizes for f in self._rounded(size))
            yield from rounded
            for a, b in combinations_with_replacement(self.sizes, 2):
                yield self._joined("+", a.text, b.text, _sums(a.numbers, b.numbers))
            for size in self.sizes:
                more = self.numbers[0] - size.numbers[0]
                numbers = tuple(n + more for n in size.numbers)
                yield self._joined("+" if more > 0 else "-", size.text, str(abs(more)), numbers)
        factors = [*self.sizes, *rounded][:_MOST_FACTORS]
        for count in (2, 3):
            for chosen in combinations_with_replacement(factors, count):
                product = chosen[0]
                for factor in chosen[1:]:
                    own = zip(product.numbers, factor.numbers, strict=True)
                    numbers = tuple(a * b for a, b in own)
                    left = product.text if product is not chosen[0] else product.operand
                    product = self._joined("*", left, factor.operand, numbers)
                yield from self._scaled(product, is_product=True)
        for quotient in rounded:
            yield from self._scaled(quotient)

    def with_bounds(self) -> Iterator[Formula]:
        """Yield the formulas, and then minima and maxima."""
        yield from self.formulas()
        for size in self.sizes if self._are_enough else ():
            least, most = min(self.numbers), max(self.numbers)
            yield Formula(f"min({size.text}, {most})", tuple(min(n, most) for n in size.numbers))
            yield Formula(f"max({size.text}, {least})", tuple(max(n, least) for n in size.numbers))

    @property
    def _are_enough(self) -> bool:
        return len(set(self.numbers)) >= _ENOUGH

    def _joined(self, operator: str, left: str, right: str, numbers: Numbers) -> Formula:
        return Formula(f"{left}{self.space}{operator}{self.space}{right}", numbers, False)

    def _rounded(self, size: Formula) -> Iterator[Formula]:
        """Yield quotients of a size that are rounded up."""
        for k in sorted({*_POWERS, *self.divisors}):
            up = tuple((n + k - 1) // k for n in size.numbers)
            if k > 1 and len(set(up)) > 1:
                more = self._joined("+", size.text, str(k - 1), size.numbers)
                yield self._joined("//", more.operand, str(k), up)

    def _scaled(self, of: Formula, *, is_product: bool = False) -> Iterator[Formula]:
        """Yield a formula times a constant, or divided by one without a remainder."""
        first, wanted = of.numbers[0], self.numbers[0]
        text = of.text if is_product else of.operand
        if first == 0 or wanted == 0:
            return
        if wanted == first:
            yield of
        elif wanted % first == 0:
            k = wanted // first
            yield self._joined("*", str(k), text, tuple(k * n for n in of.numbers))
        elif first % wanted == 0 and all(n % (first // wanted) == 0 for n in of.numbers):
            k = first // wanted
            yield self._joined("//", text, str(k), tuple(n // k for n in of.numbers))


def _sums(a: Numbers, b: Numbers) -> Numbers:
    return tuple(map(sum, zip(a, b, strict=True)))
