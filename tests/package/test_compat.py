"""Matching nanobind to MLX: tags of real and artificial extension modules, and the advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxgen.package import compat

NEW = "nanobind_system_libcpp_abi1_a1_v22"
OLD = "v21_system_libcpp_abi1"


def module(path: Path, tag: str) -> Path:
    """Write a substitute for a compiled module, of which only the tag is read."""
    path.write_bytes(b"\x7fELF\0core\0" + tag.encode() + b"\0__nb_internals_%s_%s__\0")
    return path


def nanobind_with(monkeypatch: pytest.MonkeyPatch, internals: int, version: str) -> None:
    """Simulate another installed release of nanobind."""
    monkeypatch.setattr(compat, "_source_internals", lambda path: internals)
    real = compat.version
    monkeypatch.setattr(compat, "version", lambda d: version if d == "nanobind" else real(d))


@pytest.mark.parametrize(
    ("tag", "internals"),
    [
        (NEW, 22),
        (OLD, 21),
        ("nanobind_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1_a1_v22", 22),
        ("v19_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1", 19),
    ],
)
def test_tag(tmp_path: Path, tag: str, internals: int) -> None:
    assert compat.abi_tag(module(tmp_path / "m.so", tag)) == tag
    assert compat.internals_version(tag) == internals


def test_no_tag(tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(b"\x7fELF nothing here")
    with pytest.raises(compat.CompatError, match="not built with nanobind"):
        compat.abi_tag(tmp_path / "m.so")


def test_the_installed_ones_fit() -> None:
    found = compat.find()
    assert compat.internals_version(found.tag) == compat._source_internals(found.nanobind)
    assert found.nanobind_version in compat.NANOBIND[compat.internals_version(found.tag)]
    assert compat.MLX.get(found.mlx_version) == compat.internals_version(found.tag)


def test_mismatch_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = compat.nanobind_requirement(None)
    nanobind_with(monkeypatch, 15, "2.8.0")
    with pytest.raises(compat.CompatError) as error:
        compat.find()
    text = str(error.value)
    assert "nanobind 2.8.0 does not match MLX" in text
    assert f"-m pip install '{wanted}'`" in text
    assert "\n" not in text


def test_unknown_internals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "abi_tag", lambda path: "nanobind_system_libcpp_abi1_a1_v99")
    with pytest.raises(compat.CompatError, match=r"the nanobind that MLX .* was built with"):
        compat.find()
    assert compat.nanobind_requirement(None) == "nanobind"


@pytest.mark.parametrize("missing", ["mlx", "nanobind"])
def test_missing(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = compat.importlib.util.find_spec
    monkeypatch.setattr(
        compat.importlib.util, "find_spec", lambda name: None if name == missing else real(name)
    )
    with pytest.raises(compat.CompatError, match=f"(?i){missing}.* not installed.* pip install"):
        compat.find()


@pytest.mark.parametrize(
    ("mlx", "nanobind"),
    [("0.31.2", "2.12.0"), ("0.32.0", "2.14.0"), ("0.32.2", "2.15.0"), ("0.32.4", "3.1.0")],
)
def test_requirement_without_mlx(monkeypatch: pytest.MonkeyPatch, mlx: str, nanobind: str) -> None:
    monkeypatch.setattr(compat, "core_module", lambda: None)
    assert compat.nanobind_requirement(mlx) == f"nanobind=={nanobind}"


def test_newer_mlx_gets_the_newest_nanobind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "core_module", lambda: None)
    assert compat.nanobind_requirement("9.9") == f"nanobind=={compat.NANOBIND[22][-1]}"


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core, same = module(tmp_path / "core.so", NEW), module(tmp_path / "_ext.so", NEW)
    compat.compare(core, same)
    other = module(tmp_path / "other.so", OLD)
    with pytest.raises(compat.CompatError, match=f"{OLD}.*{NEW}"):
        compat.compare(core, other)
    assert compat.main([str(core), str(same)]) == 0
    assert compat.main([str(core), str(other)]) == 1
    assert capsys.readouterr().err.startswith("mlxgen: other.so has the nanobind ABI tag")


def test_release_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compat.version
    monkeypatch.setattr(compat, "version", lambda d: "0.30.6" if d == "mlx" else real(d))
    with pytest.raises(
        compat.CompatError, match=r"MLX 0\.30\.6 is too old.* 0\.31\.0 .*>=0\.31\.0"
    ):
        compat.find()
