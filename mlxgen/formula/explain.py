"""Errors in formulas, and the choice of their messages from data/messages.yaml.

``Wrong`` is raised if a part of a formula cannot be translated. The caller reports it and continues
with the other parts. The functions of this module select the message for a mistake.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnostics import Advice, Rendered, did_you_mean
from ..diagnostics.messages import Message, table
from ..diagnostics.messages import messages as read
from .values import Value, cut

DATA = Path(__file__).parent / "data"


class Wrong(Exception):
    """An error in a formula: name of the message, location, keys of helps, parameters.

    The location is a part of the formula or a slice of its text; None means all of it. An error
    without a name was already reported. ``word`` is the spelling in formulas of a name from another
    library or language; if it is given, it is also the last key.
    """

    def __init__(self, name: str = "", at: object = None, /, *keys: str, **about: Any) -> None:
        self.name, self.at, self.about = name, at, about
        self.keys = [key for key in (*keys, "word" * bool(about.get("word"))) if key]

    def written(self, here: str) -> Rendered:
        """Return the message; ``here`` is the text at the location."""
        about = {"guess": "", **self.about, "here": here}
        if any(key in messages()[self.name].helps for key in self.keys):
            about["guess"] = ""  # the help is more specific
        about.update((key, cut(value)) for key, value in about.items() if isinstance(value, str))
        said = messages()[self.name].filled(self.keys, about)
        if isinstance(said.help, Advice) and about["here"] != here:
            return said._replace(help=said.help.text)  # a fix needs the whole quotation
        return said


def messages() -> Mapping[str, Message]:
    """Return the messages about formulas by name."""
    return read(DATA / "messages.yaml")


def word(name: str) -> str:
    """Return the spelling in formulas of a name from other libraries or languages, or ""."""
    return str(table(DATA / "words.yaml").get(name, ""))


def require(*values: Value) -> None:
    """Raise ``Wrong`` if a value may be None, or a string in place of an array."""
    for value in values:
        if value.kind == "union":
            string = next(choice for choice in value.choices if choice in value.states)
            raise Wrong("union", value.at, name=value.name, string=repr(string))
        if value.optional:
            raise Wrong("optional_name" if value.name else "optional", value.at, name=value.name)


def choice(value: Value, name: str, choices: Sequence[str]) -> Wrong:
    """Return the error for a string that is not one of the choices."""
    listed, meant = ", ".join(map(repr, choices)), did_you_mean(value.const, choices, "'{}'")
    text = repr(value.const)
    return Wrong("choice", value.at, name=name, value=text, guess=meant, choices=listed)


def foreign(what: object, at: ast.AST) -> Wrong:
    """Return the error for a part of Python that formulas do not support."""
    name = type(what).__name__
    return Wrong(name if name in messages() else "foreign", at)


def result(value: Value, slot: str, count: int | None = None) -> Wrong:
    """Return the error for a result, or an item of a list, of the wrong kind."""
    require(value)
    kind, wanted = {"shape": ("int", "int64"), "arrays": ("array", "array")}.get(slot, ("", ""))
    for item in value.items:
        if kind and (item.kind != kind or item.optional):
            return result(item, wanted)
    if slot != "arrays":
        key = "comma" if len(value.items) == 1 else value.kind
        return Wrong(f"no_{slot}", value.at, key, value=value)
    name = "one_array" if value.kind == "array" else "no_arrays"
    wanted = "a list of arrays" if count is None else f"{count} arrays"
    return Wrong(name, value.at, str(count), value=value, wanted=wanted)


def pair(name: str, sign: str, left: Value, right: Value, at: ast.AST) -> Wrong:
    """Return the error for two values that cannot be joined or compared."""
    require(left, right)
    if sign == "+":
        for value, other in ((left, right), (right, left)):
            if value.kind == "tuple" and (other.is_ints or other.is_arrays):
                return result(value, "shape" if other.is_ints else "arrays")
    kinds = "+".join(sorted({left.kind, right.kind}))
    keys = [sign, f"{sign}{kinds}", kinds, "none" if "none" in kinds else ""]
    keys = [] if sign[0] in "<>" and name == "compare" else keys
    return Wrong(name, at, *keys, sign=sign, left=left, right=right)


def condition(value: Value) -> Wrong:
    """Return the error for a condition that is not a bool."""
    if value.is_array:
        return Wrong("array_condition", value.at)
    kind = "list" if value.is_ints or value.is_arrays else value.kind
    return Wrong("condition", value.at, "optional" if value.optional else kind, value=value)


def argument(label: str, name: str, annotation: str, value: Value) -> Wrong:
    """Return the error for an argument, or an item of a list argument, of the wrong kind."""
    wanted = "array" if "array" in annotation else "int"
    rest = isinstance(value.at, ast.Call)  # all further arguments of the call
    if value.kind == "tuple" and (rest or re.search(r"(Sequence|list|tuple)\[", annotation)):
        others = [i for i in value.items if i.optional or i.kind != wanted]
        if others and (rest or len(others) < len(value.items) or any(i.optional for i in others)):
            value = others[0]
    require(value)
    keys = [
        f"{value.kind}->{kind}"
        for kind in ("list", "array", "Sequence", "int", "Dtype")
        if kind in annotation
    ]
    kind = "arrays" if value.is_arrays else value.kind
    keys += [f"{kind}->{annotation}!"]
    about = {"label": label, "annotation": annotation, "value": value}
    return Wrong("argument", value.at, *keys, **about, name=name)


def escaped(node: ast.AST) -> str:
    """Return the text of a part of a formula with escaped braces, for templates."""
    return ast.unparse(node).replace("{", "{{").replace("}", "}}")


def attribute(
    value: Value, node: ast.Attribute, attributes: Sequence[str], methods: Sequence[str]
) -> Wrong:
    """Return the error for an attribute that does not exist, or is a method."""
    name = "attribute"
    if value.kind == "array":
        name = "is_method" if node.attr in methods else "array_attribute"
        name = "is_update" if node.attr == "at" else name
    form = f"{escaped(node.value)}.{{}}"
    known = [*attributes, *methods] if value.kind == "array" else []
    meant, listed = did_you_mean(node.attr, known, form), ", ".join(attributes)
    about = {"value": value, "guess": meant, "known": listed, "word": word(node.attr)}
    return Wrong(name, node, value.kind, **about, name=node.attr)
