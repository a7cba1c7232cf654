"""Overloads: the operators that share a Python name, and the one that a call means.

A call of Python tries them in the order of the file, twice: first with exact kinds, then with
conversions, of which there are two: a bool can be an int, and an int or bool can be a float. This
module says the same without Python, for formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .kinds import KINDS, Kind
from .signature import Signature, Type

ACCEPTS = {kind: frozenset(row.accepts.split()) for kind, row in KINDS.items()}


def accepted(type: Type, convert: bool) -> frozenset[str]:
    """Return the kinds of values that an argument accepts, exactly or with conversions."""
    kinds = ACCEPTS[type.kind] | ({"str"} if type.is_union else set())
    if type.length is not None:
        kinds |= {"int"}
    if convert and "int" in kinds:
        kinds |= {"bool"}
    elif convert and "float" in kinds:
        kinds |= {"bool", "int"}
    elif convert and "floats" in kinds:
        kinds |= {"ints"}
    return kinds | {"none"} if type.optional else kinds


def chosen(
    overloads: Mapping[str, Signature],
    positional: Sequence[frozenset[str]],
    keywords: Mapping[str, frozenset[str]],
) -> str | None:
    """Return the overload that Python calls, or None if none accepts the arguments.

    Args:
        overloads: The signatures by name, in the order of the file.
        positional: The kinds that each positional argument may have.
        keywords: The kinds that each keyword argument may have.
    """
    for convert in (False, True):
        for name, signature in overloads.items():
            if _accepts(signature, positional, keywords, convert):
                return name
    return None


def _accepts(
    signature: Signature,
    positional: Sequence[frozenset[str]],
    keywords: Mapping[str, frozenset[str]],
    convert: bool,
) -> bool:
    places = [a.name for a in signature.declared if not a.kw_only and not a.type.variadic]
    if any(arg.type.variadic for arg in signature.declared):
        if not all(kinds <= ACCEPTS[Kind.ARRAY] for kinds in positional[len(places) :]):
            return False
        positional = positional[: len(places)]
    given = {**keywords, **dict(zip(places, positional, strict=False))}
    if len(positional) > len(places) or len(given) < len(positional) + len(keywords):
        return False
    fixed = [arg for arg in signature.declared if not arg.type.variadic]
    return keywords.keys() <= {arg.name for arg in fixed if not arg.pos_only} and all(
        given[arg.name] <= accepted(arg.type, convert)
        if arg.name in given
        else arg.default is not None
        for arg in fixed
    )
