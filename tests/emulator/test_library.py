"""Metal's library in the emulation: values of its functions, vectors, matrices and quadgroups."""

import numpy as np
import pytest

from mlxgen.emulator import SCHEDULES

HEAD = """
#include <metal_stdlib>
using namespace metal;
"""
# Floats that an expression gives, and expected ones.
VALUES = {
    # of bfloat and integers
    "float(c ? b : 0)": 1.5,
    "float(c ? 0 : b)": 0,
    "float(c ? b : i)": 1.5,
    "(c ? b : 0.25f) + 1": 2.5,
    "float(true ? 1 : b) + (b ? 1 : 0) + !b": 2,
    "int(b) + (b < 2) + uint(b)": 3,
    "(sum += b, sum *= b, sum -= b, sum /= b, sum)": 1,
    # zero, as the elements of an array that has fewer initializers
    "zeros[1].y + vec<float, 3>().z": 0,
    # vectors next to scalars
    "max(v, 0.0f).x + max(2.5f, v).y + pow(v, 2.0f).z": 11.5,
    "clamp(v, -0.5f, 2.0f).z + fma(2.0f, v, v).y + mix(v, 3.0f, 0.5f).x": 9,
    "step(0.0f, v).x + smoothstep(0.0f, 1.0f, v).y + select(v, 7.0f, v > 2.0f).z": 8,
    "min3(v, 2.0f, 1.0f).z + median3(v, 0.0f, 4.0f).y": 3,
    "float(sign(half3(v)).x) + saturate(v).z": 0,
    # integers and their vectors
    "insert_bits(0xF0u, 5u, 2u, 3u)": 0xF4,
    "extract_bits(-2, 0u, 4u) + extract_bits(0xABCDu, 4u, 8u)": 0xBA,
    "popcount(uint2(7, 1)).x + clz(uint2(1, 2)).y + ctz(ushort2(8, 0)).y": 49,
    "hadd(3, 4) + rhadd(3, 4) + madsat(uchar(16), uchar(16), uchar(1))": 262,
    "insert_bits(uint2(0), uint2(1, 3), 1u, 2u).y + absdiff(int2(-3), int2(4)).x": 13,
    "median3(3, 1, 2) + max3(int2(1), int2(5), int2(2)).y": 7,
    # packed vectors
    "sizeof(packed_float3) + sizeof(packed_half4) + alignof(packed_float4)": 24,
    "(p * 2 + v).z + (1.0f - p).x + (-p).y + length(p) + dot(p, v)": 17,
    "float3(p).y + float4(p, 4.0f).w + p.zx.y + p[2] + packed_half3(half3(1)).b": 10,
    # matrices
    "(m * float2(1, 2)).y + (float2(1, 2) * m).x": 15,
    "(m * m)[1][0] + determinant(m) + transpose(m)[0].y + m.columns[1].x": 19,
    "determinant(float3x3(2)) + determinant(float4x4(float4(0, 1, 0, 0), float4(1, 0, 0, 0),"
    "    float4(0, 0, 3, 0), float4(0, 0, 0, 1)))": 5,
    "(m / 2)[1][1] + (m / 4.0f)[0].x": 2.25,
    "(float4x2(1, 2, 3, 4, 5, 6, 7, 8) * float4(1)).y + (2 * m - m + m * 1)[0][1]": 24,
    "(float2x3(v, v) * float2(1, 2)).z + float(half2x2(m)[1].x) + float3x3(1)[2].z": 13,
    "fast::max(1.0f, fast::abs(-2.0f)) + precise::clamp(v, 0.0f, 1.5f).z + fast::length(v)": 7.242,
    # colors
    "pack_float_to_unorm4x8(float4(0, 0, 1, 0)) / 65536.0f": 255,
    "pack_float_to_snorm2x16(float2(1, 0))": 32767,
    "unpack_snorm4x8_to_float(0x81u).x + unpack_unorm10a2_to_float(0xC0000000u).w": 0,
    "float(unpack_unorm2x16_to_half(0xFFFF0000u).y) + unpack_unorm565_to_float(0x7E0).y": 2,
    "unpack_unorm4x8_srgb_to_float(pack_float_to_srgb_unorm4x8(float4(1))).x": 1,
    # geometry
    "reflect(float2(1, -1), float2(0, 1)).y + distance_squared(float2(3, 0), float2(0, 4))": 26,
    "refract(float2(0.6f, -0.8f), float2(0, 1), 1.0f).x": 0.6,
    "isordered(1.0f, NAN) + isunordered(1.0f, NAN)": 1,
    # types
    "is_same_v<make_scalar_t<float3>, float> + is_vector_v<half2> + is_scalar_v<float2>": 2,
    "is_same_v<decltype(c ? b : 0), bfloat> + is_same_v<remove_addrspace_t<int>, int>": 2,
    "vec_elements<half3>::value + vec_elements<float>::value": 4,
    "float(__FLT16_MAX__) + (_fp_encoding_traits<float>::inf_mask >> 23)": 65759,
    # bools are promoted to int
    "simd_sum(c) + simd_prefix_inclusive_sum(c) + quad_max(c) + (simd_shuffle(c, 0) ? 1 : 0)": 4,
    "is_same_v<decltype(simd_broadcast(c, 0u)), int> + is_same_v<decltype(simd_min(c)), int>": 2,
    # clang's ranges of elements
    "ones[0] + ones[3]": 2,
}


def test_values(load):
    lines = "\n".join(f"  out[{i}] = {expression};" for i, expression in enumerate(VALUES))
    text = f"""{HEAD}
[[kernel]] void values(
    device const packed_float3* given, device float* out, uint id [[thread_index_in_simdgroup]]) {{
  bool c = id == 0;
  int i = 2;
  bfloat b = 1.5bf;
  float sum = 0.5f;
  float3 v = given[1], zeros[2] = {{float3(0)}};
  packed_float3 p = given[0];
  float2x2 m(float2(1, 2), float2(3, 4));
  assert(i == 3);
  half ones[4] = {{ [0 ... 4 - 1] = 1.0h }};
{lines}
}}"""
    given, out = np.array([1, 2, 2, -1, 2, 3], np.float32), np.empty(len(VALUES), np.float32)
    load(text=text).run("values", [given, out], grid=(1,), threadgroup=(1,), outputs=[1])
    found = dict(zip(VALUES, out.tolist(), strict=True))
    assert found == pytest.approx(VALUES, rel=2e-3)


# Functions of quadgroups: what the lanes of one with the values x get.
QUADS = {
    "quad_sum(x)": lambda x: [x.sum()] * 4,
    "quad_product(x)": lambda x: [x.prod()] * 4,
    "quad_max(x) - quad_min(x)": lambda x: [x.max() - x.min()] * 4,
    "quad_xor(uint(x))": lambda x: [np.bitwise_xor.reduce(x.astype(int))] * 4,
    "quad_prefix_inclusive_sum(x)": np.cumsum,
    "quad_prefix_exclusive_product(x)": lambda x: [1, *np.cumprod(x)[:3]],
    "quad_broadcast(x, 2)": lambda x: [x[2]] * 4,
    "quad_broadcast_first(x)": lambda x: [x[0]] * 4,
    "quad_shuffle(x, 3 - lane % 4)": lambda x: x[::-1],
    "quad_shuffle_xor(x, 1)": lambda x: x[[1, 0, 3, 2]],
    "quad_shuffle_down(x, 1)": lambda x: x[[1, 2, 3, 3]],
    "quad_shuffle_up(x, 2)": lambda x: x[[0, 1, 0, 1]],
    "quad_shuffle_rotate_down(x, 3)": lambda x: np.roll(x, 1),
    "quad_shuffle_rotate_up(x, 1)": lambda x: np.roll(x, 1),
    "quad_shuffle_and_fill_down(x, -x, 1)": lambda x: [*x[1:], -x[0]],
    "quad_shuffle_and_fill_up(x, -x, 1)": lambda x: [-x[3], *x[:3]],
    "quad_any(x > 7) + 2 * quad_all(x > 2)": lambda x: [(x > 7).any() + 2 * (x > 2).all()] * 4,
    "uint64_t(quad_ballot(x > 4))": lambda x: [((x > 4) * [1, 2, 4, 8]).sum()] * 4,
    "quad_is_first() + 2 * quad_active_threads_mask().all()": lambda x: [3, 2, 2, 2],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_quadgroups(load, rng, schedule):
    lines = "\n".join(f"  out[lane + 8 * {i}] = {name};" for i, name in enumerate(QUADS))
    text = f"""{HEAD}
[[kernel]] void quads(
    device const float* given, device float* out, uint lane [[thread_index_in_simdgroup]]) {{
  float x = given[lane];
{lines}
}}"""
    x = rng.integers(1, 9, 8).astype(np.float32)
    out = np.empty((len(QUADS), 8), np.float32)
    size = {"grid": (8,), "threadgroup": (8,), "outputs": [1]}
    load(text=text).run("quads", [x, out], **size, schedule=schedule)
    for name, found in zip(QUADS, out, strict=True):
        wanted = [value for quad in (x[:4], x[4:]) for value in QUADS[name](quad)]
        assert found.tolist() == pytest.approx(wanted), name


def test_coherent(load):
    """Memory that other threadgroups read: all of it is coherent on the CPU."""
    text = f"""{HEAD}
[[kernel]] void put(
    device coherent(device) float* a, coherent device float* b,
    volatile coherent(system) device float* c,
    uint i [[thread_position_in_grid]]) {{
  device coherent(device) float* p = a;
  p[i] = 1;
  b[i] = 2;
  c[i] = 3;
}}"""
    out = [np.empty(4, np.float32) for _ in range(3)]
    load(text=text).run("put", out, grid=(4,), threadgroup=(2,), outputs=[0, 1, 2])
    assert [x.tolist() for x in out] == [[1] * 4, [2] * 4, [3] * 4]


def test_definitions_that_differ_by_address_spaces(load):
    """A functor for values and for references, and a class for each address space."""
    text = f"""{HEAD}
template <typename T> struct Sum {{
  T operator()(T a, T b) {{ return a + b; }}
  T operator()(threadgroup const T& a, threadgroup const T& b) {{ return a + b; }}
}};
struct State {{
  float value;
  State() thread = default;
  State() threadgroup = default;
  State(float x) thread : value(x) {{}}
}};
template <typename T> struct element {{}};
template <typename T> struct element<device T*> {{ using type = remove_cv_t<T>; }};
template <typename T> struct element<threadgroup T*> {{ using type = remove_cv_t<T>; }};
[[kernel]] void sums(device float* y, uint i [[thread_position_in_grid]]) {{
  threadgroup float s[4];
  s[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  element<device float*>::type x = Sum<float>()(s[i], s[3 - i]);
  y[i] = Sum<float>()(x, State(1).value);
}}"""
    y = np.empty(4, np.float32)
    load(text=text).run("sums", [y], grid=(4,), threadgroup=(4,), outputs=[0])
    assert y.tolist() == [4] * 4
