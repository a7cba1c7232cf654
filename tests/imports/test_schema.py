"""The schema: parsing, and the forms of operators."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml
from imports.conftest import SCHEMA

from mlxgen.diagnostics import Diagnostics
from mlxgen.plugins.importers import schema
from mlxgen.plugins.importers.schema import Schema, SchemaError


def test_signatures_print_as_they_are_written(torch_schema: Schema) -> None:
    rows = [row["func"] for row in yaml.safe_load(SCHEMA.read_text())]
    assert [str(overload) for overload in torch_schema.overloads.values()] == rows[:-1]


@pytest.mark.skipif(not importlib.util.find_spec("torchgen"), reason="torch is not installed")
def test_all_signatures_of_torch_print_as_they_are_written() -> None:
    diags = Diagnostics()
    found = schema.installed(diags)
    assert found and diags.ok and not found.unread
    spec = importlib.util.find_spec("torchgen")
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    path = folder / "packaged" / "ATen" / "native" / "native_functions.yaml"
    rows = [row["func"] for row in yaml.safe_load(path.read_text("utf-8"))]
    assert [str(overload) for overload in found.overloads.values()] == rows


def test_unknown_syntax_concerns_its_operator_only(torch_schema: Schema) -> None:
    assert list(torch_schema.unread) == ["future"]
    assert "Widget<T> self" in torch_schema.unread["future"]


@pytest.mark.parametrize("text", ["relu", "f(Tensor self", "f(Tensor self; int n) -> Tensor"])
def test_damaged_signatures(text: str) -> None:
    with pytest.raises(SchemaError):
        schema.parse(text)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("relu", ["inplace", "out"]),  # its `out` is generated
        ("add.Tensor", ["inplace", "out"]),
        ("add.Scalar", []),
        ("max.dim", []),
        ("special_erfcx", []),
    ],
)
def test_forms(torch_schema: Schema, name: str, forms: list[str]) -> None:
    assert list(torch_schema.twins(torch_schema.overloads[name])) == forms
