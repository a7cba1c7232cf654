"""Names that operators, arguments and outputs cannot have: C++, Python or mlxgen use them."""

from __future__ import annotations

import keyword
import re
from functools import lru_cache

RESERVED = {
    "stream": "every operator has a stream argument already",
    "s": "generated C++ calls the stream so",
    **dict.fromkeys(("grad", "grads", "grad_out"), "gradient formulas call the cotangent so"),
    **dict.fromkeys(("tangent", "tangents"), "jvp formulas call the tangent so"),
    **dict.fromkeys(("result", "results"), "formulas call what the operator returns so"),
    "out": "kernels call the output so",
    "self": "methods in Python call their object so",
    "T": "kernels call their element type so",
    **dict.fromkeys(
        ("primals", "cotangents", "argnums", "inputs", "outputs"),
        "a method of every Primitive has a parameter of that name",
    ),
    **dict.fromkeys(("mx", "mlx", "mlxgen", "std"), "generated C++ has a namespace of that name"),
}
"""Names that an argument cannot have, and why (nor an output, except ``out``)."""

_CPP_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
    co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq
    """.split()  # noqa: SIM905
)
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
    if name in _CPP_KEYWORDS:
        return "it is a reserved word of C++"
    if _MACRO.fullmatch(name):
        return "C++ has macros of such names"
    if name[0] == "_" or "__" in name:
        return "C++ keeps names with such underscores"
    if what == "an operator" or (name, what) == ("out", "an output"):
        return None
    return RESERVED.get(name)
