"""Overloads: the operators that share a Python name, and the one that a call means.

A call of Python tries them in the order of the file, twice: first with exact kinds, then with
conversions, of which there are two: a bool can be an int, and an int or bool can be a float. This
module says the same without Python, for formulas and for overloads that no call can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .signature import Arg, Kind, Signature, Type

# The kinds of Python values that an argument accepts, and those that it converts.
_INTS = frozenset({"ints", "empty"})
_NUMBERS = frozenset({"bool", "int", "float"})
_TAKES: Mapping[Kind, frozenset[str]] = {
    Kind.ARRAY: frozenset({"array"}) | _NUMBERS,
    Kind.ARRAYS: frozenset({"arrays"}) | _INTS,
    Kind.FLOAT: frozenset({"float"}),
    Kind.INT: frozenset({"int"}),
    Kind.BOOL: frozenset({"bool"}),
    Kind.STR: frozenset({"str"}),
    Kind.ENUM: frozenset({"str"}),
    Kind.DTYPE: frozenset({"dtype"}),
    Kind.INTS: _INTS,
    Kind.SHAPE: _INTS,
    Kind.AXES: _INTS | {"int", "none"},
}
_CONVERTS: Mapping[Kind, frozenset[str]] = {
    Kind.FLOAT: frozenset({"int", "bool"}),
    Kind.INT: frozenset({"bool"}),
}


def accepted(type: Type, convert: bool) -> frozenset[str]:
    """Return the kinds of values that an argument accepts, exactly or with conversions."""
    kinds = _TAKES[type.kind]
    if convert:
        kinds |= _CONVERTS.get(type.kind, frozenset())
    if type.length is not None:
        kinds |= {"int"}
    return kinds | {"none"} if type.optional else kinds


def covers(first: Signature, second: Signature) -> bool:
    """Return whether the first of two overloads accepts every call of the second one."""
    met = set()
    for i, arg in enumerate(second.args):
        other = _counterpart(first.args, i, arg)
        if other is None or (arg.default is not None and other.default is None):
            return False
        if not all(accepted(arg.type, way) <= accepted(other.type, way) for way in (False, True)):
            return False
        met.add(other.name)
    return all(arg.default is not None for arg in first.args if arg.name not in met)


def _counterpart(args: Sequence[Arg], place: int, arg: Arg) -> Arg | None:
    """Return the argument that receives the value of another overload's argument in every call."""
    by_name = {other.name: other for other in args if not other.pos_only}
    here = args[place] if place < len(args) and not args[place].kw_only else None
    if arg.pos_only:
        return here
    if arg.kw_only:
        return by_name.get(arg.name)
    return here if here is not None and by_name.get(arg.name) is here else None
