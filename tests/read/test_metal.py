"""Reading and embedding Metal kernels, with MLX's own headers as the proof."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from emulator.reference_cpp import mlx_include, preprocessed, texts, write_stubs

from mlxgen.read.cpp import METAL, Function, Instantiation, Reader, Unit
from mlxgen.read.embed import embed_metal
from mlxgen.read.preprocess import SourceError

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


def scan(folder: Path, text: str) -> Unit:
    path = write(folder, text)
    return Reader([str(folder), str(mlx_include())], metal=True).unit(str(path))


def kernels(unit: Unit) -> list[Function]:
    return [function for function in unit.functions if function.is_kernel]


def names(unit: Unit) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Function and arguments by host name."""
    return {i.host_name: (i.function, i.arguments) for i in unit.instantiations}


def test_a_kernel(tmp_path: Path) -> None:
    file = scan(tmp_path, KERNEL)
    (kernel,) = kernels(file)
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
    (made,) = file.instantiations
    assert isinstance(made, Instantiation)
    assert made.span.line == KERNEL.count("\n") + 1 + text.count("\n")


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
    assert [kernel.name for kernel in kernels(file)] == [
        *("one", "two", "three", "four", "declared_only"),
    ]
    assert list(names(file)) == ["one", "two", "third", "ops::four"]


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
    (earlier,) = caught.value.related
    assert caught.value.message == 'host_name "a" exists already'
    assert caught.value.span.line == 2
    assert earlier.span[:3] == (str(tmp_path / "kernels.metal"), 1, 45)


# ------------------------------------------------------------------------- MLX's own kernels


def mlx_kernel_headers() -> list[Path]:
    return sorted((mlx_include() / "mlx/backend/metal/kernels").rglob("*.h"))


def test_mlx_own_kernels_are_read_as_a_compiler_reads_them(tmp_path: Path) -> None:
    """Every header of MLX's kernels: as many kernels as there are in them."""
    include = mlx_include()
    headers = mlx_kernel_headers()
    write_stubs(tmp_path, headers)
    kernels = 0
    reader = Reader([str(include)], metal=True)
    for header in headers:
        reference = preprocessed(header, [include], tmp_path, METAL)
        sources = reader.closure(str(header), libraries=True)
        found = [k for s in sources for k in reader.file(s.path).functions if k.is_kernel]
        assert len(found) == len(re.findall(r"\[\[kernel\b|\bkernel void\b", reference))
        kernels += len(found)
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
    reference = preprocessed(path, [mlx_include()], tmp_path, METAL)
    literals = re.findall(r'host_name\(\s*((?:"\w*"\s*)+)\)', reference)
    expected = ["".join(re.findall(r"\w+", literal)) for literal in literals]
    file = Reader([str(mlx_include())], metal=True).unit(str(path))
    assert [i.host_name for i in file.instantiations] == expected
    assert len(expected) == 15
    assert names(file)["g_Realcomplex64float32"] == (
        *("unary_g", ("complex64_t", "float", "Real", "4", "int")),
    )
    assert names(file)["softmax_float32"] == ("softmax_single_row", ("float",))


# ---------------------------------------------------------------------------------- embedding


def test_embedded_source_says_where_its_pieces_come_from(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    write(tmp_path / "lib", "#pragma once\n#include <metal_math>\nint a;\n", "a.h")
    write(tmp_path / "lib", '#ifndef B\n#define B\n#include "a.h"\nint b;\n#endif\n', "b.h")
    path = write(
        tmp_path,
        '#include <metal_stdlib>\n#include "lib/a.h" // first\n#include "lib/b.h"\n'
        '#include "lib/a.h"\n// #include "none.h"\nint c;\n',
    )
    assert (
        embed_metal(path, [str(tmp_path)])
        == """#include <metal_stdlib>
// ---- "lib/a.h", included by kernels.metal:2
#include <metal_math>
int a;
// ---- kernels.metal again
 // first
// ---- "lib/b.h", included by kernels.metal:3
#ifndef B
#define B
// "a.h" is above
int b;
#endif
// ---- kernels.metal again
// "lib/a.h" is above
// #include "none.h"
int c;
"""
    )


def test_a_header_included_under_a_condition_may_be_needed_again(tmp_path: Path) -> None:
    write(tmp_path, '#pragma once\n#include "b.h"\nint a;\n', "a.h")
    write(tmp_path, '#pragma once\n#include "a.h"\nint b;\n', "b.h")  # each includes the other
    path = write(
        tmp_path,
        '#ifdef FAST\n#include "a.h"\n#include "only_if_fast.h"\n#endif\n'
        '#include "a.h"\n#include "b.h"\nint c;\n',
    )
    embedded = write(tmp_path, embed_metal(path, [str(tmp_path)]), "embedded.metal")
    assert '#include "a.h"' not in embedded.read_text()
    assert '#include "only_if_fast.h"' in embedded.read_text()
    for defines in ({}, {"FAST": "1"}):
        write(tmp_path, "int only;\n", "only_if_fast.h")
        reference = texts(preprocessed(path, [tmp_path], tmp_path, defines))
        assert texts(preprocessed(embedded, [], tmp_path, defines)) == reference
        assert reference.count("c") == 1


def test_what_is_for_cpp_only_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "#pragma once\nint cpp;\n", "cpp.h")
    path = write(
        tmp_path,
        "int a;\n#ifdef __METAL_VERSION__\nint metal;\n#else\n"
        '#include "cpp.h"\n#ifdef __METAL_VERSION__\nint never;\n#endif\n#endif\n'
        "#ifndef __METAL_VERSION__\n#include <vector>\n#else\n#if FAST\nint b;\n#endif\n#endif\n"
        "#ifndef __METAL_VERSION__\nint cpp;\n#endif\nint c;\n"
        "#ifdef __METAL_VERSION__\nint d;\n#elif FAST\nint e;\n#endif\n",
    )
    text = embed_metal(path, [str(tmp_path)])
    assert text == (
        "int a;\nint metal;\n#if FAST\nint b;\n#endif\nint c;\n"
        "#ifdef __METAL_VERSION__\nint d;\n#elif FAST\nint e;\n#endif\n"
    )


def test_mlx_headers_are_embedded_whole(tmp_path: Path) -> None:
    write_stubs(tmp_path, mlx_kernel_headers())
    path = write(tmp_path, INSTANTIATED)
    text = embed_metal(path, [str(mlx_include())])
    assert '#include "' not in text
    assert "#include <metal_" in text
    assert str(mlx_include()) not in text
    embedded = write(tmp_path, text, "embedded.metal")
    reference = texts(preprocessed(path, [mlx_include()], tmp_path, METAL))
    assert texts(preprocessed(embedded, [], tmp_path, METAL)) == reference
    again = Reader([], metal=True).unit(str(embedded))
    assert names(again) == names(Reader([str(mlx_include())], metal=True).unit(str(path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('#include "none.h"', 'cannot find "none.h"'),
        ('#include "loop.h"', '"loop.h" includes itself'),
        ('#define H "loop.h"\n#include H', "an include that a macro names cannot be embedded"),
    ],
)
def test_what_cannot_be_embedded(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, '#include "loop.h"\n', "loop.h")
    path = write(tmp_path, text)
    with pytest.raises(SourceError) as caught:
        embed_metal(path, [str(tmp_path)])
    assert caught.value.message == message


def test_instantiated_as_something_else(tmp_path):
    path = tmp_path / "k.metal"
    kernel = "template <typename T> [[kernel]] void k(device T* x [[buffer(0)]]) {}\n"
    path.write_text(f'{kernel}template [[host_name("k")]] [[kernel]] decltype(k<int>) k<half>;')
    with pytest.raises(SourceError, match="k<half> is declared as k<int>"):
        Reader([], metal=True).unit(str(path))


def test_one_host_name_in_two_files(tmp_path):
    made = 'template [[host_name("k")]] [[kernel]] decltype(k<int>) k<int>;\n'
    kernel = "template <typename T> [[kernel]] void k(device T* x [[buffer(0)]]) {}\n"
    (tmp_path / "k.h").write_text(kernel + made)
    (tmp_path / "k.metal").write_text(f'#include "k.h"\n{made}')
    with pytest.raises(SourceError, match='"k" exists already'):
        Reader([], metal=True).unit(str(tmp_path / "k.metal"))
