"""Finds names in Metal source that neither Metal nor the source itself has (MG808).

Functions and types are looked up by their words alone, in all that a file includes: a name is
unknown if it is not Metal's (metal.txt) and stands nowhere but where it is called, or used as a
type. What the parser does not understand counts as known, so that nothing correct is refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import Span, did_you_mean
from ..diagnostics.messages import rows
from ..read.cpp import LISTED, File, Reader, Unit

_ROWS = rows(Path(__file__).with_name("metal.txt"))


def _named(what: str) -> list[str]:
    return [name for key, names in _ROWS if key == what for name in names.split()]


POSITIONS = frozenset(_named("positions"))  # with up to three components
SCALAR_POSITIONS = frozenset(_named("scalar positions"))
ATTRIBUTES = [*_named("positions"), *_named("scalar positions"), *_named("attributes")]
FUNCTIONS = _named("functions")
TYPES = [
    *_named("types"),
    *(f"{name}{n}" for name in _named("vectors of 2 3 4") for n in "234"),
    *(
        f"{name}{n}x{m}"
        for name in _named("matrices of 2 3 4")
        for n, m in itertools.product("234", "234")
    ),
    *(name + end for name in _named("suffixes _t and _v") for end in ("_t", "_v")),
]
_OWN = frozenset([*FUNCTIONS, *TYPES])
_NAMESPACES = frozenset(_named("namespaces"))
# An attribute, and what it is given; those of compilers have a namespace.
_ATTRIBUTE = re.compile(r"([A-Za-z_]\w*)(\s*::\s*\w+)?\s*(\((?:[^()]|\([^()]*\))*\))?")


class Unknown(NamedTuple):
    """A name that nothing has: what is wrong with it, and where it stands."""

    message: str
    span: Span


def unknown_attribute(name: str) -> str | None:
    """What is wrong with an attribute that Metal does not have."""
    if name in ATTRIBUTES:
        return None
    return f"Metal has no attribute [[{name}]]{did_you_mean(name, ATTRIBUTES)}"


def unknown_names(reader: Reader, unit: Unit, shared: bool) -> Iterator[Unknown]:
    """The attributes, functions and types of a file and its project's headers that nothing has.

    ``shared``: the file is compiled as C++, too.
    """
    for file in unit.files:
        yield from _attributes(file)
    read = reader.closure(unit.files[0].source.path, libraries=True)
    own = {file.source.path for file in unit.files}
    headers = {name: path for source in read for name, path in source.includes.items()}
    if any(
        path is None and not name.startswith(("metal", "simd")) for name, path in headers.items()
    ):
        return  # a header that is not known
    known = set(_OWN).union(*(file.names.others for file in unit.files))
    known |= {function.name for function in unit.functions}
    for source in read:
        known |= source.macros.keys() if source.path in own else source.words
    where = "that C++ and Metal share" if shared else "in Metal's library or the files read"
    for file in unit.files:
        for what, used in (("function", file.names.calls), ("type", file.names.types)):
            for scope, name, place in used:
                if what == "type" and scope and scope not in _NAMESPACES:
                    continue  # of a class
                if name in known or name.startswith("_"):
                    continue
                known.add(name)  # once is enough
                meant = TYPES
                if what == "function":
                    declared = (
                        f.name for source in read for f in reader.file(source.path).functions
                    )
                    meant = [*FUNCTIONS, *declared]
                message = f"there is no {what} '{name}' {where}{did_you_mean(name, meant)}"
                yield Unknown(message, file.source.span(*place))


def _attributes(file: File) -> Iterator[Unknown]:
    text = file.source.text
    for listed in re.finditer(LISTED, text) if "[[" in text else ():
        for found in _ATTRIBUTE.finditer(text, *listed.span(1)):
            wrong = None if found[2] else unknown_attribute(found[1])
            if wrong:
                yield Unknown(wrong, file.source.span(*found.span(1)))
