"""Parsing C++: every kind of declaration, normalized types, and errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest
from emulator.reference_cpp import mlx_include
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.read.cpp import File, Function, Reader, find_function, normalised
from mlxgen.read.preprocess import _BINARY, SourceError, calculated


@pytest.fixture
def scan(tmp_path):
    def scan(text: str) -> File:
        path = tmp_path / "f.h"
        path.write_text(text)
        return Reader([]).unit(str(path)).files[0]

    return scan


@pytest.fixture
def one(scan):
    def one(text: str) -> Function:
        (function,) = scan(text).functions
        return function

    return one


def test_a_kernel(one) -> None:
    function = one(
        """
        namespace mlxops::cpu {
        // float axpby(float x);
        template <typename T>
        T axpby(T x, T y, const float& alpha = 1.0f, In<int32_t> ids = {}) {
          if (x < y) { return x; }
          return "}" ? x : y;
        }
        }
        """
    )
    assert function.qualified_name == "mlxops::cpu::axpby"
    assert (function.namespace, function.class_name, function.name) == (
        *("mlxops::cpu", None, "axpby"),
    )
    assert function.template == ("T",)
    assert function.template_defaults == (None,)
    assert function.result == "T"
    assert function.is_definition
    assert not function.is_kernel
    assert [(p.type, p.name, p.default) for p in function.params] == [
        ("T", "x", None),
        ("T", "y", None),
        ("const float&", "alpha", "1.0f"),
        ("In<int32_t>", "ids", "{}"),
    ]
    alpha = function.params[2]
    assert (alpha.base, alpha.const, alpha.reference, alpha.pointer) == ("float", True, True, False)
    assert (function.span.line, function.span.column, function.span.end_column) == (5, 11, 16)
    assert (alpha.span.line, alpha.span.column, alpha.span.end_column) == (5, 27, 45)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("void f();", []),
        ("void f(void);", []),
        ("void f(int, const char*, ...);", ["int", "const char*", "..."]),
        ("void f(float const *x, T & y, T&& z);", ["const float*", "T&", "T&&"]),
        ("void f(const float* const* x);", ["const float* const*"]),
        ("void f(unsigned  long x, unsigned y);", ["unsigned long", "unsigned"]),
        ("void f(std::vector<array> const& x);", ["const std::vector<array>&"]),
        ("void f(std::map<int, std::vector<int>> m);", ["std::map<int, std::vector<int>>"]),
        ("void f(const struct Point* p);", ["const Point*"]),
        ("void f(typename T::value_type x);", ["T::value_type"]),
        ("void f(T... xs, Args&&... args);", ["T...", "Args&&..."]),
        ("void f(float x[3], int (&y)[4]);", ["float[3]", "int(&)[4]"]),
        ("void f(void (*g)(int, T*), int (*)[3]);", ["void(*)(int, T*)", "int(*)[3]"]),
        ("void f(std::function<void(int)> g = [](int i) {});", ["std::function<void(int)>"]),
        ("void f(int x = a < b ? 1 : 2, int y = (c > d));", ["int", "int"]),
        ("void f(decltype(x + 1) y, C<T> auto z);", ["decltype(x+1)", "C<T> auto"]),
        ("void f([[maybe_unused]] int x [[foo(1)]]);", ["int"]),
        ("void f(std::array<float, (3 > 2)> x);", ["std::array<float, (3>2)>"]),
        ("void f(::std::string s, mx :: array a);", ["std::string", "mx::array"]),
    ],
)  # fmt: skip
def test_parameters(one, text: str, types: list[str]) -> None:
    assert [param.type for param in one(text).params] == types


@pytest.mark.parametrize(
    ("text", "name", "result"),
    [
        ("static inline constexpr int f(T x) noexcept { return 1; }", "f", "int"),
        ("[[nodiscard]] __attribute__((noinline)) pair<int, T> f();", "f", "pair<int, T>"),
        ("MLX_API const array& f();", "f", "const array&"),
        ("MLX_API int f();", "f", "int"),
        ("auto f(T x) -> std::vector<T> { return {}; }", "f", "std::vector<T>"),
        ("auto f() noexcept(true) -> decltype(g()) ;", "f", "decltype(g())"),
        ("template <typename T> requires (sizeof(T) < 4) && C<T> T f(T x);", "f", "T"),
        ("template <typename T> T f(T x) requires requires(T t) { t < x; } { }", "f", "T"),
        ("template <typename T> requires std::is_same_v<T, float> T f(T x) { }", "f", "T"),
        ('extern "C" double f(double x);', "f", "double"),
        ('extern "C" {\n  namespace n { int f(); }\n}', "n::f", "int"),
        ("namespace a { namespace { inline namespace v1 { int f(); } } }", "a::f", "int"),
        ("namespace a::inline b::c { int f(); }", "a::c::f", "int"),
        ("std::vector<array> Axpby::vjp(T& x) const { }", "Axpby::vjp", "std::vector<array>"),
        ("namespace n {} T n::f(T x) { }", "n::f", "T"),
        ("Axpby::Axpby(int x) : Base<int>(x), y_{x} { }", "Axpby::Axpby", ""),
        ("Axpby::~Axpby() = default;", "Axpby::~Axpby", ""),
        ("bool operator<(const T& a, const T& b);", "operator<", "bool"),
        ("T X::operator()(T a) const& { }", "X::operator()", "T"),
        ("T operator>>(T a, int b);", "operator>>", "T"),
        ("struct Point f(int x) { }", "f", "Point"),
        ("int f(int x) try { } catch (...) { }", "f", "int"),
        ("const float* f();", "f", "const float*"),
        ("#define REAL float\nREAL f(REAL x);", "f", "float"),
    ],
)  # fmt: skip
def test_declarations(one, text: str, name: str, result: str) -> None:
    function = one(text)
    assert (function.qualified_name, function.result) == (name, result)


@pytest.mark.parametrize("call", ["DECLARE(add)", "DECLARE(add);", "namespace n { DECLARE(add) }"])
def test_calls_of_macros_are_stepped_over(scan, call: str) -> None:
    file = scan(f"#define DECLARE(T) T f(T x)\nint before();\n{call}\nint after();")
    assert [function.name for function in file.functions] == ["before", "after"]


def test_what_is_no_function_is_stepped_over(scan) -> None:
    functions = scan(
        """
        using namespace std; using T = void (*)(int);
        typedef struct { int x; } Pair;
        namespace fs = std::filesystem;
        static_assert(sizeof(int) == 4, "f(int x);");
        struct A; class B final : public C<int>, D { void hidden(); };
        enum class E : int { a, b };
        union U { int i; float f; } u;
        struct alignas(16) Q { } q = {};
        constexpr int n = 1 < 2, m{3};
        const float table[] = {1, 2};
        std::vector<int> v(3, 1);
        std::function<int(int)> g = [](int x) { return f(x); };
        int (*pointer)(int) = nullptr;
        template <typename T> constexpr bool is = std::is_same_v<T, int>;
        template <typename T> struct S { T x; };
        template <> struct S<int> { };
        template <typename T> using P = T*;
        template <typename T> concept C = requires(T t) { t.x; };
        template <typename T> S(T) -> S<T>;
        template struct S<float>;
        template int f<float>(float);
        extern template int f<int>(int);
        ;
        int last();
        """
    ).functions
    assert [function.name for function in functions] == ["last"]


def test_template_parameters(one) -> None:
    function = one(
        "template <typename T, class U = std::vector<T>, int N = 4, bool B = (N > 2), auto V = 1,"
        " typename = void, template <typename> class C = X, std::integral I, typename... Ts>"
        " void f(T x);"
    )
    assert function.template == ("T", "U", "N", "B", "V", "", "C", "I", "Ts...")
    assert function.template_defaults == (
        *(None, "std::vector<T>", "4", "(N>2)", "1", "void", "X", None, None),
    )


def test_find_function(scan) -> None:
    functions = scan(
        "namespace ops::cpu { int f(); } namespace ops { int f(); } int X::f(); int f();"
    ).functions
    f = [function.qualified_name for function in find_function(functions, "f")]
    assert f == ["ops::cpu::f", "ops::f", "f"]
    assert [g.qualified_name for g in find_function(functions, "cpu::f")] == ["ops::cpu::f"]
    assert [g.qualified_name for g in find_function(functions, "ops :: f")] == ["ops::f"]
    assert [g.qualified_name for g in find_function(functions, "X::f")] == ["X::f"]
    assert [g.qualified_name for g in find_function(functions, "::f")] == ["f"]
    assert find_function(functions, "g") == []


TYPES = st.recursive(
    st.sampled_from(["float", "T", "unsigned long", "std::string", "uint4", "bool"]),
    lambda inner: st.one_of(
        st.builds("std::vector<{}>".format, inner),
        st.builds("pair<{}, {}>".format, inner, inner),
        st.builds("{}*".format, inner.filter(lambda text: not text.endswith("&"))),
        st.builds("const {}*".format, inner.filter(str.isidentifier)),
    ),
    max_leaves=4,
)


@settings(deadline=None)
@given(TYPES)
def test_a_normalised_type_stays_as_it_is(text: str) -> None:
    assert normalised(text) == text


@settings(deadline=None)
@given(TYPES)
def test_white_space_and_the_place_of_const_do_not_matter(text: str) -> None:
    spread = " ".join(re.findall(r"\w+|::|\S", text))
    assert normalised(spread) == text
    assert normalised(f"{text} const &") == normalised(f"{text} const&")


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("int f(int x) {\n  (;\n}", "'}' does not close '('", 3, 1),
        ("int f() {\n", "this '{' is not closed", 1, 9),
        ("}", "this '}' has no opening bracket", 1, 1),
        ("#if 1\nint f();", "this conditional has no #endif", 1, 1),
        ("\n#define A ((\nint f(A x) {}\n", "this '(' is not closed", 3, 7),
        ('  #include "no.h"', 'cannot find "no.h"', 1, 12),
    ],
)
def test_mistakes(scan, text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(SourceError) as caught:
        scan(text)
    error = caught.value
    assert (error.message, error.span.line, error.span.column) == (message, line, column)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("int f(int x,, int y);", 1),
        ("int f();\nint g(int + x);", 2),
        ("int f()\n{ return <; }", 2),
        ("int f(\n  /* } */ int x y z); // (", 2),
    ],
)
def test_what_is_not_understood_has_a_place(scan, text: str, line: int) -> None:
    file = scan(text)
    assert file.unread is not None and file.unread.line == line
    assert "f" in [function.name for function in file.functions] or line == 1


@pytest.mark.parametrize(
    ("text", "name", "types"),
    [
        ("#define MLXGEN_OUT(T) T&\nvoid f(MLXGEN_OUT(float) x);", "f", ["float&"]),
        ("#define REAL float\n#define MLXGEN_TO(T) const REAL T\nvoid f(MLXGEN_TO(*) x);",
         "f", ["const float*"]),
        ("#define f(x) f(x, int)\nint f(float);", "f", ["float"]),  # the compiler's
        ("#define f f\nint f(float);", "f", ["float"]),
        ("#define T int\n#undef T\nvoid f(T x);", "f", ["T"]),
        ("#define T \\\n  int /* a */ // b\nvoid f(T x);", "f", ["int"]),
        ("/*\n#define T int\n*/ void f(T x);", "f", ["T"]),
        ('const char* s = R"x(\n#define T int\n)x";\nvoid f(T x);', "f", ["T"]),
        ("#define N 2\n#if N > 1 && !defined(M)\nint f();\n#else\nint g();\n#endif", "f", []),
        ("#ifdef N\n#if\n#endif\n#elif defined N || __cplusplus < 1u\n#else\nint f();\n#endif",
         "f", []),
        ("#if 0\nint g(;\n#elif 1\nint f();\n#elif 1\nint h();\n#endif", "f", []),
        ("int f();\n#if 0\n#if 1\nint g();\n#endif\n#endif", "f", []),
        ("int f();\n#if 0\n#if 0\n#else\nint g();\n#endif\n#endif", "f", []),
        # A condition that cannot be computed counts as true; a number may have a suffix.
        ("#if 1 / 0\nint f();\n#else\nint g();\n#endif", "f", []),
        ("#if true\nint f();\n#else\nint g();\n#endif", "f", []),
        ("#if 10UL < 9\nint g();\n#else\nint f();\n#endif", "f", []),
        ("void g\u00e4(); // \u00e4\nint f(int x);", "f", ["int"]),
    ],
)  # fmt: skip
def test_macros_and_conditions(scan, text: str, name: str, types: list[str]) -> None:
    function = scan(text).functions[-1]
    assert (function.name, [p.type for p in function.params]) == (name, types)
    assert function.span.line <= text.count("\n") + 1


def test_files(tmp_path: Path) -> None:
    (tmp_path / "common.h").write_text("#pragma once\n#define FN inline\nnamespace n { int c(); }")
    (tmp_path / "a.h").write_text('#include "common.h"\n#include <cmath>\nFN float a(float x);\n')
    (tmp_path / "b.cpp").write_text('#include "a.h"\n#include "mlx/ops.h"\nint n::c() { }\n')
    unit = Reader([str(tmp_path)], unread=("mlx/",)).unit(str(tmp_path / "b.cpp"))
    assert [function.qualified_name for function in unit.functions] == ["n::c", "a", "n::c"]
    assert unit.functions[2].span.file == str(tmp_path / "common.h")


def test_files_that_include_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"\nint a();')
    (tmp_path / "b.h").write_text('#include "a.h"\nint b();')
    unit = Reader([]).unit(str(tmp_path / "a.h"))
    assert [function.name for function in unit.functions] == ["a", "b"]


def test_mlx_own_headers_are_understood() -> None:
    names = [
        "ops.h",
        "linalg.h",
        "fft.h",
        "random.h",
        "fast.h",
        "transforms.h",
        "array.h",
        "utils.h",
    ]
    paths = [mlx_include() / "mlx" / name for name in names]
    reader = Reader([], unread=("mlx/",))
    functions = [f for path in paths for f in reader.file(str(path)).functions]
    assert len(functions) > 300
    (add,) = [f for f in find_function(functions, "mlx::core::add") if f.name == "add"]
    assert add.result == "array"
    assert [(p.type, p.name, p.default) for p in add.params] == [
        ("const array&", "a", None),
        ("const array&", "b", None),
        ("StreamOrDevice", "s", "{}"),
    ]


PIECES = st.sampled_from(
    ["template <", "typename T", "int", "f", "(", ")", "{", "}", "<", ">", ",", ";", "::", "*", "&",
     "=", "operator", "[[", "]]", "struct", "namespace", "a", "requires", "->", ":", "...", "const",
     "decltype(", "~", "1", '"s"', "try", "catch", "noexcept", "extern", "using", "enum", "(*", "[",
     "]", "auto", "void f(int x)", "T x", "explicit", "-", "X::X", "friend", "template"]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(PIECES, max_size=30).map(" ".join))
def test_any_tokens_are_read_or_refused(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "f.h"
    path.write_text(text)
    try:
        Reader([]).file(str(path))
    except SourceError as error:
        assert error.span.line == 1 and error.span.column >= 1


def test_speed(tmp_path: Path) -> None:
    """Ten headers of 200 lines take about 30 ms; ten times that is more than noise."""
    kernel = "".join(
        f"/** Kernel {n}. */\ntemplate <typename T>\nT kernel{n}(T x, T y, const float& alpha) {{\n"
        "  T e = exp(-fabs(x));\n  for (int i = 0; i < 4; ++i) {\n    e += alpha * y;\n  }\n"
        "  return x * (y < 0 ? e : T(1)) / (1 + e);\n}\n\n"
        for n in range(20)
    )
    paths = [tmp_path / f"kernels{n}.h" for n in range(10)]
    for n, path in enumerate(paths):
        path.write_text(f"// {n}\n#pragma once\nnamespace mlxops::cpu {{\n{kernel}}}\n")
    start = time.process_time()
    assert sum(len(Reader([]).file(str(path)).functions) for path in paths) == 200
    assert time.process_time() - start < 0.5


def _doubled(count: int) -> str:
    lines = [f"#define A{i + 1} A{i} A{i}\n" for i in range(count)]
    return "#define A0 x\n" + "".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_doubled(40) + "int y = A40;", None),
        (_doubled(40) + "#if A40\n#endif\nint f();", None),
        (_doubled(8) + "#if " + "A8 " * 200_000 + "\n#endif\n", None),
        (_doubled(8) + "A8 " * 20_000, "the macros of this file expand to more than 4 MB"),
        ("".join(f"#define A{i + 1} A{i}\n" for i in range(3000)) + "int y = A3000;", None),
        ("namespace a {" * 5000 + "}" * 5000, "is nested too deeply"),
        ("int y = " + "(" * 20_000 + "1" + ")" * 20_000 + ";", None),
        ("void f() " + "{" * 20_000, "this '{' is not closed"),
        ("[[" * 20_000, "this '[' is not closed"),
        ("__attribute__((" * 5_000, "this '(' is not closed"),
        ('R"(' * 60_000, None),
        ("#if 9**9**9**9\n#endif\n", None),
        ("#if 1 << 99999999999\n#endif\n", None),
        ("#if " + "-" * 50_000 + "1\n#endif\n", None),
        ("int f();\n" * 600_000, "it is larger than 5 MB"),
        ("int f();\n" * 12_000, "it declares more than 10,000 functions"),
    ],
    ids=lambda value: str(value)[-12:],
)
def test_limits(scan, text: str, message: str | None) -> None:
    start = time.process_time()
    if message is None:
        scan(text)
    else:
        with pytest.raises(SourceError, match=re.escape(message)):
            scan(text)
    assert time.process_time() - start < 4


def test_includes_in_a_row(tmp_path) -> None:
    for i in range(300):
        (tmp_path / f"{i}.h").write_text(f'#include "{i + 1}.h"\n')
    (tmp_path / "300.h").write_text("int f();")
    with pytest.raises(SourceError, match=r"60\.h:1:10: includes are nested more than 60 levels"):
        Reader([]).unit(str(tmp_path / "0.h"))


def test_what_is_no_file(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.h")
    (tmp_path / "loop.h").symlink_to("loop.h")
    for name, reason in {"pipe.h": "it is not a file", "loop.h": "symbolic links"}.items():
        with pytest.raises(SourceError, match=reason):
            Reader([]).file(str(tmp_path / name))


def test_macros_of_this_machine(one) -> None:
    mac = "a" if sys.platform == "darwin" else "b"
    assert one("#ifdef __APPLE__\nint a();\n#else\nint b();\n#endif").name == mac
    linux = "a" if sys.platform == "linux" else "b"
    assert one("#if defined(__linux__)\nint a();\n#else\nint b();\n#endif").name == linux


def test_requires_is_a_word(one) -> None:
    assert one("template <typename T> T f(requires_grad<T> x);").requires == ""
    found = one("template <typename T> requires(C<T>) T f(T x);").requires
    assert found.strip() == "(C<T>) T f(T x);"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1) and (2 > 1)", 1),
        ("1 or (0)", 1),
        ("0 (0)", None),
        ("(1)(2)", None),
        ("0x1f (1)", None),
        # As in C, not as in Python.
        *(("!0 == 5", 0), ("!2 == 0", 1), ("-7 / 2", -3), ("-7 % 2", -1), ("7 / -2", -3)),
        *(("3 > 2 > 1", 0), ("1 == 1 == 1", 1), ("2 | 1 == 1", 3), ("1 ? 2 : 3", 2)),
        *(("0 ? 1 / 0 : 3", 3), ("0 ? 1 : 0 ? 2 : 4", 4), ("1 || 1 / 0", 1), ("0 && 1 % 0", 0)),
        *(("1 / 0", None), ("010", 8), ("0x10 + 1", 17), ("~0", -1), ("- - 3", 3), ("not 1", 0)),
        *(
            ("1 << 3 + 1", 16),
            ("6 & 3 == 3", 0),
            ("(1 ? 2 : 3) + 1", 3),
            ("-9223372036854775807", -(2**63) + 1),
        ),
        *(
            ("1 +", None),
            ("? 1 : 2", None),
            ("1 ? 2", None),
            ("(1", None),
            ("1)", None),
            ("", None),
        ),
        *(("1 ? 2 ! 3", None), ("(1 ~", None), ("2 x", None), ("1 ? 3 : 1 / 0", 3)),
        *(("1 + 1 / 0", None), ("0 && 1 / 0 || 1 / 0", None), ("0" + " + 0" * 600, None)),
        *(("9223372036854775807 + 1", -(2**63)), ("2 * (1 << 63)", 0)),
        *(("2 ** 3", None), ("1 // 2", None), ("08", None), ("1 && 2", 1), ("!1 || 4", 1)),
        ("(" * 400 + "1" + ")" * 400, 1),
        *(("1; 2", None), ("f(1)", None), ("1, 2", None), ("'a'", None), ("{1}", None)),
    ],
)
def test_conditions_with_unknown_macros(text: str, value: int | None) -> None:
    """Python would warn about a call of a number."""
    assert calculated(text) == value


BINARY = [*_BINARY, "&&", "||"]


def _expression(random: Random, depth: int) -> str:
    kind = random.randrange(6) if depth else 0
    part = partial(_expression, random, depth - 1)
    if kind == 0:
        return random.choice(["0", "1", "2", "7", "012", "0x1F", "4294967297"])
    if kind == 1:
        return f"{random.choice('!-+~')} {part()}"
    if kind == 2:
        return f"({part()} ? {part()} : {part()})"
    sign = random.choice(BINARY)
    shifts = sign in ("<<", ">>")  # by a negative number means nothing
    joined = f"{part()} {sign} {random.choice('0123') if shifts else part()}"
    return f"({joined})" if kind == 3 or shifts else joined


def test_values_of_conditions_are_those_of_a_compiler(tmp_path: Path) -> None:
    random = Random(1)
    texts = [_expression(random, 4) for _ in range(800)]
    found = {text: value for text in texts if (value := calculated(text)) is not None}
    assert len(found) > 400 and len({*found.values()}) > 60
    lines = [
        # The smallest number cannot be written.
        f"#if ({text}) != ({value + (value < 0)} - {int(value < 0)})\n#error {text}\n#endif\n"
        for text, value in found.items()
    ]
    (tmp_path / "conditions.h").write_text("".join(lines))
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-E", "-w", "-xc++", str(tmp_path / "conditions.h")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
