"""During edits, the editor reports the same diagnostics as a command from scratch."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxgen.check.file import _File
from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostic, Diagnostics
from mlxgen.plugins.editor.project import Project

SAMPLE = Path(__file__).parents[1] / "sample"
RIGHT = (SAMPLE / "mlx_ops.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an entry for every feature."""
    root = tmp_path_factory.mktemp("ops")
    for name in ("csrc", "kernels"):
        shutil.copytree(SAMPLE / name, root / name)
    (root / "python" / "ops").mkdir(parents=True)
    (root / "python" / "ops" / "__init__.py").touch()
    (root / "pyproject.toml").write_text('[project]\nname = "ops"\n[tool.mlxgen]\n')
    (root / "mlx_ops.yaml").touch()
    return root


def from_nothing(folder: Path) -> list[Diagnostic]:
    """Return the diagnostics of `mlxgen check`."""
    diags = Diagnostics()
    settings = operators.settings_of(folder, None, diags)
    assert settings
    ops, sources = operators.load(settings, diags)
    operators.check_metal(ops, sources, diags)
    return diags.sorted()


def edits(text: str, seed: int) -> str:
    """Return the text after random edits: deleted, duplicated, moved or misspelled parts."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 3)):
        words = [*re.finditer(r"[\w.]+|[^\w\s]|\n", text)]
        some, other = chance.choice(words), chance.choice(words)
        begin, end = some.span()
        new = chance.choice(["", some[0] * 2, other[0], some[0][:-1], f"{some[0]}x"])
        text = text[:begin] + new + text[end:]
    return text


@pytest.mark.parametrize("seed", range(10))
def test_same_as_from_nothing(folder: Path, seed: int) -> None:
    yaml = folder / "mlx_ops.yaml"
    project, text = Project(yaml, {}), RIGHT
    for step in range(8):
        text = RIGHT if step == 5 else edits(text, 100 * seed + step)
        yaml.write_text(text, encoding="utf-8")
        project.check(text)
        assert project.diagnostics == from_nothing(folder), (seed, step)


CIRCLE = """
- {signature: "f(array x) -> array", composite: g(x)}
- {signature: "g(array x) -> array", composite: exp(x)}
- {signature: "h(array x, array y) -> array", composite: f(x), unused: {y: a reason}}
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("composite: exp(x)", "composite: f(x)"),  # an error of another entry
        ("h(array x", "f(array x"),  # two of a name
        ("composite: f(x), unused", "composite: f(x + y), unused"),  # a warning
        ("T scale(T x,", "T scale(T x, T y,"),
        ("return a * x;", "float* q = 0; return a * x;"),  # a rule of Metal
        ("#include <metal_stdlib>", '#include <metal_stdlib>\n#include "none.h"'),
    ],
)
def test_says_it_again(folder: Path, right: str, wrong: str) -> None:
    """A diagnostic of an entry or a kernel is repeated until it is fixed."""
    yaml, seen = folder / "mlx_ops.yaml", []
    project = Project(yaml, {})
    kernels = [*folder.rglob("*.h"), *folder.rglob("*.metal")]
    before = {path: path.read_text(encoding="utf-8") for path in kernels}
    text = RIGHT + CIRCLE
    project.check(text)
    assert project.diagnostics == []
    for path, kernel in before.items():
        path.write_text(kernel.replace(right, wrong), encoding="utf-8")
    for moved in ("", "# moved\n", "# again\n"):
        new = moved + text.replace(right, wrong)
        yaml.write_text(new, encoding="utf-8")
        project.check(new)
        assert project.diagnostics == from_nothing(folder)
        seen.append(len(project.diagnostics))
    for path, kernel in before.items():
        path.write_text(kernel, encoding="utf-8")
    assert min(seen) == max(seen) > 0
    project.check(text)
    assert project.diagnostics == []


def test_looks_at_what_was_edited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only edited entries, their dependents and entries with errors are resolved."""
    asked: list[set[str]] = []
    resolve = _File.resolve

    def seen(file: _File, only: set[str]) -> Any:
        asked.append(only)
        return resolve(file, only)

    monkeypatch.setattr(_File, "resolve", seen)
    unsaved: dict[str, str] = {}
    project = Project(folder / "mlx_ops.yaml", unsaved)
    project.check(RIGHT)
    assert {"softcap", "moments"} <= asked.pop()
    project.check("\n" + RIGHT)  # which moves everything
    assert asked.pop() == set()
    wrong = RIGHT.replace("cap * tanh(x / cap)", "cap * tanh(x / cup)")
    project.check(wrong)
    assert asked.pop() == {"softcap"}
    project.check("# still wrong\n" + wrong)
    assert asked.pop() == {"softcap"}
    assert [item.code for item in project.diagnostics] == ["MG303"]
    project.check(RIGHT.replace("softcap(x: array, cap", "softcap(x: array, *, cap"))
    assert len(asked.pop()) == 2  # with the one that calls it
    kernel = folder / "csrc" / "kernels.h"
    unsaved[str(kernel)] = ""
    project.check(RIGHT)
    assert len(asked.pop()) > 20 and len(project.diagnostics) > 5
    del unsaved[str(kernel)]
    project.check(RIGHT)
    assert len(asked.pop()) > 20 and project.diagnostics == []
