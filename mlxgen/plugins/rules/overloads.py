"""Checks that the samples call the operator, not another overload of its Python name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...check.context import Context
from ...model.kinds import Kind
from ...model.overloads import chosen
from ...model.signature import Type
from ...read.keys import Sample
from . import MESSAGES


def check_overload(context: Context, samples: Mapping[int, Sample]) -> None:
    """Report samples with which Python calls another overload of the same name."""
    others = context.others
    names = others.overloads.get(context.python_name, ())
    signatures = {name: others.signatures[name] for name in names if name in others.signatures}
    if context.name not in signatures or not context.signature.arrays:
        return
    for i, sample in samples.items():
        args = context.signature.declared
        given = {arg.name: _kind(arg.type, sample.get(arg.name)) for arg in args}
        passed = [a for a in args if a.type.is_array or a.name in sample]
        places = {arg.name for arg in args[: context.signature.by_position]}
        first = []
        for arg in passed:
            if arg.name in places:
                value = sample.get(arg.name)
                arrays = len(value) if isinstance(value, list) else 2  # the default of the checks
                first += [frozenset({given[arg.name]})] * (arrays if arg.type.variadic else 1)
        named = {a.name: frozenset({given[a.name]}) for a in passed if a.name not in places}
        other = chosen(signatures, first, named)
        if other in (context.name, None):
            continue
        if i < 0:
            context.warning("other_overload", table=MESSAGES, other=other)
        else:
            context.error("other_overload", ("samples", i), table=MESSAGES, other=other)


def _kind(type: Type, value: Any) -> str:
    """Return the kind of the Python value that a sample passes."""
    if type.kind is Kind.ARRAY:
        absent = "none" if type.optional and value is None else "array"
        return "str" if isinstance(value, str) else absent
    if type.variadic:
        return "array"
    if type.kind is Kind.ARRAYS:
        return "arrays" if value else "empty"
    if type.kind is Kind.OPTIONALS and value:
        return "optionals" if None in value else "arrays"
    if isinstance(value, list):
        nested = type.kind is Kind.NESTED
        return "empty" if not value else "nested" if nested else "ints"
    if type.kind is Kind.DTYPE and value is not None:
        return "dtype"
    return "none" if value is None else value.__class__.__name__
