"""What an `#include` names, and where it is found."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...diagnostics import Span
from .tokens import SourceError, Token

OWN_INCLUDES = str(Path(__file__).resolve().parents[2] / "runtime" / "include")
"""The folder of mlxgen's own headers."""


@dataclass(frozen=True, slots=True)
class Include:
    """What an `#include` names."""

    name: str
    angled: bool
    span: Span


INCLUDE = re.compile(r'[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)')


def include_of(directive: Sequence[Token]) -> Include | None:
    """What `# include ...` names when it does so literally (not by a macro)."""
    if len(directive) < 3 or directive[1].text != "include":
        return None
    source = directive[0].source
    found = INCLUDE.match(source.text, directive[1].end)
    if not found:
        return None
    name = found[1] or found[2]
    span = source.span(directive[2].offset, found.end())
    return Include(name, found[1] is None, span)


def find_include(include: Include, includer: str, include_dirs: Sequence[str]) -> str | None:
    """The path of an included file: beside the includer (quoted form), else in `include_dirs`."""
    folders = list(include_dirs)
    if not include.angled:
        folders.insert(0, os.path.dirname(includer))
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, include.name))
        if os.path.isfile(path):
            return path
    return None


def missing_include(include: Include, include_dirs: Sequence[str]) -> SourceError:
    """The error for a quoted include that no folder holds."""
    shown = ["mlxgen's headers" if folder == OWN_INCLUDES else folder for folder in include_dirs]
    folders = ", ".join(shown) or "no folder"
    return SourceError(
        f'cannot find "{include.name}"',
        include.span,
        f"looked beside the file and in {folders}; write <{include.name}> for a system header",
    )
