"""Overloads in Python: signatures, order, and those that another one serves."""

from __future__ import annotations

import pytest

from mlxgen.plugins.importers import overloads, schema
from mlxgen.plugins.importers.overloads import Unsupported
from mlxgen.plugins.importers.schema import Schema


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("relu", "relu(Tensor self) -> Tensor"),
        ("rand.generator",
         "rand.generator(int[] size, *, Tensor key, ScalarType? dtype=None) -> Tensor"),
        ("mse",
         'mse(Tensor self, Tensor target, int reduction=1, str side="left") -> Tensor'),
        ("cast", "cast(Tensor self, int[2] size=[], *, ScalarType dtype=int64) -> Tensor"),
        ("adaptive_backward.grad_input",
         "adaptive_backward.grad_input(Tensor grad_output, Tensor self) -> Tensor"),
    ],
)  # fmt: skip
def test_signatures(torch_schema: Schema, name: str, signature: str) -> None:
    assert str(overloads.signature(torch_schema.overloads[name])) == signature


def test_lists_of_gradients_may_be_empty_too() -> None:
    texts = (
        "pool(Tensor self, int[2] size, int[2] stride=[]) -> Tensor",
        "pool_backward(Tensor grad, Tensor self, int[2] size, int[2] stride) -> Tensor",
        "fill_backward(Tensor grad, int[2] stride) -> Tensor",
    )
    pool, backward, other = map(schema.parse, texts)
    read = Schema("0", [pool, backward, other], frozenset(), {})
    found = [str(overloads.with_empty_lists(each, read)) for each in (pool, backward, other)]
    changed = texts[1].replace("int[2] stride", "int[] stride")
    assert found == [texts[0], changed, texts[2]]


def test_unsupported_types_are_named(torch_schema: Schema) -> None:
    with pytest.raises(Unsupported, match="the type Dimname of 'dim'"):
        overloads.signature(torch_schema.overloads["masks"])


def test_bools_are_lists() -> None:
    text = "backward(Tensor grad, bool[3] output_mask) -> Tensor"
    assert str(overloads.signature(schema.parse(text))) == text
    assert overloads.accepted("bool[3]") == {"bools"}


def _arranged(*signatures: str, keep: tuple[str, ...] = ()) -> tuple[list[str], dict[str, str]]:
    parsed = [overloads.signature(schema.parse(text)) for text in signatures]
    ordered, merged = overloads.arrange(parsed, frozenset(keep))
    assert not list(overloads.unreachable(ordered))
    return [overload.overload for overload in ordered], merged


TENSOR = "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
SCALAR = "add.Scalar(Tensor self, Scalar other, *, Scalar alpha=1) -> Tensor"


def test_numbers_are_arrays() -> None:
    assert _arranged(TENSOR, SCALAR) == (["Tensor"], {"add.Scalar": "add.Tensor"})
    assert _arranged(SCALAR, TENSOR) == (["Tensor"], {"add.Scalar": "add.Tensor"})


def test_what_has_no_formula_may_be_served_by_another() -> None:
    number, array = (overloads.signature(schema.parse(text)) for text in (SCALAR, TENSOR))
    assert overloads.served([number], [array]) == {"add.Scalar": "add.Tensor"}
    assert overloads.served([array], [number]) == {}


def test_overridden_overloads_stay_and_are_tried_first() -> None:
    assert _arranged(TENSOR, SCALAR, keep=("add.Scalar",)) == (["Scalar", "Tensor"], {})


def test_other_defaults_and_names_are_other_meanings() -> None:
    names, merged = _arranged(
        "f.mean(Tensor self, float std=1) -> Tensor", "f.both(Tensor self, Tensor std) -> Tensor"
    )
    assert (names, merged) == (["mean", "both"], {})
    names, merged = _arranged(
        "f.src(Tensor self, Tensor src) -> Tensor", "f.value(Tensor self, Scalar value) -> Tensor"
    )
    assert (names, merged) == (["value", "src"], {})


def test_narrow_overloads_precede_wide_ones() -> None:
    names, merged = _arranged(
        "max(Tensor self) -> Tensor",
        "max.other(Tensor self, Tensor other) -> Tensor",
        "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    )
    assert names.index("dim") < names.index("other") and not merged


def test_unreachable_overloads_are_found() -> None:
    parsed = [overloads.signature(schema.parse(text)) for text in (TENSOR, SCALAR)]
    assert list(overloads.unreachable(parsed)) == [("add.Scalar", "add.Tensor")]
    assert list(overloads.unreachable(parsed[::-1])) == []


@pytest.mark.parametrize(
    ("name", "aliases"), [("special_erfcx", ["special.erfcx"]), ("mse", ["nn.mse"]), ("relu", [])]
)
def test_submodules(torch_schema: Schema, name: str, aliases: list[str]) -> None:
    assert overloads.aliases(torch_schema.overloads[name]) == aliases
