"""Diagnostics: their output, and the explanations of all codes."""

import difflib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import PAGES

import mlxgen
from mlxgen.diagnostics import (
    Diagnostics,
    Fix,
    Related,
    Rendered,
    Span,
    TooMany,
    applied,
    did_you_mean,
    sections,
)
from mlxgen.diagnostics.messages import Messages, messages

FILE = "ops.yaml"
TEXT = "- name: axpby\n  varients: [function]\n"
KEY = Span(FILE, 2, 3, 2, 11)


def collector(text: str = TEXT) -> Diagnostics:
    diags = Diagnostics()
    diags.add_source(FILE, text)
    return diags


def report(diags: Diagnostics, code: str, text: str, span: Span, **more: Any) -> None:
    diags.error(Rendered(code, text, more.pop("help", None)), span, **more)


def carets(text: str, span: Span) -> list[str]:
    """Return the source line and the caret line, without the gutter."""
    diags = collector(text)
    report(diags, "MG001", "wrong", span)
    return [line[8:] for line in diags.render_text().splitlines()[1:3]]


def test_messages_are_of_one_line():
    diags = collector()
    report(diags, "MG110", "the name '\nxp2' \u2028 is not an identifier", KEY)
    assert [item.message for item in diags.sorted()] == [
        r"the name '\nxp2' \u2028 is not an identifier"
    ]


def test_text():
    diags = collector()
    message = "unknown key 'varients' (did you mean 'variants'?)"
    report(diags, "MG001", message, KEY, op="axpby", help="write 'variants'", notes=["a", "b"])
    report(diags, "MG003", "twice", Span(FILE, 1, 3, 1, 7))
    assert diags.render_text() == (
        "ops.yaml:1:3: error[MG003]: twice\n"
        "    1 | - name: axpby\n"
        "      |   ^~~~\n"
        f"ops.yaml:2:3: error[MG001]: op 'axpby': {message}\n"
        "    2 |   varients: [function]\n"
        "      |   ^~~~~~~~\n"
        "help: write 'variants'\n"
        "note: a\n"
        "note: b\n"
        "2 errors\n"
    )


def test_related_places():
    diags = collector()
    related = [Related("one", Span(FILE, 1, 3, 1, 7)), Related("two", Span("gone.h", 3, 1, 3, 2))]
    report(diags, "MG001", "wrong", KEY, help="write it", related=related)
    assert diags.render_text() == (
        "ops.yaml:2:3: error[MG001]: wrong\n"
        "    2 |   varients: [function]\n"
        "      |   ^~~~~~~~\n"
        "ops.yaml:1:3: note: one\n"
        "    1 | - name: axpby\n"
        "      |   ^~~~\n"
        "gone.h:3:1: note: two\n"
        "help: write it\n"
        "1 error\n"
    )


def test_nothing_to_say():
    assert collector().render_text() == collector().render_text(color=True) == ""
    assert collector().to_json() == "[]"
    assert collector().ok and collector().summary() == ""


def test_json():
    diags = collector()
    related = [Related("here", Span(FILE, 1, 3, 1, 7))]
    report(diags, "MG001", "wrong", KEY, op="axpby", help="dö", notes=["n"], related=related)
    assert "dö" in diags.to_json()
    assert json.loads(diags.to_json()) == [
        {
            "file": FILE,
            "line": 2,
            "column": 3,
            "end_line": 2,
            "end_column": 11,
            "code": "MG001",
            "message": "wrong",
            "severity": "error",
            "help": "dö",
            "notes": ["n"],
            "op": "axpby",
            "related": [{**related[0].span._asdict(), "message": "here"}],
        }
    ]


def test_fixes(tmp_path: Path):
    table = tmp_path / "messages.json"
    helps = {"plain": "write {better}", "gone": "leave it out"}
    fixes = {"plain": ("{better}", True), "gone": ("", False)}
    wrong = {"code": "MG001", "text": "'{name}' is wrong{guess}", "helps": helps, "fixes": fixes}
    other = {"code": "MG001", "text": "no fix", "helps": {"": "think"}, "fixes": {}}
    table.write_text(json.dumps({"wrong": wrong, "other": other}))
    about = {"name": "nmae", "better": "b", "guess": did_you_mean("nmae", ["name"], "x.{}")}
    diags = collector()
    for keys in (("plain",), ("gone",), ()):
        diags.error(Messages(table)("wrong", *keys, **about), KEY, op=str(keys))
    diags.error(Messages(table)("other"), KEY)
    fixes = [item.fix for item in diags.sorted()]
    assert fixes == [Fix(KEY, "b"), Fix(KEY, "", False), Fix(KEY, "x.name"), None]
    assert [item.help for item in diags.sorted()] == ["write b", "leave it out", None, "think"]
    shown = json.loads(diags.to_json())
    assert shown[0]["fix"] == {**KEY._asdict(), "text": "b", "certain": True}
    assert "fix" not in shown[3]


def test_fixes_are_applied():
    def at(line: int, column: int, end: int) -> Span:
        return Span(FILE, line, column, line, end)

    fixes = [
        Fix(at(2, 1, 3), "XY!"),
        Fix(at(1, 2, 3), ""),
        Fix(at(2, 2, 4), "no"),
        Fix(at(3, 1, 1), "+"),
    ]
    text, done = applied(FILE, "abc\ndef\ngh", fixes)
    assert text == "ac\nXY!f\n+gh"
    assert set(fixes) - set(done) == {fixes[2]}


def test_sorted_by_position_and_said_once():
    diags = Diagnostics()
    for line, column in ((3, 1), (1, 9), (1, 2), (3, 1)):
        report(diags, "MG001", "wrong", Span(FILE, line, column, line, column + 1))
    report(diags, "MG003", "another at the same place", Span(FILE, 3, 1, 3, 2))
    places = [(item.span.line, item.span.column, item.code) for item in diags.sorted()]
    assert places == [(1, 2, "MG001"), (1, 9, "MG001"), (3, 1, "MG001"), (3, 1, "MG003")]
    assert len(diags) == 4 and not diags.ok
    assert diags.summary() == "4 errors"


def test_warnings_are_no_errors():
    diags, other = collector(), Diagnostics()
    report(other, "MG003", "doubtful", KEY, op="axpby", help="mend it", severity="warning")
    diags.add(other)
    assert diags.ok and len(diags) == 1 and diags.summary() == "1 warning"
    assert diags.render_text().startswith("ops.yaml:2:3: warning[MG003]: op 'axpby': doubtful\n")
    assert json.loads(diags.to_json())[0]["severity"] == "warning"
    report(diags, "MG001", "wrong", KEY)
    report(diags, "MG001", "wrong", Span(FILE, 1, 1, 1, 2))
    assert not diags.ok and diags.summary() == "2 errors, 1 warning"


def test_the_first_are_shown():
    diags = Diagnostics(limit=2)
    for line in (5, 3, 1, 4, 2):
        report(diags, "MG003", "doubtful", Span(FILE, line, 1, line, 2), severity="warning")
        report(diags, "MG001", "wrong", Span(FILE, line, 1, line, 2))
    items = json.loads(diags.to_json())
    shown = [(item["line"], item["severity"]) for item in items]
    assert shown == [(1, "warning"), (1, "error"), (2, "warning"), (2, "error"), (3, "note")]
    assert items[-1]["message"] == "and 6 more"
    assert diags.render_text().endswith(
        "ops.yaml:3:1: note: and 6 more\nhelp: use `--max-errors 0` to show all\n"
        "5 errors, 5 warnings\n"
    )


def test_nothing_is_read_to_its_end_for_more_errors_than_anybody_reads():
    diags, every = Diagnostics(limit=10), Diagnostics(limit=0)
    for line in range(1, 1000):
        report(diags, "MG001", "wrong", Span(FILE, line, 1, line, 2))
    assert diags.summary() == "999 errors"
    for line in (1000, 1001):
        with pytest.raises(TooMany):
            report(diags, "MG001", "wrong", Span(FILE, line, 1, line, 2))
    assert diags.summary() == "more than 1001 errors"
    assert "note: and more than 991 more\n" in diags.render_text()
    for line in range(1, 2000):
        report(every, "MG001", "wrong", Span(FILE, line, 1, line, 2))
    assert every.summary() == "1999 errors" and every.render_text().count("error[") == 1999


def test_quoted_values_are_cut():
    diags = collector()
    message = (
        f"'x' of YAML's own is no '{'n' * 1000}', and \"{'m' * 79}\" neither; see '{'n' * 60}'"
    )
    report(diags, "MG001", message, KEY, op="axpby" * 1000, help="h" * 10000)
    (item,) = diags.sorted()
    assert item.message == (
        f"'x' of YAML's own is no '{'n' * 75}...', and \"{'m' * 75}...\" neither; see '{'n' * 60}'"
    )
    assert len(item.text) < 1000 and len(item.help or "") < 5000


def test_unexplained_code_is_refused():
    with pytest.raises(ValueError, match="MG999"):
        report(collector(), "MG999", "what?", KEY)


@pytest.mark.parametrize(
    ("text", "span", "line", "marks"),
    [
        ("abc\n", (1, 2, 1, 3), "abc", " ^"),
        ("abc\n", (1, 4, 1, 4), "abc", "   ^"),  # after the end
        ("abc\n", (1, 2, 1, 2), "abc", " ^"),  # nothing between characters
        ("abc  \n", (1, 1, 1, 6), "abc", "^~~"),  # trailing spaces are not shown
        ("\tab\n", (1, 2, 1, 4), " ab", " ^~"),  # a tab is as wide as shown
        ("ab: |\n  x\n  y\n", (1, 5, 3, 4), "ab: |", "    ^"),  # only the first of many lines
        ("日本x\n", (1, 2, 1, 3), "日本x", "  ^~"),  # wide characters
        ("e\u0301x\n", (1, 3, 1, 4), "e\u0301x", " ^"),  # a combining accent has no width
        ("a\r\nbc\r\n", (2, 1, 2, 3), "bc", "^~"),
        ("a\rbc\rd\x0be", (3, 3, 3, 4), "d e", "  ^"),  # a vertical tab does not end a line
        ("a\x1b[2Jb", (1, 6, 1, 7), "a [2Jb", "     ^"),  # no escape sequence reaches the terminal
    ],
)
def test_carets(text, span, line, marks):
    assert carets(text, Span(FILE, *span)) == [line, marks]


def test_long_lines_are_shown_around_the_span():
    text = "x" * 300 + "HERE" + "y" * 300
    line, marks = carets(text, Span(FILE, 1, 301, 1, 305))
    assert len(line) < 200
    assert line.startswith("...") and line[marks.index("^") :].startswith("HEREy")
    assert marks.strip() == "^~~~"


def test_files_are_read_when_not_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.metal").write_bytes(b"\xef\xbb\xbfkernel\xff\r\nvoid f()\r\n")
    diags = Diagnostics()
    report(diags, "MG001", "here", Span("k.metal", 2, 6, 2, 7))
    report(diags, "MG001", "no such file", Span("other.metal", 2, 6, 2, 7))
    report(diags, "MG001", "no such line", Span("k.metal", 9, 6, 9, 7))
    assert diags.render_text().splitlines() == [
        "k.metal:2:6: error[MG001]: here",
        "    2 | void f()",
        "      |      ^",
        "k.metal:9:6: error[MG001]: no such line",
        "other.metal:2:6: error[MG001]: no such file",
        "3 errors",
    ]


def test_colours_only_on_terminals(monkeypatch):
    diags = collector("[bold]\n")  # not markup
    report(diags, "MG001", "wrong [red]", Span(FILE, 1, 1, 1, 7), help="h" * 300)
    plain, coloured = diags.render_text(), diags.render_text(color=True)
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert "\x1b[1;31merror[MG001]\x1b[0m" in coloured

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def printed(stream: io.StringIO) -> str:
        diags.print(stream)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printed(io.StringIO()) == plain
    assert printed(Terminal()) == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Terminal()) == plain


def test_rich_is_imported_only_for_colours():
    code = "import sys, mlxgen.diagnostics as d; assert 'rich' not in sys.modules; d.Diagnostics()"
    root = Path(mlxgen.__path__[0]).parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


@pytest.mark.parametrize(
    ("word", "candidates", "expected"),
    [
        ("varients", ["variants", "vmap", "grad"], "variants"),
        ("Array", ["array", "axes"], "array"),
        ("flaot", ["int", "float"], "float"),
        ("x", ["y", "z"], None),
        ("kernel", ["grad"], None),
        ("grad", ["grad"], None),  # already correct
        ("a", [], None),
    ],
)
def test_suggest(word, candidates, expected):
    assert did_you_mean(word, candidates).word == expected


def test_words_of_other_languages():
    assert did_you_mean("gpu", ["cpu", "metal"]).word == "metal"
    assert did_you_mean("Half", ["float32", "float16"]).word == "float16"
    assert did_you_mean("func", ["signature", "doc"]).word == "signature"
    assert did_you_mean("func", ["function", "kernel"]).word == "kernel"


def test_did_you_mean():
    assert str(did_you_mean("varients", ["variants"])) == " (did you mean 'variants'?)"
    assert str(did_you_mean("kernel", ["grad"])) == ""


@pytest.mark.parametrize(
    ("word", "candidates", "certain"),
    [
        ("varients", ["variants", "vmap", "grad"], True),
        ("shpae", ["shape", "size"], True),
        ("Composite", ["composite"], True),
        ("gradient", ["grad"], True),
        ("axs", ["axes", "axis"], False),  # ambiguous
        ("dx", ["x", "y"], False),
        ("N", ["n"], False),
        ("log3", ["log2"], False),
        ("conv2d", ["conv3d"], False),
        ("q_scale", ["k_scale"], False),
        ("softmax_bwd", ["softmax_fwd"], False),
        ("cpu", ["dispatch"], False),  # dispatch: {cpu: ...}
    ],
)
def test_certain_guesses(word: str, candidates: list[str], certain: bool) -> None:
    guess = did_you_mean(word, candidates)
    assert guess and guess.certain == certain


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=5))
def test_suggest_gives_one_of_the_candidates(word, candidates):
    found = did_you_mean(word, candidates).word
    assert found is None or (found in candidates and found != word)


@given(st.text("abAB_1\u0130", max_size=24), st.lists(st.text("abAB_1", max_size=24), max_size=5))
def test_suggestions_are_those_of_difflib(word, candidates):
    by_lower = {other.lower(): other for other in candidates if other != word}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.65)
    assert did_you_mean(word, candidates).word == (by_lower[near[0]] if near else None)


@pytest.mark.parametrize("code", sections())
def test_codes_are_explained(code):
    page = PAGES[code]
    assert 2 <= len(page.title.split()) <= 6 and not page.title.endswith(".")
    assert page.explanation.endswith(".")
    assert page.bad.strip() and page.good.strip() and page.bad != page.good
    text = sections()[code]
    assert text.startswith(f"### {code}: {page.title}\n") and text.endswith("\n```\n")


def test_errors_page_is_in_order():
    page = (Path(mlxgen.__path__[0]) / "diagnostics" / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\w+): ", page, re.MULTILINE) == sorted(sections())
    ranges = re.findall(r"^## (MG\d)xx: ", page, re.MULTILINE)
    assert ranges == sorted({code[:3] for code in sections()})
    assert page.endswith("\n") and not page.endswith("\n\n")
    assert "\n\n\n" not in re.sub(r"```.*?```", "code", page, flags=re.DOTALL)


def test_codes_are_those_that_the_sources_report():
    reported: set[str] = set()
    root = Path(mlxgen.__path__[0])
    for path in root.rglob("*.py"):
        reported.update(re.findall(r'"(MG\d{3})"', path.read_text(encoding="utf-8")))
    for table in root.rglob("messages.yaml"):
        reported.update(message.code for message in messages(table).values())
    assert reported == set(sections())
