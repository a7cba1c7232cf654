"""Rules of Metal whose detection is more than a word: where they apply, and where not.

tests/check/cases/metal_rules shows the messages.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mlxgen.check.metal_rules import BrokenRule
from mlxgen.emulator import check_rules
from mlxgen.read.preprocess import OWN_INCLUDES

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def broken(text: str) -> list[BrokenRule]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.metal")
        path.write_text(HEAD + text)
        return check_rules(path)


def codes(text: str) -> list[str]:
    found = broken(text)
    assert all(isinstance(error, BrokenRule) for error in found)
    return [error.code for error in found if isinstance(error, BrokenRule)]


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


@pytest.mark.parametrize("word", ["half", "bfloat", "kernel", "device"])
def test_keyword_as_the_name_of_a_variable(word: str) -> None:
    assert codes(body(f"float {word} = x[0]; x[0] = 2;")) == ["MG801"]


@pytest.mark.parametrize("text", ["half y = half(1);", "using T = half; T y = 1;", "y.half_ = 1;"])
def test_keyword_as_a_type(text: str) -> None:
    assert codes(body(text)) == []


def kernel(declared: str, *arguments: str) -> str:
    rows = "".join(
        f'template [[host_name("f{i}")]] [[kernel]] decltype(f<{a}>) f<{a}>;\n'
        for i, a in enumerate(arguments)
    )
    return f"""
    constexpr constant int four = 2 * 2;
    template <typename T, int N> [[kernel]] void f(device T* x) {{
      constexpr int rows = N / 2;
      {declared}
      x[0] = 1;
    }}
    {rows}"""


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
    text = kernel(declared, "float, 4096", "half, 16", "float, 65536")
    found = broken(text)
    assert [error.message.split()[0] for error in found] == ["f0", "f2"][bytes_of_float <= 32768 :]
    if bytes_of_float > 32768:
        assert f"declares {bytes_of_float} bytes" in found[0].message


def test_lengths_that_are_not_known_are_left_to_the_launch() -> None:
    assert codes(kernel("threadgroup T a[unknown(N)];", "float, 65536")) == []


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


def test_header_of_scalar_functions_keeps_the_rules() -> None:
    header = Path(OWN_INCLUDES) / "mlxgen" / "scalar.h"
    assert check_rules(header, [OWN_INCLUDES]) == []
