"""Executes the examples of README.md and of pages in docs/; package/test_how_to.py has others."""

from __future__ import annotations

import doctest
import re
import shutil
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import builds
import mlx.core as mx
import numpy as np
import pytest
from builds import output, run

from mlxgen.emulator import EmulationError, load_metal
from mlxgen.package.backend import tomllib
from mlxgen.plugins.interactive import load, notebook

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOK = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
GRADCHECK = (ROOT / "docs" / "gradcheck.md").read_text(encoding="utf-8")
PACKAGE = (ROOT / "docs" / "own-package.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """Return the code of a page in a language."""
    return [dedent(code) for _, name, code in FENCE.findall(page) if name == language]


def files(page: str) -> dict[str, str]:
    """Return the code of a page whose first line, a comment, names a file."""
    found = {}
    for _, _, code in FENCE.findall(page):
        text = dedent(code)
        if name := re.match(r"(?:#|//) ([\w./]+\.\w+)\n", text):
            found[name[1]] = text
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the package in docs/own-package.md."""
    root = tmp_path_factory.mktemp("myops")
    written = files(PACKAGE)
    assert {"pyproject.toml", "mlx_ops.yaml", "csrc/relu6.h", "python/myops/__init__.py"} <= {
        *written
    }
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.extended
def test_own_package(project: Path, tmp_path: Path) -> None:
    wheel = builds.build_wheel(project)
    assert wheel.name.startswith("myops-0.1.0-")
    builds.install(wheel, tmp_path)
    done = run("-m", "pytest", "-q", "--pyargs", "myops.checks", cwd=tmp_path, path=tmp_path)
    assert re.search(r"\n\d\d passed in [\d.]+s\n$", output(done)), done.stdout


def test_message_of_the_readme() -> None:
    """A misspelled name in README's cell gives its message. programs/test_walk.py runs the rest."""
    (shown,) = (code for code in blocks(README, "text") if "MG303" in code)
    with pytest.raises(load.LoadError) as error:
        run_cell(cell_of(README).replace("x: grad /", "x: gard /"))
    assert str(error.value).strip() == shown.strip()


RACE = """
[[kernel]] void total_float32(
    const device float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    uint i [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint group [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[2];
  float sum = simd_sum(x[i]);
  if (lane == 0) sums[group] = sum;
  // threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) out[0] = sums[0] + sums[1];
}
"""


def test_race_of_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without a barrier gives the report in two pages, and with it the sum."""
    pages = (README, (ROOT / "docs" / "test-metal.md").read_text(encoding="utf-8"))
    shown = {
        " ".join(code.split()) for page in pages for code in blocks(page, "text") if "race" in code
    }
    if sys.platform != "linux":  # the line is not known
        shown = {text.replace(", at total.metal:11", "") for text in shown}
    monkeypatch.chdir(tmp_path)
    path = Path("total.metal")
    x, out = np.ones(64, np.float32), np.zeros(1, np.float32)

    def total(text: str) -> float:
        path.write_text(f"#include <metal_stdlib>\nusing namespace metal;{text}")
        kernel = load_metal(path, [])
        kernel.run("total_float32", [x, out], grid=(64,), threadgroup=(64,), outputs=[1])
        return float(out[0])

    with pytest.raises(EmulationError) as error:
        total(RACE)
    assert shown == {str(error.value)}
    assert total(RACE.replace("// threadgroup_barrier", "threadgroup_barrier")) == 64


class Digits(doctest.OutputChecker):
    """Compares output except for spaces and the last digits of fractions.

    With a GPU, each kernel for Metal has one more check.
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(self.plain(want), self.plain(got), optionflags)

    @staticmethod
    def plain(text: str) -> str:
        if mx.metal.is_available():
            text = re.sub(r"\b\d+ checks", "N checks", text)
        return " ".join(re.sub(r"(\d\.\d\d)\d*", r"\1", text).split())


def session(code: str, names: dict[str, Any]) -> None:
    """Execute a session of a page."""
    test = doctest.DocTestParser().get_doctest(code, names, "page", None, None)
    said: list[str] = []
    with mx.stream(mx.cpu):
        result = doctest.DocTestRunner(Digits()).run(test, out=said.append)
    assert result.attempted and not result.failed, "".join(said)


@pytest.mark.parametrize("page", [NOTEBOOK, GRADCHECK], ids=["notebook", "gradcheck"])
def test_page_sessions(page: str) -> None:
    """The sessions of a page share their names."""
    names = {"mx": mx, "np": np, "ops": run_cell(cell_of(NOTEBOOK))}
    code = "\n".join(code for code in blocks(page, "python") if ">>>" in code)
    session(code, names)


def test_torchgen(tmp_path: Path) -> None:
    """The entry in docs/torchgen.md has the schema of torchgen's entry."""
    page = (ROOT / "docs" / "torchgen.md").read_text(encoding="utf-8")
    written = files(page)
    assert {"mlx_ops.yaml", "csrc/axpby.h"} <= {*written}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run("-m", "mlxgen", "check", "mlx_ops.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    func = re.search(r"- func: (.+)", written["native_functions.yaml"])
    assert func and f'signature: "{func[1]}"' in written["mlx_ops.yaml"]


@pytest.mark.extended
def test_add_operator(tmp_path: Path) -> None:
    """The operator of docs/add-operator.md, in a copy of mlxops, gives the outputs of the page."""
    page = (ROOT / "docs" / "add-operator.md").read_text(encoding="utf-8")
    written = files(page)
    entry = written.pop("mlx_ops.yaml").partition("\n")[2]
    missing, table, mutants, _ = blocks(page, "text")
    for name in ("csrc", "kernels", "ops", "python"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "mlx_ops.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "mlx_ops.yaml").open("a", encoding="utf-8") as file:
        file.write(f"\n{entry}")
    line = re.compile(r"(?<=:)\d+(?=:13)|^ +\d+(?= \|)", re.MULTILINE)  # entries are added above
    done = run("-m", "mlxgen", "check", cwd=tmp_path)
    assert line.sub("N", done.stdout + done.stderr) == line.sub("N", missing)
    (tmp_path / "csrc" / "squareplus.h").write_text(written["csrc/squareplus.h"], encoding="utf-8")
    done = run("-m", "mlxgen", "test", "squareplus", cwd=tmp_path)
    seconds = re.compile(r"\d+\.\d")
    assert seconds.sub("N", output(done)) == seconds.sub("N", table)
    done = run(
        "-m", "tools.formulas", "--op", "squareplus", "mlx_ops.yaml", cwd=tmp_path, path=ROOT
    )
    assert done.stdout == mutants


def cell_of(page: str) -> str:
    """Return the cell of a page, without its first line."""
    (cell,) = re.findall(r"^````text\n%%mlxgen ops\n(.*?)^````$", page, re.MULTILINE | re.DOTALL)
    return cell


def run_cell(cell: str) -> ModuleType:
    return load.obtain(load.Request(None, notebook.parts(cell)), lambda text, once=False: None)


def test_script() -> None:
    """The first example of docs/notebook.md and its cell work."""
    code = next(iter(blocks(NOTEBOOK, "python")))
    with mx.stream(mx.cpu):
        done = output(
            run("-c", f"import mlx.core as mx\nmx.set_default_device(mx.cpu)\n{code}", cwd=ROOT)
        )
        assert done == "array([0.25, 0.25, 0.25], dtype=float32)\n"
        assert run_cell(cell_of(NOTEBOOK)).softsign(1.0).item() == 0.5


def test_failing_checks() -> None:
    """The table of docs/notebook.md reports a gradient without its square."""
    (shown,) = (code for code in blocks(NOTEBOOK, "text") if "checks failed" in code)
    cell = cell_of(NOTEBOOK).replace("square(1 + abs(x))", "(1 + abs(x))")
    with mx.stream(mx.cpu):
        report = run_cell(cell).check()
    assert Digits.plain(repr(report)) == Digits.plain(shown)


@pytest.mark.skipif(sys.platform == "darwin", reason="clang says it in other words")
def test_mistake_in_a_cell() -> None:
    (shown,) = (code for code in blocks(NOTEBOOK, "text") if "MG808" in code)
    with pytest.raises(load.LoadError) as error:
        run_cell(cell_of(NOTEBOOK).replace("math::fabs", "math::fabz"))
    assert str(error.value).split() == shown.split()


def test_extras() -> None:
    """The extras that the pages name exist."""
    text = (ROOT / "mlxgen" / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    install = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    lists = re.findall(r"mlxgen\[([\w,]+)\]", README + NOTEBOOK)
    named = ",".join(lists).split(",")
    assert {"build", "notebook"} <= {*named} <= {*extras}
    assert {*re.findall(r"^\| `(\w+)` \|", install, re.MULTILINE)} == {*extras}
