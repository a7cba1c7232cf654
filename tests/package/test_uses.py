"""A package that calls the operators of another one: built, installed next to it, and imported.

The package `other` is built as by `pip install`, and `tiny`, which uses it, from formulas over its
operators. The reference is MLX itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import builds
import mlx.core as mx
import pytest
from builds import output, run

from mlxgen.command import operators
from mlxgen.command.inputs import base_hash
from mlxgen.diagnostics import Diagnostics
from mlxgen.package.uses import compiled

pytestmark = pytest.mark.extended

OTHER = """
- name: cube
  signature: "cube(array x, *, float scale=1) -> array"
  module: extra
  aliases: [third]
  dispatch: cube
  grad: {x: 3 * scale * grad * square(x)}
- name: halves
  signature: "halves(x: array, axis: int = -1) -> (a: array, b: array)"
  composite: split(x, 2, axis=axis)
- signature: "power.Int(Tensor x, int n, *, bool negative=False) -> Tensor"
  composite: "-(x ** n) if negative else x ** n + 1"
  samples: {n: 2}
- signature: "power.Tensor(Tensor x, Tensor n) -> Tensor"
  composite: x ** n
  aliases: [deep.power]
- name: hidden
  signature: "hidden(array x) -> array"
  composite: 2 * x
  tags: [internal]
"""
CPP = """#pragma once
#include "mlxgen/scalar.h"
template <typename T>
T cube(T x, T scale) {
  return scale * x * x * x;
}
"""
TINY = """
- name: sixth
  signature: "sixth(array x) -> array"
  composite: other.extra.cube(other.extra.third(x), scale=2)
- name: swapped
  signature: "swapped(array x) -> array"
  composite: concatenate(other.halves(x)[::-1], axis=-1)
- name: powers
  signature: "powers(array x) -> array"
  composite: other.power(x, x) + 100 * other.power(x, 2) + other.deep.power(x, x)
  samples: {x: {low: 0.5, high: 2}}
"""
TRY = """
import mlx.core as mx, tiny, sys
assert "other" in sys.modules
x = mx.array([[1.0, 2.0], [-3.0, 0.5]])
def same(a, b): assert mx.allclose(a, b, rtol=1e-5), (a, b)
with mx.stream(mx.cpu):
    for f in (tiny.sixth, mx.compile(tiny.sixth), mx.vmap(tiny.sixth)):
        same(f(x), 2 * x**9)
    same(mx.grad(lambda x: tiny.sixth(x).sum())(x), 18 * x**8)
    second = mx.grad(lambda x: mx.grad(lambda x: tiny.sixth(x).sum())(x).sum())(x)
    same(second, 144 * x**7)
    same(tiny.swapped(x), x[:, ::-1])
    y = mx.abs(x)
    same(tiny.powers(y), 2 * y**y + 100 * (y**2 + 1))
print("right")
"""


def write(root: Path, name: str, yaml: str, table: str = "") -> None:
    """Write a project."""
    (root / "python" / name).mkdir(parents=True)
    (root / "python" / name / "__init__.py").write_text(f"from {name}._load import *\n")
    (root / "mlx_ops.yaml").write_text(yaml)
    (root / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0"\ndependencies = ["mlx=={mx.__version__}"]\n'
        f"[tool.mlxgen]\n{table}"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages installed."""
    root = tmp_path_factory.mktemp("uses")
    (root / "site").mkdir()
    write(root / "other", "other", OTHER)
    (root / "other" / "csrc").mkdir()
    (root / "other" / "csrc" / "cube.h").write_text(CPP)
    builds.install(builds.build_wheel(root / "other"), root / "site")
    write(root / "tiny", "tiny", TINY, 'uses = ["other"]\n')
    output(run("-c", builds.BUILD, cwd=root / "tiny", path=root / "site"))
    (wheel,) = (root / "tiny" / "dist").glob("*.whl")
    builds.install(wheel, root / "site")
    return root / "site"


def test_values_and_gradients(site: Path, tmp_path: Path) -> None:
    """In a folder that was moved: the libraries find each other by relative paths."""
    shutil.copytree(site, tmp_path / "moved", symlinks=True)
    shutil.rmtree(tmp_path / "moved" / "other" / "include")
    assert output(run("-c", TRY, cwd=tmp_path, path=tmp_path / "moved")) == "right\n"


def test_generated_checks(site: Path, tmp_path: Path) -> None:
    """The composite, evaluated by Python, calls the other package, too."""
    code = "import tiny, mlxgen.testing as t; report = t.check(tiny); assert report, report"
    output(run("-c", code, cwd=tmp_path, path=site))


def test_missing_at_import(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "alone", symlinks=True)
    shutil.rmtree(tmp_path / "alone" / "other")
    failed = run("-c", "import tiny", cwd=tmp_path, path=tmp_path / "alone")
    assert "tiny needs the package other, which is not installed" in failed.stderr


def test_load_of_a_file(site: Path) -> None:
    code = f"import mlxgen, sys; sys.modules['tiny'] = mlxgen.load('mlx_ops.yaml'){TRY}"
    assert output(run("-c", code, cwd=site.parent / "tiny", path=site)) == "right\n"


@pytest.fixture
def project(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that uses `other`, which is installed where it can be changed."""
    shutil.copytree(site / "other", tmp_path / "site" / "other")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    write(tmp_path / "tiny", "tiny", TINY, 'uses = ["other"]\n')
    return tmp_path / "tiny"


def said(project: Path) -> list[str]:
    """Return the messages of `mlxgen check`."""
    diags = Diagnostics()
    settings = operators.settings_of(project, None, diags)
    if settings is not None:
        operators.load(settings, diags)
    return [f"{item.code} {item.text}" for item in diags.sorted()]


def test_right(project: Path) -> None:
    assert said(project) == []


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("other.extra.cubes(x)", "the package other has no operator 'other.extra.cubes'"),
        ("other.hidden(x)", "the package other has no operator 'other.hidden'"),
        ("other.extra.cube(x, 2)", "too many positional arguments"),
        ("other.halves(x, axis=1.5)", "argument 'axis' of 'other.halves' must be `int`"),
        ("other.extra", "other.extra"),
        ("other.power(x, 'a')", "no overload of 'other.power' accepts"),
    ],
)
def test_mistakes_in_formulas(project: Path, formula: str, message: str) -> None:
    signature = "f(array x) -> array"
    (project / "mlx_ops.yaml").write_text(
        f'- name: f\n  signature: "{signature}"\n  composite: "{formula}"\n'
    )
    (found,) = said(project)
    assert message in found, found


def test_not_installed(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "site" / "other")
    assert said(project) == ["MG710 the package other is not installed"]


def test_not_built_by_mlxgen(project: Path) -> None:
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace("other", "json"))
    assert said(project) == ["MG710 the package json has no ops.json: mlxgen did not build it"]


def test_built_by_an_older_mlxgen(project: Path, tmp_path: Path) -> None:
    table = tmp_path / "site" / "other" / "ops.json"
    known = json.loads(table.read_text())
    for row in known["operators"]:
        del row["pure"]
    table.write_text(json.dumps(known))
    (found,) = said(project)
    assert found.startswith("MG710 the installed package other was built by another mlxgen")


def test_other_release_of_mlx(project: Path) -> None:
    diags = Diagnostics()
    settings = operators.settings_of(project, None, diags)
    assert settings is not None
    assert compiled(settings, "0.31.0", diags) == []
    (found,) = diags.sorted()
    assert found.code == "MG711" and f"built for MLX {mx.__version__}" in found.text
    (one,) = compiled(settings, mx.__version__, Diagnostics())
    assert one.place == "other/lib" and one.library is not None and one.library.is_file()


def test_dependency_is_not_named(project: Path, tmp_path: Path) -> None:
    info = tmp_path / "site" / "other_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-ops\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("other\n")
    (found,) = said(project)
    assert found.startswith("MG712 the dependencies of the project do not name other-ops")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace('"]\n[tool', '", "Other_Ops>=1"]\n[tool'))
    assert said(project) == []


def test_change_of_the_other_package(project: Path, tmp_path: Path) -> None:
    settings = operators.settings_of(project, None, Diagnostics())
    assert settings is not None
    before = base_hash(settings)
    (tmp_path / "site" / "other" / "ops.json").open("a").write("\n")
    assert base_hash(settings) != before
