"""The variables that are passed to CMake, and their syntax."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from mlxgen.formula.mlx import table
from mlxgen.package import compat, probe, toolchain

WriteProject = Callable[[str], Path]

PYPROJECT = '[project]\nname = "tiny"\nversion = "1.0"\n'


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return arguments for a folder with a finished shared toolchain."""
    place = tmp_path / "known.cmake"
    place.write_text("set(KNOWN 1)\n")
    common = toolchain.Common(place, place, place, place, place, [], [], [])
    monkeypatch.setattr(toolchain, "obtain", lambda *given: common)
    folder = str(tmp_path)
    return ["--project", folder, "--build", folder, "--cmake", "cmake", "--ninja", "ninja"]


def test_variables(write_project: WriteProject, tmp_path: Path, arguments: list[str]) -> None:
    write_project(PYPROJECT)
    assert probe.main([*arguments, "--define", "A=b=c"]) == 0
    text = (tmp_path / "probe.cmake").read_text(encoding="utf-8")
    assert text.endswith("\nset(KNOWN 1)\n")
    assert "set(MLXGEN_NAME [=[tiny]=])" in text
    assert f"set(MLXGEN_CSRC [=[{tmp_path / 'csrc'}]=])" in text
    for name in ("MLX_ROOT", "MLX_VERSION", "NANOBIND_ROOT", "NANOBIND_VERSION"):
        assert f"set(MLXGEN_{name} [=[" in text


def test_pinned_release_is_not_the_installed_one(
    write_project: WriteProject, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(PYPROJECT + 'dependencies = ["mlx==0.31.0"]\n')
    assert probe.main(arguments) == 0
    assert "warning: tiny is for MLX 0.31.0 but is built for " in capsys.readouterr().err


def test_other_releases_are_fetched(
    write_project: WriteProject,
    tmp_path: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = ["0.31.0", mx.__version__, "0.31.2"]
    write_project(f"{PYPROJECT}[tool.mlxgen]\nmlx = {listed}\n")
    monkeypatch.setattr(toolchain, "fetch", lambda name, release, local: Path("/", release, name))
    assert probe.main(arguments) == 0
    assert "set(MLXGEN_RELEASES )" in (tmp_path / "probe.cmake").read_text(encoding="utf-8")
    assert probe.main([*arguments, "--all"]) == 0
    text = (tmp_path / "probe.cmake").read_text(encoding="utf-8")
    assert "set(MLXGEN_RELEASES [=[0.31.2]=] [=[0.31.0]=])" in text
    assert "set(MLXGEN_RELEASE_FOLDERS [=[/0.31.2]=] [=[/0.31.0]=])" in text


def test_mlx_for_cuda_is_not_what_is_built_with(
    arguments: list[str],
    write_project: WriteProject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CMake would look for NVIDIA's compiler. Without a driver it cannot be imported either."""
    write_project(PYPROJECT)
    core = compat.core_module()
    (tmp_path / "mlx" / "include" / "cccl").mkdir(parents=True)
    (tmp_path / "mlx" / core.name).symlink_to(core)
    monkeypatch.setattr(compat, "core_module", lambda: tmp_path / "mlx" / core.name)
    fetched = {"mlx": core.parent}
    monkeypatch.setattr(toolchain, "fetch", lambda name, release, local: fetched[name])
    monkeypatch.setitem(sys.modules, "mlx.core", None)  # importing it is an error
    assert probe.main(arguments) == 0
    text = (tmp_path / "probe.cmake").read_text(encoding="utf-8")
    assert f"set(MLXGEN_MLX_ROOT [=[{core.parent}]=])" in text
    assert f"set(MLXGEN_MLX_CORE [=[{tmp_path / 'mlx' / core.name}]=])" in text


def test_release_that_is_newer_than_known(
    write_project: WriteProject,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_project(PYPROJECT)
    monkeypatch.setitem(mx.__dict__, "__version__", "99.1.0")
    assert probe.main(arguments) == 0
    known = table().release
    assert (
        f"warning: this mlxgen knows MLX up to {known} and treats 99.1.0" in capsys.readouterr().err
    )


def test_settings_are_checked(
    write_project: WriteProject, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(PYPROJECT + "[tool.mlxgen]\ncsrc = 3\n")
    assert probe.main(arguments) == 1
    assert "pyproject.toml:5:8: error[MG704]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    ['a b;c ${d} "e" \\f ]]', ']==]) message("executed") #', "a]=]==]", "a]=", "a]", "[=[]=]"],
)
def test_any_text_reaches_cmake_unchanged(tmp_path: Path, value: str) -> None:
    script = tmp_path / "script.cmake"
    script.write_text(
        probe.to_cmake({"ONE": value, "MANY": ["x", "y z"], "NONE": []})
        + 'message("${ONE}|${MANY}|${NONE}")\n',
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "cmake", "-P", str(script)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == f"{value}|x;y z|\n"


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="libmvec belongs to glibc on x86-64",
)
def test_vector_symbols() -> None:
    found = probe.vector_symbols()
    # Available since libmvec's first release; glibc 2.35 added the others.
    assert {"exp", "log", "sin", "cos", "pow"} <= set(found)
    assert found["exp"][:2] == ["_ZGVbN2v_exp", "_ZGVbN4v_expf"]
    assert found["pow"][-2:] == ["_ZGVeN8vv_pow", "_ZGVeN16vv_powf"]
