"""`mlxgen import mlx`: entries from the stubs of the installed MLX, its errors and its files."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlxgen.diagnostics import Diagnostics
from mlxgen.formula.mlx import table
from mlxgen.plugins.importers import functions
from mlxgen.plugins.importers.functions import Imported, Installed, LeftOut, Made

VERSION = importlib.metadata.version("mlx")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlxgen", "import", "mlx", *arguments]
        root = str(Path(__file__).parents[2])
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, root]))}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return call


@pytest.fixture(scope="module")
def mlx() -> Installed:
    found = functions.installed(Diagnostics())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def everything(mlx: Installed) -> Imported:
    return functions.make(functions.select([], mlx, Diagnostics()), mlx)


def signatures(imported: Imported, name: str) -> list[str]:
    made = imported.functions[name]
    assert isinstance(made, Made)
    return [" ".join(entry["signature"].split()) for entry in made.entries]


def test_each_function_has_entries_or_a_reason(everything: Imported, mlx: Installed) -> None:
    assert everything.functions.keys() == mlx.stubs.functions.keys()
    known = {name for name in table(VERSION).names if name in mlx.stubs.functions}
    known -= {"asarray", "result_type", "issubdtype", "broadcast_shapes", "finfo", "iinfo"}
    made = {name for name, each in everything.functions.items() if isinstance(each, Made)}
    assert known <= made  # formulas can call them
    assert len(made) >= 240


def test_check_accepts_all(everything: Imported, tmp_path: Path) -> None:
    (tmp_path / "mlx.yaml").write_text(functions.entries(everything))
    command = [sys.executable, "-m", "mlxgen", "check", "mlx.yaml", "--max-errors", "0"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout == f"{len(everything.entries)} operators, no errors\n", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("abs", ["abs(a: array, /) -> array"]),
        ("sum", ["sum(a: array, /, axis: axes = None, keepdims: bool = False) -> array"]),
        ("zeros", ["zeros(shape: int | list[int], dtype: Dtype | None = float32) -> array"]),
        (
            "take",
            [
                "take(a: array, /, indices: int, axis: int | None = None) -> array",
                "take(a: array, /, indices: array, axis: int | None = None) -> array",
            ],
        ),
        ("einsum", ["einsum(subscripts: str, *operands: array) -> array"]),
        ("linalg.qr", ["qr(a: array) -> tuple[array, array]"]),
        ("linalg.svd", ["svd(a: array, compute_uv: bool = True) -> array | tuple[array, ...]"]),
        (
            "linalg.eigh",
            ["eigh(a: array, UPLO: Literal['L', 'U'] = 'L') -> tuple[array, array]"],
        ),
        (
            "random.uniform",
            [
                "uniform(low: array = 0, high: array = 1, shape: shape = [], "
                "dtype: Dtype | None = float32, key: array | None = None) -> array"
            ],
        ),
        ("divmod", ["divmod(a: array, b: array) -> list[array]"]),
        (
            "fast.scaled_dot_product_attention",
            [
                "scaled_dot_product_attention(q: array, k: array, v: array, *, scale: float, "
                'mask: array | Literal["causal"] | None = None, sinks: array | None = None, '
                "force_fused: bool = False) -> array"
            ],
        ),
        ("atleast_1d", ["atleast_1d(*arys: array) -> array | list[array]"]),
    ],
)
def test_signatures(everything: Imported, name: str, expected: list[str]) -> None:
    assert signatures(everything, name) == expected


def test_plain_functions_bind(everything: Imported) -> None:
    """Only functions whose conversion C++ lacks have a formula."""
    formulas = {e["python_name"] if "python_name" in e else e["signature"].partition("(")[0]
                for e in everything.entries if "composite" in e}  # fmt: skip
    assert formulas <= {
        *("arange", "atleast_1d", "atleast_2d", "atleast_3d", "categorical", "convolve"),
        *("depends", "linspace", "pad", "fft2", "fftn", "ifft2", "ifftn", "rfft2", "rfftn"),
        *("irfft2", "irfftn"),
    }


def test_aliases(everything: Imported) -> None:
    by_name = {e["signature"].partition("(")[0]: e for e in everything.entries}
    assert by_name["arccos"]["aliases"] == ["acos"]
    assert by_name["matrix_norm"]["cpp"] == "mlx::core::linalg::norm"  # in another module


def test_hand_written_facts_are_used(mlx: Installed) -> None:
    rows = functions.written()
    assert rows.keys() <= mlx.stubs.functions.keys()
    for name, row in rows.items():  # a fact for a function that has no entry would be useless
        assert bool(row.reason) != bool(row.entries or row.types or row.result or row.keys), name


def test_a_newer_release(mlx: Installed) -> None:
    """Functions that mlxgen's table does not know, or that have changed, have no entry."""
    stubs = mlx.stubs.functions
    changed = {**stubs, "sum": stubs["abs"]._replace(name="sum"), "new": stubs["abs"]}
    newer = mlx._replace(version="99.0", stubs=mlx.stubs._replace(functions=changed))
    imported = functions.make(["sum", "new", "exp"], newer)
    known = table().release
    assert imported.functions["sum"] == LeftOut(f"MLX 99.0 changed it after MLX {known}")
    assert "does not know this function" in str(imported.functions["new"])
    assert isinstance(imported.functions["exp"], Made)


def test_files(run: Run, tmp_path: Path) -> None:
    done = run(
        "--select", "linalg", "-s", "acos", "-s", "grad", "-o", "a.yaml", "--report", "r.yaml"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"MLX {VERSION}: ")
    text = (tmp_path / "a.yaml").read_text()
    assert text.startswith(f"# Written by mlxgen import from MLX {VERSION}.")
    assert "# - grad: it takes or returns a Python function." in text
    entries = yaml.safe_load(text)
    assert {e.get("module") for e in entries} == {"linalg", None}
    report: dict[str, Any] = yaml.safe_load((tmp_path / "r.yaml").read_text())
    assert report["arccos"] == {"from": "stub"}
    assert report["grad"] == {"left out": "it takes or returns a Python function"}
    assert run("-s", "grad", "-s", "arccos", "-s", "linalg", "-o", "b.yaml").returncode == 0
    assert (tmp_path / "b.yaml").read_text() == text  # in the order of the stubs


def test_mistakes(run: Run, tmp_path: Path) -> None:
    done = run("-s", "summ", "-o", "a.yaml")
    assert done.returncode == 1
    assert f"error[MG901]: MLX {VERSION} has no function or submodule 'summ' (did" in done.stderr
    done = run("-s", "linalg", "-o", "none/a.yaml")
    assert done.returncode == 1 and "error[MG607]: cannot write none/a.yaml" in done.stderr
    (tmp_path / "mine.yaml").write_text("- signature: mine\n")
    done = run("-o", "mine.yaml")
    assert done.returncode == 1 and "error[MG607]: refusing to overwrite mine.yaml" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml"}


def test_without_stubs(run: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "mlx").mkdir(parents=True)
    (site / "mlx" / "__init__.py").touch()
    done = run("-o", "a.yaml", path=str(site))
    assert done.returncode == 1 and not (tmp_path / "a.yaml").exists()
    assert f"error[MG903]: cannot read the stubs of MLX {VERSION}" in done.stderr
