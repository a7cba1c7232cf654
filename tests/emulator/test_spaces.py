"""Mismatched address spaces are found, and matching ones are accepted."""

from pathlib import Path

import pytest
from emulator.conftest import KERNELS, instantiated, own_operators
from sample import project

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator.package import mlx_include
from mlxgen.emulator.spaces import check_project, check_spaces, read_project

HEAD = """#include <metal_stdlib>
using namespace metal;
struct Pair { float a; float b; };
inline void to_thread(thread float* x, float y) { *x = y; }
inline void to_device(device float* x, float y) { *x = y; }
inline void to_group(threadgroup float* x, float y) { *x = y; }
inline float of_constant(constant float* x, constant int& n) { return x[n]; }
inline void add(thread float& x, float y) { x += y; }
"""


def check(body: str, *, dtype: str = "float"):
    """Return the mistakes in a template kernel, as they are printed without the path."""
    text = f"""{HEAD}
template <typename T>
[[kernel]] void f(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant T* w [[buffer(2)]],
    constant int& n [[buffer(3)]],
    constant Pair* pairs [[buffer(4)]],
    device float* z [[buffer(5)]],
    constant float* v [[buffer(6)]],
    uint3 i [[thread_position_in_grid]]) {{
  threadgroup float sums[32], two[2][3];
  float mine[4] = {{0, 1, 2, 3}};
{body}
}}
template [[host_name("f_{dtype}")]] [[kernel]] decltype(f<{dtype}>) f<{dtype}>;
"""
    found = check_spaces("kernel.metal", text=text)
    assert found.unknown == ()
    assert all(error.span.line > text[: text.index(body)].count("\n") for error in found.errors)
    return [error.message for error in found.errors]


FITTING = {
    "pointers": "device const T* p = x + i.x; device T* q = &y[n]; *q = *p; "
    "thread T* t; t = &t[1];",
    "auto": "auto p = w; y[0] = p[i.x]; auto q = sums; q[0] = 1;",
    "calls": "to_thread(mine, v[n]); to_group(sums + 1, mine[0]); to_device(z, of_constant(v, n));",
    "two dimensions": "to_group(two[1], 1); to_group(&two[0][2], 2);",
    "references": "add(mine[1], 3); thread float& r = mine[0]; r = 2; "
    "device T& d = y[0]; d = x[1];",
    "structures": "Pair one; one.a = pairs[0].a; one.b = 1; Pair other = one; y[0] = T(other.b);",
    "vectors": "float4 a = float4(1, 2, 3, 4); uint2 b = i.xy + uint2(1); a.xy = a.zw; "
    "y[b.x] = T(dot(a, float4(b.x)) + vec<float, 2>(1, 2).y);",
    "qualified names": "metal::float4 a = metal::float4(1, 2, 3, 4); metal::uint b = i.x; "
    "metal::size_t c = b + INT_MAX; y[c] = T(metal::dot(a, a) + M_PI_F + float(M_PI_H));",
    "lambdas": "auto g = [&](float u) { return u + mine[0]; }; y[0] = T(g(2));",
    "simdgroups": "float s = simd_sum(float(x[0])); sums[0] = simd_max(s); "
    "threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
    "matrices": "threadgroup T tile[64]; simdgroup_matrix<T, 8, 8> a(T(1)), b; "
    "simdgroup_load(a, x, 8, ulong2(0), true); simdgroup_load(b, tile + 1); "
    "auto c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f); simdgroup_multiply(c, a, b * b); "
    "simdgroup_multiply_accumulate(c, a, b, c); c.thread_elements()[1] *= mine[0]; "
    "thread auto& d = c.thread_elements(); add(mine[0], d[0]); "
    "simdgroup_store(c, z, n); simdgroup_store(a, tile);",
    "functions": "y[0] = T(precise::exp(mine[0]) + max(1, n) + clamp(0.5f, 0.f, 1.f)); "
    "y[1] = min(T(1), x[0]);",
    "atomics": "device atomic<float>* a = (device atomic<float>*)z; "
    "atomic_fetch_add_explicit(&a[1], 2.0f, memory_order_relaxed); "
    "threadgroup atomic_int c; atomic_store_explicit(&c, 0, memory_order_relaxed);",
}

MISTAKES = {
    "device for thread": ("to_thread(z, 1);", "device", "thread"),
    "threadgroup for device": ("to_device(sums, 1);", "threadgroup", "device"),
    "thread for threadgroup": ("to_group(mine, 1);", "thread", "threadgroup"),
    "device for constant": ("mine[0] = of_constant(z, n);", "device", "constant"),
    "constant for device": ("device const float* p = v; mine[0] = p[0];", "constant", "device"),
    "a row for device": ("to_device(two[1], 1);", "threadgroup", "device"),
    "a reference": ("add(sums[0], 1);", "threadgroup", "thread"),
    "initialised": ("threadgroup float* p = mine; p[0] = 1;", "thread", "threadgroup"),
    "assigned": ("device float* p = z; p = sums; p[0] = 1;", "threadgroup", "device"),
    "in a template": ("device T* p = w; p[0] = 1;", "constant", "device"),
    "a matrix from": ("simdgroup_float8x8 m; simdgroup_load(m, v);", "constant", "device"),
    "a matrix to": ("simdgroup_float8x8 m; simdgroup_store(m, mine);", "thread", "device"),
    "elements of a matrix": (
        "simdgroup_float8x8 m; threadgroup auto& e = m.thread_elements(); e[0] = 1;",
        "thread",
        "threadgroup",
    ),
    "a conditional": ("device float* p = n ? z : sums; p[0] = 1;", "device", "threadgroup"),
}


@pytest.mark.parametrize("dtype", ["float", "half", "bfloat"])
@pytest.mark.parametrize("body", FITTING.values(), ids=list(FITTING))
def test_fitting(body: str, dtype: str) -> None:
    assert check(body, dtype=dtype) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str) -> None:
    body, given, wanted = MISTAKES[mistake]
    (message,) = check(body)
    assert given in message
    assert wanted in message
    assert "__" not in message


def test_bfloat_is_named() -> None:
    (message,) = check("threadgroup T* p = y; p[0] = 1;", dtype="bfloat")
    assert "bfloat" in message
    assert "double" not in message


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.metal")), ids=lambda path: path.stem)
def test_own_kernels(path: Path) -> None:
    found = check_spaces(path, [KERNELS, mlx_include()], text=instantiated(path))
    assert found.errors == ()
    assert found.unknown == ()


def test_changed_parameter_of_a_kernel() -> None:
    path = KERNELS / "normalization.metal"
    include = '#include "elements.h"'
    text = instantiated(path)
    assert include in text
    text = text.replace(include, (KERNELS / "elements.h").read_text())
    changed = text.replace("threadgroup V* sums", "device V* sums")
    assert changed != text
    found = check_spaces(path, [KERNELS, mlx_include()], text=changed)
    assert found.errors
    for error in found.errors:
        assert "threadgroup_sum(" in text.splitlines()[error.span.line - 1]


@pytest.mark.extended
def test_own_operators() -> None:
    checks = read_project(*own_operators())
    assert {path.name for path in checks} > {"elementwise.metal", "gamma.h", "bessel_orders.h"}
    assert [error for check in checks.values() for error in check.errors] == []
    # No part is unchecked, not even `? :` between a value and a variable of mlxgen/scalar.h's type.
    assert [str(what) for check in checks.values() for what in check.unknown] == []


def test_scalar_functions_are_instantiated(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "kernels" / "metal"
    folder.mkdir(parents=True)
    (folder / "scale.metal").write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "template <typename T>\nvoid twice(device T* x) {\n  *x *= 2;\n}\n"
        "template <typename T>\nT scale(T x) {\n  thread T* p = &x;\n  twice(p);\n  return x;\n}\n"
    )
    Path("mlx_ops.yaml").write_text(
        '- signature: "scale(x: array) -> array"\n'
        "  dispatch: {metal: scale}\n  grad: {x: 2 * grad}\n"
    )
    diags = Diagnostics()
    ops, sources = load(project.settings(Path("mlx_ops.yaml")), diags)
    assert diags.render_text() == ""
    # One error per computing type.
    assert {str(error).partition(": ")[0] for error in check_project(ops, sources)} == {
        "kernels/metal/scale.metal:10:1"
    }
