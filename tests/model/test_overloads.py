"""Overloads: the one that Python calls, and those that no call can reach."""

from __future__ import annotations

import pytest

from mlxgen.model.overloads import accepted, chosen
from mlxgen.model.signature import Kind, Signature, Type
from mlxgen.plugins.rules.overloads import covers
from mlxgen.read.signature import parse_signature


def parse(text: str) -> Signature:
    signature = parse_signature(f"f({text}) -> Tensor", "any", lambda *_: None)
    assert signature is not None, text
    return signature


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("Tensor x", "Tensor x", True),
        ("Tensor x, Tensor y", "Tensor x, float y", True),
        ("Tensor x, float y", "Tensor x, Tensor y", False),
        ("Tensor x, float y", "Tensor x, int y", False),  # an int is exact for the second one
        ("Tensor x, int y", "Tensor x, float y", False),
        ("Tensor x", "Tensor y", False),  # f(y=x)
        ("Tensor x, /", "Tensor x", False),
        ("Tensor x", "Tensor x, /", True),
        ("Tensor y", "Tensor x, /", True),
        ("Tensor x, int n=1", "Tensor x", True),
        ("Tensor x, int n", "Tensor x", False),
        ("Tensor x", "Tensor x, int n=1", False),
        ("Tensor x, int n=1", "Tensor x, int n", True),
        ("Tensor x, int n", "Tensor x, int n=1", False),
        ("Tensor x, *, int n=1", "Tensor x, int n=1", False),
        ("Tensor x, int n=1", "Tensor x, *, int n=1", True),
        ("Tensor x, int? n", "Tensor x, int n", True),
        ("Tensor x, int n", "Tensor x, int? n", False),
        ("Tensor x, int[2] n", "Tensor x, int n", True),
        ("Tensor x, int[] n", "Tensor x, int n", False),
        ("Tensor x, str n", "Tensor x, bool n", False),
    ],
)
def test_covers(first: str, second: str, expected: bool) -> None:
    assert covers(parse(first), parse(second)) == expected


def test_chosen() -> None:
    texts = {"none": "Tensor x", "float": "Tensor x, float n", "int": "Tensor x, *, int n"}
    overloads = {name: parse(text) for name, text in texts.items()}

    def of(*kinds: str, **named: str) -> str | None:
        given = [frozenset({kind}) for kind in kinds]
        return chosen(overloads, given, {name: frozenset({kind}) for name, kind in named.items()})

    assert of("array") == of("int") == of(x="float") == "none"
    assert of("array", "float") == of("array", n="float") == "float"
    assert of("array", "int") == "float"  # by conversion
    assert of("array", n="int") == "int"  # exactly
    assert of("array", n="bool") == "float"  # both convert
    assert of("str") is of() is of("array", "int", n="int") is of("array", x="array") is None
    assert of("array", k="int") is None
    assert chosen(overloads, [frozenset({"array", "none"})], {}) is None


def test_every_kind_has_values() -> None:
    assert all(accepted(Type(kind), convert=False) for kind in Kind)
