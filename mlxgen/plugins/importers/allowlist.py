"""The lists of operators to import: ATen's base names, one per line, with comments after ``#``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...diagnostics import Diagnostics, Span, Text, did_you_mean
from ...read.yaml import read_text
from . import MESSAGES
from .schema import Schema


def read(paths: Iterable[Path], schema: Schema, diags: Diagnostics) -> list[str]:
    """Return the names of lists that torch has; report unknown and repeated ones."""
    names: dict[str, Span] = {}
    for path in paths:
        _read(path, names, schema, diags)
    return list(names)


def _read(path: Path, names: dict[str, Span], schema: Schema, diags: Diagnostics) -> None:
    """Add the names of a list, with their places."""
    text = read_text(path, diags)
    if text is None:
        return
    source = Text(str(path), text.removeprefix("\ufeff"))
    diags.add_source(source.path, source.text)
    before = len(names)
    for number, line in enumerate(source.lines, 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        start = line.index(name) + 1
        span = Span(source.path, number, start, number, start + len(name))
        if name in names:
            diags.error(MESSAGES("listed_twice", name=name), span, related=[names[name]])
        elif _is_known(name, schema, span, diags):
            names[name] = span
    if len(names) == before and diags.ok:
        diags.error(MESSAGES("empty_list"), source.at(0, 0))


def _is_known(name: str, schema: Schema, span: Span, diags: Diagnostics) -> bool:
    """Return whether a list can contain this name; report an error if not."""
    functional = name.removesuffix("_")
    inplace = functional != name and functional in schema.operators
    if name in schema.unread or (name in schema.operators and not inplace):
        return True
    if inplace:
        diags.error(MESSAGES("in_place", name=name, functional=functional), span)
    elif name in schema.overloads:
        diags.error(MESSAGES("listed_overload", name=name, base=schema.overloads[name].base), span)
    else:
        near = did_you_mean(name, schema.operators)
        about = {"version": schema.version, "name": name, "near": near}
        diags.error(MESSAGES("unknown_in_list", "near" if near else "", **about), span)
    return False
