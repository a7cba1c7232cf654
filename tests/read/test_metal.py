"""Parsing and embedding Metal kernels, including MLX's own headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from emulator.reference_cpp import (
    INSTANTIATED,
    mlx_include,
    mlx_kernel_headers,
    preprocessed,
    texts,
    write_stubs,
)

from mlxgen.read.cpp import METAL, Function, Reader, Unit
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


@pytest.mark.parametrize(
    "text",
    [
        'instantiate_kernel("sum_float32", segment_sum, float, 8)',
        '#define BOTH(type) instantiate_kernel("sum_" #type, segment_sum, type, 8)\nBOTH(float)',
        'template [[host_name("sum_float32")]] [[kernel]] decltype(segment_sum<float, 8>)'
        " segment_sum<float, 8>;",
        'template [[host_name("sum_float32")]] kernel void segment_sum<float,8>();',
    ],
)
def test_instantiations(tmp_path: Path, text: str) -> None:
    """Launchers instantiate kernels: the instantiations of a file are left out."""
    write(tmp_path, KERNEL, "impl.h")
    for head in (KERNEL, '#include "impl.h"\n'):
        end = "\ntemplate <typename T> [[kernel]] void other() {}"
        file = scan(tmp_path, f"{head}{text}{end}")
        assert [kernel.name for kernel in kernels(file)][-2:] in (
            ["segment_sum", "other"],
            ["other", "segment_sum"],
        )
        ((start, stop),) = [*file.files[0].source.removed, *file.files[0].instances]
        assert file.files[0].source.original[start:stop] == text.rsplit("\n", 1)[-1]
        embedded = embed_metal(
            tmp_path / "kernels.metal",
            [str(tmp_path), str(mlx_include())],
            lambda path, slice=(start, stop): [slice] * path.endswith(".metal"),
        )
        assert "float, 8" not in embedded.replace(text.rsplit("\n", 1)[0], "")
        assert embedded.endswith(end)


def test_both_spellings_of_a_kernel(tmp_path: Path) -> None:
    file = scan(
        tmp_path,
        """
        [[kernel]] void one(device float* out [[buffer(0)]]) { }
        kernel void two(device float* out [[buffer(0)]]) { }
        [[kernel, max_total_threads_per_threadgroup(64)]] void three() { }
        namespace ops { kernel void four() { } }
        kernel void declared_only();
        inline METAL_FUNC void no_kernel(thread float& x) { }
        vertex float4 shader(uint id [[vertex_id]]) { return 0; }
        """,
    )
    assert [kernel.name for kernel in kernels(file)] == [
        *("one", "two", "three", "four", "declared_only"),
    ]
    attributes = {"kernel": None, "max_total_threads_per_threadgroup": 64}
    assert kernels(file)[2].attributes == attributes


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
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


# ------------------------------------------------------------------------- MLX's own kernels


def test_mlx_own_kernels_are_read_as_a_compiler_reads_them(tmp_path: Path) -> None:
    """The parser finds all kernels in every header of MLX's kernels."""
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
        == """#line 1 "kernels.metal"
#include <metal_stdlib>
#line 1 "lib/a.h"

#include <metal_math>
int a;
#line 2 "kernels.metal"
// first
#line 1 "lib/b.h"
#ifndef B
#define B
// "a.h" is above
int b;
#endif
#line 4 "kernels.metal"
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
        '#line 1 "kernels.metal"\nint a;\n\nint metal;\n#line 10 "kernels.metal"\n'
        '#line 13 "kernels.metal"\n#if FAST\nint b;\n#endif\n\n#line 20 "kernels.metal"\nint c;\n'
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('#include "none.h"', 'cannot find "none.h"'),
        ('#include "loop.h"', '"loop.h" includes itself'),
        ('#define H "loop.h"\n#include H', "cannot inline an include whose name is a macro"),
    ],
)
def test_what_cannot_be_embedded(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, '#include "loop.h"\n', "loop.h")
    path = write(tmp_path, text)
    with pytest.raises(SourceError) as caught:
        embed_metal(path, [str(tmp_path)])
    assert caught.value.message == message
