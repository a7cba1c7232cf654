"""A real compiler's preprocessor and MLX's headers: references for parsing C++ and Metal."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mlxgen.emulator.source import lex


def mlx_include() -> Path:
    """Return the include folder of the installed MLX, with the headers of its Metal kernels."""
    found = importlib.util.find_spec("mlx")
    assert found is not None and found.submodule_search_locations
    for location in found.submodule_search_locations:
        folder = Path(location) / "include"
        if (folder / "mlx/backend/metal/kernels").is_dir():
            return folder
    raise AssertionError("this MLX comes without the headers of its Metal kernels")


def preprocessed(
    path: Path, include_dirs: Sequence[Path], stubs: Path, defines: dict[str, str]
) -> str:
    """Preprocess a file with the compiler, with empty headers for `<...>`."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    assert compiler, "a C++ compiler is needed, as it is for building ops"
    options = ["-E", "-P", "-undef", "-nostdinc", "-x", "c++", "-std=c++20"]
    folders = [f"-I{folder}" for folder in (stubs, *include_dirs)]
    macros = [f"-D{name}={value}" for name, value in defines.items()]
    done = subprocess.run(
        [compiler, *options, *macros, *folders, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_stubs(folder: Path, sources: Sequence[Path]) -> None:
    """Write empty headers for all files that the sources include in angle brackets."""
    for source in sources:
        for name in re.findall(r"#include <([^>]+)>", source.read_text(encoding="utf-8")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()


def texts(source: str) -> list[str]:
    """Return the tokens of preprocessed text without pragmas, which a preprocessor passes on."""
    return [token.text for token in lex(source)]


def mlx_kernel_headers() -> list[Path]:
    return sorted((mlx_include() / "mlx/backend/metal/kernels").rglob("*.h"))


INSTANTIATED = """
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/unary_ops.h"
#include "mlx/backend/metal/kernels/unary.h"
#include "mlx/backend/metal/kernels/softmax.h"

#define instantiate_op(op, iname, oname, itype, otype)                           \\
  instantiate_kernel("v_" #op #iname #oname, unary_v, itype, otype, op, 1)        \\
  instantiate_kernel(                                                             \\
      "g_" #op #iname #oname, unary_g, itype, otype, op, 4, int)
#define instantiate_same(op, name, type) instantiate_op(op, name, name, type, type)
#define instantiate_floats(op)                \\
  instantiate_same(op, float32, float)        \\
  instantiate_same(op, float16, half)         \\
  instantiate_same(op, bfloat16, bfloat16_t)

instantiate_floats(Exp)
instantiate_floats(Tanh)
instantiate_op(Real, complex64, float32, complex64_t, float)

#define instantiate_softmax(name, type)                                                \\
  template [[host_name("softmax_" #name)]] [[kernel]] void softmax_single_row<type>(    \\
      const device type* in, device type* out, constant int& axis_size, uint gid, uint _lid, \\
      uint simd_lane_id, uint simd_group_id);
instantiate_softmax(float32, float) // clang-format on
"""
