"""Documentation in Markdown, for the reference and for other languages.

An entry's own documentation is the only text that is read here: it marks code as docstrings do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence


def laid_out(head: str, params: Sequence[str]) -> str:
    """Return a declaration; one parameter per line if it is long."""
    line = f"{head}({', '.join(params)});"
    lines = ",\n".join(f"    {param}" for param in params)
    return line if len(line) <= 88 else f"{head}(\n{lines});"


_MARKUP = re.compile(
    r"(?P<fence>^(?P<mark>```+|~~~+).*?^(?P=mark)[`~]*\s*?$)"
    r"|::[ ]*\n(?P<literal>(?:[ ]*\n|[ ]+[^\n]+(?:\n|\Z))+)"
    r"|(?P<doctest>^>>> (?:[^\n]+(?:\n|\Z))+)"
    r"|(?P<code>^[ ]{4,}[^\n]*$|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ ]*\n).)+?(?<!`)(?P=ticks)(?!`)"
    r"|\$[^$\n]+\$)"
    r"|(?P<escaped><|^```|^~~~|(?<=\w)\*+(?=\w))",
    re.MULTILINE | re.DOTALL,
)


def markdown(text: str) -> str:
    """Return an entry's documentation as Markdown.

    Code in double backticks, lists, fenced blocks and formulas are the same in Markdown. Literal
    blocks (``::``) and doctests become fenced blocks. Outside of code ``2**3`` and ``<`` are plain
    text, as in a docstring.
    """
    return _MARKUP.sub(_as_markdown, text.strip())


def _as_markdown(found: re.Match[str]) -> str:
    if literal := found["literal"]:
        return f":\n\n```text\n{textwrap.dedent(literal).strip()}\n```\n\n"
    if doctest := found["doctest"]:
        return f"```pycon\n{doctest.strip()}\n```\n"
    if escaped := found["escaped"]:
        return "".join(f"\\{c}" for c in escaped)
    return found[0]
