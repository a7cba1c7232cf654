"""Reading C++: every kind of declaration, normalised types, and a place for every mistake."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.emulator.frontend.cxx import (
    Function,
    Scanner,
    find_function,
    normalise_type,
)
from mlxgen.emulator.frontend.preprocess import Preprocessor
from mlxgen.emulator.frontend.tokens import SourceError


def scan(text: str) -> list[Function]:
    scanner = Scanner(Preprocessor().run("f.h", text), "f.h")
    scanner.scan()
    return scanner.functions


def one(text: str) -> Function:
    (function,) = scan(text)
    return function


def test_a_kernel() -> None:
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
        ("void f(long unsigned int x, unsigned y);", ["unsigned long", "unsigned int"]),
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
def test_parameters(text: str, types: list[str]) -> None:
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
        ("Axpby::operator std::vector<int>() const { }", "Axpby::operator std::vector<int>", ""),
        ("bool operator<(const T& a, const T& b);", "operator<", "bool"),
        ("T X::operator()(T a) const& { }", "X::operator()", "T"),
        ("T operator>>(T a, int b);", "operator>>", "T"),
        ("struct Point f(int x) { }", "f", "Point"),
        ("int f(int x) try { } catch (...) { }", "f", "int"),
        ("const float* f();", "f", "const float*"),
        ("#define DECLARE(T) T f(T x)\nDECLARE(float);", "f", "float"),
    ],
)  # fmt: skip
def test_declarations(text: str, name: str, result: str) -> None:
    function = one(text)
    assert (function.qualified_name, function.result) == (name, result)


def test_what_is_no_function_is_stepped_over() -> None:
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
    )
    assert [function.name for function in functions] == ["last"]


def test_template_parameters() -> None:
    function = one(
        "template <typename T, class U = std::vector<T>, int N = 4, bool B = (N > 2), auto V = 1,"
        " typename = void, template <typename> class C = X, std::integral I, typename... Ts>"
        " void f(T x);"
    )
    assert function.template == ("T", "U", "N", "B", "V", "", "C", "I", "Ts...")
    assert function.template_defaults == (
        *(None, "std::vector<T>", "4", "(N>2)", "1", "void", "X", None, None),
    )


def test_specializations() -> None:
    function = one("template <> float f<float, 4>(float x);")
    assert (function.name, function.specialization) == ("f", ("float", "4"))
    assert function.template == ()


def test_find_function() -> None:
    functions = scan(
        "namespace ops::cpu { int f(); } namespace ops { int f(); } int X::f(); int f();"
    )
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
    assert normalise_type(text) == text


@settings(deadline=None)
@given(TYPES)
def test_white_space_and_the_place_of_const_do_not_matter(text: str) -> None:
    spread = " ".join(token.text for token in Preprocessor().run("f.h", text))
    assert normalise_type(spread) == text
    assert normalise_type(f"{text} const &") == normalise_type(f"{text} const&")
    if "*" not in text:
        assert normalise_type(f"{text} const *") == f"const {text}*"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("const device T *", "device const T*"),
        ("T device const *", "device const T*"),
        ("long long int", "long long"),
        ("signed", "int"),
        ("signed char", "signed char"),
        ("atomic<float>device*", "device atomic<float>*"),
        ("no  type at all", "no type at all"),
        ("", ""),
        ("3", "3"),
    ],
)
def test_normalise_type(text: str, normal: str) -> None:
    assert normalise_type(text) == normal


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("int f(int x) {\n  (;\n}", "'}' does not close '(' of line 2, column 3", 3, 1),
        ("int f() {\n", "'{' is never closed", 1, 9),
        ("}", "nothing opens this '}'", 1, 1),
        ("int x = 3", "expected ';' at the end of this declaration", 1, 7),
        ("int\n  x", "expected ';' at the end of this declaration", 1, 1),
        ("struct A { }\nint f() { }", "expected ';' after the class", 2, 6),
        ("struct A { }\nnamespace b { }", "'namespace' cannot stand in a declaration here", 2, 1),
        ("int x{3}\nint f() { };", "expected ';' at the end of this declaration", 1, 6),
        ("return 1;", "'return' cannot stand in a declaration here", 1, 1),
        ("int f(int x);\n f;", "cannot read this declaration", 2, 3),
        ("int f(), g();", "declare one function at a time", 1, 8),
        ("int f(int x) int;", "expected '{' or ';' after the function's parameters", 1, 14),
        ('extern "C"', "expected a declaration", 1, 8),
        ("int f()", "expected '{' or ';' after the function's parameters", 1, 7),
        ("int f(int x,, int y);", "expected a parameter", 1, 13),
        ("int f(int + x);", "cannot read this type: unexpected '+'", 1, 11),
        ("T U f(int x);", "cannot read this type: unexpected 'U'", 1, 3),
        ("int f(int x y);", "cannot read this type: unexpected 'y'", 1, 13),
        ("void (*f(int x))(int);", "cannot read this declarator", 1, 6),
        ("namespace a + b { }", "cannot read this namespace", 1, 13),
        ("namespace a;", "expected '{' after the namespace", 1, 12),
        ("template <typename T", "this template parameter list is never closed", 1, 10),
        ("template <typename T>", "expected a declaration after template <...>", 1, 21),
        ("template <int N> requires + int f();", "cannot read this constraint", 1, 27),
        ("[[a], b] int f();", "expected ']]' after the attributes", 1, 5),
        ("[[a b(1) c]] int f();", "cannot read this attribute", 1, 3),
        ("bool operator;", "cannot read this operator", 1, 6),
        ("X::X(int x) : y;", "expected '(' or '{' after the member's name", 1, 16),
        (f"int f({'v<' * 50}int{'>' * 50} x);", "this is nested too deeply", 1, 86),
    ],
)  # fmt: skip
def test_mistakes(text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(SourceError) as caught:
        scan(text)
    error = caught.value
    assert (error.message, error.span.line, error.span.column) == (message, line, column)


def test_a_macro_that_is_not_known_is_an_error() -> None:
    with pytest.raises(SourceError) as caught:
        scan("int f();\nDECLARE(add, +)\nint g();")
    assert caught.value.message == (
        "DECLARE(...) is no declaration and no macro that the files read define"
    )
    assert caught.value.span.line == 2
    assert caught.value.help is not None


PIECES = st.sampled_from(
    ["template <", "typename T", "int", "f", "(", ")", "{", "}", "<", ">", ",", ";", "::", "*", "&",
     "=", "operator", "[[", "]]", "struct", "namespace", "a", "requires", "->", ":", "...", "const",
     "decltype(", "~", "1", '"s"', "try", "catch", "noexcept", "extern", "using", "enum", "(*", "[",
     "]", "auto", "void f(int x)", "T x", "explicit", "-", "X::X", "friend", "template"]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(PIECES, max_size=30).map(" ".join))
def test_any_tokens_are_read_or_refused(text: str) -> None:
    try:
        scan(text)
    except SourceError as error:
        assert error.span.line == 1 and error.span.column >= 1


def test_speed(tmp_path: Path) -> None:
    """Ten headers of 200 lines take some 50 ms; ten times that is no noise of a busy machine."""
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
    assert sum(len(scan(path.read_text())) for path in paths) == 200
    assert time.process_time() - start < 0.5
