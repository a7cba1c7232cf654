"""The benchmarks run: their synthetic entries are valid, and results reach the page and terminal.

No test measures time.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
import scipy.special
from mlx.utils import tree_flatten

from mlxgen.command import generate
from mlxgen.diagnostics import Diagnostics
from mlxgen.read import settings as project_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package, which is not installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in ("synthetic", "report", "measure"):
        importlib.import_module(f"benchmarks.{name}")
    return importlib.import_module("benchmarks")


def test_synthetic_entries_are_valid(benchmarks: ModuleType, tmp_path: Path) -> None:
    yaml = benchmarks.synthetic.write_project(tmp_path, 60, "0.32.4")
    diagnostics = Diagnostics()
    settings = project_settings.load(tmp_path, diagnostics)
    assert settings is not None
    result = generate.generate(settings, tmp_path / "out", diagnostics)
    assert result is not None and result.operators == 60, diagnostics.render_text(False)
    again = generate.generate(settings, tmp_path / "out", diagnostics)
    assert again is not None and again.changes is None
    smaller = benchmarks.synthetic.write_project(tmp_path / "smaller", 20, "0.32.4")
    assert yaml.read_text().startswith(smaller.read_text())


def test_page_takes_results(
    benchmarks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, result = benchmarks.report, benchmarks.measure.Result
    page = tmp_path / "page.md"
    page.write_text(report.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(report, "PAGE", page)
    for group in report.TITLES:
        results = [result(group, f"what of {group}", "the value", "the aim", met=True)]
        report.update_page(results, {"Python": "3"})
        report.update_page(results, {"Python": "4"})
        assert [table.row_count for table in report.tables(results)] == [1]
    text = page.read_text(encoding="utf-8")
    for group in report.TITLES:
        assert text.count(f"| what of {group} | the value | the aim | yes |") == 1
    assert "Python 3" not in text and text.count("Python 4") == len(report.TITLES)


def test_a_group_has_columns_of_its_own(
    benchmarks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(benchmarks.report.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(benchmarks.report, "PAGE", page)
    cells = {"add": "**0.8**", "NumPy": "1 to 2"}
    results = [benchmarks.measure.Result("layouts", "dense", "", met=False, cells=cells)]
    benchmarks.report.update_page(results, {"Python": "3"})
    text = page.read_text(encoding="utf-8")
    assert "| | add | NumPy | met |\n|---|---|---|---|\n| dense | **0.8** | 1 to 2 | no |" in text
    (table,) = benchmarks.report.tables(results)
    assert [column.header for column in table.columns] == ["", "add", "NumPy", "met"]


def test_layouts_are_the_same_in_mlx_and_numpy(benchmarks: ModuleType) -> None:
    def values(*shape: int) -> np.ndarray:
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    module = importlib.import_module("benchmarks.layouts")
    for name, layout in module.LAYOUTS.items():
        x, y = layout(values, 4, 6 if "8" not in name else 4)
        ours = layout(lambda *shape: mx.array(values(*shape)), 4, 6 if "8" not in name else 4)
        assert np.array_equal(x + y, mx.add(*ours)), name
        assert isinstance(y, float) or np.array_equal(y, ours[1]), name


def test_compositions_are_the_functions(benchmarks: ModuleType) -> None:
    """Compare roughly: they represent the cost of a composition, but must not compute nonsense."""
    module = importlib.import_module("benchmarks.special")
    names = {"lgamma": "gammaln", "digamma": "psi"}
    with mx.stream(mx.cpu):
        for name, composition in module.COMPOSITIONS.items():
            random = np.random.default_rng(0)
            x = [random.uniform(*ends, 500) for ends in module.ARGUMENTS[name]]
            out = np.array(composition(*(mx.array(a, dtype=mx.float64) for a in x)))
            if name == "log1mexp":
                wanted = np.log1p(-np.exp(x[0]))
            else:
                wanted = getattr(scipy.special, names.get(name, name))(*x)
            np.testing.assert_allclose(out, wanted, rtol=0.05, atol=0.02, err_msg=name)


def test_every_special_function_has_inputs(benchmarks: ModuleType) -> None:
    module = importlib.import_module("benchmarks.special")
    for record in module.RECORDS.values():
        assert len(module.inputs(record, "float32", 8)) == record.arity, record.name


def test_training_compares_like_with_like(benchmarks: ModuleType) -> None:
    """Compare results and gradients, because a wrong loop over time would take as long."""
    module = importlib.import_module("benchmarks.training")
    with mx.stream(mx.cpu):
        for name, case in module.cases(quick=True).items():
            given = module.cotangents(case)
            outputs = [module.gradients(f, given)(*case.inputs) for f in case.functions]
            for other in outputs[1:]:
                for ours, theirs in zip(outputs[0], other, strict=True):
                    size = float(mx.abs(theirs).max())
                    np.testing.assert_allclose(ours, theirs, 0, 2e-5 * max(size, 1e-3), True, name)


def test_aten_compares_like_with_like(benchmarks: ModuleType) -> None:
    """Compare the results on small arrays, because another formula would take another time."""
    pytest.importorskip("mlx_aten", reason="mlx_aten is not built")
    module = importlib.import_module("benchmarks.aten_operators")
    cases = module.cases()
    assert len({case.name for case in cases}) == len(cases) > 60
    with mx.stream(mx.cpu):
        for case in cases:
            arguments = case.arguments(False)
            both = case.ours(*arguments), case.reference(*arguments)
            ours, theirs = ([leaf for _, leaf in tree_flatten([result])] for result in both)
            for x, y in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(x, y, 1e-4, 1e-5, True, case.name)


def test_quantized_programs_compute_the_same(benchmarks: ModuleType) -> None:
    pytest.importorskip("mlx_aten", reason="mlx_aten is not built")
    module = importlib.import_module("benchmarks.aten_quantized")
    x = mx.random.normal((3, 64), key=mx.random.key(1))
    with mx.stream(mx.cpu):
        exact, eight, packed, integers = (module.model(kind, 64)(x)[0] for kind in module.KINDS)
        np.testing.assert_allclose(packed, integers, 0, 1e-4)
        np.testing.assert_allclose(eight, exact, 0, 0.1)


def test_the_wrapper_computes_what_models_compute(benchmarks: ModuleType) -> None:
    pytest.importorskip("mlx_aten", reason="mlx_aten is not built")
    module = importlib.import_module("benchmarks.aten_models")
    with mx.stream(mx.cpu):
        for model in module.models():
            calls = module.calls(model)
            del calls["compiled"]  # test_exported.py compiles the models
            fused, plain, wrapped = (call() for call in calls.values())
            for ours, others in ((fused, plain), (wrapped, plain)):
                for x, y in zip(ours, others, strict=True):
                    size = max(1.0, float(mx.abs(y).max()))
                    np.testing.assert_allclose(x, y, 0, 1e-4 * size, True, model.name)


LOOP = """__ZN6mlxgen12multiversionIZN3erf_float2Op7elementEv:
LBB0_1:                                 ; =>This Loop Header: Depth=1
	mov	x9, #0
LBB0_2:                                 ;   Parent Loop BB0_1 Depth=1
                                        ; =>  This Inner Loop Header: Depth=2
	ldp	q0, q1, [x8]
	stp	q0, q1, [sp, #32]               ; 32-byte Folded Spill
	fmul.2d	v2, v0, v0
	mov.16b	v3, v2
	fmla.2d	v3, v1, v2
	bl	_log
	stp	q2, q3, [x9], #48
	str	d3, [x9, #32]
	b.ne	LBB0_2
; %bb.3:
	b.ne	LBB0_1
	ret
	.cfi_endproc
"""


def test_loops_are_found_in_assembler(benchmarks: ModuleType) -> None:
    module = importlib.import_module("benchmarks.apple")
    outputs = "std::make_index_sequence<1>(), std::make_index_sequence<2>()"
    source = module.Source(set(), {"f_float": "", "erf_float": outputs})
    found = module.innermost(source, LOOP.replace("erf_float", "9erf_float"))
    loop = found["erf_float"]
    assert list(found) == ["erf_float"]
    assert loop.text.startswith("LBB0_2:") and loop.text.endswith("LBB0_2\n")
    assert loop.elements == 40 / 4 / 2  # stack stores are not results
    assert loop.calls == ["log"]
    assert loop.least == 2 / 4 / 5


def test_llvm_mca_is_optional(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("benchmarks.apple")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    options = benchmarks.measure.Options(quick=False, progress=print)
    assert list(module.measure(options)) == []
    assert capsys.readouterr().err.count("package llvm-19.\n") == 1


def test_command_line() -> None:
    command = [sys.executable, "-m", "benchmarks", "lines", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)["results"]
    assert results[0]["group"] == "lines" and results[0]["data"]["tutorial"] == 578
    command[3] = "nothing"
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 2
