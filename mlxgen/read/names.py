"""Names that operators, arguments and outputs cannot have: C++, Python or mlxgen use them.

names.txt says what for, a line each: why, and the names.
"""

from __future__ import annotations

import keyword
import re
from functools import lru_cache
from pathlib import Path

_OF_CPP, *_OURS = (
    {name: reason for name in names.split()}
    for reason, names in (
        line.split(": ")
        for line in (Path(__file__).parent / "names.txt").read_text(encoding="utf-8").splitlines()
    )
)
RESERVED: dict[str, str] = {name: reason for names in _OURS for name, reason in names.items()}
"""Names that an argument cannot have, and why (nor an output, except ``out``)."""

# Macros of the headers that generated C++ includes. Those in capitals differ between systems.
_MACRO = re.compile(
    r"[A-Z][A-Z0-9_]+|Py[A-Z_]\w*|(?:PRI|SCN)[diouxX]\w+|M_[A-Z0-9]\w*|(?:SYS|NB)_\w*"
    r"|linux|unix|errno|assert|assert_perror|offsetof|alloca|issubnormal|math_errhandling"
    r"|stdin|stdout|stderr|strn?dupa|va_\w+|[hl]e\d\dto\w+|be\d\dtoh|hto[bl]e\d\d|st_[acm]time"
    r"|timer(?:add|clear|cmp|isset|sub)|pthread_cleanup_\w+|sched_priority|[LP]_(?:c|t)\w+"
    r"|L_cuserid|(?:bfloat|half|complex|fp16_bf16)_binop\w*",
    re.ASCII,
)


@lru_cache(maxsize=4096)
def clash(name: str, what: str) -> str | None:
    """Why ``name`` cannot be the name of ``what``: what else Python, C++ or mlxgen use it for."""
    if keyword.iskeyword(name):
        return "it is a reserved word of Python"
    if name in _OF_CPP:
        return _OF_CPP[name]
    if _MACRO.fullmatch(name):
        return "C++ has macros of such names"
    if name[0] == "_" or "__" in name:
        return "C++ keeps names with such underscores"
    if what == "an operator" or (name, what) == ("out", "an output"):
        return None
    return RESERVED.get(name)
