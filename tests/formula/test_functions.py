"""The table of functions: it is valid, up to date and explained, and has an effect of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from formula.test_formula import compiled, errors
from pydantic import ValidationError

from mlxgen.formula.facts import UNKNOWN, combined
from mlxgen.formula.mlx import TABLE, Degree, DtypeEffect, RankEffect, Trace, stored, table
from mlxgen.formula.values import SLOTS, TEXTS
from mlxgen.model.op import Fact
from tools.functions import Functions, Result, Slot
from tools.mlx_table import as_text, from_mlx

ROOT = Path(__file__).parents[2]
RECORDS: dict[str, dict[str, Any]] = stored()["functions"]
# Functions of MLX that return arrays and have no effect in the table. New functions of a release
# are added here, or get a line in tools/functions.yaml.
WITHOUT_EFFECT: set[str] = set()


def test_valid() -> None:
    Functions.model_validate_json(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "record",
    [
        {"effect": {"rank": "wide", "degree": "nonlinear"}},
        {"effect": {"dtype": "float", "degree": "nonlinear"}},
        {"effect": {"rank": "same"}},
        {"effect": {"degree": "a+"}},
        {"effect": {"degree": "nonlinear", "shapeless": "wrapped"}},
        {"overloads": [{"cpp": "mx::f", "slots": [["a", "arry"]]}]},
        {"overloads": [{"cpp": "mx::f", "slots": [["a"]]}]},
        {"overloads": [{"cpp": "f", "slots": [["a", "array"]]}]},
        {"result": "flags:2"},
        {"operations": [[["arry"], "array", "f({0})", ""]]},
        {"operations": [[["array"], "arry", "f({0})", ""]]},
        {"signatures": [[["a", "+", "array"]]]},
        {"rank": "same"},
    ],
    ids=str,
)
def test_invalid(record: dict[str, Any]) -> None:
    whole = {"mlx": "1.0", "functions": {"f": record}, "aliases": {}, "older": {}}
    with pytest.raises(ValidationError):
        Functions.model_validate(whole)


def test_words() -> None:
    """Slots and results are those of values.py, and functions.yaml explains all keywords."""
    assert {*get_args(Slot)} == SLOTS.keys()
    assert {*get_args(Result)} <= {*TEXTS, "common", "same", "int64"}
    comments = re.findall(
        r"^# .*", (ROOT / "tools/functions.yaml").read_text("utf-8"), re.MULTILINE
    )
    words = {*re.findall(r"\w+", " ".join(comments))}
    used = [Slot, Result, RankEffect, DtypeEffect, Degree, Trace]
    assert {word for literal in used for word in get_args(literal)} <= {*words, ""}


def test_up_to_date() -> None:
    """Run ``python -m tools.mlx_table`` after changing tools/functions.yaml."""
    assert TABLE.read_text(encoding="utf-8") == as_text(from_mlx(), stored()["older"])


def test_functions_without_effect() -> None:
    gives = {
        name
        for name, record in RECORDS.items()
        if record.get("result", "bool") != "bool"
        or any(result == "array" for _, result, *_ in record.get("operations", ()))
    }
    assert {name for name in gives if "effect" not in RECORDS[name]} == WITHOUT_EFFECT


def test_a_function_without_effect_is_unknown_and_not_linear() -> None:
    grad = Fact(("x", 0), "float32", 1)
    assert combined("no_such_function", (grad,)) == UNKNOWN
    assert combined("negative", (grad,)) == grad


@pytest.mark.parametrize(
    ("text", "forward", "gradient"),
    [
        ("squeeze(x, axis=0)", "", ""),
        ("squeeze(x)", "calls squeeze", "calls squeeze"),
        ("sort(x, axis=0)", "", "calls sort"),
        ("flip(x)", "calls flip", "calls flip"),
    ],
)
def test_shapeless_traces(text: str, forward: str, gradient: str) -> None:
    expr = compiled(text)
    assert (expr.specializes, expr.gradient_specializes) == (forward, gradient)


def test_effects_are_of_functions() -> None:
    """Effects belong to existing functions and operations, and name existing parameters."""
    for name, record in RECORDS.items():
        if "effect" not in record or name.startswith("at_"):
            continue
        assert record.keys() & {"overloads", "operations"}, name
        degree = record["effect"]["degree"]
        if degree not in get_args(Degree):
            params = {p[0] for params in record["signatures"] for p in params}
            assert {*degree.replace("*", "+").split("+")} <= {*params}, name


def test_python_and_mlx() -> None:
    """Python functions are called only by bare names; MLX functions also with a module."""
    api = table()
    assert api.is_function("len") and api.is_function("zip") and api.is_function("array")
    assert api.function("len") is None and api.function("array") is not None
    ((code, message, *_),) = errors("mx.len(xs)")
    assert (code, message) == ("MG304", "unknown function 'len'")
    assert not errors("sum(mx.array([1, 2]))")
