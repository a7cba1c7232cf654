"""Locations of YAML nodes, and of the single characters of scalars.

PyYAML's marks are the beginning and the end of a node. An error in a formula is somewhere between
them, and quotes, escapes, folded lines and indentation shift its location.
"""

from __future__ import annotations

import re
from functools import lru_cache

from yaml.nodes import CollectionNode, Node, ScalarNode

from ..diagnostics import LINE_BREAK

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_UNITS = {
    '"': re.compile(r"\\(?:x..|u.{4}|U.{8}|.)|.", re.DOTALL),
    "'": re.compile("''|.", re.DOTALL),
}
_CHARACTER = re.compile(".", re.DOTALL)
# Whitespace in scalars as written, including the escapes of double quotes.
_BLANKS = {
    **dict(zip(" \t\r\n", " \t\r\n", strict=True)),
    **{r"\n": "\n", r"\r": "\r", r"\t": "\t", "\\\t": "\t", r"\ ": " ", "\\\n": "", "\\\r": ""},
}


def extent(text: str, node: Node) -> tuple[int, int]:
    """Return the slice of a node, without empty lines and comments at the end of a block."""
    start, end = node.start_mark.index, node.end_mark.index
    is_block = node.style in ("|", ">") if isinstance(node, ScalarNode) else not in_flow(node)
    if is_block and end > start:
        end = _without_comments(text, start, end)
    return start, end


def _without_comments(text: str, start: int, end: int) -> int:
    """Return the end of a slice without the empty lines and comments at its end."""
    while (line := max(text.rfind("\r", start, end), text.rfind("\n", start, end))) >= 0:
        if text[line + 1 : end].lstrip(" \t")[:1] not in ("", "#"):
            break
        end = line
    return start + len(text[start:end].rstrip())


def in_flow(node: Node) -> bool:
    """Return whether a mapping or sequence is written with brackets."""
    return isinstance(node, CollectionNode) and bool(node.flow_style)


@lru_cache(4)  # several errors may be in one string
def places(text: str, node: ScalarNode) -> list[tuple[int, int]]:
    """Return the slice of ``text`` for each character of a scalar's value, and for its end.

    Characters other than whitespace are equal in the text and in the value. Whitespace differs,
    because lines are indented, folded and joined. Whitespace characters are matched from the right
    while they are equal; the others get the beginning of the whitespace.
    """
    style = node.style or ""
    start, end = node.start_mark.index, node.end_mark.index
    if properties := _PROPERTIES.match(text, start, end):
        start = properties.end()
    if style in ("|", ">"):
        header = LINE_BREAK.search(text, start, end)
        start = header.start() if header else end
    else:
        start, end = start + len(style), end - len(style)
    solid: list[tuple[int, int]] = []
    gaps: list[list[tuple[str, tuple[int, int]]]] = [[]]
    for unit in _UNITS.get(style, _CHARACTER).finditer(text, start, end):
        blank = _BLANKS.get(unit[0])
        if blank is None:
            solid.append(unit.span())
            gaps.append([])
        elif blank:
            gaps[-1].append((blank, unit.span()))
    pieces = re.split(r"([^ \t\r\n])", node.value)  # whitespace, a character, whitespace...
    if len(pieces) != len(solid) + len(gaps):
        return []
    found: list[tuple[int, int]] = []
    for i, (blanks, gap) in enumerate(zip(pieces[::2], gaps, strict=True)):
        alike: list[tuple[int, int]] = []
        for blank in reversed(blanks):
            if not gap or gap[-1][0] != blank:
                break
            alike.insert(0, gap.pop()[1])
        before = found[-1][1] if found else start
        first = gap[0][1] if gap else (before, before)
        found += [first] * (len(blanks) - len(alike)) + alike + solid[i : i + 1]
    last = found[-1][1] if found else start
    return [*found, (last, last)]
