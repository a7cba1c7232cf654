"""`make test PYTEST_ARGS=..` builds the packages that the chosen tests need, and no other."""

from __future__ import annotations

import pytest

from tools.needs import ROOT, needed

WITHOUT_A_BUILD = {ROOT / "tests" / "linalg" / "test_selected.py"}


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        (["tests/formula"], set()),
        (["tests/check", "tests/read", "tests/render", "-k", "mlxops"], set()),
        (["tests/ops/test_dtypes.py::test_name"], {"mlxops"}),
        (["aten/tests/test_samples.py"], {"mlx_aten"}),
        (["-k", "axes"], {"mlxops", "mlx_aten"}),
    ],
)
def test_packages(arguments: list[str], packages: set[str]) -> None:
    assert needed(arguments) == packages


@pytest.mark.parametrize("folder", ["linalg", "nn", "ops", "special"])
def test_operators(folder: str) -> None:
    """The operators come from mlxops, also where only a helper or another program imports them."""
    files = {*(ROOT / "tests" / folder).glob("test_*.py")} - WITHOUT_A_BUILD
    assert not [file for file in files if "mlxops" not in needed([str(file)])]
