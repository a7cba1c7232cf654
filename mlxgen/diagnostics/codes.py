"""What the codes of messages mean: the sections of errors.md, which is written by hand.

Every section has a title, an explanation, an example that has the error and one that has not; the
examples are tested.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_SECTION = re.compile(r"^### (?P<code>MG\d{3}): .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)


@cache
def sections() -> dict[str, str]:
    """All codes, in order, and their sections of errors.md."""
    text = (Path(__file__).parent / "errors.md").read_text(encoding="utf-8")
    return {section["code"]: section[0].rstrip() + "\n" for section in _SECTION.finditer(text)}
