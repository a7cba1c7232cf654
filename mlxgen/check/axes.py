"""Named axes: ``axes: {q: B T H D, mask: B T}``. Axes of the same name have the same size.

All formulas can use the sizes by name. The key is otherwise translated to the syntax trees of
formulas: conditions that arguments have these axes, and the shapes of outputs.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from ..formula import trees
from ..formula.explain import Wrong
from ..formula.lets import Insert
from ..formula.mlx import CONSTANTS
from ..formula.numbers import evaluated
from ..formula.source import parsed
from ..model.kinds import Kind
from ..model.op import Length, shown_axes
from ..model.signature import Arg, Signature
from ..read.keys import listed
from ..read.names import RESERVED, meanings

OTHERS = "..."
MOST = 32  # axes of an array
LONGEST = 2_000  # characters of the axes of an array

_WORD = re.compile(r"\w+", re.ASCII)
_AXIS = re.compile(r"(\b([A-Za-z_]\w*|0|[1-9]\d{0,8})\b|[-+*/()])+", re.ASCII)


class Axes(NamedTuple):
    """One form of an array's axes.

    An axis is a name, a number or an expression such as ``(D+1)//2``. ``...``, at most once,
    represents any other axes.
    """

    names: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Axes:
        """Parse one of the alternatives of the key."""
        return cls(() if text.strip() == "()" else tuple(text.split()) or ("",))

    @property
    def others(self) -> int | None:
        """The index of ``...``, if any."""
        return self.names.index(OTHERS) if OTHERS in self.names else None

    def place(self, i: int) -> int:
        """Return the array's axis for the i-th entry; after ``...`` it counts from the end."""
        return i if self.others is None or i < self.others else i - len(self.names)

    def places(self, name: str) -> list[ast.expr]:
        """Return formulas for the size of each axis of an array; for ``...``, of its shape."""
        at, count = self.others, len(self.names)
        found = [trees.size(name, self.place(i)) for i in range(count)]
        if at is not None:
            found[at] = trees.sizes(name, at, at + 1 - count)
        return found

    def __str__(self) -> str:
        return shown_axes([self.names])


class NamedAxes:
    """The axes of an entry's arrays."""

    def __init__(self, given: Mapping[str, str], signature: Signature) -> None:
        self.keys = {name: key for name, key, _ in listed(given)}
        self.long = {name for name, key in self.keys.items() if len(given[key]) > LONGEST}
        self.of = {
            name: [Axes.read(part) for part in given[key].split("|")]
            if name not in self.long
            else [Axes((OTHERS,))]
            for name, key in self.keys.items()
        }
        self.args = [a for a in signature.args if a.name in self.of and a.type.kind is Kind.ARRAY]
        self.ints = {
            a.name for a in signature.args if a.type.kind is Kind.INT and not a.type.optional
        }
        self.outputs = [output.name for output in signature.outputs if output.name in self.of]
        self.taken = {arg.name for arg in signature.args} - self.ints
        outputs = [output.name for output in signature.outputs]
        arrays = [arg.name for arg in signature.arrays]
        self.taken |= {*outputs, *meanings(arrays, outputs), *RESERVED, *CONSTANTS, "out"}
        # Required arrays with a single form determine the sizes of their axes.
        self.sure = {
            arg.name: self.of[arg.name][0]
            for arg in self.args
            if not arg.type.optional and len(self.of[arg.name]) == 1
        }

    @cached_property
    def lengths(self) -> Mapping[str, Length]:
        """The sizes of axes by name."""
        return {axis: at for axis, at in self._determined[0].items() if axis != OTHERS}

    @cached_property
    def _determined(self) -> tuple[Mapping[str, Length], frozenset[str]]:
        """The arrays that determine sizes, and those whose axes depend on each other in a circle.

        An array is checked after the arrays that determine the sizes in its expressions. Of several
        arrays that can determine a size, it is the first for which such an order exists.
        """
        own = {name: self._own(axes) for name, axes in self.sure.items()}
        for name, axes in self.sure.items():
            own[name] |= {OTHERS: axes.others} if axes.others is not None else {}
        first = dict[str, str]()
        for name, axes_of in own.items():
            for axis in axes_of:
                first.setdefault(axis, name)
        needed = {name: self._words(axes) & first.keys() for name, axes in self.sure.items()}
        found, circular, pending = dict[str, Length](), set[str](), list(self.sure)
        while pending:
            ready = [n for n in pending if needed[n] <= found.keys() | own[n].keys()]
            preferred = [n for n in ready if all(first[a] == n or a in found for a in own[n])]
            circular.update([] if ready else pending)
            (name, *_) = preferred or ready or pending
            for axis, place in own[name].items():
                found.setdefault(axis, Length(name, place))
            pending.remove(name)
        return {axis: found[axis] for axis in first}, frozenset(circular)

    @cached_property
    def unsized(self) -> frozenset[str]:
        """The axes whose sizes formulas do not know."""
        own = (self._own(axes) for several in self.of.values() for axes in several)
        return frozenset[str]().union(*own) - self.lengths.keys()

    @cached_property
    def others(self) -> tuple[str, ast.expr]:
        """The array that determines the axes ``...``, and a formula of their shape."""
        if OTHERS not in self._determined[0]:
            return "", trees.listed([])
        name, at, _ = self._determined[0][OTHERS]
        return name, self.sure[name].places(name)[at]

    @property
    def fixed(self) -> list[str]:
        """Arrays that cannot have additional leading axes, such as a batch axis."""
        return [n for n, several in self.of.items() if any(axes.others != 0 for axes in several)]

    def ranks(self) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield the ranks of arrays: a number, or the rank of another array."""
        for name in (arg.name for arg in self.args if not any(self.problems(arg.name))):
            several, other = self.of[name], self.others[0]
            axes = several[0]
            if len(several) == 1 and axes.others is None:
                yield name, ("", len(axes.names))
            elif len(several) == 1 and name != other and self.sure.get(other) == axes:
                yield name, (other, 0)

    def shown(self, name: str) -> str:
        """Return the axes of an array for messages: ``(B, T) or (B, T, H)``."""
        return shown_axes(axes.names for axes in self.of[name])

    def conditions(self) -> Iterator[tuple[str, ast.expr, str]]:
        """Yield the conditions that arguments have their axes: argument, formula, error message.

        Arrays that determine sizes come first.
        """
        pending = [arg for arg in self.args if not any(self.problems(arg.name))]
        known = set[str]()
        while pending:
            ready = [arg for arg in pending if self._taken(arg.name) <= known] or pending[:1]
            yield from map(self._condition, ready)
            known.update(arg.name for arg in ready)
            pending = [arg for arg in pending if arg not in ready]

    def problems(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the problems of an array's axes: a name in messages.yaml, and the axis."""
        is_output = name in self.outputs
        if name in self.long:
            yield "long_axes", ""
            return
        if is_output and len(self.of[name]) > 1:
            yield "several_axes", ""
        for axes in self.of[name]:
            if len(axes.names) > MOST:
                yield "many_axes", ""
                return
            known = {*self.lengths, *self.ints, *(() if is_output else self._own(axes))}
            if axes.names.count(OTHERS) > 1:
                yield "bad_axis", OTHERS
            elif is_output and axes.others is not None and not self.others[0]:
                yield "no_length", OTHERS
            for axis in filter(OTHERS.__ne__, axes.names):
                words = _WORD.findall(axis)
                if not _is_axis(axis):
                    yield "bad_axis", axis
                elif not is_output and axis in self.taken:
                    yield "axis_taken", axis
                elif unknown := [w for w in words if not w.isdigit() and w not in known]:
                    yield "no_length", unknown[0]
                elif name in self._determined[1] and not axis.isidentifier():
                    others = [w for w in words if w in self.lengths and w not in self._own(axes)]
                    yield from (("axes_circle", word) for word in others[:1])

    def shape(self, output: str) -> ast.expr:
        """Return the rule of an output's shape."""
        if any(self.problems(output)):
            return trees.listed([])  # reported elsewhere
        return self._shape(self.of[output][0], self.sure)

    def _own(self, axes: Axes) -> dict[str, int]:
        """Return the axes that an array itself names, with their positions."""
        found: dict[str, int] = {}
        for i, axis in enumerate(axes.names):
            if axis != OTHERS and axis.isidentifier() and axis not in self.ints:
                found.setdefault(axis, axes.place(i))
        return found

    def _words(self, axes: Axes) -> set[str]:
        """Return the names in an array's axes, including ``...``."""
        return {word for axis in axes.names for word in _WORD.findall(axis) or [axis]}

    def _taken(self, name: str) -> set[str]:
        """Return the other arrays that determine the sizes of an array's axes."""
        words = set[str]().union(*map(self._words, self.of[name]))
        determined = self._determined[0]
        return {determined[word].array for word in words & determined.keys()} - {name}

    def _condition(self, arg: Arg) -> tuple[str, ast.expr, str]:
        name, several = arg.name, self.of[arg.name]
        declared = (arg.declared or arg).type
        absent = [trees.is_none(name)] * declared.optional
        texts = map(ast.Constant, declared.choices)
        absent += [trees.equal(trees.name(name), text) for text in texts]
        tree = trees.joined(ast.Or(), [*absent, *(self._test(name, axes) for axes in several)])
        others = [other for other in self.sure if other in self._taken(name)]
        where = " and ".join(f"{other} is {self.sure[other]}" for other in others)
        what = f"{name} must be {self.shown(name)}"
        if len(others) == 1 and [self.sure[others[0]]] == several:
            return name, tree, f"{what}, as {others[0]} is."
        return name, tree, f"{what}, where {where}." if others else f"{what}."

    def _test(self, name: str, axes: Axes) -> ast.expr:
        """Return the condition that an array has these axes."""
        mine: dict[str, int | None] = {OTHERS: None} if self.others[0] in ("", name) else {}
        for axis, place in self._own(axes).items():
            if self.lengths.get(axis, (name, place))[:2] == (name, place):
                mine[axis] = place
        if mine.keys().isdisjoint(axes.names):
            shape = self._shape(axes, self._taken(name))
            return trees.equal(trees.attribute(name, "shape"), shape)
        sign = ast.Eq() if axes.others is None else ast.GtE()
        fixed = trees.number(len(axes.names) - (OTHERS in axes.names))
        tests = [trees.compared(trees.attribute(name, "ndim"), sign, fixed)]
        # The sizes that this array determines are not yet C++ variables.
        lengths = {axis: trees.size(name, at) for axis, at in mine.items() if at is not None}
        for i, (axis, here) in enumerate(zip(axes.names, axes.places(name), strict=True)):
            if axis == OTHERS and OTHERS not in mine:
                tests.append(trees.equal(here, self.others[1]))
            elif axis != OTHERS and mine.get(axis) != axes.place(i):
                tests.append(trees.equal(here, _term(axis, lengths)))
        return trees.joined(ast.And(), tests)

    def _shape(self, axes: Axes, of: Collection[str]) -> ast.expr:
        """Return the formula of a shape; the shape of an argument in ``of`` if it is equal."""
        for name, others in self.sure.items():
            if others == axes and name in of:
                return trees.attribute(name, "shape")
        at = axes.others
        terms = [_term(axis, {}) for axis in axes.names if axis != OTHERS]
        if at is None:
            return trees.listed(terms)
        first, last = ([trees.listed(part)] * bool(part) for part in (terms[:at], terms[at:]))
        return trees.added(*first, self.others[1], *last)


def another(axis: str) -> str:
    """Return another name for an axis whose name is in use."""
    return axis[:1].upper() + axis[1:] if axis.islower() else f"{axis}n"


def why_no_axis(text: str) -> tuple[str, dict[str, str]]:
    """Return the message about an invalid axis, and its parameters."""
    if not text:
        return "axis_empty", {}
    if text == OTHERS:
        return "axis_others_twice", {}
    if text == "()":
        return "axis_alone", {}
    if text.count("(") != text.count(")"):
        return "axis_brackets", {}
    if "," in text:
        return "axis_comma", {"better": " ".join(re.split(r"[,()]+", text)).strip()}
    if re.search(r"(?<!/)/(?!/)", text):
        return "axis_fraction", {"better": re.sub(r"(?<!/)/(?!/)", "//", text)}
    if power := re.fullmatch(r"(\w+)\*\*2", text):
        return "axis_power", {"better": f"{power[1]}*{power[1]}"}
    if re.fullmatch(r"\d[\d_]*", text):
        return "axis_digits", {"better": str(int(text))}
    if not text.isascii():
        char = next(c for c in text if not c.isascii())
        return "axis_character", {"char": char, "number": f"{ord(char):04X}"}
    if text.isidentifier():
        return "axis_keyword", {"better": another(text)}
    if text.startswith("-"):
        return "axis_negative", {}
    if "//" in text and _AXIS.fullmatch(text):
        return "axis_divides", {}
    return "bad_axis", {}


def _is_axis(text: str) -> bool:
    """Return whether the text is a name, a number or an expression of these."""
    try:
        return _AXIS.fullmatch(text) is not None and _is_term(parsed(text))
    except (Wrong, RecursionError):
        return False


def _is_term(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
            return _is_term(left) and _is_term(right)
        case ast.BinOp(left, ast.FloorDiv(), right):
            terms = _is_term(left) and _is_term(right)
            return terms and evaluated(right, {}, None) != 0
        case ast.Constant(value):
            return type(value) is int
    return isinstance(node, ast.Name)


def _term(axis: str, lengths: Mapping[str, ast.expr]) -> ast.expr:
    """Return the formula of an axis' size, with the given sizes inserted."""
    term: ast.expr = Insert(lengths).visit(copy.deepcopy(parsed(axis)))
    return term
