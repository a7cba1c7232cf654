"""Parses the defaults in signatures: literals in C++, Python and torch spelling."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from functools import lru_cache

from ..diagnostics import Guess, did_you_mean
from ..model.dtypes import DTYPES
from ..model.signature import ESCAPES, INT64_MIN, Default, Kind, Type, quoted

_NOT_FINITE = re.compile(
    r"""([-+]?)\s*(?:(?:math\.|mx\.|np\.)?(?:inf|nan)|INFINITY|NAN|float\(["'](-?)(?:inf|nan)["']\)
    |std::numeric_limits<(?:float|double)>::(?:infinity|quiet_NaN)\(\))""",
    re.VERBOSE,
)
_STRING = re.compile(r""" "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' """, re.VERBOSE)
_LIST = r"(?:[-+\d.,eE\s]|True|False)*"
_NUMBERS = re.compile(rf"[-+]?\s*[\d.][-+\d.eE]*|\[{_LIST}\]|\({_LIST}\)", re.ASCII)
_CPP_LIST = re.compile(
    r"(?:std::vector<(?:int|double|bool)>|(?:mx::|mlx::core::)?Shape)?\s*\{([^\[({]*)\}"
)
_NESTED = re.compile(r"[\[(][\[\]()\d,\s-]*", re.ASCII)
_CPP_ARRAY = re.compile(r"(?:mx::|mlx::core::)?array\((.*)\)")
_BRACES = str.maketrans("{}", "[]")
_CPP_SUFFIX = re.compile(r"(?<=[\d.])[fFlL]$")
_NAMESPACE = re.compile(r"^(?:mx::|mlx::core::|mx\.|mlx\.core\.)")
_UNESCAPE = {**{escape[-1]: char for char, escape in ESCAPES.items()}, "'": "'"}
_FLOAT_MAX = 3.4028235677973366e38  # the largest double that is rounded to it
_LIMITS = {"INT_MAX": 2**31 - 1, "INT_MIN": -(2**31), "INT64_MAX": 2**63 - 1, INT64_MIN: -(2**63)}
_CPP_WORDS = {"true": True, "false": False, "std::nullopt": None, **_LIMITS}
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_NO_VALUE = ("None", "nullopt", "std::nullopt", "nullptr", "NULL", "null", "nil")


def string_of(text: str) -> str | None:
    """Return the value of a string literal; None for escapes other than \\n, \\t, quotes and \\."""
    if not _STRING.fullmatch(text) or any(c not in _UNESCAPE for c in re.findall(r"\\(.)", text)):
        return None
    return re.sub(r"\\(.)", lambda match: _UNESCAPE[match[1]], text[1:-1])


def _literal(text: str, spelling: str) -> object:
    """Return the value of a literal; raise ``ValueError`` or ``SyntaxError`` for other text."""
    words = _CPP_WORDS if spelling == "C++" else _PYTHON_WORDS
    if text in words:
        return words[text]
    if not_finite := _NOT_FINITE.fullmatch(text):
        negative = (not_finite[1] == "-") != (not_finite[2] == "-")
        return math.nan if "nan" in text.lower() else -math.inf if negative else math.inf
    string = string_of(text)
    if string is not None and (text[0] == '"' or spelling != "C++"):
        return string
    if spelling == "C++":
        if text[0] in "[(":
            raise ValueError(text)
        items = _CPP_LIST.fullmatch(text)
        listed = items and items[1].replace("true", "True").replace("false", "False")
        text = f"[{listed}]" if items else _CPP_SUFFIX.sub("", text)
    if not _NUMBERS.fullmatch(text):
        raise ValueError(text)
    value = ast.literal_eval(text)
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(text)
    return tuple(value) if isinstance(value, list) else value


def _nested(text: str, spelling: str) -> object:
    """Return a list of lists as tuples; None for other text."""
    if spelling == "C++":
        text = text.removeprefix("std::vector<std::vector<int>>").translate(_BRACES)
    if not _NESTED.fullmatch(text):
        return None
    value = ast.literal_eval(text)
    lists = isinstance(value, list | tuple) and all(isinstance(v, list | tuple) for v in value)
    return tuple(map(tuple, value)) if lists else None


@lru_cache(maxsize=4096)
def default_of(text: str, type: Type, spelling: str) -> Default | None:
    """Parse a default; return None if it is invalid for ``type``."""
    kind = type.kind
    if kind is Kind.DTYPE and (name := _NAMESPACE.sub("", text)) in DTYPES:
        return Default(name, type)
    array = _CPP_ARRAY.fullmatch(text) if kind is Kind.ARRAY and spelling == "C++" else None
    try:
        value = _nested(text, spelling) if kind is Kind.NESTED else None
        if value is None:
            value = _literal(array[1] if array else text, spelling)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and kind is Kind.FLOAT:
            value = float(value)  # type: ignore[arg-type]
        if kind is Kind.FLOATS and isinstance(value, tuple):
            value = tuple(map(float, value))
    except (ValueError, SyntaxError, OverflowError, RecursionError, MemoryError):
        return None
    if type.optional and (value is None or (value == () and spelling == "C++")):
        return Default(None, type)
    if type.single and isinstance(value, float) and _FLOAT_MAX < abs(value) < math.inf:
        return None
    value = type.spread(value)
    absent = type.is_array and type.optional and not type.is_union  # None is the only default
    fits = type.takes(value) and kind is not Kind.DTYPE and not absent
    return Default(value, type) if fits else None  # type: ignore[arg-type]


def default_problem(
    text: str, type: Type, spelling: str
) -> tuple[str, Sequence[str], dict[str, object]]:
    """Return the name of the message about an invalid default, its keys, and its parameters."""
    parts: dict[str, object]
    none, kind = "std::nullopt" if spelling == "C++" else "None", type.kind.value
    value = string_of(text)
    near = did_you_mean(value, type.choices).word if value is not None else None
    if type.kind is Kind.DTYPE and text != none:
        word = _NAMESPACE.sub("", text.strip("\"'"))
        meant = Guess(word, certain=True) if word in DTYPES else did_you_mean(word, DTYPES)
        if meant:
            parts = {"text": text, "type": "dtype", "near": meant.word, "guess": meant}
            return "misspelled_default", (), parts
    parts = {
        **{"text": text, "type": type, "none": none, "bits": 64 if type.int64 else 32},
        **{"choices": type.listed_choices, "near": quoted(near or ""), "dtypes": list(DTYPES)},
        "ints": [*range(1, 1 + (type.length or 2))],
    }
    if type.choices and value is not None:
        return "misspelled_choice" if near else "unknown_choice", (), parts
    if text in _NO_VALUE and type.optional:
        return "misspelled_default", (), {**parts, "near": none, "guess": Guess(none, certain=True)}
    if text == none and (type.is_union or not type.is_array):
        return "default_None", (), parts
    if type.is_union:
        return "default_of_union", (), parts
    if type.is_array:
        return f"default_of_{'optional_' * type.optional}{kind}", (), parts
    return "default_value", [f"{spelling}{kind}", kind], parts
