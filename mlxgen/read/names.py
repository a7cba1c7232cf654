"""Names that operators, arguments and outputs cannot have: C++, Python or mlxgen use them.

names.txt says what for, a line each: why, and the names; the first four have patterns.
"""

from __future__ import annotations

import keyword
import re
from functools import lru_cache
from pathlib import Path

from ..diagnostics.messages import rows

_ROWS = rows(Path(__file__).parent / "names.txt")
_REASONS = [(reason, names.split()) for reason, names in _ROWS]
_PATTERNS = [(why, re.compile("|".join(names), re.ASCII)) for why, names in _REASONS[:4]]
# Names that an argument cannot have, and why (nor an output, except ``out``).
RESERVED = {name: reason for reason, names in _REASONS[4:] for name in names}


def better(name: str, what: str) -> str:
    """A name like this one that ``what`` can have."""
    plain = re.sub("__+", "_", name).strip("_")
    forms = (plain, plain.lower(), f"{plain}_", f"{plain.lower()}_value", f"my_{plain.lower()}")
    return next((form for form in forms if form and clash(form, what) is None), "name")


@lru_cache(maxsize=4096)
def clash(name: str, what: str) -> str | None:
    """Why ``name`` cannot be the name of ``what``: what else Python, C++ or mlxgen use it for."""
    if keyword.iskeyword(name):
        return "it is a reserved word of Python"
    for reason, pattern in _PATTERNS:
        if pattern.fullmatch(name):
            return reason
    if what == "an operator" or (name, what) == ("out", "an output"):
        return None
    return RESERVED.get(name)
