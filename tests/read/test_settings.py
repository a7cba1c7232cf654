"""The settings of a project: defaults, and the location of every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pages import PAGES

from mlxgen.diagnostics import Diagnostics
from mlxgen.read import settings

Load = Callable[[str], tuple[settings.Settings | None, Diagnostics]]


@pytest.fixture
def load(write_project: Callable[[str], Path]) -> Load:
    """Load the settings of a project with the given pyproject.toml."""

    def load(text: str) -> tuple[settings.Settings | None, Diagnostics]:
        diagnostics = Diagnostics()
        return settings.load(write_project(text), diagnostics), diagnostics

    return load


def test_defaults(load: Load) -> None:
    found, _ = load('[project]\nname = "my-ops"\nversion = "1.2"\n')
    assert found is not None
    assert (found.name, found.namespace) == ("my_ops", "my_ops")
    assert (found.version, found.mlx) == ("1.2", None)
    paths = [found.yaml, found.csrc, found.metal, found.python, found.docs]
    shown = [found.relative(path) for path in paths]
    assert shown == ["mlx_ops.yaml", "csrc", "kernels/metal", "python/my_ops", "docs"]


def test_settings_are_read(tmp_path: Path, load: Load) -> None:
    (tmp_path / "ops.yaml").touch()
    found, _ = load(
        '[project]\nname = "x"\n'
        '[tool.mlxgen]\nname = "tiny"\nnamespace = "a::b"\nyaml = "ops.yaml"\n'
    )
    assert found is not None
    assert (found.name, found.namespace, found.yaml) == ("tiny", "a::b", tmp_path / "ops.yaml")


@pytest.mark.parametrize(
    ("listed", "files"),
    [
        ('"b.yaml"', ["b.yaml"]),
        ('["b.yaml", "ops/*.yaml"]', ["b.yaml", "ops/a.yaml", "ops/b.yaml"]),
        ('["ops/[b].yaml", "?.yaml"]', ["ops/b.yaml", "b.yaml"]),
        ('"ops/*.y*ml"', ["ops/a.yaml", "ops/b.yaml", "ops/c.yml"]),
    ],
)
def test_files_of_operators(tmp_path: Path, load: Load, listed: str, files: list[str]) -> None:
    """Patterns match files, sorted by name, but no folders and no hidden files of editors."""
    (tmp_path / "ops" / "folder.yaml").mkdir(parents=True)
    for name in ("b.yaml", "ops/b.yaml", "ops/a.yaml", "ops/c.yml", "ops/.#a.yaml"):
        (tmp_path / name).touch()
    found, diags = load(f'[project]\nname = "tiny"\n[tool.mlxgen]\nyaml = {listed}\n')
    assert found is not None, diags.render_text()
    assert [found.relative(path) for path in found.files] == files
    # A file that is none of them replaces them all.
    for name, expected in ((files[-1], files), ("ops/.#a.yaml", ["ops/.#a.yaml"])):
        found = settings.load(tmp_path, diags, tmp_path / name)
        assert found and [found.relative(path) for path in found.files] == expected


@pytest.mark.parametrize(
    ("dependencies", "release"),
    [
        ('["mlx[cpu]==0.32.4"]', "0.32.4"),
        ('["numpy", "mlx == 0.32.4 ; sys_platform == \'darwin\'"]', "0.32.4"),
        ('["mlx-lm>=0.1"]', None),
        ("[]", None),
    ],
)
def test_mlx_pin(load: Load, dependencies: str, release: str | None) -> None:
    found, _ = load(f'[project]\nname = "tiny"\ndependencies = {dependencies}\n')
    assert found is not None
    assert found.mlx == release


def test_releases_are_sorted_and_checked_against_the_oldest(load: Load) -> None:
    text = '[project]\nname = "tiny"\ndependencies = ["mlx~=0.32.2"]\n[tool.mlxgen]\n'
    found, _ = load(text + 'mlx = ["0.32.4", "0.32.10", "0.32.2"]\n')
    assert found is not None
    assert (found.mlx, found.releases) == ("0.32.2", ("0.32.10", "0.32.4", "0.32.2"))


@pytest.mark.parametrize(
    ("spec", "excluded"),
    [
        ("mlx>=0.32.2,<0.33", None),
        ("mlx[cpu] >= 0.32 , <= 0.32.4 ; sys_platform == 'linux'", None),
        ("mlx~=0.32.2", None),
        ("mlx==0.32.*", None),
        ("mlx (>=0.32)", None),
        ("mlx!=0.32.1", None),
        ("mlx", None),
        ("mlx-lm==1.0", None),
        ("mlx==0.32.4", "0.32.2"),
        ("mlx>0.32.2", "0.32.2"),
        ("mlx>=0.32.3,<0.33", "0.32.2"),
        ("mlx<0.32.4", "0.32.4"),
        ("mlx<=0.32.3", "0.32.4"),
        ("mlx!=0.32.4", "0.32.4"),
        ("mlx~=0.32.3", "0.32.2"),
        ("mlx~=0.31.0", "0.32.4"),
        ("mlx==0.31.*", "0.32.4"),
    ],
)
@pytest.mark.parametrize("where", ["dependencies = ", "[project.optional-dependencies]\ncpu = "])
def test_dependency_and_releases_agree(
    load: Load, spec: str, excluded: str | None, where: str
) -> None:
    text = f'[project]\nname = "tiny"\n{where}["numpy", "{spec}"]\n[tool.mlxgen]\n'
    found, diagnostics = load(text + 'mlx = ["0.32.4", "0.32.2"]\n')
    if excluded is None:
        assert found is not None
        return
    assert found is None
    (item,) = diagnostics.sorted()
    line = 6 if "optional" in where else 5
    assert (item.code, item.span.line, item.span.column) == ("MG709", line, 7)
    assert item.message == f"the dependency '{spec}' excludes MLX {excluded}, which `mlx` lists"


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ('"0.32.4"', "MG704", "'mlx' must be a list of releases and not empty, not '0.32.4'"),
        ("[]", "MG704", "'mlx' must be a list of releases and not empty, not []"),
        ('["0.32"]', "MG709", "'0.32' is not a release of MLX such as 0.32.4"),
        ('[">=0.32.2"]', "MG709", "'>=0.32.2' is not a release of MLX such as 0.32.4"),
        (
            '["0.32.4", "0.30.6"]',
            "MG709",
            "mlxgen needs MLX 0.31.0 or newer, not 0.30.6",
        ),
    ],
)
def test_releases_that_are_none(load: Load, value: str, code: str, message: str) -> None:
    found, diagnostics = load(f'[project]\nname = "tiny"\n[tool.mlxgen]\nmlx = {value}\n')
    assert found is None
    (item,) = diagnostics.sorted()
    assert (item.code, item.message, item.span.line) == (code, message, 4)


@pytest.mark.parametrize("spec", ["mlx", "mlx>=0.30", "mlx[cpu]>=0.30,<0.40", "mlx==0.32.*"])
def test_mlx_must_be_pinned(load: Load, spec: str) -> None:
    found, diagnostics = load(f'[project]\nname = "tiny"\ndependencies = ["numpy", "{spec}"]\n')
    assert found is None
    (item,) = diagnostics.sorted()
    assert (item.code, item.span.line) == ("MG709", 3)


def test_mlx_must_not_be_too_old(load: Load) -> None:
    found, diagnostics = load('[project]\nname = "tiny"\ndependencies = ["mlx[cpu]==0.30.6"]\n')
    assert found is None
    (item,) = diagnostics.sorted()
    assert (item.code, item.span.line) == ("MG709", 3)
    assert item.message == "mlxgen needs MLX 0.31.0 or newer, not 0.30.6"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("name = 3", "MG704"),
        ('name = "class"', "MG705"),
        ('namespace = "a::class"', "MG705"),
        ('namespace = "std"', "MG705"),
        ('csrc = "a\\u0000b"', "MG708"),
        ('csrc = "loop"', "MG708"),
        (f'yaml = "{"x" * 5000}"', "MG706"),
        (f"csrc = {'[' * 3000}", "MG702"),
    ],
)
def test_one_mistake_is_one_message(tmp_path: Path, load: Load, line: str, code: str) -> None:
    (tmp_path / "loop").symlink_to("../loop")
    found, diagnostics = load(f'[project]\nname = "tiny"\n[tool.mlxgen]\n{line}\n')
    assert found is None
    assert [item.code for item in diagnostics.sorted()] == [code]


@pytest.mark.parametrize("version", ["1.0", "1.0rc1", "2024.1.post3+cpu.x86-64", "v1!2.0-dev"])
def test_versions(load: Load, version: str) -> None:
    found, _ = load(f'[project]\nname = "tiny"\nversion = "{version}"\n[tool.mlxgen]\n')
    assert found is not None and found.version == version


@pytest.mark.parametrize(
    "version", ["'1.0\"; import os'", "'1.0;2'", "'${HOME}'", '"1.0\\n[x]"', "''", "1.0", "['1.0']"]
)
def test_versions_that_would_become_code(load: Load, version: str) -> None:
    found, diagnostics = load(f'[project]\nname = "tiny"\nversion = {version}\n[tool.mlxgen]\n')
    assert found is None
    (item,) = diagnostics.sorted()
    assert (item.code, item.span.line) == ("MG704", 3)
    assert item.message.startswith("'version' must be a version such as 1.0.2, not ")


@pytest.mark.parametrize("code", sorted(code for code in PAGES if code.startswith("MG70")))
def test_documented_examples(load: Load, code: str) -> None:
    entry = PAGES[code]
    if code != "MG701":
        _, diagnostics = load(entry.bad)
        assert code in {item.code for item in diagnostics.sorted()}
    text = entry.good
    if "[project]" not in text:
        text = '[project]\nname = "tiny"\n' + text
    elif "name =" not in text:
        text = text.replace("[project]", '[project]\nname = "tiny"')
    found, diagnostics = load(text)
    assert found is not None, diagnostics.render_text()


def test_no_pyproject(tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    assert settings.load(tmp_path, diagnostics) is None
    assert [item.code for item in diagnostics.sorted()] == ["MG701"]


@pytest.mark.parametrize(
    ("line", "code", "column", "end"),
    [
        ('namspace = "x"', "MG703", 1, 9),
        ("  csrc = 3  # three", "MG704", 10, 11),
        ('csrc = ""', "MG704", 8, 10),
        ('name = "class"', "MG705", 8, 15),
        ('name = "mlx"', "MG705", 8, 13),
        ('namespace = "a-b"', "MG705", 13, 18),
        ('yaml = "none.yaml"', "MG706", 8, 19),
        ('python = "python/none"', "MG706", 10, 23),
        ('python = "python/ops"', "MG707", 10, 22),
        ('docs = "/docs"', "MG708", 8, 15),
        ('csrc = "a/../../b"', "MG708", 8, 19),
        ('yaml = ["a.yaml", "none.yaml"]', "MG706", 8, 31),
        ('yaml = ["a.yaml", "ops/none*.yaml"]', "MG706", 8, 36),
        ('yaml = ["a.yaml", "*.yaml"]', "MG704", 8, 28),
        ('yaml = ["a.yaml", "./a.yaml"]', "MG704", 8, 30),
        ('yaml = ["a.yaml", ""]', "MG704", 8, 22),
        ("yaml = []", "MG704", 8, 10),
        ("yaml = [3]", "MG704", 8, 11),
        ('yaml = ["a.yaml", "../*.yaml"]', "MG708", 8, 31),
        ('yaml = ["/**/*.yaml"]', "MG708", 8, 22),
        ('yaml = "links/*.yaml"', "MG708", 8, 22),
    ],
)
def test_place(load: Load, line: str, code: str, column: int, end: int, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "b.yaml").symlink_to(tmp_path.parent / "outside.yaml")
    (tmp_path.parent / "outside.yaml").touch()
    found, diagnostics = load(f'[project]\nname = "tiny"\n\n[tool.mlxgen]\n{line}\n')
    assert found is None
    item = next(item for item in diagnostics.sorted() if item.code == code)
    assert "yaml" not in line or len(diagnostics) == 1
    assert (item.span.line, item.span.column, item.span.end_column) == (5, column, end)


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ('"c"', "MG704", "'languages' must be a list of languages and not empty, not 'c'"),
        ("[]", "MG704", "'languages' must be a list of languages and not empty, not []"),
        ('["c++"]', "MG713", "unknown language 'c++'"),
        ('["C"]', "MG713", "unknown language 'C' (did you mean 'c'?)"),
    ],
)
def test_languages_that_are_none(load: Load, value: str, code: str, message: str) -> None:
    found, diagnostics = load(f'[project]\nname = "tiny"\n[tool.mlxgen]\nlanguages = {value}\n')
    assert found is None
    (item,) = diagnostics.sorted()
    assert (item.code, item.message, item.span.line) == (code, message, 4)


@pytest.mark.parametrize(
    ("listed", "languages"), [('"c", "c"', ("c",)), ('"rust"', ("c", "rust")), ("", None)]
)
def test_languages(load: Load, listed: str, languages: tuple[str, ...] | None) -> None:
    found, _ = load(f'[project]\nname = "tiny"\n[tool.mlxgen]\nlanguages = [{listed}]\n')
    assert (found and found.languages) == languages


def test_all_mistakes_in_one_run(load: Load) -> None:
    _, diagnostics = load(
        '[project]\nname = "tiny"\ndependencies = ["mlx"]\n[tool.mlxgen]\nyml = "x"\ncsrc = 1\n',
    )
    assert [item.code for item in diagnostics.sorted()] == ["MG709", "MG703", "MG704"]
    assert "did you mean 'yaml'" in diagnostics.render_text()


def test_malformed_toml(load: Load) -> None:
    _, diagnostics = load('[project]\nname = "tiny"\nversion = 1.\n')
    (item,) = diagnostics.sorted()
    assert (item.code, item.span.line) == ("MG702", 3)
    assert "(at line" not in item.message


@pytest.mark.parametrize(
    "text",
    [
        "tool = 3\n",
        "project = 3\n",
        '[tool]\nmlxgen = "x"\n',
        '[project]\nname = "tiny"\nname = 2\n',
    ],
)
def test_odd_documents(load: Load, text: str) -> None:
    found, diagnostics = load(text)
    assert found is None
    assert not diagnostics.ok
