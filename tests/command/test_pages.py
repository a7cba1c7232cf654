"""What README.md and docs/own-package.md tell a reader to write, done word for word."""

from __future__ import annotations

import doctest
import re
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

from mlxgen.package import load, notebook
from mlxgen.package.backend import tomllib

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOK = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
GRADCHECK = (ROOT / "docs" / "gradcheck.md").read_text(encoding="utf-8")
PACKAGE = (ROOT / "docs" / "own-package.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The code of a page in a language."""
    return [dedent(code) for _, name, code in FENCE.findall(page) if name == language]


def files(page: str) -> dict[str, str]:
    """The code whose first line, a comment, says which file it is."""
    found = {}
    for _, _, code in FENCE.findall(page):
        text = dedent(code)
        if name := re.match(r"(?:#|//) ([\w./]+\.\w+)\n", text):
            found[name[1]] = text
    return found


def softsign() -> str:
    """The entry of the first own operator."""
    (entry,) = (code for code in blocks(README, "yaml") if "softsign" in code)
    return entry


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of docs/own-package.md, with the README's operator added to its own."""
    root = tmp_path_factory.mktemp("myops")
    written = files(PACKAGE) | {"csrc/softsign.h": files(README)["csrc/softsign.h"]}
    assert {"pyproject.toml", "mlx_ops.yaml", "csrc/relu6.h", "python/myops/__init__.py"} <= {
        *written
    }
    written["mlx_ops.yaml"] += "\n" + softsign()
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_own_package(project: Path, tmp_path: Path) -> None:
    wheel = builds.build_wheel(project)
    assert wheel.name.startswith("myops-0.1.0-")
    builds.install(wheel, tmp_path)
    done = run("-m", "pytest", "-q", "--pyargs", "myops.checks", cwd=tmp_path, path=tmp_path)
    assert re.search(r"\n\d\d passed in [\d.]+s\n$", output(done)), done.stdout


def test_mistake(project: Path) -> None:
    """The message that the README shows for a mistyped name."""
    (shown,) = (code for code in blocks(README, "text") if "MG303" in code)
    yaml = project / "mlx_ops.yaml"
    text = yaml.read_text(encoding="utf-8")
    yaml.write_text(text.replace("x: grad / square", "x: gard / square"), encoding="utf-8")
    try:
        done = run("-m", "mlxgen", "check", cwd=project)
    finally:
        yaml.write_text(text, encoding="utf-8")
    texts = done.stdout + done.stderr, shown
    printed, shown = (re.sub(r" *\b\d+(:8| \|)", r" N\1", text) for text in texts)
    assert shown in printed  # but for the number of the line


@pytest.mark.parametrize("code", [code for code in blocks(README, "python") if ">>>" in code])
def test_sessions(code: str) -> None:
    """What the README shows of a session in Python, after its cell."""
    session(code, {"mx": mx, "ops": run_cell(cell_of(README))})


class Counts(doctest.OutputChecker):
    """The last digits of fractions, and how many checks there are, are no part of a page."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(self.plain(want), self.plain(got), optionflags)

    @staticmethod
    def plain(text: str) -> str:
        text = re.sub(r"(\d\.\d\d)\d*", r"\1", text)
        return re.sub(r"\b(?:\d+ of )?\d+ checks", "N checks", text)


def session(code: str, names: dict[str, Any]) -> None:
    """Do what a page shows of a session in Python."""
    test = doctest.DocTestParser().get_doctest(code, names, "page", None, None)
    said: list[str] = []
    with mx.stream(mx.cpu):
        result = doctest.DocTestRunner(Counts()).run(test, out=said.append)
    assert result.attempted and not result.failed, "".join(said)


@pytest.mark.parametrize("page", [NOTEBOOK, GRADCHECK], ids=["notebook", "gradcheck"])
def test_page_sessions(page: str) -> None:
    """What a page shows of one session, in parts."""
    names = {"mx": mx, "np": np, "ops": run_cell(cell_of(NOTEBOOK))}
    code = "\n".join(code for code in blocks(page, "python") if ">>>" in code)
    session(code, names)


def test_torchgen(tmp_path: Path) -> None:
    """The entry that docs/torchgen.md puts beside torchgen's, which has torch's schema."""
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


def cell_of(page: str) -> str:
    """The cell that a page shows, without its first line."""
    (cell,) = re.findall(r"^````text\n%%mlxgen ops\n(.*?)^````$", page, re.MULTILINE | re.DOTALL)
    return cell


def run_cell(cell: str) -> ModuleType:
    return load.obtain(load.Request(None, notebook.parts(cell)), lambda text, once=False: None)


def test_script() -> None:
    """The first example of docs/notebook.md, and its cell."""
    code = next(iter(blocks(NOTEBOOK, "python")))
    with mx.stream(mx.cpu):
        done = output(
            run("-c", f"import mlx.core as mx\nmx.set_default_device(mx.cpu)\n{code}", cwd=ROOT)
        )
        assert done == "array([0.25, 0.25, 0.25], dtype=float32)\n"
        assert run_cell(cell_of(NOTEBOOK)).softsign(1.0).item() == 0.5


def test_failing_checks() -> None:
    """The table of docs/notebook.md, of a gradient without its square."""
    (shown,) = (code for code in blocks(NOTEBOOK, "text") if "checks failed" in code)
    cell = cell_of(NOTEBOOK).replace("square(1 + abs(x))", "(1 + abs(x))")
    with mx.stream(mx.cpu):
        report = run_cell(cell).check()
    assert Counts.plain(repr(report)).split() == Counts.plain(shown).split()


@pytest.mark.skipif(sys.platform == "darwin", reason="clang says it in other words")
def test_mistake_in_a_cell() -> None:
    (shown,) = (code for code in blocks(NOTEBOOK, "text") if "MG808" in code)
    with pytest.raises(load.LoadError) as error:
        run_cell(cell_of(NOTEBOOK).replace("math::fabs", "math::fabz"))
    assert str(error.value).strip() == shown.strip()


def test_extras() -> None:
    """What the pages tell to install."""
    text = (ROOT / "mlxgen" / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    named = re.findall(r"mlxgen\[(\w+)\]", README + NOTEBOOK)
    assert {"build", "notebook"} <= {*named} <= {*extras}
