"""Instructions of Metal kernels: they are counted right, and ours are no more than MLX's."""

import importlib

import numpy as np
import pytest
from emulator.conftest import KERNELS, ROOT, mlx_include

SOURCE = """
#include <metal_stdlib>
#include "mlx/backend/metal/kernels/defines.h"
using namespace metal;
constant int bits [[function_constant(1)]];
template <typename T>
[[kernel]] void f(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant int& n [[buffer(2)]],
    constant int64_t& m [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup float sums[32];
  if (bits == 64) {
    y[int64_t(i) / (m + 1)] = x[int64_t(i) % m];
    return;
  }
  sums[i % 32] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int k = 0; k < n; ++k) {
    y[i / uint(n) + k] = static_cast<T>(sin(static_cast<float>(y[k])));
  }
}
instantiate_kernel("f_float32", f, float)
instantiate_kernel("f_float16", f, half)
"""


@pytest.fixture
def benchmarks(monkeypatch):
    """The modules that count, of a package that is not installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.metal")


def kernels(benchmarks, **constants):
    return benchmarks.Kernels(SOURCE, [mlx_include()], constants)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_thread_is_counted(benchmarks, dtype):
    size, name = np.dtype(dtype).itemsize, np.dtype(dtype).name
    x, y = np.zeros((2, 100), dtype)
    for n in (1, 5):
        arguments = [x, y, np.int32(n), np.int64(3), 40]
        counts = kernels(benchmarks).run(f"f_{name}", arguments)
        assert (counts.loads, counts.stores) == ({size: 1 + n}, {size: n})
        assert counts.divisions == {32: 1}
        assert counts.calls["sin"] == n
        assert counts.calls["threadgroup_barrier"] == counts.shared == 1
        counts = kernels(benchmarks, bits="64").run(f"f_{name}", arguments)
        assert (counts.loads, counts.stores) == ({size: 1}, {size: 1})
        assert counts.divisions == {64: 2} and not counts.calls


def test_instructions_are_counted_once(benchmarks):
    ir = importlib.import_module("benchmarks.metal_ir")
    counts = ir.count(SOURCE, [mlx_include()], ["f_float32"])["f_float32"]
    assert counts.divisions == {32: 1}
    assert counts.loads[4] >= 2 and counts.stores[4] >= 1 and counts.branches >= 2


def test_what_cannot_be_compiled_is_said(benchmarks):
    with pytest.raises(RuntimeError, match="nothing"):
        benchmarks.Kernels("kernel void f(device int* x) { nothing(x); }", [])
    with pytest.raises(ValueError, match="f_float32 takes 5 arguments, not 1"):
        kernels(benchmarks).run("f_float32", [1])


@pytest.mark.parametrize("file", ["normalization", "segment", "grid_sample"])
def test_our_kernels_do_not_divide(benchmarks, file):
    """A GPU has no instruction for it."""
    ours = benchmarks.ours(f"{file}.metal")
    assert (KERNELS / f"{file}.metal").exists() and ours.names
    for name in ours.names:
        assert not ours.instructions(name).divisions, name


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_no_more_than_mlx(benchmarks, mlx_source, dtype):
    source = mlx_source("rms_norm.metal")
    for mine, theirs in (
        (benchmarks.norm, benchmarks.mlx_norm),
        (benchmarks.norm_vjp, benchmarks.mlx_norm_vjp),
    ):
        result = benchmarks.beside("", mine(dtype), theirs(source, dtype))
        assert result.met, result.cells


def test_kernels_around_functions_cost_no_more_than_mlx(benchmarks):
    results = list(benchmarks.elementwise())
    assert len(results) == 50
    assert [f"{result.what}: {result.cells}" for result in results if not result.met] == []


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_each_number_is_read_and_written_once(benchmarks, dtype):
    """And sums of a row take one barrier; of 16 rows, whose weight is read once."""
    size = np.dtype(dtype).itemsize
    norm, gradient = benchmarks.norm(dtype), benchmarks.norm_vjp(dtype)
    assert (norm.moved("loads"), norm.moved("stores")) == (3 * size, 2 * size)
    assert gradient.moved("loads") == (3 + 1 / 16) * size
    assert gradient.moved("stores") == size + 4 / 16
    assert norm.barriers == gradient.barriers == 1 / 4


@pytest.mark.parametrize("channels", [3, 64])
def test_points_are_located_once(benchmarks, channels):
    """By each of the threads that share a point, two numbers of the grid; then four pixels."""
    threads = min((channels + 3) // 4, 8)
    point = 2 * 4 * threads / channels
    cost = benchmarks.sample("grid_sample", channels)
    assert cost.moved("loads") == pytest.approx(4 * 4 + point)
    cost = benchmarks.sample("grid_sample_vjp", channels)
    assert cost.moved("loads") == pytest.approx(5 * 4 + point)
    assert cost.atomics == 4
