"""Entries as plain data, locations of keys and values, and mistakes that YAML accepts."""

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pages import PAGES

from mlxgen.diagnostics import LINE_BREAK, Diagnostics, Span
from mlxgen.read import compose
from mlxgen.read.yaml import Documents, Entry

LOADERS = [yaml.SafeLoader]
if yaml.__with_libyaml__:
    LOADERS.append(yaml.CSafeLoader)


def use(base, patch):
    """Use one of PyYAML's parsers."""
    patch.setattr(compose, "Loader", type("Loader", (compose._Limits, base), {}))


@pytest.fixture(params=LOADERS, ids=lambda loader: loader.__name__)
def loader(request, monkeypatch):
    """Both of PyYAML's parsers, because an installation may lack libyaml."""
    use(request.param, monkeypatch)


def parse(text: str) -> tuple[Documents | None, Diagnostics]:
    diags = Diagnostics()
    document = Documents.parse({"ops.yaml": text}, diags)
    for item in document.entries if document else ():
        assert isinstance(item.data, dict)  # errors in an entry are reported when it is read
    return document, diags


def entry(text: str) -> Entry:
    document, diags = parse(text)
    assert diags.render_text() == ""
    assert document is not None
    return document.entries[0]


def offset(text: str, line: int, column: int) -> int:
    starts = [0, *(match.end() for match in LINE_BREAK.finditer(text))]
    return starts[line - 1] + column - 1


def marked(text: str, span: Span) -> str:
    """Return the part of ``text`` that a span covers."""
    start = offset(text, span.line, span.column)
    return text[start : offset(text, span.end_line, span.end_column)]


def errors(text: str) -> list[tuple[str, str, int]]:
    """Return code, marked text and line of each error."""
    _, diags = parse(text)
    return [(item.code, marked(text, item.span), item.span.line) for item in diags.sorted()]


# ---- data --------------------------------------------------------------------------------------


def test_scalars_are_text(loader):
    data = entry(
        "- name: 12\n  composite: 0\n  shape: 1:30\n  doc: 2020-01-01\n"
        "  grad: {x: 1e-5, y: .5, z: true, w: 0x10, v: 010}\n"
        "  dispatch:\n    cpu: {kernel: k, grid: [1, 2, n], constants: {n: 1_000}}\n"
        "  checks:\n    - that: False\n      else: 5\n"
    ).data
    assert data == {
        "name": "12",
        "composite": "0",
        "shape": "1:30",
        "doc": "2020-01-01",
        "grad": {"x": "1e-5", "y": ".5", "z": "true", "w": "0x10", "v": "010"},
        "dispatch": {
            "cpu": {"kernel": "k", "grid": ["1", "2", "n"], "constants": {"n": "1_000"}},
        },
        "checks": [{"that": "False", "else": "5"}],
    }


def test_typed_keys_have_values(loader):
    data = entry(
        "- samples: [1, -2, 0, 0.5, +3, 1.5, 1e-5, 1E3, .5, 0x10, .inf, -.INF, true, off, ~,"
        " '1', x, 010, 1:30, 2020-01-01, {a: 1}]\n  deprecated: true\n"
    ).data
    assert data["samples"] == [
        *(
            1,
            -2,
            0,
            0.5,
            3,
            1.5,
            1e-5,
            1e3,
            0.5,
            16,
            float("inf"),
            float("-inf"),
            True,
            False,
            None,
        ),
        *("1", "x", "010", "1:30", "2020-01-01", {"a": 1}),
    ]
    assert [type(value) for value in data["samples"][:6]] == [int, int, int, float, int, float]
    assert data["deprecated"] is True


def test_merge_keys(loader):
    text = (
        "- &a\n  name: a\n  grad: {x: '1', y: '2'}\n  samples: [1]\n"
        "- &b\n  <<: *a\n  name: b\n  doc: B\n"
        "- <<: [*b, *a]\n  name: c\n  grad:\n    <<: {x: '3', z: '4'}\n    x: '5'\n"
    )
    document, diags = parse(text)
    assert diags.ok
    assert [item.data for item in document.entries] == [
        {"name": "a", "grad": {"x": "1", "y": "2"}, "samples": [1]},
        {"name": "b", "grad": {"x": "1", "y": "2"}, "samples": [1], "doc": "B"},
        {"name": "c", "grad": {"x": "5", "z": "4"}, "samples": [1], "doc": "B"},
    ]
    b, c = document.entries[1:]
    assert marked(text, b.span(("grad", "y"))) == "'2'"
    assert b.span(("grad", "y")).line == 3
    assert c.span(("grad", "x")).line == 13
    assert c.span(("grad", "z"), key=True).line == 12
    assert c.span(("doc",)).line == 8


def test_empty_files_have_no_entries(loader):
    for text in ("", "\n", "# nothing\n", "---\n", "[]\n"):
        document, diags = parse(text)
        assert document.entries == [] and document.complete
        assert len(diags) == 0


def test_aliases_share_values(loader):
    text = "- grad: &g\n    x: &f alpha * grad\n    y: *f\n- grad: *g\n"
    document, diags = parse(text)
    assert diags.ok
    assert document.entries[1].data == {"grad": {"x": "alpha * grad", "y": "alpha * grad"}}
    assert marked(text, document.entries[1].text_span(("grad", "y"), 8, 12)) == "grad"


# ---- what is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # MG001: what YAML cannot read
        ("- a: 'x\n", [("MG001", "'", 1)]),
        ('- a: "x\n- b: 1\n', [("MG001", '"', 1)]),
        ("- name: 'a\n  x: 1\n- name: 'b'\n", [("MG001", "'", 1)]),
        ("- a: [1,\n- b: 2\n", [("MG001", "\n", 1)]),
        ("- a: {x: [1, 2}\n  b: c\n", [("MG013", "}", 1)]),
        ('- a: "\\q"\n', [("MG001", "\\", 1)]),
        ("- a: b\n c: d\n", [("MG001", "c", 2)]),
        ("- a: \x01b\n", [("MG001", "\x01", 1)]),
        ("- a: x\u2028y\n", [("MG001", "\u2028", 1)]),
        # MG002: tabs
        ("- a: b\n\tc: d\n", [("MG002", "\t", 2)]),
        ("-\ta: b\n", [("MG002", "\t", 1)]),
        ("- a:\n\t\tb: c\n", [("MG002", "\t", 2)]),
        # MG003: twice
        ("- a: x\n  b: y\n  a: z\n", [("MG003", "a", 3)]),
        ("- grad: {x: u, x: v, x: w}\n", [("MG003", "x", 1)] * 2),
        ("- a: x\n  'a': z\n", [("MG003", "'a'", 2)]),
        # MG004: no list
        ("ops:\n  - a: b\n", [("MG004", "ops:", 1)]),
        ("foo\n", [("MG004", "foo", 1)]),
        # MG005: several documents
        ("- a: b\n---\n- c: d\n--- # more\n- e: f\n", [("MG005", "-", 2), ("MG005", "-", 4)]),
        # MG006: no mapping
        ("- add\n- [x]\n", [("MG006", "add", 1), ("MG006", "[x]", 2)]),
        # MG008: depth
        ("- a: &x\n    b: *x\n", [("MG008", "&x\n    b: *x", 1)]),
        ("- a: &x [*x, *x]\n", [("MG008", "&x [*x, *x]", 1)]),
        ("- &x\n  <<: *x\n  a: b\n", [("MG008", "&x\n  <<: *x\n  a: b", 1)]),
        ("- a: " + "[" * 100 + "]" * 100, [("MG008", "[", 1)]),
        ("- a: " + "[" * 1000, [("MG008", "[", 1)]),  # also a limit of libyaml 0.2.6
        ("- a: " + "{" * 1000, [("MG008", "{", 1)]),
        ("- " * 100_000 + "x", [("MG008", "-", 1)]),
        # MG009: tags
        ("- a: !mine b\n", [("MG009", "!mine b", 1)]),
        ("- a: !!set {b: c}\n", [("MG009", "!!set {b: c}", 1)]),
        ("- a: !!python/object:os.system [b]\n",
         [("MG009", "!!python/object:os.system [b]", 1)]),
        # MG010: booleans
        ("- name: on\n", [("MG010", "on", 1)]),
        ("- tags: [a, No]\n", [("MG010", "No", 1)]),
        ("- args:\n    x: off\n", [("MG010", "off", 2)]),
        ("- grad:\n    no: x\n    true: y\n", [("MG010", "no", 2), ("MG010", "true", 3)]),
        # MG011: keys
        ("- 1: x\n", [("MG011", "1", 1)]),
        ("- ? [a, b]\n  : x\n", [("MG011", "[a, b]", 1)]),
        ("- ~: x\n", [("MG011", "~", 1)]),
        ("- 2020-01-01: x\n", [("MG011", "2020-01-01", 1)]),
        # MG012: no value
        ("- grad:\n    x:\n    y: ~\n    z: null\n",
         [("MG012", "", 2), ("MG012", "~", 3), ("MG012", "null", 4)]),
        ("- samples:\n", [("MG012", "", 1)]),
        ("- tags:\n  - a\n  -\n", [("MG012", "", 3)]),
        ("- grad: {x: where(a, b), y: c}\n", [("MG012", "", 1)]),
        # MG013: quotes
        ("- signature: f(x: array) -> array\n", [("MG013", ":", 1)]),
        ("- grad:\n    x: *grad\n", [("MG013", "*", 2)]),
        ("- a: @b\n", [("MG013", "@", 1)]),
        ("- a: `b`\n", [("MG013", "`", 1)]),
        # MG014: merges
        ("- <<: foo\n", [("MG014", "foo", 1)]),
        ("- <<: [{a: b}, c]\n", [("MG014", "c", 1)]),
    ],
)  # fmt: skip
def test_errors(loader, text, expected):
    found = errors(text)
    if issubclass(compose.Loader, yaml.SafeLoader) and expected[0][0] in (
        "MG001",
        "MG002",
        "MG013",
    ):
        # PyYAML's own parser reports some mistakes at other locations than libyaml.
        assert len(found) == len(expected)
        return
    assert found == expected


REST = '  signature: "f(x: array) -> array"\n  composite: x\n'


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("- name:f\n" + REST, "MG013", 2, 12),
        ("- name = f\n  composite = x\n", "MG006", 1, 3),
        ("- name: f\n" + REST + "  vmap\n", "MG001", 4, 3),
        ("// f\n- name: f\n" + REST, "MG004", 1, 1),
        ("- name: f\n  /* f */\n" + REST, "MG001", 2, 3),
        ("- name: f\n% f\n" + REST, "MG001", 2, 1),
        ("- name: f\n<<<<<<< a\n" + REST, "MG001", 2, 1),
        ("- name: f\n  doc: |\n  F.\n" + REST, "MG001", 3, 3),
        ("- name: a\n  doc: A.\nname: f\n" + REST, "MG001", 3, 1),
        ("- name: f\n    doc: F.\n", "MG013", 2, 8),
        ("- name: a\n  doc: A.\n  - name: f\n    doc: F.\n", "MG001", 3, 3),
        ("* name: f\n" + REST, "MG013", 1, 1),
        ("- name: f, doc: F.\n" + REST, "MG013", 1, 15),
        ('- name: "f",\n' + REST, "MG013", 1, 12),
        ('- name: "f\n  signature: "f(x: array)"\n', "MG013", 2, 15),
        ("- name: f\n  doc: x[\n  vmap: [x][0]\n", "MG013", 3, 12),
        ("- name: f\n  doc: it's: fine\n" + REST, "MG013", 2, 12),
        ("- name: f\n  doc: |x\n    y\n", "MG013", 2, 8),
        ("- name: f\n  tags: [nn,\n  doc: F.\n", "MG001", 2, 9),
        ("- name: f\n  grad: {x: where(a, b, c)}\n" + REST, "MG012", 2, 23),
        ("- name: f\n" + REST + "  grad:\n  x: grad\n", "MG012", 4, 8),
        ("All of them.\n- name: f\n" + REST, "MG004", 1, 1),
    ],
)
def test_a_mistake_is_one_message(text, code, line, column):
    """A mistake in one entry causes one message, and the next entry is parsed."""
    document, diags = parse(text + "- name: next\n")
    (item,) = diags.sorted()
    assert (item.code, item.span.line, item.span.column) == (code, line, column)
    assert item.help
    assert [entry.name for entry in document.entries][-1] == "next"


def test_errors_name_the_operator(loader):
    _, diags = parse("- doc: x\n  grad: {x: }\n  name: add\n- grad: {x: }\n- name: [1, 2]\n  a:\n")
    assert [item.op for item in diags.sorted()] == ["add", None, None]


def test_no_value_says_what_to_write():
    _, diags = parse(
        "- grad:\n    x:\n- grad: {x: f(a, b)}\n- name: a\n  doc:\n  samples: {x: , y: [~]}\n"
    )
    assert [item.help for item in diags.sorted()] == [
        "write 'none' if no gradient exists, 'zero' if it is zero",
        "quote a value that contains commas or braces",
        "add a value, or remove it",
    ]


def test_a_formula_in_braces_may_repeat_a_name():
    _, diags = parse("- grad: {x: where(a, x, f(b, c))}\n- grad: {x: a, x: b}\n")
    assert [(item.code, item.span.column) for item in diags.sorted()] == [
        ("MG012", 23),
        ("MG003", 16),
    ]


def test_a_syntax_error_costs_one_entry(loader):
    text = (
        "- name: a\n- name: b\n  doc: x: y\n- name: c\n- name: d\n  grad: [\n- name: e\n"
        "---\n- name: f\n  doc: 'x' y\n- name: g\n  doc: no\n"
    )
    document, diags = parse(text)
    assert [item.data["name"] for item in document.entries] == ["a", "c", "e", "g"]
    assert not document.complete
    assert [item.code for item in diags.sorted()] == ["MG013", "MG001", "MG005", "MG013", "MG010"]
    assert document.entries[2].span(("name",)) == Span("ops.yaml", 7, 9, 7, 10)


def test_many_syntax_errors_come_to_an_end(loader):
    document, diags = parse("- a: b: c\n" * 2000)
    assert document is None
    assert diags.summary() == "more than 1000 errors"
    document, diags = parse("- a: b\n---\n" * 100)
    assert document is None
    assert 10 < len(diags) < 100


def test_data_of_entries_with_errors():
    text = "- name: a\n  name: b\n  no: x\n  1: y\n  '2': ''\n  doc: !t z\n"
    document, diags = parse(text)
    assert len(diags) == 4
    assert document.entries[0].data == {"name": None, "2": "", "doc": None}
    assert document.complete


def merges(count: int) -> str:
    """Return entries that each merge the previous one."""
    chain = (f"- &m{i}\n  <<: *m{i - 1}\n  name: f{i}\n  k{i}: v\n" for i in range(1, count))
    return "- &m0 {name: f0, doc: x}\n" + "".join(chain)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("- x\n" * 300_000, "MG015"),
        ("- name: f\n  doc: [" + "a," * 300_000 + "]\n", "MG015"),
        ("- &a {samples: [&b [" + "x, " * 1000 + "]" + ", *b" * 1000 + "]}\n", "MG015"),
        ("- &a {k: [" + "x, " * 3000 + "]}\n" + "- *a\n" * 100, "MG015"),
        (merges(3000), "MG015"),
        ("- &a0 [x]\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 99)), "MG008"),
        ("- " + "{a: " * 100_000, "MG008"),
        ("\0" * 1_000_000, "MG001"),
    ],
    ids=range(8),
)
def test_files_that_would_be_read_without_end(text, code):
    _, diags = parse(text)
    assert code in {item.code for item in diags.sorted()} and len(diags) < 100


def test_chains_of_merges():
    document, diags = parse(merges(380))
    assert diags.ok and len(document.entries[-1].data) == 381


def test_files_that_are_too_large(tmp_path):
    path = tmp_path / "ops.yaml"
    path.write_text("#" * 6_000_000 + "é")
    diags = Diagnostics()
    assert Documents.load([str(path)], diags) is None
    assert [item.message for item in diags.sorted()] == ["the file is larger than 5 MB"]
    assert len(diags.render_text()) < 200


@pytest.mark.parametrize("code", sorted(code for code in PAGES if code < "MG1"))
def test_examples_of_codes(code):
    if code == "MG007":
        return
    _, bad = parse(PAGES[code].bad)
    _, good = parse(PAGES[code].good)
    assert {item.code for item in bad.sorted()} == {code}
    assert good.render_text() == ""


def test_files_that_cannot_be_read(tmp_path):
    for name, raw, place in (
        ("missing.yaml", None, (1, 1, 1, 1)),
        ("latin.yaml", "- name: a\n  doc: é\n".encode("latin-1"), (2, 8, 2, 9)),
        ("utf16.yaml", "- name: a\n".encode("utf-16"), (1, 1, 1, 2)),
        (".", None, (1, 1, 1, 1)),
    ):
        path = tmp_path / name
        if raw:
            path.write_bytes(raw)
        diags = Diagnostics()
        assert Documents.load([str(path)], diags) is None
        (item,) = diags.sorted()
        assert (item.code, item.span) == ("MG007", Span(str(path), *place))


def test_byte_order_mark_and_line_ends(tmp_path, loader):
    path = tmp_path / "ops.yaml"
    path.write_bytes("\ufeff- name: é\r\n  doc: |\r\n    a\r\n    b\r\n".encode())
    diags = Diagnostics()
    document = Documents.load([str(path)], diags)
    item = document.entries[0]
    assert diags.ok
    assert item.data == {"name": "é", "doc": "a\nb\n"}
    assert item.span(("name",)) == Span(str(path), 1, 9, 1, 10)
    assert item.text_span(("doc",), 2, 3) == Span(str(path), 4, 5, 4, 6)
    assert document.parts[0].lines == ["- name: é", "  doc: |", "    a", "    b", ""]


# ---- places ------------------------------------------------------------------------------------

SPANS = """\
# operators
- name: axpby   # the first
  grad:
    x: alpha * grad

    "y, z": [a,
      b]
  # a comment, not part of it

- tags: [one, two]
  doc: |
    Text.

  checks:
    - that: n > 0
      else: bad
"""


@pytest.mark.parametrize(
    ("index", "path", "key", "expected"),
    [
        (0, ("name",), False, "axpby"),
        (0, ("name",), True, "name"),
        (0, ("grad",), True, "grad"),
        (0, ("grad",), False, 'x: alpha * grad\n\n    "y, z": [a,\n      b]'),
        (0, ("grad", "y, z"), True, '"y, z"'),
        (0, ("grad", "y, z"), False, "[a,\n      b]"),
        (0, ("grad", "y, z", 1), False, "b"),
        (0, ("grad", "y, z", 1), True, "b"),
        (1, ("tags", 1), False, "two"),
        (1, ("doc",), False, "|\n    Text."),
        (1, ("checks", 0), False, "that: n > 0\n      else: bad"),
        (1, ("checks", 0, "else"), False, "bad"),
        # a short form counts as the long one: a string as a mapping, one item as a list
        (0, ("name", "x"), False, "axpby"),
        (0, ("name", "x", 1), True, "name"),
        (0, ("grad", 0, "x"), False, "alpha * grad"),
        # what is not there: the nearest key, or the first line
        (0, ("grad", "w"), False, "grad"),
        (0, ("grad", "w", "v"), True, "grad"),
        (0, ("vmap",), False, "name: axpby   # the first"),
        (0, ("vmap", 0), True, "name: axpby   # the first"),
        (1, ("tags", 2), False, "tags"),
        (1, ("tags", -1), False, "tags"),
        (1, ("tags", "x"), False, "tags"),
        (1, ("checks", 0, "x"), False, "that: n > 0"),
    ],
)
def test_spans(loader, index, path, key, expected):
    document, diags = parse(SPANS)
    assert diags.ok
    assert marked(SPANS, document.entries[index].span(path, key=key)) == expected


def test_span_of_an_entry(loader):
    document, _ = parse(SPANS)
    first, second = (marked(SPANS, item.span()) for item in document.entries)
    assert first.startswith("name: axpby") and first.endswith("b]")
    assert second.startswith("tags") and second.endswith("bad")


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("scalar", "piece", "expected"),
    [
        ("a * b", "*", "*"),
        ("'it''s * b'", "*", "*"),
        ("'it''s * b'", "'s", "''s"),
        (r'"\x61 \u00e9\U0001F600 * \" b"', "*", "*"),
        (r'"\x61 \u00e9\U0001F600 * \" b"', "\u00e9", r"\u00e9"),
        (r'"\x61 \u00e9\U0001F600 * \" b"', "\U0001f600 *", r"\U0001F600 *"),
        (r'"\x61 \u00e9\U0001F600 * \" b"', '"', r"\""),
        ('"a \\\n      b * c"', "b", "b"),
        ('"a\n\n      b\n    * c"', "*", "*"),
        ("a\n      b   # c", "b", "b"),
        ("a\n\n      b", "\nb", "\n\n      b"),
        ("&anchor !!str 'x * y'", "*", "*"),
        ("|\n    a\n     b * c\n    d\n", "*", "*"),
        ("|\n    a\n     b * c\n    d\n", " b", " b"),
        ("|  # a comment\n    a\n\n    * c\n", "*", "*"),
        ("|2\n      a\n    * c\n", "*", "*"),
        ("|2\n      a\n    * c\n", "  a", "  a"),
        ("|-\n\n\n    a\n    * c\n", "*", "*"),
        ("|+\n    a *\n\n\n", "*", "*"),
        (">\n    a\n    b\n    * c\n", "*", "*"),
        (">\n    a\n    b\n    * c\n", "b *", "b\n    *"),
        (">\n    a\n\n\n    b\n      * more\n    d\n", "* more", "* more"),
        (">-\n    a\n      - b\n\n      - c\n\n    d *\n", "*", "*"),
        (">1\n    a\n   b *\n", "*", "*"),
    ],
)
def test_text_span(loader, line_break, scalar, piece, expected):
    text = f"- name: q\n  grad:\n    x: y\n  doc: {scalar}\n".replace("\n", line_break)
    item = entry(text)
    value = item.data["doc"]
    start = value.index(piece)
    span = item.text_span(("doc",), start, start + len(piece))
    assert marked(text, span) == expected.replace("\n", line_break)


def test_text_span_at_the_edges(loader):
    text = "- doc: 'a''b'\n  name: |\n    x\n  tags: ''\n"
    item = entry(text)
    at_end = item.text_span(("doc",), 3, 3)
    assert (at_end.column, at_end.end_column) == (13, 13)
    assert marked(text, item.text_span(("doc",), 0, 3)) == "a''b"
    assert marked(text, item.text_span(("doc",), 0, 4)) == "'a''b'"  # beyond: all of it
    assert marked(text, item.text_span(("doc",), 2, 1)) == "'a''b'"
    assert marked(text, item.text_span(("tags",), 0, 0)) == ""
    assert marked(text, item.text_span(("name",), 0, 1)) == "x"
    assert marked(text, item.text_span(("name",), 1, 2)) == "\n"  # the break is its line's
    assert marked(text, item.text_span(("name", "x"), 0, 1)) == "x"
    assert marked(text, item.text_span(("nothing",), 0, 1)) == "doc: 'a''b'"


ATOMS = st.sampled_from(
    [*"ab* ()[]{}:,'\"\\#|>-é日\n\n", "  ", "\n  ", " \n", "\t", "\u0301", "\U0001f600", "\xa0"]
)
VALUES = st.lists(ATOMS, max_size=25).map("".join)


@settings(max_examples=300, deadline=None)
@example("  aaaaa a", ">", 10, False, 2, yaml.SafeLoader)  # which PyYAML writes as "  aaaaa\na"
@given(
    VALUES,
    st.sampled_from([None, "'", '"', "|", ">"]),
    st.integers(10, 60),
    st.booleans(),
    st.integers(2, 6),
    st.sampled_from(LOADERS),
)
def test_every_character_has_its_place(value, style, width, unicode, indent, yaml_loader):
    """The characters of a value are located in all styles that PyYAML writes."""
    text = yaml.dump(
        [{"doc": value, "name": "next"}],
        default_style=style, width=width, allow_unicode=unicode, indent=indent, sort_keys=False,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        use(yaml_loader, patch)
        item = entry(text)
    value = item.data["doc"]
    assert value == yaml.load(text, yaml_loader)[0]["doc"]
    spans = [item.text_span(("doc",), i, i + 1) for i in range(len(value))]
    assert [(s.line, s.column) for s in spans] == sorted((s.line, s.column) for s in spans)
    for char, span in zip(value, spans, strict=True):
        piece = marked(text, span)
        if char in " \n\t":
            assert not piece.strip() or piece in ("\\n", "\\t", "\\ ")
        elif piece.startswith("\\") and len(piece) > 1:
            assert yaml.safe_load(f'"{piece}"') == char
        else:
            assert piece == (char * 2 if char == piece[1:] == "'" else char)


PIECES = st.sampled_from(
    [
        *("- ", "name: ", "grad:\n", "    ", "  ", "\n", "\n- ", "x", "no", "~", "1e-5", ": ", ","),
        *("'", '"', "[", "]", "{", "}", "&a ", "*a", "<<: ", "|\n", ">-\n", "#", "!!set ", "!t "),
        *("---\n", "...\n", "\t", "? ", "\\", "\ufeff", "\x00", "\r\n", "é", "@", "%", "1", "''"),
    ]
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=40).map("".join), st.sampled_from(LOADERS))
def test_nothing_but_diagnostics(text, yaml_loader):
    """Any text causes no exception, locations inside the file, and errors for missing entries."""
    with pytest.MonkeyPatch.context() as patch:
        use(yaml_loader, patch)
        document, diags = parse(text)
        diags.render_text()
    assert document is not None or not diags.ok
    lines = LINE_BREAK.split(text.removeprefix("\ufeff"))
    for item in diags.sorted():
        span = item.span
        assert 1 <= span.line <= span.end_line <= len(lines)
        assert 1 <= span.column <= len(lines[span.line - 1]) + 1
        assert (span.line, span.column) <= (span.end_line, span.end_column)
    if document is not None:
        assert document.complete or not diags.ok
        for item in document.entries:
            assert all(isinstance(key, str) for key in item.data)
            for key in item.data:
                item.span((key,))
                item.text_span((key,), 0, 1)


def test_entries_are_read_when_asked():
    text = (
        "- &a\n  name: a\n  doc: Twice x.\n  doc: no\n- signature: array b(const array& x)\n"
        "  doc: Twice x.\n- signature: array b(const array& x)\n  doc: Twice x.\n"
        "- {<<: *a, name: c}\n-   name: a\n    doc: |2\n        x\n"
    )
    diags = Diagnostics()
    document = Documents.parse({"ops.yaml": text}, diags)
    a, b, again, c, d = document.entries
    assert [item.name for item in document.entries] == ["a", "b", "b", "c", "a"]
    assert b.text.startswith("signature: array b(") and b.text.endswith("doc: Twice x.\n")
    assert b.key == again.key != a.key
    assert b.data and diags.ok
    assert "Twice" in c.key and "Twice" not in c.text  # what it merges belongs to it
    assert c.data and diags.ok
    assert a.data and not diags.ok
    assert [item.code for item in diags.sorted()] == ["MG003"]
    assert d.key.startswith("4 ")


@pytest.mark.parametrize("before", ["", ">-\n    ", "|2-\n    ", "\n    "])
def test_names_of_entries(before):
    document, _ = parse(f"- signature: {before}cubed(array x) -> array\n- name: other\n")
    assert document.names() == {"cubed", "other"}
