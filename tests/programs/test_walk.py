"""The first ten minutes, word for word: README.md, then the commands that `mlxgen new` prints.

Each command runs in a shell, in empty virtual environments, next to a clone or in it. mlxgen is on
no index that pip knows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
NOT_COPIED = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")

# As a new user's shell: nothing of this test run's Python.
ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("PYTEST", "PYTHON", "VIRTUAL_ENV"))
} | {"GIT_CONFIG_NOSYSTEM": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def shell(script: str, folder: Path, **environment: str) -> str:
    """Run commands as they are typed; fail with their output if one fails."""
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout


def blocks(text: str, language: str) -> list[str]:
    return [code for _, name, code in FENCE.findall(text) if name == language]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this working tree where README's install commands were run."""
    home = tmp_path_factory.mktemp("walk") / "mlxgen"
    shutil.copytree(ROOT, home, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    (install,) = (code for code in blocks(README, "sh") if "pip install" in code)
    shell(install.replace("jupyter lab\n", "jupyter lab --version\n"), home)
    return home


@pytest.mark.extended
def test_installing_the_generator_builds_no_operators(home: Path) -> None:
    assert not (home / "build").exists() and not list(
        (home / "mlxgen" / "build").glob("lib/mlxops")
    )


def test_readme_starts_in_a_clone() -> None:
    """The first two commands need nothing else, and each has its duration."""
    first = blocks(README, "sh")[0].splitlines()
    assert [line.split()[:2] for line in first] == [["make", "demo"], ["make", "test"]]
    assert all(re.search(r"# .*\bminutes on two cores: ", line) for line in first)


@pytest.mark.extended
def test_readme_in_python(home: Path) -> None:
    """README's sessions, and its cell as IPython would run it."""
    (cell,) = re.findall(r"^%%mlxgen ops\n(.*?)^````$", README, re.MULTILINE | re.DOTALL)
    (home / "cell.txt").write_text(cell, encoding="utf-8")
    (home / "walk.py").write_text(WALK, encoding="utf-8")
    (home / "README.md").write_text(README, encoding="utf-8")
    (first,) = (code for code in blocks(README, "text") if "%load_ext" in code)
    assert first == "%load_ext mlxgen\nimport mlx.core as mx\n"
    shell(". mlx-env/bin/activate && ipython walk.py", home)


WALK = """
import doctest, re
import mlx.core as mx
from IPython import get_ipython
from mlxgen.plugins.interactive import load, notebook

mx.set_default_device(mx.cpu)
cell = open("cell.txt").read()
get_ipython().run_line_magic("load_ext", "mlxgen")
names = {"mx": mx}
text = open("README.md").read()
sessions = [code for code in re.findall(r"^```python\\n(.*?)^```$", text, re.M | re.S)]
assert len(sessions) == 3
for number, code in enumerate(sessions):
    if number == 0:
        names["ops"] = load.obtain(load.Request(None, notebook.parts(cell)), print)
    test = doctest.DocTestParser().get_doctest(code, names, "README", None, None)
    runner = doctest.DocTestRunner()
    result = runner.run(test, clear_globs=False)
    names.update(test.globs)
    assert result.attempted and not result.failed
"""


@pytest.mark.extended
def test_first_operator(home: Path) -> None:
    """The commands of docs/first-operator.md, which add an operator to a new package."""
    page = (ROOT / "docs" / "first-operator.md").read_text(encoding="utf-8")
    (kernel,) = (code for code in blocks(page, "cpp") if code.startswith("// csrc/softsign.h"))
    new, check, prove, build = blocks(page, "sh")
    active = ". ../mlx-env/bin/activate\n"
    folder = home / "tutorial"
    folder.mkdir()
    shell(active + new, folder)
    (folder / "my-ops" / "csrc" / "softsign.h").write_text(kernel, encoding="utf-8")
    assert "2 operators, no errors" in shell(f"{active}cd my-ops\n{check}", folder)
    said = shell(f"{active}cd my-ops\n{prove}", folder)
    assert re.search(r"softsign +│ 17 passed", said)
    said = shell(f"{active}cd my-ops\n{build}", folder)
    assert re.search(r"\b[1-9]\d passed", said) and "skipped" not in said


@pytest.mark.extended
def test_new_package(home: Path) -> None:
    """The commands that `mlxgen new` prints, and those of the README that it writes."""
    printed = shell(". mlx-env/bin/activate && mlxgen new my-ops", home)
    assert f"Next, with mlxgen 0.1.0 from {home / 'mlxgen'}:\n" in printed
    commands = re.findall(r"^  (.*)$", printed, re.MULTILINE)
    assert len(commands) == 5
    said = shell("\n".join(commands), home)
    assert re.search(r"\b[1-9]\d passed", said) and "skipped" not in said
    folder = home / "my-ops"
    page = (folder / "README.md").read_text(encoding="utf-8")
    active = ". .venv/bin/activate\n"
    tests, editable = blocks(page, "sh")
    said = shell(active + tests, folder)
    assert "launches of 33 kernels" in said
    said = shell(active + editable + "mlxgen metal-test", folder)
    assert "launches of 33 kernels" in said  # also of an editable install
    (example,) = blocks(page, "python")
    notebook = json.loads((folder / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    (folder / "example.py").write_text("\n".join([example, *cells]), encoding="utf-8")
    shell(active + "python example.py", folder)
