"""Tokens and preprocessing: compared with a real compiler's, and every mistake has its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulator.reference_cpp import preprocessed, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.emulator.frontend.preprocess import Preprocessor
from mlxgen.emulator.frontend.tokens import SourceError, join, lex, string_value


def run(text: str, **options: dict[str, str]) -> str:
    """The preprocessed text on one line."""
    return " ".join(token.text for token in Preprocessor(**options).run("test.h", text))  # type: ignore[arg-type]


def test_tokens_know_their_kind_and_place() -> None:
    text = "int x = 0x1'fp3; // one\n  auto s = u8R\"x(a)\"\n)x\";\nchar c = '\\'';"
    tokens = lex("f.h", text).tokens
    assert [token.text for token in tokens] == [
        *("int", "x", "=", "0x1'fp3", ";"),
        *("auto", "s", "=", 'u8R"x(a)"\n)x"', ";"),
        *("char", "c", "=", "'\\''", ";"),
    ]
    assert {token.kind for token in tokens} == {
        *("name", "number", "string", "character", "punctuator"),
    }
    auto = tokens[5]
    assert (auto.span.line, auto.span.column, auto.span.end_column) == (2, 3, 7)
    char = tokens[10]
    assert (char.before, char.span.line, char.span.column) == ("\n", 4, 1)


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
        ("größe $x", ["größe", "$x"]),
    ],
)
def test_lexing(text: str, tokens: list[str]) -> None:
    assert [token.text for token in lex("f.h", text).tokens] == tokens


def test_join_keeps_lines_and_spaces() -> None:
    text = "f(a,  b) /* c */ {\n\n  return a>>b;\n}"
    assert join(lex("f.h", text).tokens) == "\nf(a, b) {\nreturn a>>b;\n}"


def test_values_of_string_literals() -> None:
    tokens = lex("f.h", r'"a\"\n" R"x(b\n")x" u8"c"').tokens
    assert string_value(tokens) == 'a"\nb\\n"c'
    assert string_value(lex("f.h", '"a" b').tokens) is None


MACROS = r"""
#define EMPTY
#define ONE 1
#define CALL(f, ...) f(__VA_ARGS__)
#define NAME(x) #x
#define EXPANDED(x) NAME(x)
#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)
#define LOG(format, ...) log(format, ##__VA_ARGS__)
#define OPT(first, ...) f(first __VA_OPT__(,) __VA_ARGS__)
#define GNU(args...) g(args)
#define self self + other
#define ping pong
#define pong ping
#define recurse(x) x + recurse(x)
#define nothing()
#define two_lines(a, \
                  b) a + \
  b
#define hash # ONE
#define three(a, b, c) a##b##c
#define instantiate(name, func, ...) template [[host_name(#name)]] decltype(func<__VA_ARGS__>);
#define all(op) instantiate(op##_float, op, float, 1) instantiate(op##_half, op, half, ONE)

ONE EMPTY CALL(f, (1, 2), ONE) CALL CALL (g)
NAME( a  "b\n"  'c' + ONE ) EXPANDED(ONE JOIN(x, y)) NAME() NAME("\\")
JOIN(ONE, 2) JOINED(ONE, 2) JOIN(, ONE) JOIN(ONE, ) JOIN(<, <=) JOIN(x, 1)
LOG("a") LOG("a", b, ONE) OPT(a) OPT(a, b) OPT(a,) GNU() GNU(1, ONE)
self ping pong recurse(recurse(1)) nothing() nothing ()
two_lines(1,
          ONE) hash three(a, , c) three(, ,) three(ONE, ONE, ONE)
all(add) all(
  mul)
#undef ONE
ONE
"""


def test_macros_expand_as_a_compiler_expands_them(tmp_path: Path) -> None:
    path = tmp_path / "macros.h"
    path.write_text(MACROS)
    ours = [token.text for token in Preprocessor().run(str(path))]
    assert ours == texts(preprocessed(path, [], tmp_path, {}))


CONDITIONS = [
    "1", "0", "!0", "UNKNOWN", "defined(KNOWN) && KNOWN == 3", "defined KNOWN || 1 / 0",
    "KNOWN > 2 ? 0 : 1", "(KNOWN >> 1) == 1", "-1 < 0 && ~0 == -1", "7 % 4 == 3 && -7 / 2 == -3",
    "0x10 == 16 && 010 == 8 && 0b11 == 3", "1'000 == 1000u && 'a' == 97", "true && !false",
    "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9", "1 ? 2 ? 0 : 1 : 1", "0 && (1 / 0)", "1 << 3 != 8",
    "VALUE(1) == 2 && defined(VALUE)", "1 == 1 == 1", "KNOWN & 1 | 0 ^ 0", "1 >= 2 || 2 <= 1",
    "not 0", "0 ? 1 / 0 : 1",
]  # fmt: skip


def test_conditions_hold_where_a_compiler_says_so(tmp_path: Path) -> None:
    lines = ["#define KNOWN 3", "#define VALUE(x) x + 1"]
    for n, condition in enumerate(CONDITIONS):
        lines += [f"#if {condition}", f"yes{n}", "#else", f"no{n}", "#endif"]
    path = tmp_path / "conditions.h"
    path.write_text("\n".join(lines))
    ours = [token.text for token in Preprocessor().run(str(path))]
    assert ours == texts(preprocessed(path, [], tmp_path, {}))
    assert len(ours) == len(CONDITIONS)


def test_branches() -> None:
    text = """
#ifdef A
a
#elif defined(B) && B
b
#if 0
it's not "C++ @
#else
c
#endif
#elifndef C
d
#else
e
#endif
#ifndef A
f
#endif
"""
    assert run(text) == "d f"
    assert run(text, defines={"B": "1"}) == "b c f"
    assert run(text, defines={"A": ""}) == "a"
    assert run(text, defines={"C": ""}) == "e f"


def test_includes(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "a.h").write_text('#pragma once\n#include "lib/b.h"\nint a = B;\n')
    (tmp_path / "lib/b.h").write_text('#include "c.h"\n#define B C\n')
    (tmp_path / "lib/c.h").write_text("#ifndef C\n#define C 7\nint c;\n#endif\n")
    (tmp_path / "angled.h").write_text("int angled;\n")
    main = tmp_path / "main.cpp"
    main.write_text(
        '#include <vector>\n#include "a.h"\n#include "a.h"\n#include <angled.h>\n'
        '#define HEADER "lib/c.h"\n#include HEADER\n#include "mlx/ops.h"\nint main;\n'
    )
    preprocessor = Preprocessor([str(tmp_path)], ignore=["mlx/"])
    tokens = [token.text for token in preprocessor.run(str(main))]
    assert " ".join(tokens) == "int c ; int a = 7 ; int angled ; int main ;"
    names = [Path(path).relative_to(tmp_path).as_posix() for path in preprocessor.includes]
    assert names == ["main.cpp", "a.h", "lib/b.h", "lib/c.h", "angled.h"]


def test_only_the_macros_of_some_includes(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx/a.h").write_text('int unwanted;\n#define A 1\n#include "b.h"\nint more;\n')
    (tmp_path / "mlx/b.h").write_text("#define B 2\nint unwanted_too;\n")
    preprocessor = Preprocessor([str(tmp_path)], macros_only=["mlx/"])
    tokens = preprocessor.run(str(tmp_path / "x.h"), '#include "mlx/a.h"\nint x = A + B;\n')
    assert " ".join(token.text for token in tokens) == "int x = 1 + 2 ;"


def test_a_token_from_a_macro_stands_where_it_is_called() -> None:
    text = "#define F(x) int x = y\n\nF(\n  a\n);"
    tokens = Preprocessor().run("f.h", text)
    places = {token.text: (token.span.line, token.span.column) for token in tokens}
    assert places == {
        **dict.fromkeys(("int", "=", "y"), (3, 1)),
        **{"a": (4, 3), ";": (5, 2)},
    }
    assert tokens[0].span.end_column == 2  # the macro's name, not a word as long as the token


def test_built_in_macros() -> None:
    assert run("\n__LINE__ __FILE__ __COUNTER__ __COUNTER__") == '2 "test.h" 0 1'
    assert run('a _Pragma("unroll") b') == "a b"


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("int x;\n  @", "unexpected character '@'", 2, 3),
        ('int x = "abc', "this string is never closed", 1, 9),
        ("a /* b", "this comment is never closed", 1, 3),
        ('a R"(b', "this string is never closed", 1, 3),
        ("a 'b", "this character literal is never closed", 1, 3),
        ("ab\\\ncd", "a backslash at the end of a line splits this word", 2, 1),
        ("a\n#if 1\nb", "this conditional has no #endif", 2, 2),
        ("#endif", "#endif without #if", 1, 2),
        ("#if 1\n#else\n#else\n#endif", "#else after #else", 3, 2),
        ("#if 1\n#else\n#elif 1\n#endif", "#elif after #else", 3, 2),
        ("#if\n#endif", "#if needs a condition", 1, 2),
        ("#if 1 +\n#endif", "the condition ends too early", 1, 2),
        ("#if 1 2\n#endif", "cannot read the condition from here", 1, 7),
        ('#if "a"\n#endif', '"a" cannot stand in a condition', 1, 5),
        ("#if 1.5\n#endif", "1.5 cannot stand in a condition", 1, 5),
        ("#if F(1)\n#endif", "F is not a macro that the files read define", 1, 5),
        ("#if 1 % 0\n#endif", "division by zero in the condition", 1, 2),
        ("#if 1 << 99\n#endif", "cannot shift that far in a condition", 1, 2),
        ("#if (1\n#endif", "expected ')' in the condition", 1, 2),
        ("#if 1 ? 2\n#endif", "expected ':' in the condition", 1, 2),
        (f"#if {'(' * 99}1{')' * 99}\n#endif", "this condition is nested too deeply", 1, 69),
        ("#if defined(1)\n#endif", "defined takes one name", 1, 5),
        ("#ifdef\n#endif", "#ifdef takes one name", 1, 2),
        ("#define", "#define needs the name of the macro", 1, 2),
        ("#define F(a", "this macro's parameter list is never closed", 1, 10),
        ("#define F(a b) a", "cannot read this macro's parameter list", 1, 13),
        ("#define F(..., a) a", "cannot read this macro's parameter list", 1, 11),
        ("#define F(a) #b", "# must stand before a parameter of the macro", 1, 14),
        ("#define F(...) __VA_OPT__ x\nF(1)", "expected a pair of parentheses", 1, 27),
        ("#define F(a) ## a", "## needs an operand on both sides", 1, 14),
        ("#define F(a) a\nF(1, 2)", "macro F takes 1 arguments, but 2 are given", 2, 1),
        ("#define F(a) a\n\n  F(1", "this call of macro F is never closed", 3, 3),
        ("#define F(a) a ## ;\nF(x)", "## joins 'x' and ';', which is not one token", 2, 1),
        ("#include\nint", 'expected "file" or <file> after #include', 1, 2),
        ('int x;\n#include "no.h"', 'cannot find "no.h"', 2, 10),
        ("#inklude <x>", "unknown directive #inklude", 1, 2),
        (f"#define F(x) x\n{'F(' * 70}{')' * 70}", "macro calls are nested too deeply", 2, 129),
    ],
)
def test_mistakes(text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(SourceError) as caught:
        Preprocessor().run("f.h", text)
    error = caught.value
    assert (error.message, error.span.line, error.span.column) == (message, line, column)
    assert str(error) == f"f.h:{line}:{column}: {message}"


def test_mistakes_in_files(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "a.h"\n')
    (tmp_path / "bad.h").write_text("int x = @;\n")
    (tmp_path / "binary.h").write_bytes(b"\xff\xfe\x00")
    main = str(tmp_path / "main.cpp")

    def error(text: str) -> SourceError:
        with pytest.raises(SourceError) as caught:
            Preprocessor().run(main, text)
        return caught.value

    recursive = error('#include "a.h"')
    assert recursive.message == '"a.h" includes itself'
    assert recursive.help == "add #pragma once to it"
    included = error('\n#include "bad.h"\n')
    assert included.span.file == str(tmp_path / "bad.h")
    assert included.notes == (f"included from {main}:2",)
    assert error('#include "binary.h"').message.endswith("it is not UTF-8 text")
    with pytest.raises(SourceError, match=r"cannot read .*: No such file"):
        Preprocessor().run(str(tmp_path / "none.h"))


def test_macros_that_grow_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.emulator.frontend.preprocess._MAX_TOKENS", 10_000)
    text = "#define A0 x\n" + "".join(f"#define A{n} A{n - 1} A{n - 1}\n" for n in range(1, 40))
    with pytest.raises(SourceError, match="expands without end"):
        Preprocessor().run("f.h", text + "A39")


PIECES = st.sampled_from(
    ["#define ", "#if ", "#else\n", "#endif\n", "#include ", "#undef ", "F", "x", "F(", "(", ")",
     ",", "##", "#", "\n", " ", "\\\n", '"', "'", "/*", "*/", "//", "1", "defined", "__VA_ARGS__",
     "__VA_OPT__", "...", "R\"(", ")\"", "?", ":", "<", ">", "/", "@", "ä", "{", "}"]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        Preprocessor().run("f.h", text)
    except SourceError as error:
        assert error.span.line >= 1 and error.span.column >= 1
