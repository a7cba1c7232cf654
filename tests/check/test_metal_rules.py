"""Rules of Metal that need more than a word search: code that breaks them, and code that does not.

tests/check/cases/metal_rules shows the messages.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mlxgen.command.operators import mlx_include
from mlxgen.emulator import check_rules
from mlxgen.emulator.names import unknown_names
from mlxgen.emulator.rules import broken_rules
from mlxgen.model.kinds import Kind
from mlxgen.model.op import Expr, Kernel, Template
from mlxgen.model.signature import Type
from mlxgen.read.cpp import Reader, Unit
from mlxgen.read.preprocess import OWN_INCLUDES, SourceError

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def broken(text: str) -> list[SourceError]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.metal")
        path.write_text(HEAD + text)
        return check_rules(path)


def codes(text: str) -> list[str]:
    return [error.said.code for error in broken(text)]


def body(text: str) -> str:
    return f"[[kernel]] void f(device float* x, constant int& n) {{\n{text}\n}}\n"


@pytest.mark.parametrize(
    "text",
    [
        "float* p = x;",
        "int a = 1; const float* p = x;",
        "float const* p = x;",
        "unsigned int* p;",
        "if (n) { float& r = x[0]; }",
    ],
)
def test_variable_without_address_space(text: str) -> None:
    assert codes(body(text)) == ["MG805"]


@pytest.mark.parametrize(
    "text",
    [
        "device float* p = x;",
        "const device float* p = x;",
        "float y = 1; thread float* p = &y; *p = 2;",
        "int a = n; int b = a * n; a = b & n;",
        "auto p = x; auto& q = x[0];",
        "if (n) x[0] = 1; else *x = 2;",
        "threadgroup float t[4]; threadgroup float& r = t[0];",
    ],
)
def test_variable_with_address_space(text: str) -> None:
    assert codes(body(text)) == []


def test_array_as_a_parameter() -> None:
    """It is in the thread's memory, but a pointer or a reference needs an address space."""
    assert codes("float sum(float x[2]) { return x[0] + x[1]; }") == []
    assert codes("float sum(float (&x)[2]) { return x[0] + x[1]; }") == ["MG805"]


def test_member_functions_of_metal() -> None:
    text = "x[0] = metal::numeric_limits<float>::infinity() + numeric_limits<half>::quiet_NaN();"
    assert codes(body(text)) == []


def test_header_that_a_macro_of_its_user_selects(tmp_path: Path) -> None:
    path = tmp_path / "kernel.metal"
    path.write_text(
        f'#define FOR_METAL\n#include "blocks.h"\n{HEAD}float f(block b) {{ return b.x; }}'
    )
    header = """
    #ifndef BLOCKS
    #define BLOCKS
    #if defined(FOR_METAL)
    struct block { float x; };
    #endif
    #endif
    """
    (tmp_path / "blocks.h").write_text(header)
    assert check_rules(path) == []


def test_declaration_that_the_parser_takes_for_a_call() -> None:
    text = "int a = 1 <\nvoid g(float x) {}\nvoid h() { g(1); }"
    assert codes(text) == []


def test_macro_in_a_function() -> None:
    text = """
    #define TWICE(i) \\
      (2 * x[i])
    x[1] = TWICE(0);
    #undef TWICE
    """
    assert codes(body(text)) == []


def test_instantiation_by_the_type_of_a_kernel() -> None:
    text = """
    template <int N> kernel void f(device float* x) { x[0] = N; }
    template [[host_name("f_2")]]
    kernel decltype(f<2>) f<2>;
    """
    assert codes(text) == []


@pytest.mark.parametrize("word", ["half", "bfloat", "kernel", "device"])
def test_keyword_as_the_name_of_a_variable(word: str) -> None:
    assert codes(body(f"float {word} = x[0]; x[0] = 2;")) == ["MG801"]


@pytest.mark.parametrize("text", ["half y = half(1);", "using T = half; T y = 1;", "y.half_ = 1;"])
def test_keyword_as_a_type(text: str) -> None:
    assert codes(body(text)) == []


def kernel(declared: str) -> str:
    return f"""
    constexpr constant int four = 2 * 2;
    template <typename T, int N> [[kernel]] void f(device T* x) {{
      constexpr int rows = N / 2;
      {declared}
      x[0] = 1;
    }}
    """


def too_large(text: str, dtype: str, *sizes: int) -> list[SourceError]:
    """Return the rules that kernel `f` breaks if launched for a dtype and values of N."""
    n = Template("N", "n", Expr(Type(Kind.INT), ()), sizes)
    kernel = Kernel("metal", "f", "f", "kernel.metal", (dtype,), scalar=False, templates=(n,))
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.metal")
        path.write_text(HEAD + text)
        return broken_rules(Reader([folder], metal=True), str(path), [kernel])


@pytest.mark.parametrize(
    "declared, bytes_of_float",
    [
        ("threadgroup T a[N];", 4096 * 4),
        ("threadgroup T a[N], b[N];", 4096 * 8),
        ("threadgroup T a[rows][four];", 2048 * 16),
        ("threadgroup float4 a[rows];", 2048 * 16),
        ("threadgroup metal::vec<T, 3> a[rows];", 2048 * 16),
        ("threadgroup T a[N + sizeof(T)];", 4100 * 4),
        ("threadgroup atomic<int> a[N << 1];", 8192 * 4),
        ("threadgroup T a[N]; { threadgroup uchar b[N * 4]; }", 4096 * 8),
    ],
)
def test_threadgroup_memory(declared: str, bytes_of_float: int) -> None:
    found = too_large(kernel(declared), "float32", 16, 4096, 65536)
    (error,) = found  # of the largest
    assert error.message.startswith("f_float32_65536 declares")
    assert ("1 more of its instantiations" in error.message) == (bytes_of_float > 32768)
    one = too_large(kernel(declared), "float32", 16, 4096)
    assert [f"declares {bytes_of_float} bytes" in e.message for e in one] == (
        [True] if bytes_of_float > 32768 else []
    )


def test_lengths_that_are_not_known_are_left_to_the_launch() -> None:
    text = kernel("threadgroup T a[unknown(N)];")
    assert too_large(f"constexpr int unknown(int n);{text}", "float32", 65536) == []


def test_calls_in_other_namespaces_are_no_recursion() -> None:
    text = """
    namespace native { using metal::floor; }
    namespace mine { inline float floor(float x) { return native::floor(x); } }
    """
    assert codes(text) == []
    assert codes(text.replace("native::floor", "mine::floor")) == ["MG802"]
    assert codes(text.replace("native::floor", "floor")) == ["MG802"]


def test_recursion_through_others() -> None:
    text = "int g(int n);\nint f(int n) { return g(n); }\nint g(int n) { return f(n - 1); }"
    assert set(codes(text)) == {"MG802"}


def test_recursion_of_templates() -> None:
    """As in MLX's ``steel``: each instantiation calls the next one, until the last."""
    text = "template <int N> int f(int n) { if constexpr (N > 0) return f<N - 1>(n); return n; }"
    assert codes(text) == []
    assert codes(text.replace("f<N - 1>(n)", "f(n)")) == ["MG802"]
    assert codes(text.replace("if constexpr (N > 0)", "")) == ["MG802"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x[0] = expp(x[0]);", "expp"),
        ("x[0] = metal::precise::expp(x[0]);", "expp"),
        ("threadgroup_barier(mem_flags::mem_none);", "threadgroup_barier"),
        ("x[0] = simd_summ<float>(x[0]);", "simd_summ"),
        ("flaot y = 1;", "flaot"),
        ("metal::vex<float, 4> y;", "vex"),
        ("x[0] = flaot4(1).x;", "flaot4"),
        ("[[unrol]] for (int i = 0; i < n; ++i) {}", "unrol"),
        ("while (true) [[lykely]] {}", "lykely"),
    ],
)
def test_names_that_nothing_has(text: str, name: str) -> None:
    (error,) = broken(body(text))
    assert error.said.code == "MG808" and name in error.message
    assert error.span.end_column - error.span.column == len(name)


@pytest.mark.parametrize(
    "text",
    [
        "auto g = [](float a) { return a; }; x[0] = g(x[0]);",
        "using V = vec<float, 4>; V v = V(1); x[0] = v.x;",
        "struct P { float of(int n) { return twice(n); } float twice(int n); }; P().of(2);",
        "[[clang::loop_unroll(4)]] for (int i = 0; i < n; ++i) {}",
        "x[0] = as_type<float>(uint4(1).x) + static_cast<float>(half(2));",
        "typename metal::enable_if<true, int>::type i = 0; x[i] = 1;",
        "atomic_fetch_add_explicit((device atomic_uint*)x, 1u, memory_order_relaxed);",
        '_Pragma("unroll") for (int i = 0; i < n; ++i) {}',
        "CALL(twise)",
    ],
)
def test_names_that_are_known(text: str) -> None:
    macro = "#define CALL(name) struct name##_s {}; name##_s();\n"
    assert codes(macro + body(text)) == []


def test_names_behind_an_unknown_header_are_not_looked_up() -> None:
    assert codes("#include <vendor/kernels.h>\n" + body("x[0] = vendor_exp(x[0]);")) == []


def test_names_in_kernels_of_mlx() -> None:
    """All names in the kernels exist, except one that the host program constructs."""
    include = mlx_include()
    assert include is not None
    kernels = include / "mlx" / "backend" / "metal" / "kernels"
    first = ("bf16.h", "bf16_math.h", "complex.h", "utils.h", "atomic.h", "reduction/ops.h")
    rest = "unary binary ternary copy softmax logsumexp reduce scan sort gemv hadamard fft"
    names = [*first, *(f"{name}.h" for name in rest.split())]
    with TemporaryDirectory() as folder:
        path = Path(folder, "all.metal")
        path.write_text(
            HEAD + "".join(f'#include "{n}"\n' for n in names if (kernels / n).exists())
        )
        reader = Reader([str(kernels), str(include)], metal=True)
        files = [reader.file(source.path) for source in reader.closure(str(path))]
        unit = Unit(files)
        found = [*unknown_names(reader, unit, shared=False)]
    assert len(unit.files) > 15
    assert [n for n in found if "'hadamard_radix_m'" not in n.message] == []


def test_header_of_scalar_functions_keeps_the_rules() -> None:
    header = Path(OWN_INCLUDES) / "mlxgen" / "scalar.h"
    assert check_rules(header, [OWN_INCLUDES]) == []
