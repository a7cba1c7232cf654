"""Validates the values of an entry, and reports errors in terms of the YAML file.

pydantic's errors are about Python types, and a value with several forms has one error per form.
This module selects one error per location and words it for the user.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from ..diagnostics import Diagnostics, did_you_mean
from ..diagnostics.messages import Rendered
from . import MESSAGES
from .keys import ArraySample, Check, GradFunction, KernelEntry, Model, OpEntry, TemplateEntry
from .yaml import TYPED_KEYS, Entry, KeyPath

_KINDS = {
    "string_type": "a string",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
}
_MODELS: dict[str, type[Model]] = {
    "dispatch": KernelEntry,
    "grad": GradFunction,
    "checks": Check,
    "samples": ArraySample,
}
_FORMULAS = frozenset({"composite", "shape", "dtype", "grad", "jvp", "checks"})
_FORMS = frozenset({"checks", "unused", "axes", "args", "let"})  # keys with an example
_NOWHERE = object()
_Wrong = dict[str, Any]  # pydantic's errors, by type


def validate(
    entry: Entry, op: str | None, diags: Diagnostics
) -> tuple[OpEntry | None, frozenset[str]]:
    """Return the entry's values as a model, and the omitted keys (such as ``dispatch.metal.gird``).

    An invalid key is omitted, so that the others can still be checked. A key without a value, which
    was reported when the file was parsed, is omitted too. A misspelled key counts as the one that
    was probably meant.
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
        if value is not None or path[0] in TYPED_KEYS:  # else the parser of the file reported it
            said = _explain(path, wrong, value, _at(data, path[:-1]))
            place = path[:-1] if "missing" in wrong else path
            diags.error(said, entry.span(place, key=said.code in ("MG101", "MG104")), op=op)
    meant = {
        path: did_you_mean(str(path[-1]), _keys_at(path)).word or ""
        for path, wrong in found.items()
        if "extra_forbidden" in wrong
    }
    kept = {key: value for key, value in data.items() if key not in left_out or (key,) in meant}
    data = _renamed(kept, (), meant, entry.renamed)
    try:
        return OpEntry.model_validate(data), frozenset(left_out)
    except ValidationError as error:  # a guess for a misspelled key was wrong
        left_out |= {str(path[0]) for path in _by_place(error, data)}
    data = {key: value for key, value in data.items() if key not in left_out}
    return OpEntry.model_validate(data), frozenset(left_out)


def _renamed(
    value: Any, path: KeyPath, meant: dict[KeyPath, str], renamed: dict[KeyPath, str]
) -> Any:
    """Rename the misspelled keys of a value to the keys that were meant, or remove them."""
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
    """Return pydantic's errors by location.

    A value with several forms has errors for each form. The innermost errors belong to the form
    that matches best, and only these are returned.
    """
    found: dict[KeyPath, _Wrong] = {}
    for wrong in error.errors():
        path: KeyPath = ()
        for step in wrong["loc"]:
            if _at(data, (*path, step)) is not _NOWHERE:  # else the step names a form
                path = (*path, step)
        if wrong["type"] == "missing":
            path = (*path, wrong["loc"][-1])
        found.setdefault(path, {})[wrong["type"]] = wrong
    outer = {path[:length] for path in found for length in range(len(path))}
    # Next to an unknown key, a missing key is probably just misspelled.
    unknown = {path[:-1] for path, wrong in found.items() if "extra_forbidden" in wrong}
    return {
        path: wrong
        for path, wrong in found.items()
        if path not in outer
        and not ("missing" in wrong and path[:-1] in unknown)
        and not _is_like_first(path, data)
    }


def _is_like_first(path: KeyPath, data: Any) -> bool:
    """Return whether an item of `dtypes` has the form of the first one, but another item does not.

    Lists of dtypes and lists of groups are two forms, so that each item is wrong in one of them.
    """
    items = _at(data, path[:1])
    if path[0] != "dtypes" or len(path) != 2 or not isinstance(items, list):
        return False
    forms = [type(item) for item in items]
    first = forms[0]
    return first in (str, dict) and forms[int(path[1])] is first and len(set(forms)) > 1


def _at(value: Any, path: KeyPath) -> Any:
    """Return the value at a path."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step in range(len(value)):
            value = value[int(step)]
        else:
            return _NOWHERE
    return value


def _keys_at(path: KeyPath) -> list[str]:
    """Return the valid keys of the mapping that contains the key at ``path``."""
    model = OpEntry if len(path) == 1 else _MODELS[str(path[0])]
    model = TemplateEntry if "template" in path[:-2] else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(path: KeyPath, wrong: _Wrong, value: Any, beside: Any) -> Rendered:
    """Return the message for the errors of a value next to other keys or items."""
    last, where = str(path[-1]), _where(path)
    is_item = isinstance(path[-1], int)
    if "missing" in wrong:
        return MESSAGES("missing_key", last, where=_where(path[:-1]), key=last)
    if "extra_forbidden" in wrong:
        known = _keys_at(path)
        guess = did_you_mean(last, [key for key in known if key not in beside])
        help = "near" if guess else ""
        return MESSAGES("unknown_key", help, key=last, guess=guess, known=known)
    if "string_too_short" in wrong:
        return MESSAGES("empty_value", where=where)
    if "too_short" in wrong:
        return MESSAGES("no_items", where=where)
    if "too_long" in wrong:
        return MESSAGES("too_many_items", where=where, most=wrong["too_long"]["ctx"]["max_length"])
    what = _what(value)
    if literal := wrong.get("literal_error"):
        words = re.findall(r"'(.*?)'", literal["ctx"]["expected"])
        if literal["loc"][-1] == "[key]":
            guess = did_you_mean(last, words)
            return MESSAGES("unknown_backend", name=last, guess=guess, known=words)
        help = "mapping" if "dict_type" in wrong else ""
        about: Any = {"where": where, "verb": "contain" if is_item else "be", "what": what}
        about["known"] = words
        if isinstance(value, str):
            return MESSAGES("unknown_word", help, guess=did_you_mean(value, words), **about)
        return MESSAGES("no_word", help, **about)
    kinds = list(dict.fromkeys(kind for name, kind in _KINDS.items() if name in wrong))
    if "float_type" in wrong:
        kinds.remove("an integer")
    help, form = "", ""
    if last == "deprecated":
        help = last
    elif path[0] == "axes" and isinstance(value, list) and len(path) == 2:
        help, form = "replace", " ".join(map(str, value)) or "()"
    elif isinstance(value, list) and path[0] in _FORMULAS:
        help = "formula"
    elif path[0] == "dispatch" and last == "dtypes" and isinstance(value, dict):
        help, kinds = "of_backend", ["a dtype", "a list of dtypes"]
    elif path[0] in _FORMS and len(path) - is_item == 1:
        help = str(path[0])
    elif kinds == ["a list"] and str(value)[:1] == "(":
        help = "parentheses"
    elif kinds == ["a list"] and re.fullmatch(r"(?!true|false)[\w., -]+", str(value)):
        help, form = "" if last in _MODELS else "replace", f"[{value}]"
    message = "wrong_item" if is_item else "wrong_type"
    return MESSAGES(message, help, where=where, kinds=kinds, what=what, form=form)


def _where(path: KeyPath) -> str:
    return f"'{'.'.join(part for part in path if isinstance(part, str))}'"


def _what(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "empty (null)" if value is None else f"the boolean {str(value).lower()}"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"'{value}'" if isinstance(value, str) else f"the number {value}"
