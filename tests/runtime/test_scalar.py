"""`mlxgen/scalar.h`: arithmetic with sums of two floats, as on Metal, against mpmath."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

import mlxgen

INCLUDE = Path(mlxgen.__file__).parent / "runtime" / "include"

FUNCTIONS: dict[str, Callable[[mp.mpf], mp.mpf]] = {
    "exp": mp.exp,
    "expm1": mp.expm1,
    "log": mp.log,
    "log1p": mp.log1p,
    "sin": mp.sin,
    "cos": mp.cos,
    "sinpi": mp.sinpi,
    "cospi": mp.cospi,
    "sqrt": mp.sqrt,
    "floor": mp.floor,
    "ceil": mp.ceil,
    "trunc": lambda x: mp.sign(x) * mp.floor(abs(x)),
    "rint": mp.nint,
    "fabs": abs,
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x * x,
    "power": lambda x: mp.power(x, mp.mpf("2.5")),
}

SOURCE = """
#define MLXGEN_TWOFOLD
#include "mlxgen/scalar.h"

using mlxgen::twofold;
namespace math = mlxgen::math;
using namespace math;

twofold reciprocal(twofold x) { return 1 / x; }
twofold square(twofold x) { return x * x; }
twofold power(twofold x) { return pow(x, twofold(2.5f)); }

#define RUN(name)                                                           \\
  extern "C" void run_##name(const float* hi, const float* lo, float* to_hi, \\
                             float* to_lo, int n) {                          \\
    for (int i = 0; i < n; ++i) {                                            \\
      twofold y = name(twofold(hi[i], lo[i]));                               \\
      to_hi[i] = y.hi;                                                       \\
      to_lo[i] = y.lo;                                                       \\
    }                                                                        \\
  }
"""

Run = Callable[[str, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    """References have 60 digits."""
    with mp.workdps(60):
        yield


def compiled(source: Path, library: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    flags = ("-std=c++20", "-Wall", "-Wextra", "-Werror", *flags)
    command = [compiler, *flags, "-shared", "-fPIC", f"-I{INCLUDE}", source, "-o", library]
    return subprocess.run(command, capture_output=True, text=True)


# Metal's compiler may fuse x * y + z anywhere.
CONTRACTION = {
    "as written": ("-O1", "-ffp-contract=off"),
    "contracted": (
        "-O2",
        "-ffp-contract=fast",
        *(["-mfma"] if platform.machine() == "x86_64" else []),
    ),
}


@pytest.fixture(scope="module", params=CONTRACTION)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that calls a C++ function for arrays of two floats."""
    folder = tmp_path_factory.mktemp("scalar")
    source, library = folder / "scalar.cpp", folder / "scalar.so"
    source.write_text(SOURCE + "\n".join(f"RUN({name})" for name in FUNCTIONS))
    done = compiled(source, library, *CONTRACTION[request.param])
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))

    def call(name: str, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out = np.empty_like(high), np.empty_like(high)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (high, low, *out)]
        loaded[f"run_{name}"](*pointers, high.size)
        return out

    return call


def test_fast_math_is_refused(tmp_path: Path) -> None:
    """It would eliminate the second float."""
    (tmp_path / "scalar.cpp").write_text(SOURCE)
    done = compiled(tmp_path / "scalar.cpp", tmp_path / "scalar.so", "-ffast-math")
    assert "compile without fast math" in done.stderr


RANGES = [
    ("exp", -40, 88),
    ("exp", -1e-6, 1e-6),
    ("expm1", -30, 80),
    ("expm1", -1e-4, 1e-4),
    ("log", 1e-30, 1e-20),
    ("log", 0.5, 2),
    ("log", 0.9999, 1.0001),
    ("log", 1, 1e30),
    ("log1p", -0.9, 3),
    ("log1p", -1e-5, 1e-5),
    ("sinpi", -1, 1),
    ("sinpi", 1e6, 4e6),
    ("cospi", -1, 1),
    ("cospi", 100, 1000),
    ("sqrt", 1e-10, 1e20),
    ("reciprocal", 1e-10, 1e10),
    ("square", 1, 1e10),
    ("power", 0.1, 10),
    *[(name, -5, 5) for name in ("floor", "ceil", "trunc", "rint", "fabs")],
    *[(name, 2.0**24, 2.0**30) for name in ("floor", "ceil", "trunc", "rint", "fabs")],
]


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_precision(run: Run, name: str, low: float, high: float) -> None:
    """Relative errors stay below 2^-44, a few ulp of 48 bits."""
    x, rest = arguments(low, high)
    for a, b, y in zip(x, rest, exact(run(name, x, rest)), strict=True):
        wanted = FUNCTIONS[name](mp.mpf(float(a)) + mp.mpf(float(b)))
        assert abs(y - wanted) <= abs(wanted) * mp.mpf(2) ** -44, (a, b)


@pytest.mark.parametrize(("name", "scale"), [("sin", 1), ("cos", 1), ("sin", 1e38), ("cos", 1e5)])
def test_argument_reduction(run: Run, name: str, scale: float) -> None:
    """Sine and cosine of the largest floats have absolute errors near 2^-46."""
    x, rest = arguments(-3 * scale, 3 * scale)
    for a, b, y in zip(x, rest, exact(run(name, x, rest)), strict=True):
        wanted = FUNCTIONS[name](mp.mpf(float(a)) + mp.mpf(float(b)))
        assert abs(y - wanted) <= mp.mpf(2) ** -44, (a, b)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"power", "floor", "ceil", "trunc"}))
def test_special_values(run: Run, name: str) -> None:
    """Infinities, NaN and zeros are those of NumPy's functions, including -0."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38], np.float32)
    numpy: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "sinpi": lambda x: np.where(np.isinf(x), np.nan, np.copysign(np.where(x == x, 0, x), x)),
        "cospi": lambda x: np.where(np.isinf(x), np.nan, np.where(x == x, 1, x)),
    }
    with np.errstate(all="ignore"):
        wanted = numpy.get(name, getattr(np, name, np.sin))(x)
        y, _ = run(name, x, np.zeros_like(x))
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    if name not in ("cospi", "reciprocal", "rint"):
        np.testing.assert_array_equal(np.signbit(y[:2]), np.signbit(wanted[:2]))


def arguments(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers between low and high as two floats, some with 0 in the second."""
    generator = np.random.default_rng(7)
    x = generator.uniform(low, high, 200).astype(np.float32)
    if 4 < high - low < 1e10:  # integers and halves
        x[:40] = np.clip(np.round(x[:40] * 2) / 2, low, high)
    x = np.where(x == 0, np.float32(high), x)
    rest = (generator.uniform(-0.5, 0.5, 200) * np.spacing(x)).astype(np.float32)
    rest[::3] = 0
    return x, rest


def exact(y: tuple[np.ndarray, np.ndarray]) -> list[mp.mpf]:
    """Return the sums of both floats."""
    return [mp.mpf(float(a)) + mp.mpf(float(b)) for a, b in zip(*y, strict=True)]
