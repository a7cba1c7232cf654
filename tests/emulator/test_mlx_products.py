"""Kernels that include MLX's headers of matrix products, `steel` and `quantized.h`."""

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.emulator import SCHEDULES

pytestmark = pytest.mark.extended
KERNELS = "mlx/backend/metal/kernels"
HEAD = f"""
#include <metal_stdlib>
#include "{KERNELS}/utils.h"
"""
# 32 x 32 of the product per threadgroup of 2 x 2 simdgroups, with the parts of a user's own kernel.
STEEL = f"""{HEAD}
#include "{KERNELS}/steel/gemm/mma.h"
#include "{KERNELS}/steel/gemm/loader.h"
using namespace metal;

template <typename T>
[[kernel]] void product(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& n [[buffer(3)]],
    constant int& k [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {{
  using Multiply = mlx::steel::BlockMMA<T, T, 32, 32, 16, 2, 2, false, false, 20, 36>;
  using LoadA = mlx::steel::BlockLoader<T, 32, 16, 20, 1, 128>;
  using LoadB = mlx::steel::BlockLoader<T, 16, 32, 36, 0, 128>;
  threadgroup T as[32 * 20];
  threadgroup T bs[16 * 36];
  thread Multiply multiply(simdgroup, lane);
  thread LoadA load_a(a + size_t(group.y) * 32 * k, k, as, simdgroup, lane);
  thread LoadB load_b(b + group.x * 32, n, bs, simdgroup, lane);
  for (int i = 0; i < k; i += 16) {{
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_a.load_unsafe();
    load_b.load_unsafe();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply.mma(as, bs);
    load_a.next();
    load_b.next();
  }}
  multiply.store_result(out + size_t(group.y) * 32 * n + group.x * 32, n);
}}
template [[host_name("float")]] [[kernel]] decltype(product<float>) product<float>;
template [[host_name("half")]] [[kernel]] decltype(product<half>) product<half>;
"""
# MLX's own kernel; the function constants make it check all borders.
FUSED = f"""{HEAD}
#include "{KERNELS}/steel/gemm/gemm.h"
#include "{KERNELS}/steel/gemm/kernels/steel_gemm_fused.h"
instantiate_kernel("gemm_nt", gemm, float, 32, 32, 16, 2, 2, false, true)
"""
QUANTIZED = f"""{HEAD}
#include "{KERNELS}/steel/gemm/gemm.h"
#include "{KERNELS}/quantized_utils.h"
#include "{KERNELS}/quantized.h"
instantiate_kernel("qmv", affine_qmv, float, 32, 4, false)
instantiate_kernel("qmv_fast", affine_qmv_fast, float, 32, 4, false)
instantiate_kernel("qmm", affine_qmm_t, float, 32, 4, false, false)
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ["float", "half"])
def test_parts_of_steel_in_an_own_kernel(load, rng, dtype, schedule):
    numpy = {"float": np.float32, "half": np.float16}[dtype]
    a, b = rng.normal(size=(32, 48)).astype(numpy), rng.normal(size=(48, 64)).astype(numpy)
    out = np.empty((32, 64), numpy)
    load(text=STEEL).run(
        dtype,
        [a, b, out, np.int32(64), np.int32(48)],
        grid=(2 * 128, 1),
        threadgroup=(128,),
        outputs=[2],
        schedule=schedule,
    )
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(out, wanted, atol=1e-4 if dtype == "float" else 0.05)


def test_the_product_of_mlx(load, rng):
    m, n, k = 35, 40, 21
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(n, k)).astype(np.float32)
    d = np.empty((m, n), np.float32)
    ints = np.array([m, n, k, k, k, n, 2, 2], np.int32)  # GEMMParams
    rest = np.array([0, 0, 0], np.int64), np.array([0, k // 16, 1, 0], np.int32)
    params = np.frombuffer(b"".join(x.tobytes() for x in (ints, *rest)), np.uint8)
    library = load(text=FUSED)
    arguments = [a, b, a, d, params.copy(), a, np.zeros(1, np.int32), np.zeros(1, np.int64)]
    size = {"grid": (2 * 32, 2 * 2, 2), "threadgroup": (32, 2, 2), "outputs": [3]}
    library.run("gemm_nt", arguments, **size)
    np.testing.assert_allclose(d, a @ b.T, atol=1e-4)


@pytest.mark.parametrize("kernel", ["qmv", "qmv_fast", "qmm"])
def test_quantized_products(load, rng, kernel):
    rows, n, k = (3 if kernel == "qmm" else 1), 32, 512
    x, w = (mx.array(rng.normal(size=s).astype(np.float32)) for s in ((rows, k), (n, k)))
    packed, scales, biases = mx.quantize(w, group_size=32, bits=4)
    y = np.empty((rows, n), np.float32)
    i, none = np.int32, np.zeros(1, np.int64)
    sizes = [i(k), i(n), i(rows)] if kernel == "qmm" else [i(k), i(n)]
    batch = [i(0), np.zeros(1, np.int32), none, i(0), np.zeros(1, np.int32), none, none, none]
    arrays = [*map(np.array, (packed, scales, biases, x)), y]
    group = (32, 2, 2) if kernel == "qmm" else (32, 2, 1)
    grid = (32, 2, 2) if kernel == "qmm" else (32 * rows, n // 8 * 2, 1)
    library = load(text=QUANTIZED)
    library.run(kernel, [*arrays, *sizes, *batch], grid=grid, threadgroup=group, outputs=[4])
    wanted = mx.quantized_matmul(x, packed, scales, biases, group_size=32, bits=4)
    np.testing.assert_allclose(y, np.array(wanted), atol=1e-3)
