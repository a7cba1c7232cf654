"""Mutants of gradient formulas: the changes, the killed mutants, and no survivors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tools.formulas.__main__ import prepare
from tools.formulas.mutants import mutants
from tools.formulas.report import Report

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run over files without a package."""
    monkeypatch.chdir(tmp_path)
    return partial(_run, tmp_path)


def _run(folder: Path, text: str, known: str = "") -> Report:
    (folder / "ops.yaml").write_text(text)
    (folder / "known.yaml").write_text(known or "equivalent: []")
    trial, listed = prepare(folder / "ops.yaml", "no_package", folder / "known.yaml")
    return Report.of(trial, listed)


def test_what_is_changed():
    found = {m.name: m.text for m in mutants("-grad * (x - 1) / 2.0", [["x", "y", "grad"]])}
    assert found["the sign of `-grad * (x - 1) / 2.0`"] == "-(-grad * (x - 1) / 2.0)"
    assert found["without the sign of `-grad`"] == "grad * (x - 1) / 2.0"
    assert found["without `1` in `x - 1`"] == "-grad * x / 2.0"
    assert found["2 for 1 in `x - 1`"] == "-grad * (x - 2) / 2.0"
    assert found["`y` for `x` in `x - 1`"] == "-grad * (y - 1) / 2.0"
    assert found["+ for - in `x - 1`"] == "-grad * (x + 1) / 2.0"
    assert found["1.001 times `x`"] == "-grad * (1.001 * x - 1) / 2.0"
    assert len(set(found.values())) == len(found) > 12
    found = {m.name: m.text for m in mutants("where(x < 0 and n == 1, a[1:], 0)", [])}
    assert "<= for < in `x < 0`" in found
    assert "or for and in `x < 0 and n == 1`" in found
    assert found["2 for 1 in `1:`"] == "where(x < 0 and n == 1, a[2:], 0)"


OPS = """
- signature: "leaky(x: array, slope: float = 0.1) -> array"
  composite: where(x > 0, x, slope * x)
  grad: {x: "where(x > 0, grad, slope * grad)"}
  samples: {x: {low: 0.5, high: 5}}
- signature: "twist(x: array, y: array) -> (p: array, q: array)"
  composite: (x * x * y, x + y)
  grad: {x: 2 * grad_p * x * y + grad_q, y: grad_p * x * x + grad_q}
  samples: {x: {values: [1.0, 2.0]}, y: {values: [1.0, -2.0]}}
"""


def test_samples_that_notice_too_little(run):
    report = run(OPS)
    assert not report.broken
    assert "leaky: grad of x: 1.001 times `slope`" not in report.missed
    missed = [name for name in report.missed if name.startswith("leaky")]
    assert "leaky: grad of x: `x` for `grad` in `slope * grad`" in missed
    assert "leaky: grad of x: without `slope` in `slope * grad`" in missed
    assert "leaky: grad of x: the sign of `where(x > 0, grad, slope * grad)`" not in missed
    assert not any(name.startswith("twist") for name in report.missed)
    # With negative numbers only, the behavior at 0 is tested only if a gradient there is given.
    kink = "leaky: grad of x: >= for > in `x > 0`"
    better = OPS.replace("low: 0.5, high: 5", "low: -5, high: 5, away_from: [0]")
    missed = run(better).missed
    assert kink in missed and "leaky: grad of x: without `slope` in `slope * grad`" not in missed
    assert kink not in run(better, "points: [{op: leaky, at: [0], gradient: [0.1]}]").missed


def test_a_formula_that_is_wrong(run):
    report = run(OPS.replace("grad_p * x * x", "1.001 * grad_p * x * x"))
    assert any("vjp of 'y'" in problem for problem in report.broken)


def test_equivalent_formulas(run):
    text = """
- signature: "g(x: array) -> array"
  composite: 2 * x
  grad: {x: "where(x == x, 2 * grad, where(x > 1, grad, grad))"}
"""
    report = run(text)
    assert report.missed and report.equivalent > 3
    assert "g: grad of x: >= for > in `x > 1`" not in report.missed
    assert "g: grad of x: `x` for `grad` in `where(x > 1, grad, grad)` (2)" in report.missed
    known = """
equivalent:
  - {mutants: ["*: * in `where(x > 1, grad, grad)`*", "g: *another*"], why: x is never NaN}
"""
    better = run(text, known)
    assert better.listed == len(report.missed) - len(better.missed) > 0
    assert better.idle == ["g: *another*"]


def test_kernels_that_are_not_known(run, tmp_path):
    text = """
- signature: "f(x: array, y: array) -> array"
  dispatch: {cpu: f}
  grad: {x: grad * result * y, y: grad * result}
"""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "f.h").write_text(
        "namespace ops::cpu { template <typename T> T f(T x, T y) { return x * y; } }"
    )
    report = run(text)
    assert (report.broken, report.missed, report.unknown) == ([], [], ["f"])
    report = run(text + "  samples: {x: {values: [1.0]}, y: {values: [1.0]}}\n")
    assert "f: grad of x: without `y` in `grad * result * y`" in report.missed


def test_what_is_skipped(run, tmp_path):
    text = """
- signature: "f(x: array) -> array"
  composite: x * x
  grad: {x: "slope(x, grad)"}
- signature: "slope(x: array, cotangent: array) -> array"
  cpp: ops::slope_of
  tags: [internal]
- signature: "g(x: array) -> array"
  composite: 2 * x
"""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "slope.h").write_text(
        "namespace ops { inline mx::array slope_of(const mx::array& x, "
        "const mx::array& cotangent, mx::StreamOrDevice s) { return x; } }"
    )
    assert run(text).broken
    report = run(text, "skipped: {ops: [f], why: slope is C++}")
    assert not report.left and report.noticed == 0
    report = run(text, "skipped: {ops: [f, g, h], why: slope is C++}")
    assert report.left and report.unskipped == ["g", "h"]
    assert "can be tested: h" in report.text()


def test_arguments_that_are_absent_or_not_numbers(run, tmp_path):
    text = """
- signature: "f(x: array, y: array, mask: array, z: array | None = None) -> array"
  dispatch: {cpu: f}
  shape: x.shape
  composite: "where(~mask, x * y, 0) if z is None else z"
  dtypes: {x: floating, y: floating, mask: bool_, z: floating}
  grad:
    "x, y": "(where(~mask, grad * y, 0), where(~mask, grad * x, 0)) if asked_x else (grad, grad)"
    mask: none
    z: zero
  samples:
    - {x: {shape: [2]}, y: {shape: [2]}, mask: {values: [false, true]}, z: null}
"""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "f.h").write_text(
        "namespace ops::cpu { template <typename T> "
        "void f(In<T> x, In<T> y, In<bool> mask, In<T> z, Out<T> out) {} }"
    )
    report = run(text)
    assert not report.broken
    # `~` of a boolean that became an integer is never 0.
    assert not [name for name in report.missed if ": 1 for 0 in" in name]


@pytest.mark.extended
@pytest.mark.weekly
def test_nothing_is_left(monkeypatch):
    monkeypatch.chdir(ROOT)
    report = Report.of(*prepare(None))
    assert not report.left, report.text()
    assert report.noticed > 2000
