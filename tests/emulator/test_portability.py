"""The emulation compiles on systems on which these tests do not run: Linux on arm64, and macOS.

zig compiles for both. The emulation depends on the system for context switches between fibers,
which are written in assembly, for page protection, signals, and a C++ library.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from mlxgen.command.generate import generate
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator import library, translate
from mlxgen.emulator.package import mlx_include
from mlxgen.read.settings import load as load_settings

pytestmark = [pytest.mark.extended, pytest.mark.weekly]

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "metal"
HERE = Path(library.__file__).parent
TARGETS = ("aarch64-macos.14.0", "aarch64-linux-gnu")


def zig(*arguments: str | Path, tool: str = "c++") -> None:
    """Run zig's clang; report its output if it fails."""
    command = [sys.executable, "-m", "ziglang", tool, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_and_runtime_compile(target: str, tmp_path: Path) -> None:
    source = tmp_path / "kernels.cpp"
    found = translate(KERNELS / "normalization.metal", [mlx_include(), KERNELS])
    source.write_text(found.text)
    common = ("-target", target, "-fPIC", f"-I{HERE / 'include'}", "-c")
    options = [flag for flag in library._FLAGS if "sanitize" not in flag]
    zig(*common, *options, source, "-o", tmp_path / "kernels.o")
    options = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=all"]
    zig(*common, *options, HERE / "runtime.cpp", "-o", tmp_path / "runtime.o")
    if "macos" in target:
        # without the C++ library, which zig would have to compile first
        objects = [tmp_path / "kernels.o", tmp_path / "runtime.o"]
        options = ["-shared", "-Wl,-undefined,dynamic_lookup", "-o", tmp_path / "kernels.dylib"]
        zig("-target", target, *objects, *options, tool="cc")


@pytest.mark.parametrize("target", TARGETS)
def test_launchers_compile(target: str, tmp_path: Path) -> None:
    diags = Diagnostics()
    settings = load_settings(ROOT, diags)
    assert settings is not None
    generate(settings, tmp_path, diags, include=["segment_sum_sorted"])
    assert diags.ok
    folders = [HERE / "include", tmp_path / "include", tmp_path, settings.csrc]
    folders += [HERE.parent / "runtime" / "include", mlx_include()]
    for source in (tmp_path / "src" / "segment_sum_sorted.cpp", HERE / "device.cpp"):
        zig(
            *("-target", target, "-std=c++20", "-fPIC", "-w"),
            *("-D_METAL_", "-DMLXGEN_EMULATE_METAL", '-DMLXGEN_METAL_COMPILER="mlxgen"'),
            *(f"-I{folder}" for folder in folders),
            *("-c", source, "-o", tmp_path / "launcher.o"),
        )
