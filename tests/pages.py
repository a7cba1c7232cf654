"""Parses the sections of errors.md, for tests of their examples."""

import re
from typing import NamedTuple

from mlxgen.diagnostics import sections


class Page(NamedTuple):
    """A code's title, explanation and examples."""

    title: str
    explanation: str
    language: str
    bad: str
    good: str


_SECTION = re.compile(
    r"### MG\d{3}: (.+)\n\n(.+)\n\n```(\w+)\n(.+?)\n```\n\nInstead:\n\n```\3\n(.+?)\n```\n",
    re.DOTALL,
)


def _page(text: str) -> Page:
    found = _SECTION.fullmatch(text)
    assert found, text
    return Page(*found.groups())


PAGES = {code: _page(text) for code, text in sections().items()}
