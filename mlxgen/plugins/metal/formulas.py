"""Finds formulas of sizes that give the numbers of all recorded calls.

Candidates come in four groups: sizes, their products and ratios, formulas with constants of the
kernel, and formulas with other constants. The simplest candidate of the first group that has one
is the formula. Notes name what the calls leave open: another candidate of the group that gives the
numbers of these calls but not of all, or a formula that only two different numbers support.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations_with_replacement, islice, permutations, product

Numbers = tuple[int, ...]  # one for each call
Point = Mapping[str, float]  # the sizes of a call, by name

_USUAL = {1, 2, 32}  # constants that need no explanation: a simdgroup has 32 threads
_POWERS = tuple(2**i for i in range(2, 11))  # usual divisors: threads and elements per thread
_MOST_COST = {2: 4.0, 3: 5.5}  # by the count of different numbers; the last one for more
ENOUGH = 3  # different numbers; two are often a sum or a bound by chance
_CLOSE = 0.5  # a difference of costs that decides nothing
_MOST_NOTED = 2


@dataclass(slots=True, eq=False)
class Formula:
    """A formula of sizes.

    Attributes:
        text: The formula.
        at: Returns its number for sizes. A quotient without a remainder is not rounded.
        cost: A measure of its complexity.
        kind: "size" for a name, number or call, "product", or "" for others.
        constant: The number, if it is one.
        exact: Dividends and divisors that must have no remainder.
        notes: What the calls leave open.
    """

    text: str
    at: Callable[[Point], float]
    cost: float = 1.0
    kind: str = "size"
    constant: int | None = None
    exact: tuple[tuple[Formula, Formula], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def operand(self) -> str:
        """The formula as an operand."""
        return self.text if self.kind == "size" else f"({self.text})"

    @property
    def factor(self) -> str:
        """The formula as a factor."""
        return self.text if self.kind else f"({self.text})"


def size(name: str) -> Formula:
    """Return a size."""
    return Formula(name, lambda point: point[name])


def constant(value: int, cost: float = 1.0) -> Formula:
    """Return a constant."""
    return Formula(str(value), lambda point: value, cost, constant=value)


def times(*factors: Formula) -> Formula:
    """Return a product."""

    def at(point: Point) -> float:
        return math.prod(factor.at(point) for factor in factors)

    text = " * ".join(factor.factor for factor in factors)
    cost = sum(factor.cost for factor in factors)
    exact = tuple(chain.from_iterable(factor.exact for factor in factors))
    return Formula(text, at, cost, "product", exact=exact)


def over(a: Formula, b: Formula) -> Formula:
    """Return a quotient without a remainder."""

    def at(point: Point) -> float:
        return a.at(point) / (b.at(point) or math.nan)

    exact = (*a.exact, *b.exact, (a, b))
    return Formula(f"{a.factor} // {b.operand}", at, a.cost + b.cost + 0.5, "", exact=exact)


def rounded_up(a: Formula, b: Formula) -> Formula:
    """Return a quotient that is rounded up."""

    def at(point: Point) -> float:
        found = a.at(point) / (b.at(point) or math.nan)
        return math.ceil(found) if math.isfinite(found) else found

    more = b.constant - 1 if b.constant else f"{b.operand} - 1"
    cost = a.cost + b.cost + (1.25 if b.constant == 2 else 0.75)  # halves are seldom rounded
    return Formula(f"({a.text} + {more}) // {b.operand}", at, cost, "")


def rounded_down(a: Formula, b: Formula) -> Formula:
    """Return a quotient that is rounded down."""

    def at(point: Point) -> float:
        return a.at(point) // (b.at(point) or math.nan)

    return replace(over(a, b), at=at, exact=())


def multiple(a: Formula, b: Formula) -> Formula:
    """Return a formula, rounded up to a multiple of another one."""
    up = rounded_up(a, b)
    return replace(times(b, up), cost=up.cost)


def plus(a: Formula, sign: str, b: Formula) -> Formula:
    """Return a sum, or a difference for the sign `-`."""
    k, text = -1 if sign == "-" else 1, f"{a.text} {sign} {b.operand}"
    return Formula(text, lambda p: a.at(p) + k * b.at(p), a.cost + b.cost + 0.75, "")


def bound(name: str, a: Formula, b: Formula) -> Formula:
    """Return a minimum or a maximum."""
    of = min if name == "min" else max
    cost = a.cost + b.cost + 0.75
    return Formula(f"{name}({a.text}, {b.text})", lambda p: of(a.at(p), b.at(p)), cost)


@dataclass
class Sizes:
    """The sizes that differ between calls.

    Attributes:
        count: The number of calls.
        named: The axes and integer arguments, with their numbers.
        hidden: Sizes without a name, on which formulas of `more` depend.
        more: Formulas that an axis cannot contain, such as `x.size`.
        known: The constants that the source, the threadgroups and the template contain.
    """

    count: int
    named: dict[str, Numbers] = field(default_factory=dict)
    hidden: dict[str, Numbers] = field(default_factory=dict)
    more: list[Formula] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    def formula(
        self, numbers: Numbers, *, axis: bool = False, simple: bool = False, grid: bool = False
    ) -> Formula | None:
        """Return a formula for the numbers; None if there is none.

        Args:
            numbers: The number of each call.
            axis: The formula is an axis: of names of sizes, without functions.
            simple: The formula has no constants.
            grid: The numbers are threads, whose number is often rounded up.
        """
        different = len(set(numbers))
        if different == 1:
            return self._constant(numbers, grid)
        most = _MOST_COST.get(different, max(_MOST_COST.values()))
        groups = _Search(self, numbers, axis).groups()
        for group, candidates in enumerate(islice(groups, 2 if simple else None)):
            fitting = self._fitting((f for f in candidates if f.cost <= most), numbers)
            if fitting:
                found, *others = sorted(fitting, key=lambda f: f.cost)
                near = [f for f in others if f.cost <= found.cost + _CLOSE]
                notes = self._notes(found, near)
                if group > 1 and different < ENOUGH and not notes:
                    notes = ("only two different numbers support it; a third one confirms it",)
                return replace(found, notes=notes, exact=self._exact(found))
        return None

    def ratio(self, value: int) -> Formula | None:
        """Return the ratio of two sizes that has this value in all calls."""
        ratios = (over(a, b) for a, b in permutations(map(size, self.named), 2))
        return next(iter(self._fitting(ratios, (value,) * self.count)), None)

    def _constant(self, numbers: Numbers, grid: bool) -> Formula:
        found = constant(numbers[0])
        others = []
        if numbers[0] > 1 and (ratio := self.ratio(numbers[0])):
            others = [ratio]
        elif grid and numbers[0] in self.known - _USUAL:  # perhaps a single threadgroup
            others = self._fitting((multiple(size(n), found) for n in self.named), numbers)[-1:]
        return replace(found, notes=self._notes(found, others))

    def _exact(self, formula: Formula) -> tuple[tuple[Formula, Formula], ...]:
        """Return the divisions of a formula that can have a remainder: not `x.size // H`."""
        tries = self._tries(math.ceil)
        return tuple(
            (a, b) for a, b in formula.exact if any(a.at(point) % b.at(point) for point in tries)
        )

    def _fitting(self, candidates: Iterable[Formula], numbers: Numbers) -> list[Formula]:
        """Return the formulas that give the numbers."""
        pairs = list(zip(self.points(), numbers, strict=True))
        return [f for f in candidates if all(f.at(point) == n for point, n in pairs)]

    def points(self) -> list[Point]:
        """Return the sizes of each call."""
        sizes = self.named | self.hidden
        return [{name: numbers[i] for name, numbers in sizes.items()} for i in range(self.count)]

    def _notes(self, found: Formula, others: Sequence[Formula]) -> tuple[str, ...]:
        """Return notes about others that differ from the formula, and from each other."""
        tries = self._tries(float)

        def key(formula: Formula) -> tuple[str, ...]:
            return tuple(f"{formula.at(point):.9g}" for point in tries)

        different = {key(f): f for f in reversed([found, *others])}  # the first of equal ones
        del different[key(found)]
        chosen = sorted(different.values(), key=lambda f: f.cost)[:_MOST_NOTED]
        return tuple(f"it can also be `{f.text}`; {self._deciding(found, f)}" for f in chosen)

    def _tries(self, of: Callable[[float], float]) -> list[Point]:
        """Return random sizes of a few calls."""
        draw, names = random.Random(0), [*self.named, *self.hidden]
        return [{name: of(math.exp(draw.uniform(1, 8))) for name in names} for _ in range(20)]

    def _deciding(self, a: Formula, b: Formula) -> str:
        """Name a call with one other size for which two formulas differ."""
        first, *_ = self.points()
        for whole in (True, False):
            for name, numbers in self.named.items():
                n = numbers[0]
                for value in sorted(
                    {n + 1, n + 2, 2 * n, 3 * n, max(numbers) + 1, 1025} - {*numbers}
                ):
                    x, y = (f.at({**first, name: value}) for f in (a, b))
                    if x != y and min(x, y) > 0 and ((x == int(x) and y == int(y)) or not whole):
                        return f"a call with {name} = {value} decides"
        return "a call with other sizes decides"


class _Search:
    """The candidates for the numbers of calls."""

    def __init__(self, sizes: Sizes, numbers: Numbers, axis: bool) -> None:
        self.numbers = numbers
        self.first = sizes.points()[0]
        self.named = [size(name) for name in sizes.named]
        self.sizes = self.named + ([] if axis else sizes.more)
        self.known = [constant(k) for k in sorted((sizes.known | _USUAL) - {1})]
        self.has_bounds = not axis
        self.are_enough = len(set(numbers)) >= ENOUGH

    def groups(self) -> Iterator[Iterable[Formula]]:
        """Yield the groups of candidates."""
        yield self.sizes
        pairs = [times(*two) for two in combinations_with_replacement(self.named, 2)]
        more = self.sizes[len(self.named) :]
        self.dividends = self.sizes + pairs
        self.products = pairs + [times(a, b) for a in self.named for b in more]
        self.products += [over(a, b) for a in self.dividends for b in self.named + pairs if a != b]
        self.products += [times(*three) for three in combinations_with_replacement(self.named, 3)]
        yield self.products
        yield self._explained()
        yield self._unexplained()

    def _explained(self) -> Iterator[Formula]:
        """Yield formulas whose constants the kernel contains."""
        factors = self.named + self.known + [times(k, a) for k in self.known for a in self.named]
        rounded = [*self._rounded([*self.known, *self.sizes], factors)]
        yield from rounded
        constants = {k.constant: k for k in self.known}
        for of in self.sizes + self.products + rounded:
            yield from self._scaled(of, constants.get)
        one = constant(1, 0.5)
        for a in self.sizes:
            for k in (one, *(self.known if self.are_enough else ())):
                yield from (plus(a, "+", k), plus(a, "-", k))
        for a, b in permutations(self.sizes, 2):
            total, rest = plus(a, "+", b), plus(a, "-", b)
            yield from (total, plus(total, "-", one), rest, plus(rest, "+", one))
            yield from (plus(rounded_down(rest, k), "+", one) for k in self.known)
        yield from self._bounds([*self.known, *self.sizes])

    def _unexplained(self) -> Iterator[Formula]:
        """Yield formulas whose constants only the numbers explain."""
        for of in self.sizes + self.products:
            yield from self._scaled(of, _unexplained)
        if self.are_enough:
            yield from self._rounded([*map(_unexplained, _POWERS)], self.named)
            for a in self.sizes:
                more = int(self.numbers[0] - a.at(self.first))
                yield plus(a, "+" if more > 0 else "-", _unexplained(abs(more)))
            extremes = (max(self.numbers), min(self.numbers))
            yield from self._bounds([*map(_unexplained, extremes)])

    def _rounded(self, by: Sequence[Formula], factors: Sequence[Formula]) -> Iterator[Formula]:
        """Yield quotients that are rounded up, multiples, and products of quotients and factors."""
        found: dict[float, list[Formula]] = {}
        for factor in factors:
            found.setdefault(factor.at(self.first), []).append(factor)
        for a, b in product(self.dividends, by):
            if a != b:
                up = rounded_up(a, b)
                yield from (up, multiple(a, b))
                needed = self.numbers[0] / (up.at(self.first) or math.nan)
                yield from (times(factor, up) for factor in found.get(needed, ()))

    def _scaled(self, of: Formula, known: Callable[[int], Formula | None]) -> Iterator[Formula]:
        """Yield a formula times a constant, or divided by one without a remainder."""
        wanted, value = self.numbers[0], of.at(self.first)
        if wanted > 0 and value > 0:
            if wanted % value == 0 and (k := known(int(wanted // value))):
                (a, b), *_ = of.exact or [(of, None)]
                yield over(times(k, a), b) if b else times(k, a)  # `2 * B // H`
            elif value % wanted == 0 and (k := known(int(value // wanted))):
                yield over(of, k)

    def _bounds(self, bounds: Sequence[Formula]) -> Iterator[Formula]:
        """Yield minima and maxima."""
        for a, b in product(self.sizes, bounds) if self.has_bounds else ():
            if a != b:
                yield from (bound("min", a, b), bound("max", a, b))


def _unexplained(value: int) -> Formula:
    """Return a constant that the kernel does not contain."""
    return constant(value, 2.0 if value in _POWERS else 3.0)
