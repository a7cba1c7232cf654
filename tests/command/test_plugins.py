"""Plug-ins of other packages: the exercise of docs/plugins.md, and a plug-in that is broken."""

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
