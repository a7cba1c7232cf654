"""Plug-ins of other packages: the exercise of docs/plugins.md, languages, and broken plug-ins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
TOML, PYTHON, SESSION = re.findall(r"```(?:toml|python|console)\n(.*?)```", PAGE, re.DOTALL)
YAML = '- signature: "twice(x: array) -> array"\n  composite: 2 * x\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in of the page, installed."""
    folder, site = tmp_path_factory.mktemp("plugin"), tmp_path_factory.mktemp("site")
    (folder / "pyproject.toml").write_text(TOML)
    (folder / "mlxgen_table.py").write_text(PYTHON)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(folder)], check=True)
    return site


def run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "100"}
    command = [sys.executable, "-m", "mlxgen", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_exercise(site: Path, tmp_path: Path) -> None:
    (tmp_path / "my_ops.yaml").write_text(YAML)
    command, _, printed = SESSION.partition("\n")
    assert run(site, tmp_path, *command.split()[2:]).stdout == printed
    assert "table" in run(site, tmp_path, "--help").stdout
    (tmp_path / "my_ops.yaml").write_text(YAML.replace("2 * x", "2 * y"))
    wrong = run(site, tmp_path, *command.split()[2:])
    assert wrong.returncode == 1 and "error[MG303]" in wrong.stderr and not wrong.stdout


def test_broken_plugin(tmp_path: Path) -> None:
    """Its command ends with one message; the other commands work."""
    (tmp_path / "broken.py").write_text("import nowhere\n")
    (tmp_path / "broken-1.dist-info").mkdir()
    points = "[mlxgen.commands]\nbroken = broken:command\ncheck = broken:command\n"
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "broken-1.dist-info" / "METADATA").write_text("Name: broken\nVersion: 1\n")
    (tmp_path / "my_ops.yaml").write_text(YAML)
    found = run(tmp_path, tmp_path, "broken")
    assert found.returncode == 1 and "Traceback" not in found.stderr
    assert "cannot import broken:command: ModuleNotFoundError: No module named" in found.stderr
    assert "1 operator, no errors" in run(tmp_path, tmp_path, "check", "my_ops.yaml").stdout
    assert "Validate the operators" in run(tmp_path, tmp_path, "--help").stdout


LANGUAGE = """
import json
from mlxgen.model.languages import Clash, Language
ZIG = Language("mlxgen_zig", requires=("c",))
MISSING = Language("mlxgen_zig.missing")
NEEDY = Language("mlxgen_zig", requires=("lost",))
def piece(op, package):
    return f"fn {op.name}()", (op.name, code(op, package))
def files(pieces, package):
    return {f"python/zig/{package.name}.zig": "".join(text for _, text in pieces)}
def clashes(pieces):
    first = pieces[0][0]
    return [Clash(first, name, "Zig function", "f") for name, _ in pieces if name == "taken"]
def code(op, package):
    return f"// {package.namespace}::{op.name}, version 1\\n"
"""
PROJECT = """
[project]
name = "my"
[tool.mlxgen]
languages = ["{}"]
"""


@pytest.fixture
def languages(tmp_path: Path) -> Path:
    """A site with a language, and languages that cannot be imported."""
    (tmp_path / "mlxgen_zig.py").write_text(LANGUAGE)
    (tmp_path / "mlxgen_zig-1.dist-info").mkdir()
    points = {
        "zig": "mlxgen_zig:ZIG",
        "ada": "nowhere:ADA",
        "d": "mlxgen_zig:MISSING",
        "e": "mlxgen_zig:NEEDY",
    }
    text = "[mlxgen.languages]\n" + "".join(f"{name} = {of}\n" for name, of in points.items())
    (tmp_path / "mlxgen_zig-1.dist-info" / "entry_points.txt").write_text(text)
    (tmp_path / "mlxgen_zig-1.dist-info" / "METADATA").write_text("Name: mlxgen_zig\nVersion: 1\n")
    (tmp_path / "my_ops.yaml").write_text(YAML + YAML.replace("twice", "same"))
    return tmp_path


def test_language(languages: Path) -> None:
    def generate(*more: str) -> str:
        return run(languages, languages, "generate", "my_ops.yaml", "-o", "out", *more).stdout

    file = languages / "out" / "python" / "zig" / "ops.zig"
    assert "files written" in generate("--language", "zig")
    assert file.read_text() == "// ops::twice, version 1\n// ops::same, version 1\n"
    assert (languages / "out" / "include" / "ops_c.h").is_file()
    page = (languages / "out" / "docs" / "operators.md").read_text()
    assert page.index("```c\nint ops_same(") < page.index("```zig\nfn same()\n```")
    assert str(languages / "mlxgen_zig.py") in (languages / "out" / "sources.cmake").read_text()
    # The text of `twice` is cached, but not after a change of the plug-in.
    with (languages / "my_ops.yaml").open("a") as yaml:
        yaml.write(YAML.replace("twice", "more"))
    assert "3 operators" in generate("--language", "zig")
    assert file.read_text().count("version 1") == 3
    (languages / "mlxgen_zig.py").write_text(LANGUAGE.replace("version 1", "version two"))
    assert "3 operators" in generate("--language", "zig")
    assert file.read_text().count("version two") == 3
    shown = run(languages, languages, "show", "my_ops.yaml", "twice", "zig")
    assert shown.stdout == "// ops::twice, version two\n"


def test_language_rejects_an_operator(languages: Path) -> None:
    (languages / "my_ops.yaml").write_text(YAML + YAML.replace("twice", "taken"))
    found = run(
        languages, languages, "generate", "my_ops.yaml", "-o", "out", "--language", "zig"
    ).stderr
    assert (
        "my_ops.yaml:3:1: error[MG602]: 'twice' and 'taken' would both define the Zig function 'f'"
        in found
    )
    assert not (languages / "out" / "python").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ada", "cannot import the language nowhere: ModuleNotFoundError: No module named"),
        ("d", "cannot import the language mlxgen_zig: ModuleNotFoundError"),
        ("e", "the language 'lost' is not installed"),
        ("zag", "unknown language 'zag' (did you mean 'zig'?)"),
    ],
)
def test_broken_language(languages: Path, name: str, message: str) -> None:
    """Only projects that name the language have an error."""
    (languages / "python" / "my").mkdir(parents=True)
    (languages / "python" / "my" / "__init__.py").touch()
    (languages / "pyproject.toml").write_text(PROJECT.format(name))
    (languages / "mlx_ops.yaml").write_text(YAML)
    found = run(languages, languages, "check").stderr
    assert f"pyproject.toml:5:13: error[MG713]: {message}" in found and "Traceback" not in found
    (languages / "pyproject.toml").write_text(PROJECT.format("zig"))
    found = run(languages, languages, "generate", "--language", name).stderr
    reason = message if name != "zag" else "'zag' is not one of 'ada', 'c', 'd', 'e', 'rust', 'zig'"
    assert reason in " ".join(re.sub("[│╭╮╰╯─]", "", found).split()) and "Traceback" not in found


def test_settings_import_little() -> None:
    """Builds read the settings before their requirements are installed."""
    code = """
import sys
from pathlib import Path
from mlxgen.diagnostics import Diagnostics
from mlxgen.read import settings
assert settings.load(Path(), Diagnostics()).languages == ("c", "rust")
assert not {"jinja2", "importlib.metadata", "mlxgen.plugins.languages.c"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
