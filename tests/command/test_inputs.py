"""The hash of mlxgen covers all of its files that an output can depend on."""

from __future__ import annotations

from pathlib import Path

from sample import project

from mlxgen.command import inputs

# Documentation and tests, and files that the emulator tracks itself.
OTHERS = {"build", "emulator", "mlxgen.egg-info"}
KINDS = {".py", ".json", ".j2", ".h", ".cpp", ".cmake"}


def test_own_files() -> None:
    found = {p for p in inputs.MLXGEN.rglob("*") if p.suffix in KINDS}
    found = {p for p in found if p.relative_to(inputs.MLXGEN).parts[0] not in OTHERS}
    assert len(found) > 150
    assert found <= {*inputs.files(inputs.MLXGEN, *inputs._OWN)}


def test_project(tmp_path: Path) -> None:
    settings = project.settings(tmp_path / "mlx_ops.yaml")
    hashes = {inputs.base_hash(settings)}
    kernels = settings._replace(csrc=tmp_path / "csrc", metal=tmp_path / "metal")
    for name in ("csrc/a.h", "csrc/inside/b.cpp", "csrc/included.inl", "metal/c.metal"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        for text in ("", "// A comment.\n"):
            (tmp_path / name).write_text(text)
            hashes.add(inputs.base_hash(kernels))
    hashes.add(inputs.base_hash(kernels, "more"))
    assert len(hashes) == 10
    assert inputs.base_hash(kernels, "more") in hashes
    assert len(inputs.kernel_files(kernels)) == 4
