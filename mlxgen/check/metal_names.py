"""Finds unknown functions, types and attributes in Metal source (MG808).

Names are looked up without scopes, in a file and everything that it includes. A name is unknown if
it is not part of Metal (metal.yaml) and occurs only as a call or as a type. Code that the parser
does not understand counts as a declaration, so that correct source is never rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import Span, did_you_mean
from ..diagnostics.messages import table
from ..read.cpp import LISTED, File, Reader, Unit

_NAMES: dict[str, list[str]] = table(Path(__file__).with_name("metal.yaml"))
POSITIONS = frozenset(_NAMES["positions"])  # with up to three components
SCALAR_POSITIONS = frozenset(_NAMES["scalar positions"])
ATTRIBUTES, FUNCTIONS, TYPES = (_NAMES[kind] for kind in ("attributes", "functions", "types"))
_OWN = frozenset([*FUNCTIONS, *TYPES])
# An attribute and its arguments; compiler-specific attributes have a namespace.
_ATTRIBUTE = re.compile(r"([A-Za-z_]\w*)(\s*::\s*\w+)?\s*(\((?:[^()]|\([^()]*\))*\))?")


class Unknown(NamedTuple):
    """A message about an unknown name, and its location."""

    message: str
    span: Span


def unknown_attribute(name: str) -> str | None:
    """Return a message about an attribute that Metal does not have, else None."""
    if name in ATTRIBUTES:
        return None
    return f"Metal has no attribute [[{name}]]{did_you_mean(name, ATTRIBUTES)}"


def unknown_names(reader: Reader, unit: Unit, shared: bool) -> Iterator[Unknown]:
    """Yield the unknown attributes, functions and types of a file and its project's headers.

    ``shared``: the file is also compiled as C++.
    """
    for file in unit.files:
        yield from _attributes(file)
    read = reader.closure(unit.files[0].source.path, libraries=True)
    own = {file.source.path for file in unit.files}
    headers = {name: path for source in read for name, path in source.includes.items()}
    if any(
        path is None and not name.startswith(("metal", "simd")) for name, path in headers.items()
    ):
        return  # an unknown header may declare anything
    known = set(_OWN).union(*(file.names.others for file in unit.files))
    known |= {function.name for function in unit.functions}
    for source in read:
        known |= source.macros.keys() if source.path in own else source.words
    where = "in code shared by C++ and Metal"
    if not shared:
        where = "which neither Metal's library nor the included files define"
    for file in unit.files:
        for what, used in (("function", file.names.calls), ("type", file.names.types)):
            for scope, name, place in used:
                if what == "type" and scope and scope not in _NAMES["namespaces"]:
                    continue  # a member of a class
                if name in known or name.startswith("_"):
                    continue
                known.add(name)  # report it once
                meant = TYPES
                if what == "function":
                    declared = (
                        f.name for source in read for f in reader.file(source.path).functions
                    )
                    meant = [*FUNCTIONS, *declared]
                message = f"unknown {what} '{name}', {where}{did_you_mean(name, meant)}"
                yield Unknown(message, file.source.span(*place))


def _attributes(file: File) -> Iterator[Unknown]:
    text = file.source.text
    for listed in re.finditer(LISTED, text) if "[[" in text else ():
        for found in _ATTRIBUTE.finditer(text, *listed.span(1)):
            wrong = None if found[2] else unknown_attribute(found[1])
            if wrong:
                yield Unknown(wrong, file.source.span(*found.span(1)))
