"""Static analysis of formulas: the rank, the dtype and the degree of each array.

Rank: the number of axes, relative to an array: ``("x", -1)`` is one axis less than x has, and
``("", 2)`` is two axes. Dtype: the name of a dtype, or of a category if only that is known. Degree:
the number of factors ``grad`` (or ``tangent``) in each term. A linear term has degree 1. A zero
takes the degree of the terms that it is combined with.

The table of functions defines how functions propagate these facts (``effect``). An unknown rank or
dtype is None or "". A degree is always known: ``NONLINEAR`` is everything not known to be linear,
and ``OPAQUE`` the result of a kernel, whose linearity the generated checks test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, reduce
from typing import Any, NamedTuple, get_args

from ..model.dtypes import CATEGORIES as MEMBERS
from ..model.dtypes import DTYPES
from ..model.op import Fact, Rank
from .explain import Wrong
from .mlx import Degree, DtypeEffect, RankEffect, effect
from .values import NUMBERS, Value

# Degrees other than 0 and 1: zeros, nonlinear results, parts with different degrees, kernels.
ZERO, NONLINEAR, MIXED, OPAQUE = -1, 2, 3, 4
UNKNOWN = Fact(None, "", NONLINEAR)
OPTIONS = ("axis", "axes", "keepdims", "shape", "dtype")  # arguments that determine rank or dtype
CATEGORIES = ("bool", "integer", "floating", "inexact", "complex")  # inexact: floating or complex
WHOLE, REAL = CATEGORIES[:2], CATEGORIES[2:]
CONSTANT = {"zero": ZERO, "one": 0}
_MEMBERS: Mapping[str, Sequence[str]] = {
    **{**MEMBERS, "bool": ("bool_",), "complex": ("complex64",)},
    **{name: (name,) for name in DTYPES},
}


@cache
def category(*dtypes: str) -> str:
    """Return the smallest common category of dtypes, or ""."""
    listed = {member for dtype in dtypes or [""] for member in _MEMBERS.get(dtype, DTYPES)}
    found = [name for name in CATEGORIES if listed <= {*_MEMBERS[name]}]
    return min(found, key=lambda name: len(_MEMBERS[name]), default="")


# Ranks


def broadcast(a: Rank, b: Rank) -> Rank:
    """Return the rank of two arrays after broadcasting."""
    if a is None or b is None or a[0] == b[0]:
        return a and b and max(a, b)
    return b if a == ("", 0) else a if b == ("", 0) else None


def plus(rank: Rank, more: int | None) -> Rank:
    """Add axes to a rank."""
    return None if rank is None or more is None else (rank[0], rank[1] + more)


def written(rank: tuple[str, int]) -> str:
    """Return a rank in the syntax of formulas."""
    name, more = rank
    if not name:
        return str(more)
    return f"{name}.ndim {'+' if more > 0 else '-'} {abs(more)}" if more else f"{name}.ndim"


def known(value: Value) -> Fact:
    """Return the facts about an array, or about the array that a shape or dtype belongs to."""
    for one in (value.of, value):
        if one and isinstance(one.fact, Fact):
            return one.fact
    return UNKNOWN


def length(value: Value) -> Rank:
    """Return the rank of an array with this shape."""
    if value.kind in ("tuple", "int"):
        return ("", len(value.items) if value.kind == "tuple" else 1)
    rank = known(value).rank
    return None if isinstance(rank, Fact) else rank  # an argument that is a list of ints


def total(parts: Sequence[Value]) -> Rank:
    """Return the rank for concatenated shapes."""
    ranks = [rank for part in parts if (rank := length(part))]
    names = [name for name, _ in ranks if name]
    known = len(ranks) == len(parts) and len(names) < 2
    return ("".join(names), sum(count for _, count in ranks)) if known else None


def sliced(shape: Value, bounds: Sequence[Value]) -> Rank:
    """Return the rank for a slice of a shape."""
    rank, (start, stop, step) = length(shape), [bound.const for bound in bounds]
    known = all(bound.kind == "none" or bound.const is not None for bound in bounds)
    if rank is None or not known:
        return None
    if not rank[0]:
        return ("", len(range(rank[1])[start:stop:step]))
    ends = step is None and (start or 0) >= 0 > (-1 if stop is None else stop)
    return plus(rank, (stop or 0) - (start or 0)) if ends else None


def indexed(value: Value, index: Sequence[Value], at: ast.AST) -> Rank:
    """Return the rank of an indexed array."""
    kinds, rank = [part.kind for part in index], known(value).rank
    needed = len(kinds) - kinds.count("none") - kinds.count("ellipsis")
    if rank and not rank[0] and needed > rank[1]:
        raise Wrong("many_indices", at, count=needed, ndim=rank[1])
    # Index arrays have axes of their own.
    return None if "array" in kinds else plus(rank, kinds.count("none") - kinds.count("int"))


def axes_of(axis: Any, rank: Rank, at: object = None) -> int | None:
    """Return the number of axes that an argument names; raise if one is out of range."""
    listed = axis if type(axis) is tuple else (axis,)
    for one in listed:
        if type(one) is not int:
            return None
        if rank and not rank[0] and not -rank[1] <= one < rank[1]:
            raise Wrong("no_axis", at, axis=one, ndim=rank[1])
    return len(listed)


def distinct(axes: Any, rank: Rank) -> None:
    """Raise if an axis is listed twice."""
    if type(axes) is tuple and axes_of(axes, rank) is not None:
        counted = [one % rank[1] if rank and not rank[0] else one for one in axes]
        if twice := [one for i, one in enumerate(axes) if counted[i] in counted[:i]]:
            raise Wrong("axis_twice", axis=twice[0])


def _rank(how: RankEffect, ranks: Sequence[Rank], options: Mapping[str, Any]) -> Rank:
    """Return the rank of a function's result, by the keyword of the table."""
    rank, axis, keepdims = (*ranks, None)[0], options.get("axis"), options.get("keepdims")
    if how == "given":
        return options.get("shape")
    if how == "free":
        return None
    if how == "broadcast":
        return reduce(broadcast, ranks)
    if how == "matmul":
        known = [rank for rank in ranks if rank and not rank[0] and rank[1] > 1]
        return max(known) if len(known) == 2 else None
    if how in ("expanded", "stacked"):
        return plus(rank, 1 if how == "stacked" else axes_of(axis, None))
    count = None if axis is None else axes_of(axis, rank)
    kept = how == "along" and axis is not None
    if kept or how == "same" or (how, keepdims) == ("reduced", True):
        return rank
    if (how, keepdims, axis) == ("reduced", False, None):
        return ("", 0)
    fewer = how == "squeezed" or (how, keepdims) == ("reduced", False)
    return plus(rank, -count) if fewer and count is not None else None


# Dtypes and degrees


def promoted(a: str, b: str) -> str:
    """Return the promoted dtype of two operands; a number is ``weak``, and takes the array's."""
    one, other = category(a), category(b)
    if a[:4] == "weak" or b[:4] == "weak":
        weak, array, kind = (a, b, other) if a[:4] == "weak" else (b, a, one)
        ints = weak in ("weak int", "weak bool")
        return array if kind in REAL or (kind == "integer" and ints) else ""
    if a == b or not one or not other:
        return a if a == b else "inexact" if one in REAL or other in REAL else ""
    return max(one, other, key=CATEGORIES.index)


def _dtype(how: DtypeEffect, dtypes: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the dtype of a function's result, by the keyword of the table."""
    if how == "given" and options.get("dtype") is not None:
        return str(options["dtype"])
    if how in ("given", "same"):
        return dtypes[0] if dtypes and dtypes[0][:4] != "weak" else ""
    if how in ("promoted", "chosen", "bits", "inexact"):
        dtype = reduce(promoted, dtypes[how == "chosen" :])
        if how == "bits" and category(dtype) in REAL:
            raise Wrong("bits")
        if how == "inexact":
            return "floating" if category(dtype) in CATEGORIES[:3] else "inexact"
        return dtype if dtype[:4] != "weak" else ""
    return how


def _degree(how: str, degrees: Sequence[int], names: Sequence[str] = ()) -> int:
    """Return the degree of a function's result, by the keyword of the table."""
    if how in CONSTANT:
        return CONSTANT[how]
    if how == "second":
        return degrees[1]
    if how == "product" and ZERO in degrees:
        return ZERO
    if how not in _WORDS:
        return _of_parameters(how, degrees, names)
    if how == "choice" and degrees[0] < 1:
        how, degrees = "parts", degrees[1:]
    how = "parts" if how == "each" else how
    if not degrees or (max(degrees) < 1 and how not in ("sum", "parts", "linear")):
        return 0
    for all_of_it in (NONLINEAR, OPAQUE):
        if all_of_it in degrees:
            return all_of_it
    if how == "product":
        several = [degree for degree in degrees if degree]
        return several[0] if len(several) == 1 else NONLINEAR
    if how in ("sum", "parts"):  # a constant plus a linear term is not linear
        found = set(degrees) - {ZERO} or {ZERO}
        return found.pop() if len(found) == 1 else NONLINEAR if how == "sum" else MIXED
    return degrees[0] if how == "linear" and max(degrees[1:], default=0) < 1 else NONLINEAR


_WORDS = get_args(Degree)


def _of_parameters(how: str, degrees: Sequence[int], names: Sequence[str]) -> int:
    """Return the degree for sums and products of parameters, constant in all others."""
    terms = [term.split("*") for term in how.split("+")]
    given = [[d for d, name in zip(degrees, names, strict=True) if name in term] for term in terms]
    rest = [d for d, name in zip(degrees, names, strict=True) if not any(name in t for t in terms)]
    return _degree("linear", [_degree("sum", [_degree("product", g) for g in given if g]), *rest])


@lru_cache(4096)
def combined(
    name: str,
    facts: tuple[Fact, ...],
    names: tuple[str, ...] = (),
    options: tuple[tuple[str, Any], ...] = (),
) -> Fact:
    """Return the facts about a function's result; ``names`` are the parameters of the operands."""
    rank, dtype, degree, _, repeats = effect(name)
    more = dict(options)
    if not repeats:
        distinct(more.get("axis"), facts[0].rank if facts else None)
        distinct(more.get("axes"), facts[0].rank if facts else None)
    # The operands that the result depends on, without those of which only the shape counts.
    matter = facts[degree == "second" :] if degree not in CONSTANT else ()
    fact = Fact(
        _rank(rank, [fact.rank for fact in facts], more),
        _dtype(dtype, [fact.dtype for fact in facts], more),
        _degree(degree, [fact.degree for fact in facts], names),
        frozenset().union(*[fact.uses for fact in matter]),
    )
    if fact.degree > 0 and category(fact.dtype) in WHOLE:  # rounding floats is not linear
        varied = [category(one.dtype) for one in matter if one.degree > 0]
        return fact if set(varied) <= {*WHOLE} else fact._replace(degree=NONLINEAR)
    return fact


def each(name: str, facts: Sequence[Fact]) -> list[Fact] | None:
    """Return the facts about each result of a function with one result per operand."""
    if effect(name).degree != "each":
        return None
    whole = combined(name, tuple(facts))
    return [whole._replace(dtype=f.dtype, degree=f.degree, uses=f.uses) for f in facts]


def either(a: Fact, b: Fact) -> Fact:
    """Return the facts that two arrays have in common."""
    degree = _degree("parts", [a.degree, b.degree])
    rank, dtype = a.rank if a.rank == b.rank else None, a.dtype if a.dtype == b.dtype else ""
    return Fact(rank, dtype, degree, a.uses | b.uses)


def degree_of_all(facts: Iterable[Fact], how: str = "parts") -> int:
    """Return the common degree of several arrays."""
    return _degree(how, [fact.degree for fact in facts])


def operands(values: Iterable[Value]) -> Iterator[Fact]:
    """Yield the facts about arrays and numbers, also inside lists.

    A list of unknown length counts as two arrays.
    """
    for value in values:
        if value.kind in ("array", "union"):
            yield known(value)
        elif value.kind in NUMBERS:
            zero = value.const is not None and not value.const
            yield Fact(("", 0), f"weak {value.kind}", ZERO if zero else 0)
        elif value.kind == "tuple":
            flat = not any(item.kind == "tuple" for item in value.items)
            yield from (
                operands(value.items) if value.is_arrays else [Fact(("", 1) if flat else None)]
            )
        elif value.kind == "arrays":
            many = 2 if value.count is None else value.count
            yield from value.fact if isinstance(value.fact, list) else [known(value)] * many


def joint(kind: str, yes: Value, no: Value) -> Fact | list[Fact] | None:
    """Return the facts that two values of a kind have in common; one may be None."""
    if kind == "shape":
        return Fact(length(yes)) if length(yes) == length(no) else None
    if kind == "dtype":
        return Fact(dtype=category_of([yes, no]))
    sides = [[*operands([value])] for value in (yes, no)]
    if not all(sides):
        return next((side if kind == "arrays" else side[0] for side in sides if side), None)
    if kind == "arrays" and len(sides[0]) != len(sides[1]):
        return reduce(either, [*sides[0], *sides[1]])
    found = [either(*pair) for pair in zip(*sides, strict=False)]
    return found if kind == "arrays" else found[0]


def dtype_of(value: Value) -> str:
    """Return the name or category of a dtype, or ""."""
    return known(value).dtype


def common_dtype(values: Sequence[Value]) -> str:
    """Return the promoted dtype or category of arrays and dtypes."""
    dtypes = [dtype_of(value) for value in values if value.kind == "dtype"]
    dtypes += [fact.dtype for fact in operands(values)]
    return reduce(promoted, dtypes) if dtypes else ""


def category_of(values: Sequence[Value]) -> str:
    """Return the name or category that several dtypes have in common."""
    found = {dtype_of(value) for value in values if value.kind != "none"}
    return found.pop() if len(found) == 1 else "" if "" in found else category(*found)


def option(name: str, value: Value) -> Any:
    """Return the rank, dtype or constant that an argument specifies; "?" if unknown."""
    if value.kind == "none":
        return None
    if name == "shape":
        if [item.const for item in value.items].count(-1) > 1:
            raise Wrong("lengths")
        return length(value)
    if name == "dtype":
        return dtype_of(value)
    if value.kind == "tuple":
        return tuple([item.const for item in value.items])
    return value.const if value.const is not None else "?"


# Requirements on results


class Need(NamedTuple):
    """The requirements on an array that a formula computes."""

    sort: str  # gradient, tangent or output: the prefix of message names
    name: str  # the argument or output
    rank: Rank = None
    dtype: str = ""
    linear: Sequence[str] = ()  # the names that it must be linear in; empty: no requirement
    summed: bool = False  # extra axes are summed
    free: frozenset[str] = frozenset()  # arrays that can have any ndim, and are not all scalars
    every: bool = False  # all arrays have one shape, of any ndim

    def unmet(self, given: Fact, at: object, nonlinear: object) -> Wrong | None:
        """Return the first violation; ``nonlinear`` is the first nonlinear part of the array."""
        rank, key = self.rank, ""
        about = {"dtype": given.dtype, "needed": self.dtype, "linear": self.linear}
        if given.rank and rank and self.differs(given.rank, rank):
            about.update(given=written(given.rank), wanted=written(rank))
            less = given.rank[0] != rank[0] or given.rank < rank
            wrong, key = "rank", "elementwise" if self.every else "less" * less
        elif contradict(given.dtype, self.dtype):
            wrong = "dtype"
        elif not self.linear or given.degree in (ZERO, 1, OPAQUE):
            return None
        else:
            wrong, at = ("nonlinear", nonlinear or at) if given.degree else ("constant", at)
        return Wrong(f"{self.sort}_{wrong}", at, key, **about, name=self.name)

    def differs(self, given: tuple[str, int], rank: tuple[str, int]) -> bool:
        """Return whether an array of rank ``given`` violates the requirement."""
        if given[0] == rank[0]:
            return given < rank or (given != rank and not self.summed)
        return not given[0] and (self.every or (rank[0] in self.free and given[1] == 0))


def contradict(a: str, b: str) -> bool:
    """Return whether two dtypes or categories exclude each other."""
    return {*_MEMBERS.get(a, DTYPES)}.isdisjoint(_MEMBERS.get(b, DTYPES))
