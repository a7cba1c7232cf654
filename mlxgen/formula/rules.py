"""The table of rules, data/rules.txt, which says what a line of it is: what formulas can do besides
calling MLX's functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .values import LEVEL, Value, binary, fit, member, unary

TABLE = Path(__file__).parent / "data" / "rules.txt"

# C++'s types of numbers, each of which takes in those before.
RANKS = ("int", "int64_t", "float", "double")


@dataclass(frozen=True, slots=True)
class Rule:
    """A line, for one of its names."""

    name: str
    takes: Sequence[str]
    gives: str
    cpp: str
    sign: str  # of an operator, else empty
    mlx: str  # the function of MLX that it calls, if any
    stream: bool

    def fit(self, given: Sequence[Value]) -> list[str] | None:
        """The operands as C++, or None if it does not take them."""
        if len(given) != len(self.takes):
            return None
        parts = [fit(value, slot) for value, slot in zip(given, self.takes, strict=True)]
        found = [part for part in parts if part is not None]
        return found if len(found) == len(parts) else None

    def value(self, given: Sequence[Value], parts: list[str], s: str, at: ast.expr) -> Value:
        """What it gives for operands that fit."""
        if self.gives == "same":
            return replace(given[0], at=at)
        if self.sign:
            prefix = self.cpp.startswith(self.sign)
            cpp = unary(self.sign, *parts) if prefix else binary(self.sign, *[*parts, "0"][:2])
        elif self.cpp.startswith("{0}.") and self.cpp.endswith("()"):
            cpp = member(parts[0], self.cpp[4:-2])
        else:
            cpp = self.cpp.format(*parts, s=s)
        kind, type_ = self.gives, ""
        if kind == "int64":
            kind, type_ = "int", "int64_t"
        elif kind == "common":
            kind, type_ = common(given)
        return Value(kind, cpp, at, type=type_, of=given[0] if self.name[0] == "." else None)


def common(numbers: Sequence[Value]) -> tuple[str, str]:
    """Kind and C++ type that numbers have in common."""
    usual = {"int": "int", "float": "double"}
    rank = max([RANKS.index(v.type or usual[v.kind]) for v in numbers])
    return ("int" if rank < 2 else "float"), (RANKS[rank] if rank in (1, 2) else "")


def _rules() -> Mapping[str, Sequence[Rule]]:
    found: dict[str, list[Rule]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and line[0] != "#":
            names, takes, gives, cpp = [part.strip() for part in line.split(" : ", 3)]
            for name in names.split():
                text = cpp.replace("{name}", name)
                sign = next((part for part in text.split() if part in LEVEL), "")
                sign = "-" if text == "-{0}" else sign
                mlx = re.match(r"mx::(\w+)\(.*\{s\}", text)
                rule = Rule(
                    *(name, takes.split(), gives, text, sign),
                    mlx=mlx[1] if mlx else "",
                    stream="{s}" in text,
                )
                found.setdefault(name, []).append(rule)
    return found


RULES = _rules()
