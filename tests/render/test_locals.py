"""Arrays that formulas use several times, in all generated functions that compute arrays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fuzz.compiler import Compiler
from sample import project

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics

pytestmark = pytest.mark.extended

ENTRIES = """
- signature: "twice(x: array) -> array"
  cpp: my::twice
- signature: "doubled(x: array) -> array"
  composite: twice(x)
- signature: "kernel(x: array) -> array"
  dispatch: {cpu: square}
  grad: none
- signature: "composed(x: array) -> array"
  composite: kernel(x) + exp(kernel(x))
- signature: "composite(x: array, t0: int) -> array"
  composite: exp(x) * exp(x) * t0
- signature: "own(x: array, y: array | None = None) -> (add: array, mul: array)"
  composite: (composed(x) + 1, composed(x) * 2)
  grad:
    x: grad_add * exp(x) + grad_mul * exp(x)
    y: zero
- signature: "together(x: array, y: array) -> array"
  dispatch: {cpu: my::together}
  grad:
    x, y: (grad * exp(x), -grad * exp(x) * y)
- signature: "square(x: array) -> array"
  dispatch: {cpu: square}
  composite: sin(x) * sin(x)
  grad: {x: grad * cos(x) / cos(x)}
  jvp: {x: tangent * tan(x) / tan(x)}
- signature: "whole(x: array) -> array"
  dispatch: {cpu: total}
  shape: ()
  grad: {x: "full(x.shape, grad * sum(x) / sum(x))"}
- signature: "drawn(x: array) -> array"
  composite: twice(x) - twice(x)
- signature: "drawn_inside(x: array) -> array"
  composite: doubled(x) - doubled(x)
"""
KERNELS = """
namespace my {
template <typename T>
T together(T x, T y) {
  return x * y;
}
} // namespace my
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with these entries and the sample's kernels."""
    folder = tmp_path_factory.mktemp("locals")
    (folder / "csrc").mkdir()
    for path in (project.HERE / "csrc").iterdir():
        (folder / "csrc" / path.name).write_text(path.read_text())
    (folder / "csrc" / "together.h").write_text(f"#pragma once\n{KERNELS}")
    (folder / "mlx_ops.yaml").write_text(ENTRIES)
    diags = project.run(folder / "mlx_ops.yaml", folder / "out")
    assert diags.ok, diags.render_text()
    return folder


def test_where_locals_stand(folder: Path) -> None:
    found = {}
    for path in (folder / "out" / "src").glob("*.cpp"):
        if names := re.findall(r"const auto (t\d+) = ([\w:]+)", path.read_text()):
            found[path.stem] = sorted(names)
    assert found == {
        "composed": [("t0", "ops::kernel")],
        "composite": [("t1", "mx::exp")],
        "own": [("t0", "mx::exp"), ("t0", "ops::composed")],
        "together": [("t0", "mx::exp")],
        "square": [("t0", "mx::cos"), ("t0", "mx::sin"), ("t0", "mx::tan")],
        "whole": [("t0", "mlxgen::sum")],
    }


def test_it_compiles(folder: Path, tmp_path: Path) -> None:
    assert Compiler(tmp_path).errors([folder / "out"], [folder / "csrc"]) == {}


def test_one_entry_alone(folder: Path) -> None:
    """Resolving one entry also reads the entries that it calls."""
    settings = project.settings(folder / "mlx_ops.yaml")
    for name, count in {"composed": 1, "drawn": 0, "drawn_inside": 0}.items():
        ops, _ = operators.load(settings, Diagnostics(), only=[name])
        (op,) = [op for op in ops if op.name == name]
        assert op.forward.expr is not None and len(op.forward.expr.locals) == count
