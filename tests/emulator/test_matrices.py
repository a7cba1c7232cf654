"""Simdgroup matrices: their operations against NumPy's, and the elements of each lane."""

import numpy as np
import pytest

from mlxgen.emulator import SCHEDULES, EmulationError
from mlxgen.emulator.library import Bfloat16

HEAD = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
"""
PRODUCT = f"""{HEAD}
template <typename T, bool transpose>
[[kernel]] void product(
    device const T* a, device const T* b, device const float* c, device float* d,
    uint group [[threadgroup_position_in_grid]]) {{
  simdgroup_matrix<T, 8, 8> left, right;
  simdgroup_float8x8 sum;
  simdgroup_load(sum, c, 11, ulong2(3, 2));
  for (uint k = 0; k < 16; k += 8) {{
    simdgroup_load(left, a, 16, ulong2(k, 0));
    simdgroup_load(right, transpose ? b + k : b + 8 * k, transpose ? 16 : 8, ulong2(0), transpose);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }}
  simdgroup_store(sum, d, 9, ulong2(1, 0));
}}
template [[host_name("half")]] [[kernel]] decltype(product<half, false>) product<half, false>;
template [[host_name("bfloat")]] [[kernel]] decltype(product<bfloat, false>) product<bfloat, false>;
template [[host_name("float")]] [[kernel]] decltype(product<float, false>) product<float, false>;
template [[host_name("turned")]] [[kernel]] decltype(product<float, true>) product<float, true>;
"""


@pytest.fixture(scope="module")
def product(load):
    return load(text=PRODUCT)


def launch(library, kernel, arguments, output, **options):
    size = {"grid": (32,), "threadgroup": (32,), **options}
    library.run(kernel, arguments, outputs=[output], **size)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", ["half", "bfloat", "float", "turned"])
def test_product(product, rng, kernel, schedule):
    # Integers are exact in all types, for any order of terms.
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
    c, d = rng.normal(size=(10, 11)).astype(np.float32), np.zeros((8, 9), np.float32)
    given = [a, np.ascontiguousarray(b.T) if kernel == "turned" else b]
    if kernel == "half":
        given = [x.astype(np.float16) for x in given]
    if kernel == "bfloat":
        given = [Bfloat16((x.view(np.uint32) >> 16).astype(np.uint16)) for x in given]
    launch(product, kernel, [*given, c, d], 3, fill=False, schedule=schedule)
    np.testing.assert_allclose(d[:, 1:], a @ b + c[2:, 3:], rtol=1e-5, atol=1e-5)
    assert (d[:, 0] == 0).all()


MADE = """
  simdgroup_float8x8 m = BODY;
  simdgroup_store(m, y);
"""


@pytest.mark.parametrize(
    "made, wanted",
    [
        ("simdgroup_float8x8(3.0f)", 3 * np.eye(8)),
        ("make_diagonal_simdgroup_matrix<float, 8>(2.0f)", 2 * np.eye(8)),
        ("make_filled_simdgroup_matrix<float, 8, 8>(5.0f)", np.full((8, 8), 5)),
        ("simdgroup_float8x8(3.0f) * make_filled_simdgroup_matrix<float, 8>(2.0f)", np.full(64, 6)),
    ],
)
def test_made_matrices(load, made, wanted):
    y = np.zeros((8, 8), np.float32)
    body = MADE.replace("BODY", made)
    launch(load(text=f"{HEAD} kernel void f(device float* y) {{ {body} }}"), "f", [y], 0)
    np.testing.assert_array_equal(y, wanted.reshape(8, 8))


def test_which_elements_a_lane_holds(load):
    """The layout is that of MLX's kernels (`get_coord` in steel/gemm/mma.h)."""
    body = """
      simdgroup_float8x8 m;
      m.thread_elements()[0] = 2 * i;
      m.thread_elements()[1] = 2 * i + 1;
      simdgroup_store(m, y, 8, ulong2(0), true);"""
    y = np.zeros((8, 8), np.float32)
    text = f"""{HEAD}
    kernel void f(device float* y, uint i [[thread_index_in_simdgroup]]) {{ {body} }}"""
    launch(load(text=text), "f", [y], 0)
    wanted = np.empty((8, 8))
    for lane in range(32):
        quad = lane // 4
        row = (quad & 4) + lane // 2 % 4
        column = (quad & 2) * 2 + lane % 2 * 2
        wanted[row, column : column + 2] = 2 * lane, 2 * lane + 1
    np.testing.assert_array_equal(y.T, wanted)


@pytest.mark.parametrize(
    "body, threads, message",
    [
        ("simdgroup_load(m, y);", 16, "less than 32 threads"),
        ("if (i < 16) { simdgroup_load(m, y); }", 32, "less than 32 threads"),
        ("simdgroup_load(m, y, 8, ulong2(1, 0), true);", 32, "origin of a transposed"),
        ("simdgroup_load(m, y, 9);", 32, "outside of buffer 0"),
    ],
)
def test_mistakes(load, body, threads, message):
    text = f"""{HEAD}
    kernel void f(device float* y, uint i [[thread_index_in_simdgroup]]) {{
      simdgroup_float8x8 m; {body} simdgroup_store(m, y); }}"""
    y = np.zeros(64, np.float32)
    with pytest.raises(EmulationError, match=message):
        launch(load(text=text), "f", [y], 0, grid=(threads,), threadgroup=(threads,))
