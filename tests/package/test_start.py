"""`mlxgen new` and `mlxgen add`: contents and errors.

programs/test_walk.py builds a new package and runs its tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import builds
import pytest
import yaml
from builds import output, run

ROOT = Path(__file__).parents[2]


def mlxgen(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "mlxgen", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new package."""
    folder = tmp_path_factory.mktemp("new")
    assert "my-ops: 16 files" in output(mlxgen("new", "my-ops", cwd=folder))
    return folder / "my-ops"


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    output(run("-c", f"import shutil; shutil.copytree({str(made)!r}, 'copy')", cwd=tmp_path))
    return tmp_path / "copy"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_a_new_package_has(made: Path) -> None:
    files = contents(made)
    assert not [name for name, text in files.items() if b"<<" in text or b">>" in text]
    assert {".gitignore", ".github/workflows/ci.yml", "docs/mlx_ops.schema.json"} <= set(files)
    workflow = yaml.safe_load(files[".github/workflows/ci.yml"])
    assert list(workflow["jobs"]) == ["test", "wheels"]
    # the command that editors start, as docs/editor.md describes it
    page = (ROOT / "docs" / "editor.md").read_text(encoding="utf-8")
    for name in (".vscode/settings.json", ".zed/settings.json", ".helix/languages.toml"):
        assert f"\n{files[name].decode()}```" in page
    json.loads(files[".vscode/extensions.json"])
    assert output(mlxgen("check", cwd=made)) == "1 operator, no errors\n"


def test_nothing_is_replaced(made: Path) -> None:
    before = contents(made)
    done = mlxgen("new", "my-ops", cwd=made.parent)
    assert done.returncode == 2 and "nothing was written" in done.stderr
    assert contents(made) == before
    output(mlxgen("new", "other", "--folder", "deep/er", cwd=made.parent))
    assert (made.parent / "deep" / "er" / "python" / "other" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["1x", "a b", "class", "mlx", "ä", "a/b"])
def test_names_that_are_no_packages(name: str, tmp_path: Path) -> None:
    done = mlxgen("new", name, cwd=tmp_path)
    assert done.returncode == 2 and "cannot be the name of a package" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_or_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); "
    script += "from mlxgen.__main__ import main; main()"
    for command, arguments in (
        (("-m", "mlxgen"), ("--folder", "file/deep/er")),
        (("-m", "mlxgen"), ("--folder", "link")),
        (("-c", script), ("--folder", "deep/er")),
    ):
        done = run(*command, "new", "my-ops", *arguments, cwd=tmp_path)
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr
        assert "nothing was written" in re.sub(r"[^\w]+", " ", done.stderr)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_output_that_cannot_be_written(made: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "mlxgen", "list"]
        done = subprocess.run(
            command, cwd=made, env=builds.environment(), stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr


ADDED = {
    "softsign(array x) -> array": [],
    "f1(x: array, n: int = 2) -> array": ["--kernel", "cpu,metal", "--doc", 'It\'s "f": 1'],
    "f2(array x, array y) -> (array a, array b)": ["--kernel", "shared"],
    "f3(array x) -> array": ["--composite", "x + 1", "--grad", "x=grad"],
    "f4(array x, array? w, bool b) -> array": ["--shape", "x.shape[:-1]"],
    "f5(array[] xs, int n) -> (array a, array b)": ["--kernel", "cpu", "--shape", "[n]"],
    "f6(array x) -> array": ["--kernel", "metal", "--composite", "exp(x)"],
}


def test_entries_that_are_added_fit(package: Path) -> None:
    before = (package / "mlx_ops.yaml").read_text(encoding="utf-8")
    for signature, options in ADDED.items():
        text = output(mlxgen("add", signature, *options, cwd=package))
        line = int(re.search(r"mlx_ops\.yaml:(\d+): name: \w+", text)[1])
        lines = (package / "mlx_ops.yaml").read_text(encoding="utf-8").splitlines()
        assert lines[line - 1] == f"- name: {signature.partition('(')[0]}"
    assert output(mlxgen("check", cwd=package)) == "8 operators, no errors\n"
    assert (package / "mlx_ops.yaml").read_text(encoding="utf-8").startswith(before)
    entries = yaml.safe_load((package / "mlx_ops.yaml").read_text(encoding="utf-8"))
    assert [entry["signature"] for entry in entries[1:]] == list(ADDED)
    output(mlxgen("generate", cwd=package))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["squareplus(array x) -> array"], "defined twice"),
        (["f(array x) -> arrray"], "did you mean 'array'?"),
        (["f"], "the arguments in parentheses are missing"),
        (["f(array x) -> array", "--grad", "y=1"], "unknown array argument 'y'"),
        (["f(array x) -> array", "--composite", "foo(x)"], "unknown function 'foo'"),
        (["f(array x) -> array", "--shape", "y.shape"], "y"),
        (["taken(array x) -> array"], "csrc/taken.h already exists"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_not_added(arguments: list[str], message: str, package: Path) -> None:
    (package / "csrc" / "taken.h").write_text("#pragma once\n", encoding="utf-8")
    before = contents(package)
    done = mlxgen("add", *arguments, cwd=package)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr
    assert contents(package) == before


def test_a_folder_that_cannot_be_written(package: Path) -> None:
    if os.geteuid() == 0:
        (package / "csrc").rename(package / "sources")
        (package / "csrc").write_text("")  # a file where a folder is needed
        (package / "pyproject.toml").write_text(
            (package / "pyproject.toml").read_text() + '\n[tool.mlxgen]\ncsrc = "csrc/more"\n'
        )
    else:
        (package / "csrc").chmod(0o500)
    before = contents(package)
    done = mlxgen("add", "f(array x) -> array", cwd=package)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert contents(package) == before
