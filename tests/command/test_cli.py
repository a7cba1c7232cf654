"""The commands on the command line: their output and exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sample import project

from mlxgen.__main__ import COMMANDS, cli
from mlxgen.command.cli import Failure

ENTRIES = ["--project", "{}", "{}/mlx_ops.yaml"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the sample project."""
    shutil.copytree(project.HERE, tmp_path / "project")
    return tmp_path / "project"


def run(folder: Path, command: str, *arguments: str) -> Result:
    options = [option.format(folder) for option in ENTRIES]
    return CliRunner().invoke(cli, [command, *options, *arguments])


def test_help_lists_the_commands_of_all_rooms() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    for name in ("check", "generate", "show", "list", "diff", "docs", "metal-check", "metal-test"):
        assert f" {name} " in text
    for name in COMMANDS:
        assert f"Usage: cli {name} " in CliRunner().invoke(cli, [name, "--help"]).output


def test_heavy_modules_wait() -> None:
    heavy = {"pydantic", "jinja2", "yaml", "rich"}
    script = f"import mlxgen.__main__, sys; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_show(folder: Path) -> None:
    for name in ("softcap", "nn.activations.softcap"):
        assert "softcap(const mx::array& x" in run(folder, "show", name, "header").output
    found = run(folder, "show", "softcapp")
    assert isinstance(found.exception, Failure)
    assert "unknown operator or tag 'softcapp' (did you mean 'softcap'?)" in found.output


def test_show_and_list_do_not_look_at_other_entries(folder: Path) -> None:
    yaml = folder / "mlx_ops.yaml"
    yaml.write_text(yaml.read_text().replace("composite: exp(x * log(2.0))", "composite: y"))
    assert run(folder, "check").exit_code == 1
    assert run(folder, "show", "softcap", "stub").exit_code == 0
    found = run(folder, "list", "--select", "softcap", "--format", "json")
    assert [op["name"] for op in json.loads(found.output)] == ["softcap"]
    assert "unknown name 'y'" in run(folder, "show", "exp2").output


@pytest.mark.parametrize("chosen", ["softcap", "nn.activations.softcap", "tag:nn"])
def test_list(folder: Path, chosen: str) -> None:
    found = run(folder, "list", "--select", chosen, "--format", "json")
    assert "softcap" in [op["name"] for op in json.loads(found.output)]
    everything = json.loads(run(folder, "list", "--format", "json").output)
    assert [op for op in everything if op in json.loads(found.output)] == json.loads(found.output)


def test_diff(folder: Path) -> None:
    old, new = folder / "mlx_ops.yaml", folder / "new.yaml"
    new.write_text(old.read_text().replace("cap: float = 50.0", "cap: float = 40.0"))
    arguments = ["diff", "--project", str(folder), str(old), str(new)]
    (folder / "pyproject.toml").write_text('[project]\nname = "ops"\n')
    (folder / "python/ops").mkdir(parents=True)
    (folder / "python/ops/__init__.py").touch()
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 1
    assert "nn.activations.softcap: argument 'cap': default 50.0 -> 40.0" in found.output
    assert "1 change, 1 breaking" in found.output


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\x00", '[{"a": 1}]', "[" * 10**5])
def test_diff_of_what_is_no_ops_json(folder: Path, content: str) -> None:
    (folder / "ops.json").write_text(content)
    found = CliRunner().invoke(cli, ["diff", str(folder / "ops.json"), str(folder / "ops.json")])
    assert found.exit_code == 2 and "is not an ops.json" in found.output


@pytest.mark.parametrize("key", ["python_name", "module", "deprecated"])
def test_diff_escapes_control_characters(folder: Path, key: str) -> None:
    """A foreign file cannot send commands to the terminal."""
    whole = (Path(__file__).parents[1] / "render/golden/sample/python/ops.json").read_text()
    described: dict[str, Any] = json.loads(whole)
    described["operators"][0][key] = "\x1b[31mred"
    (folder / "old.json").write_text(whole)
    (folder / "new.json").write_text(json.dumps(described))
    files = [str(folder / "old.json"), str(folder / "new.json")]
    found = CliRunner().invoke(cli, ["diff", *files])
    assert r"\x1b[31mred" in found.output and "\x1b" not in found.output


def test_file_outside_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "no package of operators"\n')
    Path("mine.yaml").write_text('- signature: "f(x: array) -> array"\n  composite: x * x\n')
    for arguments, said in (
        (["check"], "1 operator, no errors"),
        (["list"], "f(x: array) -> array"),
        (["show", "f", "stub"], "def f("),
        (["show", "f"], "mx::array f("),
        (["diff", "mine.yaml"], "0 changes"),
        (["show", "f", "c"], "int ops_f("),
        (["show", "f", "rust"], "pub fn f("),
        (["generate", "-o", "out"], "out: 1 operator, "),
        (["generate", "-o", "out", "--language", "c"], "files written, 0 removed, "),
        (["generate", "-o", "out", "--language", "c"], "out: up to date"),
        (["generate", "-o", "out"], "files written, 3 removed, "),
    ):
        found = CliRunner().invoke(cli, [arguments[0], "mine.yaml", *arguments[1:]])
        assert found.exit_code == 0 and said in found.output, found.output
    assert CliRunner().invoke(cli, ["show", "mine.yaml"]).exit_code == 2
    assert CliRunner().invoke(cli, ["show", "mine.yaml", "f", "stubs"]).exit_code == 2
    assert CliRunner().invoke(cli, ["check", "yours.yaml"]).exit_code == 2


HALVED = """
- signature: "halved(array x) -> array"
  dispatch: {cpu: halved}
  grad: none
"""


def test_kernels_are_those_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file uses the kernels of its own project, or else those next to it, from any folder."""
    (folder / "pyproject.toml").write_text('[project]\nname = "ops"\n[tool.mlxgen]\n')
    (folder / "python/ops").mkdir(parents=True)
    (folder / "python/ops/__init__.py").touch()
    other, outside, alone = (folder.parent / name for name in ("other", "outside", "alone"))
    alone.mkdir()
    shutil.copy(folder / "mlx_ops.yaml", alone / "copy.yaml")
    shutil.copytree(folder, other)
    shutil.copytree(folder, outside, ignore=shutil.ignore_patterns("pyproject.toml"))
    for place in (other, outside):
        (place / "csrc/halved.h").write_text(
            "template <typename T> T halved(T x) { return x / 2; }\n"
        )
        with (place / "mlx_ops.yaml").open("a") as file:
            file.write(HALVED)
    project, copy = str(folder / "mlx_ops.yaml"), str(alone / "copy.yaml")
    monkeypatch.chdir(folder)
    for yaml in (str(place / "mlx_ops.yaml") for place in (other, outside)):
        for arguments in (
            ["check", "--fix", yaml],
            ["list", yaml],
            ["show", yaml, "halved"],
            ["diff", yaml, yaml],
            ["generate", yaml, "--check", "-o", str(alone / "out")],
        ):
            found = CliRunner().invoke(cli, arguments)
            assert "error[" not in found.output, found.output
        found = CliRunner().invoke(cli, ["check", "--project", str(folder), yaml])
        assert "MG502" in found.output
    assert CliRunner().invoke(cli, ["check", copy]).exit_code == 1
    monkeypatch.chdir(alone)
    assert CliRunner().invoke(cli, ["check", copy]).exit_code == 1
    for arguments in (
        ["check", "--project", str(folder), copy],
        ["diff", copy, project],
        ["diff", project, copy],
    ):
        found = CliRunner().invoke(cli, arguments)
        assert found.exit_code == 0, found.output


TWO_MISTAKES = """\
# Größe: 語
- signature: "f(x: array) -> array"  # é
  composit: x + alpha
"""


def test_check_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certain fixes are written, other diagnostics are printed, and the file keeps its mode."""
    monkeypatch.chdir(tmp_path)
    target, link = tmp_path / "target.yaml", tmp_path / "ops.yaml"
    target.write_text(TWO_MISTAKES, encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to(target)
    found = CliRunner().invoke(cli, ["check", "--fix", str(link)])
    assert isinstance(found.exception, Failure)
    assert "ops.yaml: 1 fix applied\n" in found.output
    assert "unknown name 'alpha'" in found.output and "1 error\n" in found.output
    assert target.read_text("utf-8") == TWO_MISTAKES.replace("composit:", "composite:")
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    target.write_text(TWO_MISTAKES.replace("alpha", "1"), encoding="utf-8")
    found = CliRunner().invoke(cli, ["check", "--fix", "--format", "json", str(link)])
    assert json.loads(found.stdout) == [] and "1 fix applied" in found.stderr
    found = CliRunner().invoke(cli, ["check", "--fix", str(link)])
    assert (found.exit_code, found.output) == (
        0,
        "ops.yaml: 0 fixes applied\n1 operator, no errors\n",
    )
    assert {*tmp_path.iterdir()} == {target, link}


def test_check_fix_that_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    yaml = tmp_path / "ops.yaml"
    yaml.write_text(TWO_MISTAKES, encoding="utf-8")

    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    found = CliRunner().invoke(cli, ["check", "--fix", str(yaml)])
    assert found.exit_code == 1 and "ops.yaml: No space left on device" in found.output
    assert yaml.read_text("utf-8") == TWO_MISTAKES and [*tmp_path.iterdir()] == [yaml]


def test_check_fix_of_what_cannot_be_read(tmp_path: Path) -> None:
    yaml = tmp_path / "ops.yaml"
    yaml.write_bytes(b"- composit: \xff\n")
    found = CliRunner().invoke(cli, ["check", "--fix", str(yaml)])
    assert "0 fixes applied" in found.output and "must be encoded in UTF-8" in found.output
