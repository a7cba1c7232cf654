"""Some functions of `mlxgen import mlx` pass MLX's own tests; `make conformance` runs all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conformance import compare

# Of each kind: overloads, weakly typed numbers, keys, `*arrays`, lists, tuples, defaults.
SELECTED = (
    *("random", "arange", "atleast_1d", "full", "linspace", "meshgrid", "pad", "roll", "take"),
    *("unstack", "zeros", "linalg.svd"),
)
TESTS = {
    "test_ops.py": "arange or atleast or full or linspace or meshgrid or pad or roll or take "
    "or unstack or ones_zeros",
    "test_random.py": "",
}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conformance") / "mlx.yaml"
    chosen = [word for name in SELECTED for word in ("--select", name)]
    command = [sys.executable, "-m", "mlxgen", "import", "mlx", *chosen, "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.mark.extended
@pytest.mark.parametrize("name", TESTS)
def test_generated_functions_pass(entries: Path, name: str) -> None:
    tests = compare.folder_of_tests()
    if tests is None:
        pytest.skip("MLX_SOURCE is not a checkout of MLX's repository")
    chosen = ["-k", TESTS[name]] if TESTS[name] else []
    before = compare.run(tests / name, "", entries.parent / "plain.json", chosen)
    after = compare.run(tests / name, str(entries), entries.parent / "generated.json", chosen)
    assert sum(outcome == "passed" for outcome in before.outcomes.values()) >= 10, before.text
    assert not compare.differing(before, after), after.text
    assert sum(count > 0 for count in after.calls.values()) >= 9, after.calls


def test_differences_are_found() -> None:
    before = compare.Run({"a": "passed", "b": "failed", "c": "passed", "d": "passed"}, {}, "")
    after = compare.Run({"a": "passed", "b": "failed", "c": "failed"}, {}, "")
    assert compare.differing(before, after) == ["c", "d"]
