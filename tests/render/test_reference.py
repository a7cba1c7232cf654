"""The reference of operators: its Markdown, as GitHub and the site read it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.op import Op
from mlxgen.plugins.common.markdown import markdown
from mlxgen.plugins.reference.pages import reference, reference_modules, reference_page
from mlxgen.read.settings import Settings
from mlxgen.read.settings import load as load_settings
from mlxgen.render.files import pieces

ROOT = Path(__file__).parents[2]
LABELS = {
    "Arguments",
    "Returns",
    "Errors",
    "Gradient",
    "Dtypes",
    "Example",
    "Backends",
    "Tags",
    "Other names",
    "Method",
    "Other languages",
}


@pytest.fixture(scope="module")
def project() -> tuple[Settings, list[Op]]:
    """The settings and the public operators of mlxops."""
    diags = Diagnostics()
    settings = load_settings(ROOT, diags)
    assert settings is not None
    ops, _ = load(settings, diags)
    return settings, [op for op in ops if not op.entry.internal]


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a Markdown page; of inline ones, the children."""
    for token in MarkdownIt().parse(text):
        yield from token.children or [] if token.type == "inline" else [token]


def test_documentation_is_no_accidental_markup(project: tuple[Settings, list[Op]]) -> None:
    """Emphasis and HTML come from the template alone, not from formulas in the documentation."""
    settings, ops = project
    for op in ops:
        page = list(tokens(reference_page([pieces(op, settings)])))
        types = [token.type for token in page]
        assert not {"em_open", "html_inline", "html_block", "blockquote_open"}.intersection(types)
        starts = [i for i, type in enumerate(types) if type == "strong_open"]
        names = {*(p.name for p in op.arguments.params), *(o.name for o in op.outputs)}
        assert {page[i + 1].content for i in starts} <= LABELS | names
        fences = [token.info for token in page if token.type == "fence"]
        assert fences == ["python", "pycon", "cpp", *settings.languages]
        assert types.count("heading_open") == 1


def test_one_page_and_many_have_the_same_parts(project: tuple[Settings, list[Op]]) -> None:
    settings, ops = project
    made = [pieces(op, settings) for op in ops]
    whole = reference(made, settings)
    index = reference(made, settings, "operators")
    functions = [found for _, module in reference_modules(made) for found in module]
    assert whole.split("\n## special.lgamma\n")[0].count("](#") == len(functions)
    assert index.count("](operators/") == len(functions) and index.count("\n## ") == 5
    for first, *others in functions:
        assert f"\n- [`{first.python_name}`](operators/{first.path}.md): {first.summary}\n" in index
        page = reference_page([first, *others], "FIGURE")
        if others:
            for piece in (first, *others):
                assert piece.usage in page and piece.usage in whole
                assert piece.details in page and piece.details in whole
        else:
            assert f"\n## {first.path}\n\n{first.usage}\n\n{first.details}\n" in whole
            assert page == f"# {first.path}\n\n{first.usage}\n\nFIGURE\n\n{first.details}\n"


def test_links_of_the_index(project: tuple[Settings, list[Op]]) -> None:
    """The links lead to the names that GitHub gives to headings: without dots, in lower case."""
    settings, ops = project
    text = reference([pieces(op, settings) for op in ops], settings)
    parsed = list(tokens(text))
    links = Counter(str(t.attrs["href"]) for t in parsed if t.type == "link_open")
    headings = {
        "#" + following.content.lower().replace(".", "")
        for token, following in itertools.pairwise(parsed)
        if token.type == "heading_open"
    }
    assert links.keys() <= headings and set(links.values()) == {1}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Sum of ``a * b`` and ``2**x``.", "Sum of ``a * b`` and ``2**x``."),
        ("Below 2**31 or 2**32.", r"Below 2\*\*31 or 2\*\*32."),
        ("If a*b*c <d> holds.", r"If a\*b\*c \<d> holds."),
        ("Code ``a\n< b`` of two lines.", "Code ``a\n< b`` of two lines."),
        ("One ` only, and\n\nx < `y`", "One ` only, and\n\nx \\< `y`"),
        ("The formula $a*b*c < d$.", "The formula $a*b*c < d$."),
        ("- a list\n- of *two*\n\n1. numbers", "- a list\n- of *two*\n\n1. numbers"),
        ("Call::\n\n  f(a < b)\n\n  g()\n\nEnd.", "Call:\n\n```text\nf(a < b)\n\ng()\n```\n\nEnd."),
        (">>> f(1 < 2)\nTrue\n\nEnd.", "```pycon\n>>> f(1 < 2)\nTrue\n```\n\nEnd."),
        ("```python\na*b*c < d\n```\n\na*b", "```python\na*b*c < d\n```\n\na\\*b"),
        ("    code(a < b)", "code(a \\< b)"),  # not code: leading space is stripped
        ("Text.\n\n    code(a < b)", "Text.\n\n    code(a < b)"),
        ("//--\n{% raw %} {# #} */ ```\n//--", "//--\n{% raw %} {# #} */ ```\n//--"),
        ("Never\n```\nclosed", "Never\n\\`\\`\\`\nclosed"),
    ],
)
def test_markdown(text: str, wanted: str) -> None:
    assert markdown(text) == wanted
