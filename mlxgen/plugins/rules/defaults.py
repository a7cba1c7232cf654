"""Checks that the dtypes of an array can represent its default or initial value, a number.

The default is weakly typed: it takes the dtype of the arrays next to it if its kind allows that
(``ArrayArg::get`` of runtime/include/mlxgen/python.h). Composites without ``dtypes`` accept all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...check.context import SIGNATURES, Context, Path
from ...check.dispatch import dtype_of
from ...model.dtypes import ACCUMULATOR, FLOATING, INTEGER, LIMITS
from ...model.kinds import Kind
from ...model.numbers import evaluated
from ...model.op import DtypeRule, Form, Op
from . import MESSAGES

SINGLE = (-3.4e38, 3.4e38)  # all other dtypes
# Significant bits, and the smallest number that is rounded to infinity; others are like float32.
_PRECISION = {
    "float16": (11, 65520.0),
    "bfloat16": (8, 3.3961775292304957e38),
    "float32": (24, 3.4028235677973366e38),
    "float64": (53, math.inf),
}


def check_defaults(context: Context, op: Op) -> None:
    """Report defaults of arrays that a dtype of the entry cannot represent."""
    if context.form is not Form.KERNELS and context.raw.dtypes is None:
        return
    for rule in op.arguments.rules:
        for p in rule.params:
            number = p.arg.default.value if p.arg.default and p.type.kind is Kind.ARRAY else None
            if isinstance(number, int | float) and (dtype := _misfit(number, rule)):
                path, at = _literal(context, p.arg.offset)
                kind, better = dtype.rstrip("_"), _nearest(number, dtype)
                about: Any = {"name": p.name, "number": number, "dtype": kind, "better": better}
                context.error("default_of_dtype", path, at=at, table=MESSAGES, **about)


def check_initial(context: Context, op: Op) -> None:
    """Report constants under `init` that an integer dtype of the output cannot represent."""
    group, keys = op.arguments.group, context.keys("init")
    for output, number, _ in op.output_rules.initial:
        if number is None or number.names:
            continue
        name = op.outputs[output].name
        text = context.raw.init[keys[name]]
        value = evaluated(context.expanded(text), {"inf": math.inf, "nan": math.nan}, None)
        dtype = dtype_of(op.arguments, op.output_rules.dtypes[output])
        for one in group.dtypes if group and dtype == "T" else (dtype,):
            low, high = LIMITS[one] if one in INTEGER else (0, 1)
            whole = value is not None and low <= value <= high and value == int(value)
            if one in (*INTEGER, "bool_") and value is not None and not whole:
                about: Any = {"name": name, "number": text, "dtype": one.rstrip("_")}
                context.error("fill_of_dtype", ("init", keys[name]), table=MESSAGES, **about)
                break


def _misfit(number: float, rule: DtypeRule) -> str | None:
    """Return a dtype of a rule that makes the default unusable, if any.

    Integers raise if they cannot represent the number. Floats become infinite or round it, which
    is right next to a wider dtype: at least one has to represent it.
    """
    dtypes = FLOATING if rule.dtypes == (ACCUMULATOR,) else rule.dtypes
    for dtype in dtypes:
        if not _is_taken(number, dtype, rule):
            return dtype
    inexact = [d for d in dtypes if d not in (*INTEGER, "bool_")]
    fits = len(inexact) < len(dtypes) or any(_is_exact(number, dtype) for dtype in inexact)
    return None if fits else inexact[-1]


def _is_taken(number: float, dtype: str, rule: DtypeRule) -> bool:
    """Return whether a call whose other arrays have a dtype accepts the number."""
    if isinstance(number, bool):
        return True
    if dtype in INTEGER and isinstance(number, int):
        return bool(LIMITS[dtype][0] <= number <= LIMITS[dtype][1])
    if dtype in (*INTEGER, "bool_"):
        return rule.resolve("int32" if isinstance(number, int) else "float32") is not None
    return True


def _is_exact(number: float, dtype: str) -> bool:
    """Return whether a floating dtype has the number, if it is an int, or one close to it."""
    if isinstance(number, bool) or not math.isfinite(number):
        return True
    digits, limit = _PRECISION.get(dtype, _PRECISION["float32"])
    whole = abs(number) if isinstance(number, int) else 0
    bits = whole.bit_length() - (whole & -whole).bit_length() + 1
    return abs(number) < limit and bits <= digits


def _nearest(number: float, dtype: str) -> str:
    """Return a number close to another one that a dtype can represent."""
    if dtype == "bool_":
        return str(bool(number) and not math.isnan(number))
    low, high = LIMITS.get(dtype, SINGLE)
    within = min(max(0 if math.isnan(number) else number, low), high)
    if dtype in INTEGER:
        return str(round(within))
    return str(float(within))


def _literal(context: Context, offset: tuple[int, int]) -> tuple[Path, tuple[int, int]]:
    """Return the location of the default in the declaration of an argument."""
    given: Iterable[str] = (key for key in SIGNATURES if getattr(context.raw, key) is not None)
    key = [*given][-1]  # offsets are those of the Python signature
    text: str = getattr(context.raw, key)
    start = text.rindex("=", *offset) + 1
    start += len(text[start:]) - len(text[start:].lstrip())
    return (key,), (start, offset[1])
