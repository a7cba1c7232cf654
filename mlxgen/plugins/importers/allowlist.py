"""The lists of operators to import: ATen's base names, one per line, with comments after ``#``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...diagnostics import Diagnostics, Related, Span, Text, did_you_mean
from ...read.yaml import read_text
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
            related = [Related("it is first given here", names[name])]
            message = f"'{name}' is in the list twice"
            diags.error("MG902", message, span, help="remove one", related=related)
        elif _is_known(name, schema, span, diags):
            names[name] = span
    if len(names) == before and diags.ok:
        diags.error("MG901", "the list contains no operator", source.at(0, 0))


def _is_known(name: str, schema: Schema, span: Span, diags: Diagnostics) -> bool:
    """Return whether a list can contain this name; report an error if not."""
    functional = name.removesuffix("_")
    inplace = functional != name and functional in schema.operators
    if name in schema.unread or (name in schema.operators and not inplace):
        return True
    help: str | None = None
    if inplace:
        message = f"'{name}' writes to its argument"
        help = f"write {functional}, whose entry has the in-place form too"
    elif name in schema.overloads:
        message = f"'{name}' is one overload, but a list contains operators"
        help = f"write {schema.overloads[name].base}"
    else:
        guess = did_you_mean(name, schema.operators)
        message = f"torch {schema.version} has no operator '{name}'{guess}"
        help = f"write {guess.word}" if guess else "remove it"
    diags.error("MG901", message, span, help=help)
    return False
