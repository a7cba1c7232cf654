"""Reading Metal kernels, with MLX's own headers as the proof."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from emulator.reference_cpp import mlx_include, preprocessed, texts, write_stubs

from mlxgen.emulator.frontend.metal import (
    DEFINES,
    FunctionConstant,
    Instantiation,
    MetalScanner,
)
from mlxgen.emulator.frontend.preprocess import Preprocessor
from mlxgen.emulator.frontend.tokens import SourceError

KERNEL = """
#include <metal_stdlib>
#include "mlx/backend/metal/kernels/utils.h"
using namespace metal;

constant bool has_mask [[function_constant(20)]];

template <typename T>
T square_metal(T x) { return x * x; }

template <typename T, int N = 4>
[[kernel]] void segment_sum(
    device const T* x [[buffer(0)]],
    const constant int& num_segments [[buffer(1)]],
    device atomic<float>* out [[buffer(2)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint3 gid [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float sums[N];
}
"""


def write(folder: Path, text: str, name: str = "kernels.metal") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def scan_metal(path: Path, folders=(), macros_only=("mlx/", "mlxgen/")) -> SimpleNamespace:
    """What the scanner finds in a file and its includes."""
    preprocessor = Preprocessor([*map(str, folders)], defines=DEFINES, macros_only=macros_only)
    scanner = MetalScanner(preprocessor.run(str(path)), str(path))
    scanner.scan()
    return SimpleNamespace(
        functions=scanner.functions,
        kernels=[function for function in scanner.functions if function.is_kernel],
        instantiations=[*scanner.instantiations.values()],
        constants=scanner.constants,
    )


def scan(folder: Path, text: str) -> SimpleNamespace:
    return scan_metal(write(folder, text), [folder, mlx_include()])


def names(file: SimpleNamespace) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Function and arguments by host name."""
    return {i.host_name: (i.function, i.arguments) for i in file.instantiations}


def test_a_kernel(tmp_path: Path) -> None:
    file = scan(tmp_path, KERNEL)
    (kernel,) = file.kernels
    assert [f.name for f in file.functions] == ["square_metal", "segment_sum"]  # none of MLX's
    assert (kernel.name, kernel.template, kernel.result) == ("segment_sum", ("T", "N"), "void")
    assert [(p.name, p.type, p.space, p.attributes) for p in kernel.params] == [
        ("x", "device const T*", "device", {"buffer": 0}),
        ("num_segments", "constant const int&", "constant", {"buffer": 1}),
        ("out", "device atomic<float>*", "device", {"buffer": 2}),
        ("scratch", "threadgroup float*", "threadgroup", {"threadgroup": 0}),
        ("gid", "uint3", None, {"thread_position_in_grid": None}),
        ("lane", "uint", None, {"thread_index_in_simdgroup": None}),
    ]
    x, num_segments, out = kernel.params[:3]
    assert (x.base, x.const, x.pointer, x.reference) == ("T", True, True, False)
    assert (num_segments.base, num_segments.const, num_segments.reference) == ("int", True, True)
    assert (out.base, out.const) == ("atomic<float>", False)
    (constant,) = file.constants
    assert isinstance(constant, FunctionConstant)
    assert (constant.name, constant.type, constant.index) == ("has_mask", "constant bool", 20)
    assert file.instantiations == []


@pytest.mark.parametrize(
    "text",
    [
        'instantiate_kernel("sum_float32", segment_sum, float, 8)',
        'instantiate_kernel("sum_" "float32", segment_sum, float, 8);',
        "#define BOTH(name, type) instantiate_kernel(\"sum_\" #name, segment_sum, type, 8)\n"
        "BOTH(float32, float)",
        'template [[host_name("sum_float32")]] [[kernel]] decltype(segment_sum<float, 8>)'
        " segment_sum<float, 8>;",
        'template [[host_name("sum_float32")]] [[kernel]] void segment_sum<float, 8>('
        "device const float* x [[buffer(0)]]);",
        'template [[host_name("sum_float32")]] kernel void segment_sum<float,8>();',
        'template [[kernel, host_name("sum_float32")]] void segment_sum<float, 8>();',
    ],
)  # fmt: skip
def test_instantiations(tmp_path: Path, text: str) -> None:
    file = scan(tmp_path, KERNEL + text)
    assert names(file) == {"sum_float32": ("segment_sum", ("float", "8"))}
    (found,) = file.instantiations
    assert isinstance(found, Instantiation)
    assert found.span.line == KERNEL.count("\n") + 1 + text.count("\n")


def test_both_spellings_of_a_kernel(tmp_path: Path) -> None:
    file = scan(
        tmp_path,
        """
        [[kernel]] void one(device float* out [[buffer(0)]]) { }
        kernel void two(device float* out [[buffer(0)]]) { }
        [[host_name("third")]] [[kernel, max_total_threads_per_threadgroup(64)]] void three() { }
        namespace ops { kernel void four() { } }
        kernel void declared_only();
        inline METAL_FUNC void no_kernel(thread float& x) { }
        vertex float4 shader(uint id [[vertex_id]]) { return 0; }
        """,
    )
    assert [kernel.name for kernel in file.kernels] == [
        *("one", "two", "three", "four", "declared_only"),
    ]
    assert list(names(file)) == ["one", "two", "third", "ops::four"]
    assert file.kernels[2].attributes == {
        "host_name": "third", "kernel": None, "max_total_threads_per_threadgroup": 64,
    }  # fmt: skip


def test_arguments_that_only_the_parameters_give(tmp_path: Path) -> None:
    kernel = """
        template <typename T, int N, typename U = int>
        [[kernel]] void f(const device T* x, constant Params<N>* p, device T* out, uint i) {}
        template [[host_name("f_half")]] [[kernel]] void f(
            const device half* x, constant Params<3>* p, device half* out, uint i);
        """
    assert names(scan(tmp_path, kernel)) == {"f_half": ("f", ("half", "3", "int"))}
    with pytest.raises(SourceError, match="cannot tell the template arguments"):
        scan(tmp_path, kernel.replace("device half* out", "device float* out"))


def test_nested_macros_as_in_mlx(tmp_path: Path) -> None:
    text = """
#define instantiate_all(op)         \\
  instantiate_types(op, float, half) \\
  instantiate_kernel("any_" #op, f, op<int, (1 > 2)>)
#define instantiate_types(op, ...) instantiate_two(op, __VA_ARGS__)
#define instantiate_two(op, a, b)                  \\
  instantiate_kernel(#op "_" #a, f, op<a>, 1, int) \\
  instantiate_kernel(#op "_" #b, f, op<b>, 2, int)
instantiate_all(Sum)
instantiate_all(Max) // clang-format on
"""
    assert names(scan(tmp_path, '#include "mlx/backend/metal/kernels/defines.h"' + text)) == {
        "Sum_float": ("f", ("Sum<float>", "1", "int")),
        "Sum_half": ("f", ("Sum<half>", "2", "int")),
        "any_Sum": ("f", ("Sum<int, (1>2)>",)),
        "Max_float": ("f", ("Max<float>", "1", "int")),
        "Max_half": ("f", ("Max<half>", "2", "int")),
        "any_Max": ("f", ("Max<int, (1>2)>",)),
    }


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ('kernel void f() {}\ninstantiate("f_float32", f, float)',
         "instantiate(...) is no declaration and no macro that the files read define", 2, 1),
        ("template [[kernel]] void f<float>();", "the instantiation of f<float> has no", 1, 26),
        ('template [[host_name("a")]] [[kernel]] void;',
         "expected the kernel that this instantiates", 1, 44),
        ('template [[host_name("a")]] [[kernel]] void f();',
         "cannot tell the template arguments of this instantiation of f", 1, 45),
        ("kernel void f(device float* x [[buffer(0)]) {}", "')' does not close '['", 1, 43),
        ('#include "none.h"', 'cannot find "none.h"', 1, 10),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(SourceError) as caught:
        scan(tmp_path, text)
    error = caught.value
    assert error.message.startswith(message)
    assert (error.span.line, error.span.column) == (line, column)


def test_where_mlx_defines_its_macro(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        scan(tmp_path, 'instantiate_kernel("a", f, float)')
    header = '"mlx/backend/metal/kernels/defines.h"'
    assert caught.value.help == f"if it is a macro, include {header}"


def test_a_host_name_exists_once(tmp_path: Path) -> None:
    text = 'template [[host_name("a")]] [[kernel]] void f<float>();\n'
    with pytest.raises(SourceError) as caught:
        scan(tmp_path, text * 2)
    earlier = f"{tmp_path / 'kernels.metal'}:1:45"
    assert caught.value.message == f'host_name "a" exists already, from {earlier}'
    assert caught.value.span.line == 2


# ------------------------------------------------------------------------- MLX's own kernels


def mlx_kernel_headers() -> list[Path]:
    return sorted((mlx_include() / "mlx/backend/metal/kernels").rglob("*.h"))


def test_mlx_own_kernels_are_read_as_a_compiler_reads_them(tmp_path: Path) -> None:
    """Every header of MLX's kernels: the same tokens, and as many kernels as there are in them."""
    include = mlx_include()
    headers = mlx_kernel_headers()
    write_stubs(tmp_path, headers)
    kernels = 0
    for header in headers:
        reference = preprocessed(header, [include], tmp_path, DEFINES)
        tokens = Preprocessor([str(include)], defines=DEFINES).run(str(header))
        assert [token.text for token in tokens] == texts(reference), header
        file = scan_metal(header, [include], macros_only=())
        assert len(file.kernels) == len(re.findall(r"\[\[kernel\b|\bkernel void\b", reference))
        kernels += len(file.kernels)
    assert len(headers) > 60
    assert kernels > 150


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


def test_instantiations_are_found_as_in_a_compiler_s_output(tmp_path: Path) -> None:
    write_stubs(tmp_path, mlx_kernel_headers())
    path = write(tmp_path, INSTANTIATED)
    reference = preprocessed(path, [mlx_include()], tmp_path, DEFINES)
    literals = re.findall(r'host_name\(\s*((?:"\w*"\s*)+)\)', reference)
    expected = ["".join(re.findall(r"\w+", literal)) for literal in literals]
    file = scan_metal(path, [mlx_include()])
    assert [i.host_name for i in file.instantiations] == expected
    assert len(expected) == 15
    assert names(file)["g_Realcomplex64float32"] == (
        *("unary_g", ("complex64_t", "float", "Real", "4", "int")),
    )
    assert names(file)["softmax_float32"] == ("softmax_single_row", ("float",))
