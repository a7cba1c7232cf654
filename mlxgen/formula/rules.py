"""Operations of formulas other than calls of MLX's functions, from the table of functions."""

from __future__ import annotations

import ast
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, cast

from ..model.kinds import ValueKind
from .mlx import record
from .values import LEVEL, SLOTS, Conversion, Cpp, Value, binary, cpp, member, named, unary

# C++ number types; each can represent the values of the earlier ones.
RANKS = ("int", "int64_t", "float", "double")


class Operation(NamedTuple):
    """An operation on some kinds of operands."""

    name: str
    takes: Sequence[str]
    gives: str
    write: Callable[[Sequence[Cpp], Cpp], Cpp]  # C++ of the operands and the stream -> C++
    mlx: str  # the MLX function that it calls, if any; it takes a stream

    def value(self, given: Sequence[Value], parts: Sequence[Cpp], s: Cpp, at: ast.expr) -> Value:
        """Return the result for matching operands."""
        if self.gives == "same":
            return replace(given[0], at=at)
        written = self.write(parts, s)
        kind, type_ = self.gives, ""
        if kind == "int64":
            kind, type_ = "int", "int64_t"
        elif kind == "common":
            kind, type_ = common(given)
        return Value(
            cast(ValueKind, kind),
            written,
            at,
            type=type_,
            of=given[0] if self.name[0] == "." else None,
        )


def common(numbers: Sequence[Value]) -> tuple[str, str]:
    """Return the common kind and C++ type of numbers."""
    usual = {"int": "int", "float": "double"}
    rank = max([RANKS.index(v.type or usual[v.kind]) for v in numbers])
    return ("int" if rank < 2 else "float"), (RANKS[rank] if rank in (1, 2) else "")


def _writer(text: str) -> Callable[[Sequence[Cpp], Cpp], Cpp]:
    """Return a function that inserts operands and the stream into the C++ of the table."""
    first, *rest = text.split()
    if rest and rest[0] in LEVEL:
        zero = [named("0")] if rest[1] == "0" else []
        return lambda parts, s: binary(rest[0], *parts, *zero)
    if first == "-{0}":
        return lambda parts, s: unary("-", parts[0])
    if text.startswith("{0}.") and text.endswith("()"):
        return lambda parts, s: member(parts[0], text[4:-2])
    pieces = [(before, name) for before, name, *_ in string.Formatter().parse(text)]

    def write(parts: Sequence[Cpp], s: Cpp) -> Cpp:
        filled: list[str | Cpp] = []
        for before, name in pieces:
            filled.append(before)
            if name is not None:
                filled.append(s if name == "s" else parts[int(name)])
        return cpp(*filled)

    return write


@cache
def operations(name: str) -> Sequence[Operation]:
    """Return the table's operations of a name."""
    listed = record(name).get("operations", ())
    return [Operation(name, takes, gives, _writer(cpp), mlx) for takes, gives, cpp, mlx in listed]


@cache
def rules(name: str, kinds: tuple[str, ...]) -> Sequence[tuple[Operation, Sequence[Conversion]]]:
    """Return the operations of a name for these kinds, with the conversion of each operand."""
    return [
        (one, [SLOTS[slot][kind] for slot, kind in zip(one.takes, kinds, strict=True)])
        for one in operations(name)
        if len(one.takes) == len(kinds)
        and all(kind in SLOTS[slot] for slot, kind in zip(one.takes, kinds, strict=True))
    ]
