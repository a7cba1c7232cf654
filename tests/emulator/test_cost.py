"""Instruction counts of Metal kernels: the counts are right, and ours do not exceed MLX's."""

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
    """Return the modules that count, from a package that is not installed."""
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


@pytest.mark.extended
@pytest.mark.weekly
@pytest.mark.parametrize("file", ["normalization", "segment", "grid_sample"])
def test_our_kernels_do_not_divide(benchmarks, file):
    """A GPU has no division instruction."""
    ours = benchmarks.ours(f"{file}.metal")
    assert (KERNELS / f"{file}.metal").exists() and ours.names
    for name in ours.names:
        assert not ours.instructions(name).divisions, name


@pytest.mark.extended
@pytest.mark.weekly
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
    """Sums of a row take one barrier; for 16 rows, the weight is read once."""
    size = np.dtype(dtype).itemsize
    norm, gradient = benchmarks.norm(dtype), benchmarks.norm_vjp(dtype)
    assert (norm.moved("loads"), norm.moved("stores")) == (3 * size, 2 * size)
    assert gradient.moved("loads") == (3 + 1 / 16) * size
    assert gradient.moved("stores") == size + 4 / 16
    assert norm.barriers == gradient.barriers == 1 / 4


# Kernels of mlxops.nn: loads, bytes, stores, barriers and divisions per element. mlx-lm's and MLX's
# kernels of these operators have at least as many of each (python -m benchmarks metal).
MOST = {
    "gated_delta, float32, heads of 128": (0.88, 3.52, 0.002, 0, 0),
    "gated_delta, float32, heads of 128, masked": (0.94, 3.58, 0.002, 0, 0),
    "gated_delta, float32, heads of 128, g of channels": (1.07, 4.27, 0.002, 0, 0),
    "gated_delta, float32, heads of 128, g of channels, masked": (1.13, 4.33, 0.002, 0, 0),
    "gated_delta as mlx-lm has it for many steps": (0.88, 3.52, 0.002, 0, 0),
    "wkv7, float32, heads of 64": (1.76, 7.02, 0.002, 0, 0),
    "ssm_scan, float32, a step, 64 x 128": (1.63, 6.88, 1, 0, 0),
    "kl_div_loss, float32, 32768 words": (0.5, 8, 0, 3 / 32, 0),
    "kl_div_loss's gradient": (1.25, 11, 1, 0, 0),
    "js_div_loss, float32, 32768 words": (1, 16, 0, 3 / 32, 0),
    "js_div_loss's gradient": (1.5, 12, 1, 0, 0),
    "expert_routing, float32, 8 of 256 experts": (2, 8, 0, 0, 0),
    "rms_norm_gate, float32, heads of 128": (0.5, 8, 1, 0, 0),
    "norm_add_norm, float32, rows of 4096": (1, 16, 2, 2 / 8, 0),
    "qk_norm_rope, float32, heads of 128": (0.75, 4, 1, 0, 1 / 4),
    "rope, float32, heads of 128": (1.125, 4.5, 1, 0, 1 / 8),
    "layer_norm_residual, float32, rows of 4096": (1, 16, 2, 2 / 4, 0),
    "layer_norm_residual's gradient": (1.55, 12.25, 1.125, 2 / 4, 0),
    "cross_entropy, float32, 32768 words": (0.29, 4.125, 0, 2 / 32, 0),
    "cross_entropy's gradient": (0.375, 4.5, 1, 0, 0),
    "linear_cross_entropy, float32, a logit of 256 features": (2.01, 32.1, 0, 1.01, 0.002),
}


@pytest.fixture
def training(benchmarks):
    """Return the costs of mlxops.nn's kernels, and those of installed competitors."""
    nn = importlib.import_module("benchmarks.metal_nn")
    return {**nn.MLX_LM, **nn.MLX_OWN, **nn.ALONE}


def test_all_kernels_for_training_have_a_limit(training):
    assert list(training) == list(MOST)


@pytest.mark.extended
@pytest.mark.weekly
@pytest.mark.parametrize("what", MOST)
def test_kernels_for_training(benchmarks, training, what):
    """The cost does not increase, and does not exceed that of mlx-lm if it is installed."""
    own, other = training[what]()
    columns = ("loads", "bytes", "stores", "barriers", "divisions")
    costs = {name: own.numbers()[name] for name in columns}
    most = dict(zip(columns, MOST[what], strict=True))
    assert {name: n for name, n in costs.items() if n > most[name]} == {}
    assert benchmarks.beside(what, own, other).met


def test_logits_are_products_of_tiles(training):
    """A lane's 32 logits are products of 16 matrices; of 8 features it loads 8 for these."""
    ((cost, _),) = (costs() for what, costs in training.items() if what.startswith("linear"))
    products = cost.elements / 32 * 16 * (256 / 8)
    assert cost.total.calls["simdgroup_multiply_accumulate"] == products
    assert cost.total.calls["simdgroup_load"] == products / 2


def test_norms_and_turns_beside_mlx(benchmarks, mlx_source):
    nn = importlib.import_module("benchmarks.metal_nn")
    source = mlx_source("layer_norm.metal")
    for own, other in (
        nn.rope(mlx_source("rope.metal")),
        nn.layer_norm(source, False),
        nn.layer_norm(source, True),
    ):
        result = benchmarks.beside("", own, other)
        assert result.met, result.cells


@pytest.mark.parametrize("channels", [3, 64])
def test_points_are_located_once(benchmarks, channels):
    """Each thread that shares a point reads two numbers of the grid, and then four pixels."""
    threads = min((channels + 3) // 4, 8)
    point = 2 * 4 * threads / channels
    cost = benchmarks.sample("grid_sample", channels)
    assert cost.moved("loads") == pytest.approx(4 * 4 + point)
    cost = benchmarks.sample("grid_sample_vjp", channels)
    assert cost.moved("loads") == pytest.approx(5 * 4 + point)
    assert cost.atomics == 4
