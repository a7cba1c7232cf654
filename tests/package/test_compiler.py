"""The C++ compiler: every command chooses the same one, and says the same if there is none."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import mlxgen
from mlxgen import build
from mlxgen.__main__ import cli
from mlxgen.diagnostics import install
from mlxgen.emulator import cxx
from mlxgen.package import toolchain
from mlxgen.plugins.interactive.built import compiler_errors
from mlxgen.plugins.rebuild import command as rebuild

PROJECT = '[project]\nname = "tiny"\nversion = "1"\n[tool.mlxgen]\nname = "tiny"\n'
ENTRY = '- signature: "half(array x) -> array"\n  composite: x / 2\n'
VARIABLES = ("CXX", "CXXFLAGS", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project, with an empty cache and an empty PATH."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # restored at the end, also if a build sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(install, "compiler", lambda: "run `get g++`")
    sources = tmp_path / "installed" / "tiny" / "sources"
    for root in (tmp_path / "project", sources):
        (root / "python" / "tiny").mkdir(parents=True)
        (root / "python" / "tiny" / "__init__.py").touch()
        (root / "pyproject.toml").write_text(PROJECT)
        (root / "mlx_ops.yaml").write_text(ENTRY)
    (sources.parent / "__init__.py").touch()
    (sources.parent / "_build_info.py").write_text('MLX_VERSION = "0.1.0"\n')
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.chdir(tmp_path / "project")
    cxx.command.cache_clear()
    return tmp_path


def compilers(folder: Path, *names: str) -> None:
    """Put compilers into PATH that only record their calls."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in names:
        path = folder / "bin" / name
        path.write_text(
            f"#!/bin/sh\necho {name} >> {folder / 'calls'}\n"
            f'case "$*" in *--version*) echo "{name} 1";; *) exit 1;; esac\n'
        )
        path.chmod(0o755)


def of_load() -> str:
    with pytest.raises(mlxgen.LoadError) as error:
        mlxgen.load(ENTRY)
    return str(error.value)


def of_test() -> str:
    done = CliRunner().invoke(cli, ["test", "half"])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    return re.sub(r"[│\s]+", " ", done.output)


def of_rebuild() -> str:
    with pytest.raises(rebuild.RebuildError) as error:
        rebuild.rebuild("tiny")
    return str(error.value)


def of_build() -> str:
    with pytest.raises(SystemExit) as error:
        build.build_wheel("dist")
    return str(error.value)


def of_emulation() -> str:
    try:
        cxx.command()
    except cxx.EmulationError as error:
        return str(error)
    return ""


COMMANDS = pytest.mark.parametrize(
    "command", [of_load, of_test, of_rebuild, of_build, of_emulation]
)


@pytest.mark.parametrize(
    ("pythons", "found", "named", "expected"),
    [
        ("g++ -pthread", ["c++", "g++"], "", ["g++"]),
        ("clang-0 -pthread", ["clang++", "g++", "c++"], "", ["c++"]),
        (None, ["clang++", "g++"], "", ["g++"]),
        (None, ["clang++"], "", ["clang++"]),
        ("g++", ["g++", "clang++"], "clang++", ["clang++"]),
        ("g++", ["g++", "ccache"], "ccache g++ -m64", ["ccache", "g++", "-m64"]),
        ("ccache g++ -pthread", ["g++", "ccache", "c++"], "", ["ccache", "g++"]),
    ],
)
def test_rule(
    pythons: str | None,
    found: list[str],
    named: str,
    expected: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compilers(folder, *found)
    monkeypatch.setenv("CXX", named)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: pythons)
    assert toolchain.compiler() == expected


def test_path_with_spaces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(folder, "my g++")
    monkeypatch.setenv("CXX", str(folder / "bin" / "my g++"))
    assert toolchain.compiler() == [str(folder / "bin" / "my g++")]


@COMMANDS
@pytest.mark.parametrize("pythons", ["g++ -pthread", "clang-0"])
def test_all_choose_the_same(
    command: Callable[[], str], pythons: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own compiler, or else the first one of CMake's list."""
    compilers(folder, "c++", "g++", "clang++")
    usual = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: pythons if name == "CXX" else usual(name)
    )
    said = command()
    assert {*(folder / "calls").read_text().split()} == {"g++" if "g++" in pythons else "c++"}, said


@COMMANDS
def test_none(command: Callable[[], str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no C++ compiler: run `get g++`" in command()
    monkeypatch.setenv("CXX", "clang++-99 -m64")
    cxx.command.cache_clear()
    said = command()
    assert "there is no C++ compiler 'clang++-99 -m64', which CXX names (clang++-99 ca" in said
    assert "change CXX, or run `get g++`" in said


@pytest.mark.parametrize(
    ("error", "has_help"),
    [
        ("no match for call to '(mlx::core::Shape {aka SmallVector<int>}) (int)'", True),
        ("type 'const mlx::core::Shape' does not provide a call operator", True),
        ("'mlxgen::In<float>' {aka 'struct mlxgen::View<const float>'} has no member 'rows'", True),
        ("no member named 'rows' in 'mlxgen::View<const float>'", True),
        ("use of deleted function 'const T& mlxgen::Strided<T>::operator[](int64_t) const'", True),
        ("no matching function for call to 'f(mlxgen::View<const float>&)'", False),
        ("'fabz' was not declared in this scope", False),
    ],
)
def test_members_of_views(error: str, has_help: bool) -> None:
    """The help of an error about a missing member of a view lists the members."""
    ((said, span, _),) = compiler_errors(f"csrc/w.h:3:5: error: {error}", lambda file: True)
    assert (span.line, said.text) == (3, error)
    assert ("x.shape[i]" in str(said.help)) is has_help
