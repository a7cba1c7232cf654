"""What `mlxgen.load` and a notebook's cell ask for, and the error that they raise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

KIND = "modules"


class Say(Protocol):
    """Shows a step that takes a while; "" at the end."""

    def __call__(self, text: str, once: bool = False) -> None:
        """Show the text; ``once`` if the step is done once for a machine, and so takes longer."""


class LoadError(Exception):
    """Operators that cannot be built; the message says what is wrong, where it is.

    IPython shows it without a traceback, in colours.
    """

    def __init__(self, text: str, coloured: str = "") -> None:
        super().__init__(text)
        self.coloured = coloured or text

    def __str__(self) -> str:
        # Behind the name of the exception, in a traceback, places begin in a line of their own.
        text = str(self.args[0]).rstrip()
        return f"\n{text}" if "\n" in text else text

    def _render_traceback_(self) -> list[str]:
        return self.coloured.rstrip().split("\n")


class Excerpt(NamedTuple):
    """A text, and where it is from: for messages."""

    text: str
    name: str
    above: int = 0  # lines above its first
    whole: str = ""  # of which it is a part

    @property
    def content(self) -> str:
        """What it says: lines that are blank only move the others."""
        return "\n".join(line.rstrip() for line in self.text.splitlines() if line.strip())


class Request(NamedTuple):
    """What is to be loaded: a file, or texts by what they are (yaml, cpp, metal)."""

    file: Path | None
    texts: Mapping[str, Excerpt]
