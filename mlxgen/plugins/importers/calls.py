"""Example calls of an overload, for traces: several shapes, and values of every kind of argument.

A formula must explain all calls of a series. The calls differ in the ranks and sizes of their
arrays and in all numbers, so that a constant that is equal in all of them is one of the operator.
Flags, strings, and the presence of optional arguments are enumerated instead: each combination is a
case with a series of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .overloads import DROPPED, GENERATOR, Unsupported
from .schema import Argument, Overload

GIVEN = "given"  # the case of an optional argument with a value

_MOST_CASES = 24
# Shapes of a series: those of all arrays, or of each array in words of axes.
SAME = ((5, 7, 11), (7, 3, 13), (2, 6, 17), (4, 9), (3,), (2, 3, 4, 5), ())
_RANK_4 = ((2, 3, 6, 8), (1, 4, 10, 7), (3, 2, 5, 9))
_RANK_5 = ((2, 3, 6, 8, 4), (1, 4, 10, 7, 5), (3, 2, 5, 9, 6))
_SQUARE = ((3, 3), (4, 4), (5, 5))
_WORDS = {
    1: ("n",),
    2: ("nm mp", "nm m", "n n", "n m", "bnm bmp"),
    3: ("np nm mp", "n nm m", "nm n m", "bnp bnm bmp", "np bnm bmp"),
}
_SIZES = (
    {"b": 2, "n": 3, "m": 5, "p": 7},
    {"b": 3, "n": 5, "m": 2, "p": 11},
    {"b": 5, "n": 4, "m": 7, "p": 3},
)
_CHOICES = {"approximate": ("none", "tanh"), "rounding_mode": (None, "floor", "trunc")}
_NUMBERS = (0.3125, 1.6875, 0.40625, 0.71875, 1.28125, 0.84375, 1.09375)
_INTEGERS = (2, 3, 1, 4, 5, 6, 2)


class Call(NamedTuple):
    """The values of a call: arrays as shapes, numbers, lists."""

    shapes: Mapping[str, Sequence[int]]
    lists: Mapping[str, int]  # names of lists of arrays, and their lengths
    numbers: Mapping[str, Any]  # also dtypes and lists, whose values formulas must explain
    fixed: Mapping[str, Any]  # flags, strings and None

    @property
    def rank(self) -> int:
        """The rank of the first array."""
        return next((len(shape) for shape in self.shapes.values()), 1)


Case = dict[str, Any]


def cases(overload: Overload) -> list[tuple[Argument, list[Any]]]:
    """Return the arguments that are enumerated, with their values."""
    found: list[tuple[Argument, list[Any]]] = []
    for arg in overload.args:
        if arg.name in DROPPED:
            continue
        plain = arg.type.removesuffix("?")
        values: list[Any] = []
        if arg.type == GENERATOR:
            raise Unsupported("it draws random numbers")
        if plain == "bool":
            values = [True, False]
        elif plain == "str":
            if arg.name not in _CHOICES:
                raise Unsupported(f"the values of '{arg.name}' are unknown")
            found.append((arg, list(_CHOICES[arg.name])))
            continue
        elif arg.name == "reduction" and plain == "int":
            values = [0, 1, 2]
        elif arg.optional:
            values = [GIVEN]
        if arg.optional:
            values.append(None)
        if values:
            found.append((arg, values))
    total = 1
    for _, values in found:
        total *= len(values)
    if total > _MOST_CASES:
        raise Unsupported(f"it has {total} combinations of flags and optional arguments")
    return found


def series(overload: Overload, case: Case) -> Iterator[list[Call]]:
    """Yield series of calls, each with the same kind of shapes."""
    arrays = [arg for arg in overload.args if _is_array(arg) and case.get(arg.name, 0) is not None]
    count = len(arrays)
    for shapes in (SAME, _RANK_4, _RANK_5, _SQUARE):
        yield [_call(overload, case, arrays, [s] * count, i) for i, s in enumerate(shapes)]
    for words in _WORDS.get(count, ()):
        yield [
            _call(overload, case, arrays, [tuple(s[a] for a in w) for w in words.split()], i)
            for i, s in enumerate(_SIZES)
        ]


def _is_array(arg: Argument) -> bool:
    return arg.type in ("Tensor", "Tensor?", "Tensor[]")


def _call(
    overload: Overload, case: Case, arrays: list[Argument], shapes: list[Any], place: int
) -> Call:
    by_name = dict(zip([arg.name for arg in arrays], shapes, strict=True))
    rank = len(shapes[0]) if shapes else 1
    counter = itertools.count()
    numbers: dict[str, Any] = {}
    for arg in overload.args:
        skipped = arg.name in DROPPED or arg.name in by_name
        if skipped or case.get(arg.name, GIVEN) is not GIVEN:
            continue
        numbers[arg.name] = _value(arg, rank, place, next(counter))
    lists = {arg.name: 2 + place % 2 for arg in arrays if arg.type == "Tensor[]"}
    fixed = {name: value for name, value in case.items() if value is not GIVEN}
    return Call(by_name, lists, numbers, fixed)


def _value(arg: Argument, rank: int, place: int, count: int) -> Any:
    type = arg.type.removesuffix("?").replace("SymInt", "int")
    number = _NUMBERS[place] * (1 + count) + count / 128
    integer = _INTEGERS[place] + count
    axes = [1, 2, 0, 0, 0, 3, 0]
    axis = min(axes[place], max(rank - 1, 0))
    if arg.name in ("dim", "dims", "axis"):
        if type == "int":
            return axis
        return [axis] if place % 2 or rank < 2 else sorted({axis, (axis + 1) % rank})
    if arg.name in ("dim0", "dim1", "dim2"):
        raise Unsupported("it has several axes")
    if type in ("Scalar", "float"):
        return number
    if type == "int":
        return integer
    if type == "ScalarType":
        return ("float16", "bfloat16", "float64")[place % 3]
    raise Unsupported(f"no example of '{arg.name}', which has the type {arg.type}")
