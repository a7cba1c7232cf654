"""Names that operators, arguments and outputs cannot have: C++, Python or mlxgen use them.

names.txt says what for, a line each: why, and the names; the first four have patterns. The last
four are names that formulas make of the arguments and outputs of their entry.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from ..diagnostics.messages import rows

_ROWS = rows(Path(__file__).parent / "names.txt")
_REASONS = [(reason, names.split()) for reason, names in _ROWS]
_PATTERNS = [(why, re.compile("|".join(names), re.ASCII)) for why, names in _REASONS[:4]]
# Names that an argument cannot have, and why (nor an output, except ``out``).
RESERVED = {name: reason for reason, names in _REASONS[4:-4] for name in names}


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


def made(arrays: Iterable[str], outputs: Iterable[str]) -> dict[str, str]:
    """Names that some formulas of an entry have because of its arrays and outputs, and for what:
    an argument, axis or loop that is called so would hide them."""
    of = [{"argument": name, "output": ""} for name in arrays]
    of += [{"argument": "", "output": name} for name in outputs]
    pairs = [(names[0], reason, each) for reason, names in _REASONS[-4:] for each in of]
    found = {name.format(**each): reason.format(**each) for name, reason, each in pairs}
    return {name: reason for name, reason in found.items() if name[-1] != "_"}
