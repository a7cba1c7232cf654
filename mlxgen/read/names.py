"""Reserved names, which operators, arguments and outputs cannot have.

Each line of names.txt has a reason and names. The first four lines have patterns. The last four
have names that formulas derive from the arguments and outputs of their entry.
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
# Names that an argument cannot have (nor an output, except ``out``), with the reason.
RESERVED = {name: reason for reason, names in _REASONS[4:-4] for name in names}

# Of these, the names with a meaning in formulas; T is not one, because only kernels use it.
FORMULA_NAMES = RESERVED.keys() - {"T"}


def better(name: str, what: str) -> str:
    """Return a similar name that ``what`` can have."""
    plain = re.sub("__+", "_", name).strip("_")
    forms = (plain, plain.lower(), f"{plain}_", f"{plain.lower()}_value", f"my_{plain.lower()}")
    return next((form for form in forms if form and clash(form, what) is None), "name")


@lru_cache(maxsize=4096)
def clash(name: str, what: str) -> str | None:
    """Return the reason why ``name`` cannot be the name of ``what``, if any."""
    if keyword.iskeyword(name):
        return "it is a Python keyword"
    for reason, pattern in _PATTERNS:
        if pattern.fullmatch(name):
            return reason
    if what == "an operator" or (name, what) == ("out", "an output"):
        return None
    return RESERVED.get(name)


def made(arrays: Iterable[str], outputs: Iterable[str]) -> dict[str, str]:
    """Return the names that formulas derive from an entry's arrays and outputs, with reasons.

    An argument, axis or loop variable of such a name would hide them.
    """
    of = [{"argument": name, "output": ""} for name in arrays]
    of += [{"argument": "", "output": name} for name in outputs]
    pairs = [(names[0], reason, each) for reason, names in _REASONS[-4:] for each in of]
    found = {name.format(**each): reason.format(**each) for name, reason, each in pairs}
    return {name: reason for name, reason in found.items() if name[-1] != "_"}
