"""Parsing Metal for the emulation: tokens, locations, kernels, and the line of every mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from emulator.reference_cpp import (
    INSTANTIATED,
    mlx_include,
    mlx_kernel_headers,
    preprocessed,
    write_stubs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.emulator import translate
from mlxgen.emulator.source import Source, lex
from mlxgen.emulator.translate import MetalTranslator
from mlxgen.read.cpp import METAL
from mlxgen.read.preprocess import SourceError

KERNEL = """
template <typename T, int N = 4>
[[kernel]] void segment_sum(device const T* x [[buffer(0)]], uint i) {
  threadgroup float sums[N];
}
"""
DEFINES = '#include "mlx/backend/metal/kernels/defines.h"\n'


def names(text: str) -> dict[str, tuple[str, str]]:
    """Return the function and arguments by host name."""
    instances = MetalTranslator("f.metal", [mlx_include()], text=text).instances
    return {name: (found.function, found.arguments) for name, found in instances.items()}


# ------------------------------------------------------------------------------------ tokens


def test_tokens_know_their_kind_and_place() -> None:
    text = "int x = 0x1'fp3; // one\n  auto s = u8R\"x(a)\"\n)x\";\nchar c = '\\'';"
    tokens = lex(text)
    assert [token.text for token in tokens] == [
        *("int", "x", "=", "0x1'fp3", ";"),
        *("auto", "s", "=", 'u8R"x(a)"\n)x"', ";"),
        *("char", "c", "=", "'\\''", ";"),
    ]
    assert {token.kind for token in tokens} == {
        *("name", "number", "string", "character", "punctuator"),
    }
    assert all(text[token.offset : token.end] == token.text for token in tokens)
    assert [token.before for token in tokens[:7]] == ["\n", " ", " ", " ", "", "\n", " "]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a>>b", ["a", ">", ">", "b"]),  # never one token: it may close template arguments
        ("a<<=b<=>c", ["a", "<<=", "b", "<=>", "c"]),
        ("p->*q .* r ...", ["p", "->*", "q", ".*", "r", "..."]),
        ("1.5e+3f .5 x.y", ["1.5e+3f", ".5", "x", ".", "y"]),
        ('L"a" R"(\\)" x"b"', ['L"a"', 'R"(\\)"', "x", '"b"']),
        ("a/**/b //\\\nc\nd", ["a", "b", "d"]),
        ("a\\\n b", ["a", "b"]),
        ("größe @", ["größe", "@"]),
        ("#define A \\\n b\n c\n  # if d\ne", ["c", "e"]),
    ],
)
def test_lexing(text: str, tokens: list[str]) -> None:
    assert [token.text for token in lex(text)] == tokens


# ------------------------------------------------------------------------------------ locations


def test_lines_of_tokens(tmp_path: Path) -> None:
    """A macro's tokens have the line of its call; headers are next to the file or in a folder."""
    (tmp_path / "a.h").write_text("#pragma once\n\nint a;\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "b.h").write_text('#include "../a.h"\nint b;\n')
    text = (
        '#include <metal_stdlib>\n#include "a.h"\n#include <b.h>\n#define F(x) int x\nF(\n  c\n);'
    )
    path = tmp_path / "ä.metal"
    path.write_text(text)
    lines = {"a": ("a.h", 3), "b": ("lib/b.h", 2), "c": ("ä.metal", 5)}
    for source in (
        Source(path, [tmp_path / "lib"]),
        Source(path, [tmp_path / "lib"], text=text),
    ):
        assert source.texts == ["int", "a", ";", "int", "b", ";", "int", "c", ";"]
        for name, (file, line) in lines.items():
            assert source.origin(source.texts.index(name)) == (str(tmp_path / file), line)


def test_what_is_defined() -> None:
    text = (
        "#if A == 3 && __METAL_VERSION__ >= 300 && !defined(__linux__)\nMETAL_FUNC int x;\n#endif"
    )
    assert Source("f.metal", text=text, defines={"A": "3"}).texts == ["inline", "int", "x", ";"]
    assert Source("f.metal", text=text).texts == []


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("int x;\n#if 1", "unterminated", 2),
        ("int x;\n#if 1 +\n#endif", "", 2),
        ('\n#include "no.h"', "no.h", 2),
        ("#define F(a) a\n\nF(1, 2)", "F", 3),
        ("#define F(a) { a\n\nkernel void f() F()\n", "this '{' is not closed", 3),
        ("\nkernel void f(device float* x [[buffer(0)]) {}", "')' does not close '['", 2),
        ("\nkernel void f(device float* x [[buffer(0]]) {}", "']' does not close '('", 2),
        ("void f() {\n}}", "this '}' has no opening bracket", 2),
    ],
)
def test_mistakes_in_text(text: str, message: str, line: int) -> None:
    with pytest.raises(SourceError) as caught:
        Source("f.metal", text=text)
    error = caught.value
    assert message in error.message
    assert (error.span.file, error.span.line) == ("f.metal", line)


def test_mistakes_in_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot read .*: No such file"):
        Source(tmp_path / "none.h")
    (tmp_path / "binary.h").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bad.h").write_text("\n#error\n")
    for name, message in (("binary.h", "must be UTF-8"), ("bad.h", r"bad\.h:2:1: .*#error|error")):
        with pytest.raises(SourceError, match=message):
            Source(tmp_path / "f.metal", text=f'#include "{name}"')


# ----------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize(
    "text",
    [
        f'{DEFINES}instantiate_kernel("sum_float32", segment_sum, float, 8)',
        f'{DEFINES}instantiate_kernel("sum_" "float32", segment_sum, float, 8);',
        f"{DEFINES}#define BOTH(name, type) "
        'instantiate_kernel("sum_" #name, segment_sum, type, 8)\nBOTH(float32, float)',
        'template [[host_name("sum_float32")]] [[kernel]] decltype(segment_sum<float, 8>)'
        " segment_sum<float, 8>;",
        'template [[host_name("sum_float32")]] [[kernel]] void segment_sum<float, 8>('
        "device const float* x [[buffer(0)]], uint i);",
        'template [[host_name("sum_float32")]] kernel void segment_sum<float,8>();',
        'template [[kernel, host_name("sum_float32")]] void segment_sum<float, 8>();',
    ],
)
def test_instantiations(text: str) -> None:
    assert names(KERNEL + text) == {"sum_float32": ("segment_sum", "float, 8")}


def test_both_spellings_of_a_kernel() -> None:
    text = """
        [[kernel]] void one(device float* out [[buffer(0)]]) { }
        kernel void two(device float* out [[buffer(0)]]) { }
        [[host_name("third")]] [[kernel, max_total_threads_per_threadgroup(64)]] void three() { }
        namespace ops { kernel void four() { } template <typename T> kernel void five() { } }
        kernel void declared_only();
        template [[host_name("a")]] [[kernel]] void ops::five<int>();
        extern template void no_kernel<int>(thread int& x);
        template struct NoKernel<int>;
        inline METAL_FUNC void no_kernel(thread float& x) { x.template f<int>(); }
        vertex float4 shader(uint id [[vertex_id]]) { return 0; }
        """
    assert list(names(text)) == ["one", "two", "third", "ops::four", "a"]
    made = translate("f.metal", text=text)
    assert made.entries == ("one", "two", "third", "ops::four", "a")
    assert "0, 64}" in made.text and "::ops::five<int>" in made.text
    assert translate("f.metal", text=text, only=["a", "two"]).entries == ("two", "a")


def test_nested_macros_as_in_mlx() -> None:
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
    assert names(DEFINES + text) == {
        "Sum_float": ("f", "Sum<float>, 1, int"),
        "Sum_half": ("f", "Sum<half>, 2, int"),
        "any_Sum": ("f", "Sum<int, (1>2)>"),
        "Max_float": ("f", "Max<float>, 1, int"),
        "Max_half": ("f", "Max<half>, 2, int"),
        "any_Max": ("f", "Max<int, (1>2)>"),
    }


INSTANCE = 'template [[host_name("a")]] [[kernel]] void f<float>();\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ntemplate [[kernel]] void f<float>();", "2:1: the host needs [[host_name"),
        ('\ntemplate [[host_name("a")]] [[kernel]] void;', "2:1: write the template arguments"),
        ('\ntemplate [[host_name("a")]] [[kernel]] void f();', "2:1: write the template arguments"),
        (2 * INSTANCE, '2:1: duplicate host_name "a", first used in f.metal:1'),
        (INSTANCE, "1:1: f is the name of 0 kernels"),
        ("\nkernel void f(float x) {}", "2:1: the emulation cannot give a value to parameter x"),
        ("constant bool b [[function_constant(c)]];", "1:1: the index of a function constant"),
    ],
)
def test_mistakes_in_kernels(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(f"f.metal:{message}")):
        translate("f.metal", text=text)


def test_function_constants() -> None:
    """A parameter may depend on a function constant, or have its name."""
    text = """
        constant bool b [[function_constant(3)]];
        kernel void f(constant int* x [[buffer(0), function_constant(b)]],
            constant int& y [[function_constant(b)]]) {}
        kernel void g(constant int& b [[buffer(1)]]) {}
        """
    made = translate("f.metal", text=text).text
    assert made.count('{"b", 3,') == made.count("CodeOf") == made.count(" static bool b") == 1
    assert "( const int & b" in made


# --------------------------------------------------------------------------------- overloads


def test_overloads_that_are_alike_in_cpp() -> None:
    text = """
        float g(device const float* p) { return p[0]; }
        float g(threadgroup const float* p) { return p[0]; }
        inline constant float* h(constant float* p) { return p; }
        constant float* h(constant const float* p) { return p; }
        namespace a { float g(device const float* p) { return p[0]; } }
        struct S {
          int n;
         public:
          S(int m) thread : n(m) {}
          S(int m) device : n(m) {}
          operator int() const thread { return n; }
          operator int() const constant { return n; }
          device S& operator=(int m) device { n = m; return *this; }
          thread S& operator=(int m) thread { n = m; return *this; }
          template <typename T> T as() const { return T(n); }
          template <> float as() const { return 0; }
          template <> half as() const { return 0; }
        };
        """
    words = " ".join(token.text for token in lex(translate("f.metal", text=text).text))
    assert words.count("float g ( const float * p ) { return p [ 0 ] ; }") == 2
    assert words.count("float * h (") == words.count("S ( int m )") == 1
    assert words.count("operator int") == words.count("operator =") == 1
    assert words.count("template <") == 1 and " float as ( )" in words and " half as ( )" in words


# ------------------------------------------------------------------------- MLX's own kernels


@pytest.mark.extended
def test_mlx_own_kernels_are_read(tmp_path: Path) -> None:
    """The number of kernels found in each of MLX's headers is right."""
    headers = mlx_kernel_headers()
    write_stubs(tmp_path, headers)
    kernels = 0
    for header in headers:
        reference = preprocessed(header, [mlx_include()], tmp_path, METAL)
        source = Source(header, [mlx_include()])
        found = [function for function in source.file.functions if function.is_kernel]
        assert len(found) == len(re.findall(r"\[\[kernel\b|\bkernel void\b", reference)), header
        kernels += len(found)
    assert len(headers) > 60
    assert kernels > 150


def test_instantiations_are_found_as_in_a_compiler_s_output(tmp_path: Path) -> None:
    write_stubs(tmp_path, mlx_kernel_headers())
    path = tmp_path / "kernels.metal"
    path.write_text(INSTANTIATED)
    reference = preprocessed(path, [mlx_include()], tmp_path, METAL)
    literals = re.findall(r'host_name\(\s*((?:"\w*"\s*)+)\)', reference)
    found = names(INSTANTIATED)
    assert list(found) == ["".join(re.findall(r"\w+", literal)) for literal in literals]
    assert len(found) == 15
    assert found["g_Realcomplex64float32"] == ("unary_g", "complex64_t, float, Real, 4, int")
    assert found["softmax_float32"] == ("softmax_single_row", "float")


PIECES = st.sampled_from(
    ["template <", "typename T", "int", "f", "(", ")", "{", "}", "<", ">", ",", ";", "::", "*", "&",
     "=", "operator", "[[", "]]", "struct", "namespace", "a", "requires", "->", ":", "...", "const",
     "decltype(", "~", "1", '"s"', "threadgroup", "constant", "host_name(", "kernel", "[", "]",
     "function_constant", "kernel void f(device int* x)", "T x", "-", "X::X", "template", "\n#"]
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.lists(PIECES, max_size=30).map(" ".join))
def test_any_tokens_are_read_or_refused(text: str) -> None:
    try:
        translate("f.metal", text=text)
    except SourceError as error:
        assert error.span.line >= 1
