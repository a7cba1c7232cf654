"""`mlxgen/simd_math.h`: its own functions for clang, against mpmath."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

import mlxgen

INCLUDE = Path(mlxgen.__file__).parent / "runtime" / "include"

SOURCE = """
#include "mlxgen/simd_math.h"
template <typename T>
void run(const T* x, T* y, int n) {
  for (int i = 0; i < n; ++i) {
    y[i] = mlxgen::math::exp(x[i]);
  }
}
extern "C" void exp_float(const float* x, float* y, int n) { run(x, y, n); }
extern "C" void exp_double(const double* x, double* y, int n) { run(x, y, n); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Compile with the clang of the `ziglang` package, and link with the installed compiler."""
    folder = tmp_path_factory.mktemp("exp")
    source, made, out = folder / "exp.cpp", folder / "exp.o", folder / "exp.so"
    source.write_text(SOURCE, encoding="utf-8")
    flags = "-std=c++20 -O3 -fPIC -fno-sanitize=all -ffp-contract=fast -fno-math-errno"
    caches = dict.fromkeys(("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"), str(folder))
    # A named system has its headers in the package. For the native one, zig asks the installed
    # compiler for the headers of the C library, which can fail.
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = "macos" if sys.platform == "darwin" else "linux-gnu"
    flags += f" -target {machine}-{system} -mcpu=native"
    command = [sys.executable, "-m", "ziglang", "c++", *flags.split(), f"-I{INCLUDE}"]
    env = {**os.environ, **caches}
    subprocess.run([*command, "-c", str(source), "-o", str(made)], check=True, env=env)
    linker = os.environ.get("CXX") or shutil.which("c++") or "g++"
    subprocess.run([linker, "-shared", str(made), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp(dtype: type, library: ctypes.CDLL) -> None:
    info = np.finfo(dtype)
    start, end = (-104, 89) if dtype is np.float32 else (-746, 710)
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(start, end, 2000), rng.uniform(-1, 1, 1000), [0, -0.0, 1e-30]])
    x = x.astype(dtype)
    x = np.concatenate([x, np.array([np.inf, -np.inf, 1e30, -1e30, np.nan], dtype)])
    y = np.empty_like(x)
    run = library.exp_float if dtype is np.float32 else library.exp_double
    run(*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)), len(x))
    assert y[-5:-1].tolist() == [np.inf, 0, np.inf, 0]
    assert np.isnan(y[-1])
    worst = 0.0
    for argument, result in zip(x[:-5].tolist(), y[:-5].tolist(), strict=True):
        with mp.workdps(40):
            exact = mp.exp(argument)
            if exact >= float(info.max):
                assert result == np.inf
                continue
            place = max(mp.floor(mp.log(exact, 2)), info.minexp) - info.nmant
            worst = max(worst, float(abs(result - exact) / mp.mpf(2) ** place))
    assert 0.5 < worst < 1.1
