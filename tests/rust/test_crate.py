"""The crate of mlxops: documented examples, arrays, and the samples of all operators.

cargo runs once, with the tests of arrays.rs and a generated program (calls.py). The results of the
program are compared with Python's bitwise, and its errors as text.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlxops
import pytest
from c.calls import Call, folder_of, functions, require_same, subjects
from rust.calls import Program
from rust.crate import cargo, needs_cargo, passed, require_style
from sample import project

from mlxgen.command.generate import generate
from mlxgen.diagnostics import Diagnostics

pytestmark = needs_cargo
HERE = Path(__file__).parent
PACKAGE = folder_of(mlxops)
LIBRARY = {"MLXOPS_DIR": str(PACKAGE)}


@pytest.fixture(scope="module")
def crate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The crate of the installed mlxops."""
    folder = tmp_path_factory.mktemp("crate") / "mlxops"
    shutil.copytree(PACKAGE / "rust", folder)
    return folder


def calls() -> Iterator[Call]:
    """Yield the samples, and each one with arguments of another dtype, another shape, or none."""
    for subject in subjects(mlxops):
        op, function = subject.op, subject.case.function
        for dtype in (mx.float32, mx.float64, mx.bfloat16):
            if subject.has_dtype(str(dtype).rpartition(".")[2]):
                values = subject.keywords(subject.draw(dtype))
                yield Call(f"{subject.path}-{subject.number} {dtype}", op, function, values)
        if subject.number:
            continue
        values = subject.keywords(subject.draw(mx.float32))
        for arg in op["args"]:
            name, wrong = arg["name"], list[Any]()
            if isinstance(values.get(name), mx.array):
                wrong = [values[name].astype(mx.complex64), mx.zeros((2, 3, 5, 7))]
            elif arg["kind"] == "arrays":
                wrong = [[], [mx.zeros((2, 3, 5, 7)), mx.array(1j)]]
            for i, value in enumerate(wrong):
                yield Call(
                    f"{subject.path}: wrong {name} {i}", op, function, values | {name: value}
                )


@pytest.mark.extended
def test_crate(crate: Path) -> None:
    program = Program("mlxops")
    for call in calls():
        program.add(call)
    tests = crate / "tests"
    tests.mkdir()
    (tests / "calls.rs").write_text(program.source(), encoding="utf-8")
    arrays = (HERE / "arrays.rs").read_text("utf-8").replace("PACKAGE", "mlxops")
    (tests / "arrays.rs").write_text(arrays, encoding="utf-8")
    files = {"CALLS_GIVEN": str(crate / "given"), "CALLS_WRITTEN": str(crate / "written")}
    (crate / "given").write_bytes(b"".join(program.arrays))
    done = cargo(crate, "test", **LIBRARY, **files)
    in_arrays = len(re.findall(r"^#\[test\]", arrays, re.MULTILINE))
    public = functions(mlxops)
    assert passed(done) == [in_arrays, 1, len(public) + 1]
    require_same(program, (crate / "written").read_bytes())
    assert {call.op["name"] for call in program.calls} == {op["name"] for op, _ in public}
    require_style(crate, **LIBRARY)


@pytest.mark.extended
def test_library_is_found(crate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLXOPS_DIR", raising=False)

    def message(**variables: str) -> str:
        done = cargo(crate, "check", CARGO_TARGET_DIR=str(tmp_path / "target"), **variables)
        assert done.returncode != 0
        return next(line for line in done.stderr.splitlines() if line.startswith("error"))

    missing = message(PYTHON="no-python")
    assert missing.endswith(
        "no-python does not find mlxops: set PYTHON, or MLXOPS_DIR to its folder"
    )
    assert "does not exist: set MLXOPS_DIR, see build.rs" in message(MLXOPS_DIR=str(tmp_path))


def test_every_feature_compiles(tmp_path: Path) -> None:
    """The crate of the sample project, whose library is not built."""
    diags = Diagnostics()
    settings = project.settings(project.YAML)._replace(languages=("c", "rust"))
    generate(settings, tmp_path / "out", diags)
    assert diags.ok, diags.render_text()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libops_c.so").touch()
    require_style(tmp_path / "out" / "rust" / "ops", OPS_DIR=str(tmp_path))


WORDS = """fn impl crate move match ref mod use where dyn gen become error ffi lib number
    options out stream_ s res call complex imaginary restrict results""".split()  # noqa: SIM905


def test_reserved_names(tmp_path: Path) -> None:
    """The crate of operators whose names, arguments, results and modules are reserved words."""
    several = """
- signature: "a{i}({word}: array, {word}_: array) -> ({word}1: array, {word}2: array)"
  composite: ({word}, {word}_)
- signature: "o{i}(x: array) -> ({word}: array, {word}_: array)"
  composite: (x, x)
"""
    own = '- signature: "{word}(x: array) -> array"\n  composite: x\n'
    text = "".join(own.format(word=word) for word in WORDS)
    for i, word in enumerate(WORDS[:-11]):
        text += several.format(i=i, word=word) + own.format(word=f"m{i}") + f"  module: q.{word}\n"
    (tmp_path / "ops.yaml").write_text(text)
    diags = Diagnostics()
    settings = project.settings(tmp_path / "ops.yaml")._replace(languages=("c", "rust"))
    generate(settings, tmp_path / "out", diags)
    assert diags.ok, diags.render_text()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libops_c.so").touch()
    done = cargo(tmp_path / "out" / "rust" / "ops", "check", OPS_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr


CLASH = """
- signature: "norm(x: array, mode_x: Literal['a', 'b']) -> array"
  composite: x if mode_x == 'a' else 2 * x
- signature: "norm_mode(x: array, x_: Literal['a', 'b'] = 'a') -> array"
  composite: x if x_ == 'a' else 2 * x
"""


def test_types_clash(tmp_path: Path) -> None:
    (tmp_path / "ops.yaml").write_text(CLASH)
    for languages, count in (("c",), 0), (("c", "rust"), 1):
        diags = Diagnostics()
        settings = project.settings(tmp_path / "ops.yaml")._replace(languages=languages)
        generate(settings, tmp_path / "out", diags)
        assert len(diags) == count
    assert "'norm' and 'norm_mode' would both define the Rust type 'NormModeX'" in (
        diags.render_text()
    )
