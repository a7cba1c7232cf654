"""The example of a docstring: a call with the arrays of the entry's first sample.

It is a doctest that imports what it uses. Its arrays are the same in each run, with numbers from
the sample's domain. It shows the shapes of the results if the entry has rules for them.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from ..formula.numbers import ArrayFacts, Impossible, broadcast, evaluated
from ..model.kinds import Kind
from ..model.op import DtypeRule, Op
from ..model.signature import quoted


def example(op: Op, package: str) -> list[str]:
    """Return the lines of the example; none if Python cannot call it, or if it needs a sample."""
    callable = op.arguments.arrays and not op.entry.internal
    if not (callable and (op.entry.samples or op.broadcasts)):
        return []
    sample = op.entry.samples[0] if op.entry.samples else {}
    rules = {p.name: rule for rule in op.dtype_rules for p in rule.params}
    code, passed = ["import mlx.core as mx", f"import {package}"], list[str]()
    names, by_place = dict[str, Any](), True
    for i, arg in enumerate(op.signature.declared):
        name, type, default = arg.name, arg.type, arg.default
        value = sample.get(name, default.value if default is not None else None)
        if value is None and type.is_array and not type.optional:
            value = {} if type.kind is Kind.ARRAY else [{}, {}]
        items = value if isinstance(value, list) else [value]
        if any(isinstance(one, Mapping) for one in items):
            facts = [one if one is None else ArrayFacts(_shape(one), None) for one in items]
            texts = ["None" if one is None else _array(one, rules.get(name)) for one in items]
            text, several = name, items is value
            code.append(f"{name} = [{', '.join(texts)}]" if several else f"{name} = {texts[0]}")
            names[name] = facts if several else facts[0]
        else:
            text, names[name] = _literal(value, type.kind), type.spread(value)
            if default is not None and value == default.value and i >= op.signature.by_position:
                by_place = False
                continue
        by_place = by_place and not arg.kw_only
        passed.append("*" * type.variadic + text if by_place else f"{name}={text}")
    results = [output.name for output in op.outputs]
    code.append(f"{', '.join(results)} = {package}.{op.path}({', '.join(passed)})")
    layout: Any = {"subsequent_indent": "...     ", "break_long_words": False}
    lines = [f">>> {textwrap.fill(statement, 80, **layout)}" for statement in code]
    if shapes := _result_shapes(op, names):
        lines.append(f">>> {', '.join(f'{name}.shape' for name in results)}")
        lines.append(str(shapes[0] if len(shapes) == 1 else tuple(shapes)))
    return lines


def _shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an array of a sample."""

    def of(values: Any) -> tuple[int, ...]:
        return (len(values), *of(values[0] if values else 0)) if isinstance(values, list) else ()

    return of(given["values"]) if "values" in given else tuple(given.get("shape", (3, 4)))


def _array(given: Mapping[str, Any], rule: DtypeRule | None) -> str:
    """Return an array of a sample in Python."""
    usual = "float32" if rule is None or "float32" in rule.dtypes else rule.dtypes[0]
    dtype, shape = given.get("dtype", usual), _shape(given)
    dtype = "bool_" if dtype == "bool" else dtype
    low, high = given.get("low", -2), given.get("high", 2)
    if "values" in given or not shape:
        return f"mx.array({_literal(given.get('values', low))}, mx.{dtype})"
    if given.get("positive_definite"):
        return f"mx.broadcast_to(mx.eye({shape[-1]}), {shape})"
    text = f"mx.linspace({low}, {high}, {math.prod(shape)})"
    text += f".reshape{shape}" if len(shape) != 1 else ""
    return text + (f".astype(mx.{dtype})" if dtype != "float32" else "")


def _literal(value: Any, kind: Kind = Kind.FLOAT) -> str:
    """Return a value in Python; dtypes, infinity and NaN are names of mlx.core."""
    if isinstance(value, str):
        return f"mx.{value}" if kind is Kind.DTYPE else quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return {"inf": "mx.inf", "-inf": "-mx.inf", "nan": "mx.nan"}.get(str(value), str(value))


def _result_shapes(op: Op, names: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of the results; empty if they are unknown."""
    try:
        if op.broadcasts:
            arrays = [given for given in names.values() if isinstance(given, ArrayFacts)]
            return [broadcast(*(array.shape for array in arrays))] * len(op.outputs)
        sizes = {axis: names[of].shape[at] for axis, (of, at, _) in op.arguments.lengths.items()}
        trees = [rule.tree for rule in op.output_rules.shapes]
        return [tuple(evaluated(tree, {**names, **sizes}, None)) for tree in trees if tree]
    except (Impossible, IndexError, TypeError):
        return []
