"""Formulas as syntax trees: simplification, the union of cases, and names of repeated parts."""

from __future__ import annotations

import ast
import math

import pytest

from mlxgen.plugins.importers import terms


@pytest.mark.parametrize(
    ("formula", "values", "expected"),
    [
        ("self + alpha * other", {"alpha": "1"}, "self + other"),
        ("self - alpha * other", {"alpha": "-2.0"}, "self - -2.0 * other"),
        ("self + other", {"other": "-x"}, "self - x"),
        ("self - other", {"other": "-x"}, "self + x"),
        ("self ** p", {"self": "-1.5"}, "(-1.5) ** p"),
        ("self * other", {"self": "a + b"}, "(a + b) * other"),
        ("x.sum(axis=dim if dim else None)", {"dim": "[]"}, "x.sum(axis=None)"),
        ("x.sum(axis=dim if dim else None)", {"dim": "[0]"}, "x.sum(axis=[0])"),
        ("a if b is None else a * b", {"b": "None"}, "a"),
        ("a if b is None else a * b", {"b": "c"}, "a * c"),
        ("a if m == 'x' or b is not None else c", {"m": "'x'"}, "a"),
        ("a if m != 'x' and not f else c", {"m": "'y'", "f": "False"}, "a"),
        ("a if x.ndim else b", {"a": "c"}, "c if x.ndim else b"),
        ("x / size", {"size": "1"}, "x / 1".removesuffix(" / 1")),
        ("self * scale + low - low", {"scale": "1.0", "low": "0.0"}, "self * 1.0 + 0.0 - 0.0"),
        ("scale * self / scale", {"scale": "1.0"}, "1.0 * self / 1.0"),
        ("self * scale + low - low", {"scale": "1", "low": "0"}, "self"),
        ("low + self", {"low": "0.0"}, "0.0 + self"),
        ("low + self", {"low": "0"}, "self"),
        ("low - self", {"low": "0"}, "0 - self"),
        ("-self", {"self": "-x"}, "x"),
        ("self ** p", {"self": "-0.0"}, "(-0.0) ** p"),
        ("a if b is not None else c", {"b": "None"}, "c"),
        ("a if m == 1 and x.ndim else b", {"m": "1"}, "a if 1 == 1 and x.ndim else b"),
        ("a if not m == 1 else c", {"m": "1"}, "c"),
        ("exp(exp)", {"exp": "y"}, "exp(y)"),
    ],
)
def test_instantiate(formula: str, values: dict[str, str], expected: str) -> None:
    given = {name: _number_or_name(text) for name, text in values.items()}
    assert terms.text(terms.instantiate(terms.name(formula), given)) == expected


def _number_or_name(text: str) -> terms.Term:
    value = terms.name(text)
    match value:
        case ast.UnaryOp(ast.USub(), ast.Constant(number)):
            return terms.number(-number)
    return value


@pytest.mark.parametrize("value", [0, 2, -2, 0.5, -0.5, math.inf, -math.inf, -0.0, True])
def test_numbers_are_those_of_python(value: float) -> None:
    found = eval(terms.text(terms.number(value)), {"inf": math.inf})
    assert (found, math.copysign(1, found), type(found)) == (
        value,
        math.copysign(1, value),
        type(value),
    )


@pytest.mark.parametrize(
    ("argument", "condition", "first", "second", "expected"),
    [
        ("k", "k", "sum(x, k=True)", "sum(x, k=False)", "sum(x, k=k)"),
        ("k", "k", "sum(x, k=False)", "sum(x, k=True)", "sum(x, k=False if k else True)"),
        ("w", "w is not None", "clip(x, w)", "clip(x, None)", "clip(x, w)"),
        ("w", "w is not None", "w * f(x)", "f(x)", "w * f(x) if w is not None else f(x)"),
        ("r", "r == 0", "f(x) + 1", "f(x) + 2", "f(x) + (1 if r == 0 else 2)"),
        ("r", "r == 0", "f(x)", "f(x)", "f(x)"),
        ("r", "r == 0", "a + b", "c + d", "a + b if r == 0 else c + d"),
        ("r", "r == 0", "f(a)", "g(a)", "f(a) if r == 0 else g(a)"),
        ("r", "r == 0", "f(a)", "f(a, b)", "f(a) if r == 0 else f(a, b)"),
        ("r", "r == 0", "f(a.b)", "f(a.c)", "f(a.b if r == 0 else a.c)"),
        ("r", "r == 0", "a if c else b", "a if c else d",
         "(a if c else b) if r == 0 else a if c else d"),
        ("w", "w is not None", "f(w)", "f(x)", "f(w if w is not None else x)"),
        ("k", "k", "f(x, a=1)", "f(x, b=1)", "f(x, a=1) if k else f(x, b=1)"),
        ("k", "k", "f(g(True), 1)", "f(g(False), 2)", "f(g(k), 1 if k else 2)"),
    ],
)  # fmt: skip
def test_union(argument: str, condition: str, first: str, second: str, expected: str) -> None:
    parts = (terms.name(text) for text in (argument, condition, first, second))
    assert terms.text(terms.union(*parts)) == expected


@pytest.mark.parametrize(
    ("formula", "expected", "rest"),
    [
        ("exp(a * x + b) / (1 + exp(a * x + b))",
         {"exponential": "exp(a * x + b)"}, "exponential / (1 + exponential)"),
        ("(a - b * c) ** 2 + f(a - b * c)",
         {"difference": "a - b * c"}, "difference ** 2 + f(difference)"),
        ("f(g(a * x + 1), g(a * x + 1), a * x + 1)",
         {"total": "a * x + 1", "g_value": "g(total)"}, "f(g_value, g_value, total)"),
        ("x * x + x * x", {}, "x * x + x * x"),
        ("f(a, x) + f(a, x)", {}, "f(a, x) + f(a, x)"),
        ("(a * x + 1) ** 2 + f(a * x + 1) + (a * x + 2) * g(a * x + 2)",
         {"total": "a * x + 2", "total2": "a * x + 1"},
         "total2 ** 2 + f(total2) + total * g(total)"),
        ("f(w * x + y) + f(w * x + y)", {}, "f(w * x + y) + f(w * x + y)"),
    ],
)  # fmt: skip
def test_repeated_parts_have_names(formula: str, expected: dict[str, str], rest: str) -> None:
    parts, left = terms.named_parts(terms.name(formula), {"x", "a"}, {"w"})
    assert [(name, terms.text(part)) for name, part in parts.items()] == list(expected.items())
    assert terms.text(left) == rest


def test_conditions_about_none_are_not_repeated() -> None:
    first, second, none = (
        terms.name(text) for text in ("d if d else None", "d is not None", "None")
    )
    assert terms.text(terms.union(terms.name("d"), second, first, none)) == "d if d else None"


def test_broadcasting_to_the_own_shape_is_left_out() -> None:
    formula = terms.name("mx.broadcast_to(x, size) + mx.broadcast_to(y, size)")
    made = terms.instantiate(formula, {"size": terms.name("x.shape")})
    assert terms.text(made) == "x + mx.broadcast_to(y, x.shape)"
