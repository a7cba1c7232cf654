"""The samples of an entry: does each value fit its argument?

The place for what will be known of samples when generating: their shapes and dtypes, and whether
they lie in the domain that the entry's checks allow.
"""

from __future__ import annotations

from typing import Any

from ..diagnostics import did_you_mean
from ..model.dtypes import DTYPES
from ..model.kinds import Kind
from ..model.signature import Type, with_article
from ..read.keys import ArraySample
from .context import Context, Path


def check_samples(context: Context) -> None:
    """Report values that do not fit, and arguments without any."""
    types = {p.name: p.type for p in context.params}
    needed = [
        p.name
        for p in context.params
        if not (p.type.is_array or p.type.optional) and p.arg.default is None
    ]
    for i, sample in enumerate(context.raw.samples):
        base: Path = ("samples", i)
        for name in context.known("MG114", sample, types, "argument", base):
            if problem := _problem(types[name], sample[name]):
                message = f"the sample of '{name}' does not fit: {problem}"
                context.error("MG122", message, (*base, name))
        for name in needed:
            if name not in sample:
                message = f"the sample gives no value for '{name}', which has no default"
                context.error("MG123", message, base)


def _problem(type: Type, value: Any) -> str | None:
    """What is wrong with a sample's value for an argument of this type."""
    if value is None:
        return None if type.optional else f"{with_article(type)} cannot be None"
    if type.kind is Kind.ARRAY:
        if not isinstance(value, ArraySample):
            return "an array is described by a mapping, such as {shape: [3, 4], low: 0, high: 1}"
        return _array_problem(value)
    if type.kind is Kind.ARRAYS:
        if not isinstance(value, list) or not all(isinstance(v, ArraySample) for v in value):
            return "a list of arrays is a list of mappings, such as [{low: 0}, {low: 1}]"
        return next(filter(None, map(_array_problem, value)), None)
    is_int = _is_int(value)
    ints = isinstance(value, list) and all(map(_is_int, value))
    fits = {
        Kind.FLOAT: is_int or isinstance(value, float),
        Kind.INT: is_int and -(1 << 31) <= value < 1 << 31,
        Kind.BOOL: isinstance(value, bool),
        Kind.STR: isinstance(value, str),
        Kind.ENUM: isinstance(value, str) and value in type.choices,
        Kind.DTYPE: isinstance(value, str) and value in DTYPES,
        Kind.INTS: ints and type.length in (None, len(value)),
        Kind.SHAPE: ints and all(v >= 0 for v in value),
        Kind.AXES: is_int or ints,
    }[type.kind]
    if fits:
        return None
    if type.kind is Kind.ENUM:
        return f"it is one of {type.listed_choices}"
    return f"{with_article(type)} is wanted"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _array_problem(sample: ArraySample) -> str | None:
    """What is wrong with the description of an array."""
    if sample.dtype is not None and sample.dtype not in (*DTYPES, "bool"):
        return f"unknown dtype '{sample.dtype}'" + did_you_mean(sample.dtype, DTYPES)
    if any(not 0 <= n < 1 << 31 for n in sample.shape or ()):
        return f"{sample.shape} is no shape"
    if not sample.low <= sample.high:
        return f"low ({sample.low}) is above high ({sample.high})"
    if sample.values is not None:
        if {"shape", "low", "high", "away_from"} & sample.model_fields_set:
            return "values are given, so that shape, low, high and away_from say nothing"
        if _shape_of(sample.values) is None:
            return "values are numbers in lists of equal lengths"
    return None


def _shape_of(values: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers, or None if they are no table."""
    if isinstance(values, (bool, int, float)):
        return ()
    if not isinstance(values, list):
        return None
    shapes = {_shape_of(value) for value in values}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(values), *(shapes.pop() or () if shapes else ()))
