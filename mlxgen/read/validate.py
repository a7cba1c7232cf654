"""An entry's values as a model, and what is wrong with them in the words of the file.

pydantic's errors are about Python's types, and there is one for each form that a value may have.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from ..diagnostics import Advice, Diagnostics, Help, did_you_mean
from .keys import ArraySample, Check, GradFunction, KernelEntry, Model, OpEntry, TemplateEntry
from .yaml import TYPED_KEYS, Entry, KeyPath

_KINDS = {
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "bool_type": "a boolean",
    "int_type": "a whole number",
    "float_type": "a number",
}
_MODELS: dict[str, type[Model]] = {
    "dispatch": KernelEntry,
    "grad": GradFunction,
    "checks": Check,
    "samples": ArraySample,
}
_FORMULAS = frozenset({"composite", "shape", "dtype", "grad", "jvp", "checks"})
_FORMS: dict[str | int, str] = {
    "checks": "[{that: x.ndim == 2, else: x must have 2 axes}]",
    "unused": "{x: why it is used nowhere}",
    "axes": "{x: B T D}",
    "args": "{x: what it is}",
}
# Keys that must be there.
_NEEDED = {
    "kernel": "my_kernel",
    "of": "x.shape[-1]",
    "values": "[32, 64]",
    "that": "x.ndim == 2",
    "else": "x must have 2 axes",
    "function": "my_gradient",
}
_NOWHERE = object()
_Wrong = dict[str, Any]  # pydantic's errors, by type


def validate(
    entry: Entry, op: str | None, diags: Diagnostics
) -> tuple[OpEntry | None, frozenset[str]]:
    """The entry's values as a model, and the keys that are left out of it (``dispatch.metal.gird``
    is one inside another).

    A key in which something is wrong is left out, so that the others are looked at all the same;
    so is a key without a value, which was reported when the file was read. A key that is not known
    stands for the one that was probably meant.
    """
    data = {key: value for key, value in entry.data.items() if value is not None}
    left_out = set(entry.data) - set(data)
    try:
        return OpEntry.model_validate(data), frozenset(left_out)
    except ValidationError as error:
        found = _by_place(error, data)
    for path, wrong in found.items():
        unknown = "extra_forbidden" in wrong
        left_out.add(".".join(map(str, path)) if unknown else str(path[0]))
        value = _at(data, path)
        if value is not None or path[0] in TYPED_KEYS:  # else it was said when the file was read
            code, message, help = _explain(path, wrong, value, _at(data, path[:-1]))
            place = path[:-1] if "missing" in wrong else path
            span = entry.span(place, key=code in ("MG101", "MG104"))
            diags.error(code, message, span, help=help, op=op)
    meant = {
        path: did_you_mean(str(path[-1]), _keys_at(path)).word or ""
        for path, wrong in found.items()
        if "extra_forbidden" in wrong
    }
    kept = {key: value for key, value in data.items() if key not in left_out or (key,) in meant}
    data = _renamed(kept, (), meant, entry.renamed)
    try:
        return OpEntry.model_validate(data), frozenset(left_out)
    except ValidationError as error:  # a key was meant otherwise
        left_out |= {str(path[0]) for path in _by_place(error, data)}
    data = {key: value for key, value in data.items() if key not in left_out}
    return OpEntry.model_validate(data), frozenset(left_out)


def _renamed(
    value: Any, path: KeyPath, meant: dict[KeyPath, str], renamed: dict[KeyPath, str]
) -> Any:
    """A value with keys that are not known under the names that were meant, or without them."""
    if isinstance(value, list):
        return [_renamed(item, (*path, i), meant, renamed) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        name = meant.get((*path, key), key)
        if name and (name == key or name not in value):
            found[name] = _renamed(item, (*path, key), meant, renamed)
            if name != key:
                renamed[(*path, name)] = key
    return found


def _by_place(error: ValidationError, data: Any) -> dict[KeyPath, _Wrong]:
    """What pydantic found wrong at each place.

    Of a value that may have several forms, it says what is wrong with each. Of interest is the form
    that fits best, whose errors are the innermost.
    """
    found: dict[KeyPath, _Wrong] = {}
    for wrong in error.errors():
        path: KeyPath = ()
        for step in wrong["loc"]:
            if _at(data, (*path, step)) is not _NOWHERE:  # or it says which form is meant
                path = (*path, step)
        if wrong["type"] == "missing":
            path = (*path, wrong["loc"][-1])
        found.setdefault(path, {})[wrong["type"]] = wrong
    outer = {path[:length] for path in found for length in range(len(path))}
    # Beside a key that is not known, none is missing: it is there, misspelt.
    unknown = {path[:-1] for path, wrong in found.items() if "extra_forbidden" in wrong}
    return {
        path: wrong
        for path, wrong in found.items()
        if path not in outer and not ("missing" in wrong and path[:-1] in unknown)
    }


def _at(value: Any, path: KeyPath) -> Any:
    """What is at a path."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step in range(len(value)):
            value = value[int(step)]
        else:
            return _NOWHERE
    return value


def _keys_at(path: KeyPath) -> list[str]:
    """The keys of the mapping that has the one at ``path``."""
    model = OpEntry if len(path) == 1 else _MODELS[str(path[0])]
    model = TemplateEntry if "template" in path[:-2] else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(path: KeyPath, wrong: _Wrong, value: Any, beside: Any) -> tuple[str, str, Help]:
    """Code, message and help for what is wrong at a place, beside other keys or items."""
    advice: Help = None
    last, where = str(path[-1]), _where(path)
    is_item = isinstance(path[-1], int)
    if "missing" in wrong:
        help = f"add `{last}: {_NEEDED.get(last, '...')}` there"
        return "MG103", f"{_where(path[:-1])} needs a key '{last}'", help
    if "extra_forbidden" in wrong:
        known = _keys_at(path)
        near = did_you_mean(last, [key for key in known if key not in beside])
        listed = f"keys here are: {', '.join(known)}"
        advice = near.advice(f"write `{near.word}`" if near else listed)
        return "MG101", f"unknown key '{last}'{near}", advice
    if "string_too_short" in wrong:
        return "MG106", f"{where} is empty", "give it a value, or remove it"
    if "too_short" in wrong:
        return "MG106", f"{where} needs at least one item", "give it one, or remove it"
    if "too_long" in wrong:
        most = wrong["too_long"]["ctx"]["max_length"]
        return "MG106", f"{where} needs at most {most} items", f"keep {most} of them"
    if literal := wrong.get("literal_error"):
        words = re.findall(r"'(.*?)'", literal["ctx"]["expected"])
        if literal["loc"][-1] == "[key]":
            near = did_you_mean(last, words)
            advice = near.advice(f"backends are: {', '.join(words)}")
            return "MG104", f"unknown backend '{last}'{near}", advice
        message = f"{where} cannot {'have' if is_item else 'be'} {_what(value)}"
        help = f"{'one of: ' if len(words) > 1 else 'write '}{', '.join(words)}"
        if "dict_type" in wrong:
            help += ", or a mapping of arguments to formulas"
        if isinstance(value, str):
            near = did_you_mean(value, words)
            return "MG105", f"{message}{near}", near.advice(help)
        return "MG102", message, help
    kinds = list(dict.fromkeys(kind for name, kind in _KINDS.items() if name in wrong))
    if "float_type" in wrong:
        kinds.remove("a whole number")
    if last == "deprecated":
        advice = "say what to use instead"
    elif path[0] == "axes" and isinstance(value, list) and len(path) == 2:
        axes = " ".join(map(str, value)) or "()"
        advice = Advice(f"write {axes}", axes)
    elif isinstance(value, list) and path[0] in _FORMULAS:
        advice = "put a formula that begins with a bracket in quotes"
    elif path[0] in _FORMS and len(path) - is_item == 1:
        advice = f"write {_FORMS[path[0]]}"
    elif kinds == ["a list"] and str(value)[:1] == "(":
        advice = "a list stands in [ and ]"
    elif kinds == ["a list"] and re.fullmatch(r"(?!true|false)[\w., -]+", str(value)):
        advice = None if last in _MODELS else Advice(f"write [{value}]", f"[{value}]")
    message = f"{'every item of ' * is_item}{where} must be {' or '.join(kinds)}"
    return "MG102", f"{message}, not {_what(value)}", advice


def _where(path: KeyPath) -> str:
    return f"'{'.'.join(part for part in path if isinstance(part, str))}'"


def _what(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "empty (null)" if value is None else f"the boolean {str(value).lower()}"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"'{value}'" if isinstance(value, str) else f"the number {value}"
