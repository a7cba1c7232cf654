"""MLX's functions as formulas call them: the Python signature and the C++ overloads behind it.

A formula is written against MLX's Python API and compiled to its C++ API. The two differ in more
than spelling: one Python function with ``axis: None | int | Sequence[int]`` is three C++ overloads,
``scalar | array`` exists in Python only, defaults move. This module knows the correspondence for
every function, as a table in ``data/mlx_api.json`` so that the generator works without MLX. The
table is derived from what MLX installs by ``tools/mlx_table.py``.

An overload is a ``Form``: the C++ function and, for each of its parameters, a slot that says which
Python argument goes there and as what C++ type. Python parameters without a slot must be None for
the form to apply.

Slot types: ``array`` ``arrays`` ``int`` ``ints`` ``shape`` ``strides`` ``bool`` ``float``
``double`` (no other number) ``str`` ``dtype`` ``pair`` ``triple`` ``pairs`` ``size`` ``fftnorm``;
``weak``: an array, or a number that takes the dtype of the array beside it; ``value``: an array, or
a number by itself; ``value@dtype``: a number in the dtype of that argument; ``ints1`` ``shape1``
``pair1`` ``triple1``: one int stands for all; ``'text'``: that string constant. A trailing ``?``
takes None too. A slot without a type drops its argument; a slot ``=text`` is C++ text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "data" / "mlx_api.json"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a Python function."""

    name: str
    kind: str  # "/" positional only, "k" keyword only, "" either, "*" all further positional ones
    annotation: str  # as in MLX's stubs
    default: str | None = None  # Python literal, or None: there has to be an argument

    @property
    def takes_none(self) -> bool:
        """Whether None is a value of its own (rather than another spelling of the default)."""
        return _takes_none(self.annotation, self.default)


@dataclass(frozen=True, slots=True)
class Slot:
    """What goes into one parameter of a C++ function."""

    param: str  # Python parameter; empty for text
    type: str  # one of the slot types, without the "?"
    optional: bool = False  # takes None
    text: str = ""  # C++ text of a slot that takes no argument


@dataclass(frozen=True, slots=True)
class Form:
    """One way to call a function in C++."""

    cpp: str  # qualified, with mx:: or mlxgen::
    slots: tuple[Slot, ...]
    params: frozenset[str]  # Python parameters that have a slot


@dataclass(frozen=True, slots=True)
class Function:
    """A function of MLX's Python API."""

    name: str  # "sum", "linalg.norm"
    signatures: tuple[tuple[Param, ...], ...]  # alternatives (Python overloads), tried in order
    forms: tuple[Form, ...]
    result: str  # array | arrays (std::vector<array>) | tuple (std::pair or std::tuple)
    count: int | None  # of several arrays: how many, if that is fixed
    stream: bool  # whether C++ takes a stream


class Table:
    """The stored table; functions are built when they are first asked for."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.version: str = raw["mlx"]
        self.omitted: Mapping[str, str] = raw["omitted"]
        self._raw: Mapping[str, Any] = raw["functions"]
        self._aliases: Mapping[str, str] = raw["aliases"]
        self._methods: Mapping[str, Any] = raw["methods"]
        self._built: dict[str, Function] = {}

    @property
    def names(self) -> list[str]:
        """All names a formula can call, as ``sum`` or ``linalg.norm``."""
        return [*self._raw, *self._aliases]

    @property
    def methods(self) -> list[str]:
        """All methods of an array that a formula can call."""
        return list(self._methods)

    def function(self, name: str) -> Function | None:
        """The function of that name (aliases included)."""
        name = self._aliases.get(name, name)
        found = self._built.get(name)
        if found is None:
            raw = self._raw.get(name)
            if raw is None:
                return None
            signatures, result, forms = raw
            found = _function(name, signatures, result, forms)
            self._built[name] = found
        return found

    def method(self, name: str) -> Function | None:
        """The method of that name, as a function of which the array is the first argument."""
        key = f".{name}"
        found = self._built.get(key)
        if found is None:
            params = self._methods.get(name)
            function = self.function(name)
            if params is None or function is None:
                return None
            first = function.signatures[0][0]
            signature = (Param(first.name, "/", first.annotation), *(Param(*p) for p in params))
            found = Function(
                name,
                (signature,),
                function.forms,
                function.result,
                function.count,
                function.stream,
            )
            self._built[key] = found
        return found


@cache
def table() -> Table:
    """The stored table, read once."""
    return Table(json.loads(TABLE.read_text(encoding="utf-8")))


def _function(name: str, signatures: Sequence[Any], result: str, forms: Sequence[str]) -> Function:
    kind, _, count = result.removesuffix("!").partition(":")
    return Function(
        name,
        tuple(tuple(Param(*p) for p in s) for s in signatures),
        tuple(_form(f) for f in forms),
        kind,
        int(count) if count else None,
        not result.endswith("!"),
    )


def _form(text: str) -> Form:
    """``sum(a:array, axis:ints)`` as a Form; a name with ``mlxgen::`` is one of our helpers."""
    head, _, rest = text.partition("(")
    slots = tuple(_slot(s) for s in split(rest[:-1]))
    cpp = head if head.startswith("mlxgen::") else f"mx::{head}"
    return Form(cpp, slots, frozenset(s.param.partition(".")[0] for s in slots if s.param))


def _slot(text: str) -> Slot:
    if text.startswith("="):
        return Slot("", "", text=text[1:])
    param, _, type_ = text.partition(":")
    return Slot(param, type_.removesuffix("?"), type_.endswith("?"))


def split(text: str) -> list[str]:
    """Split at commas that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _takes_none(annotation: str, default: str | None) -> bool:
    """``Dtype | None = float32`` means float32 by None; bools and strings take no None in truth."""
    parts = annotation.split(" | ")
    if "None" not in parts:
        return False
    return default in (None, "None") or not {"Dtype", "bool", "str"} & set(parts)
