"""clang vectorizes the loops of elementwise operators, for arm64 and for x86-64.

g++ compiles mlxops on Linux, but most users have an arm64 Mac. The clang of the `ziglang` package
compiles every loop around a scalar function here, without the rest of the operator, and records the
decisions of its vectorizer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlx
import pytest
from loops import INCLUDE, SCALAR, TARGETS, Source, compile_loops, generate_loops

from mlxgen.package.probe import BINARY, UNARY

# Vectorized loops that call the C library for every number, on a Mac.
ONE_BY_ONE = {
    **dict.fromkeys(
        (
            "y0",
            "y1",
            "betainc_grad_x",
            "beta_quantile_slope",
            "gammainc_grad_x",
            "gammainc_curvature_x",
        ),
        "Apple's has no logarithm for vectors",
    ),
    # The reduction of arguments for Bessel functions needs no library, but six times the time of
    # glibc's sine for vectors: 6 instead of 1 ns for a float, 8 for a double.
    **dict.fromkeys(
        ("cosm1", "sine_derivative"),
        "computes in double, and Apple's has sin for two numbers, not for four",
    ),
}


def widths(source: Source, flags: str, folder: Path) -> dict[str, list[int]]:
    """Return the vector widths of each loop, one for each vectorized version of it."""
    record = folder / "record.yaml"
    records = f"-fsave-optimization-record -foptimization-record-file={record}"
    passes = "-foptimization-record-passes=loop-vectorize"
    compile_loops(source, folder, f"{flags} -emit-llvm {records} {passes}")
    found: dict[str, list[int]] = {name: [] for name in source.loops}
    for entry in record.read_text(encoding="utf-8").split("--- ")[1:]:
        place, _, rest = entry.partition("Function:")
        width = re.search(r"VectorizationFactor: '(\d+)'", rest)
        # Other loops are in scalar functions; the one for signs is in loop.h.
        if entry.startswith("!Passed") and "loop.h" in place and width:
            function = rest.partition("\n")[0]
            (name,) = [n for n in found if f"{len(n)}{n}" in function]
            found[name].append(int(width[1]))
    return found


def calls(source: Source, code: str) -> dict[str, set[str]]:
    """Return the functions of <cmath> that each loop calls for single numbers, in LLVM IR."""
    found: dict[str, set[str]] = {name: set() for name in source.loops}
    for function in re.findall(r"^define .*?^}", code, re.M | re.S):
        # The library also lacks LLVM's vector functions.
        called = re.findall(r" call .*? @(?:llvm\.)?(\w+)", function)
        scalar = {name for name in (*UNARY, *BINARY) if {name, f"{name}f"} & set(called)}
        head = function.partition("\n")[0]
        for name in found:
            if f"{len(name)}{name}2Op" in head or f"{len(name)}{name}3run" in head:
                found[name] |= scalar
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    source = generate_loops(tmp_path_factory.mktemp("generated"))
    assert len(source.loops) > 200
    return source


@pytest.mark.extended
@pytest.mark.weekly
@pytest.mark.parametrize("target", TARGETS)
def test_loops_are_vectorised(target: str, source: Source, tmp_path: Path) -> None:
    found = widths(source, TARGETS[target], tmp_path)
    scalar = {name for name, versions in found.items() if not versions}
    known = {name for name in found for op in SCALAR if re.fullmatch(rf"{op}_(float|double)", name)}
    assert len(known) == 2 * len(SCALAR)
    assert not scalar - known, f"these are scalar: {sorted(scalar - known)}"
    assert not known - scalar, f"these are vectorized now: {sorted(known - scalar)}"
    if target == "arm64":
        called = calls(source, (tmp_path / "loops.s").read_text(encoding="utf-8"))
        those = {re.split("_(?:float|double)", name)[0] for name in called if called[name]}
        assert those - set(SCALAR) == set(ONE_BY_ONE)


@pytest.mark.extended
@pytest.mark.weekly
def test_others_are_noticed(source: Source, tmp_path: Path) -> None:
    """A call that is not inlined is found."""
    text = source.loops["erf_float"].replace("mlxops::special::", "")
    text = text.replace("namespace erf_float", "namespace opaque")
    opaque = text.replace("struct Op", "template <typename T> T erf(T);\nstruct Op")
    loops = {"opaque": opaque, "erf_float": source.loops["erf_float"]}
    found = widths(Source(source.includes, loops), TARGETS["arm64"], tmp_path)
    assert found["opaque"] == []
    assert found["erf_float"] != []


@pytest.mark.extended
@pytest.mark.weekly
def test_several_instruction_sets(source: Source, tmp_path: Path) -> None:
    """On Linux x86-64: SSE2, AVX2 and AVX-512, with 2, 4 and 8 doubles per vector."""
    loops = {"erf_double": source.loops["erf_double"]}
    flags = TARGETS["x86-64"].partition(" -mavx2")[0]
    found = widths(Source(source.includes, loops), flags, tmp_path)
    assert sorted(set(found["erf_double"])) == [2, 4, 8]


WIDENED = """
#include "mlxgen/kernel.h"
template <typename T>
void widened(const T* from, float* __restrict to, long count) {
  for (long i = 0; i < count; ++i) to[i] = mlxgen::widen(from[i]);
}
template void widened(const mlxgen::TYPE*, float*, long);
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="for g++")
@pytest.mark.parametrize("name", ["bfloat16_t", "float16_t"])
def test_16_bit_floats_are_widened_in_vectors(name: str, tmp_path: Path) -> None:
    """Also with g++, which optimizes less than clang here."""
    (tmp_path / "widened.cpp").write_text(WIDENED.replace("TYPE", name), encoding="utf-8")
    headers = [f"-I{INCLUDE}", "-isystem", str(Path(next(iter(mlx.__path__))) / "include")]
    flags = ["-std=c++20", "-O3", "-fno-trapping-math", "-S", "-fopt-info-vec-optimized"]
    command = ["g++", *flags, *headers, "widened.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "loop vectorized" in done.stderr
