"""The inputs of an operator, and hashes of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...command.inputs import digest
from ...read.packages import find
from ...read.settings import Settings
from .request import machine

if TYPE_CHECKING:
    from ...read.yaml import Documents


class Inputs(NamedTuple):
    """The inputs of an operator and of all that it calls."""

    entries: Sequence[str]
    files: Sequence[str]  # hand-written

    def hash(self, document: Documents, base: str) -> str:
        """Hash their contents."""
        # An overload of the same name in Python is an input, too.
        names = {entry.python_name for entry in document.entries if entry.name in self.entries}
        keys = [entry.key for entry in document.entries if entry.python_name in names]
        texts = [Path(file).read_bytes() for file in self.files if Path(file).is_file()]
        return digest(base, keys, self.files, *texts)


def base_of(settings: Settings) -> str:
    """Hash the inputs that all operators of a project share."""
    used = [found and found.digest for found in map(find, (use.name for use in settings.uses))]
    return digest(*machine(), settings, used)
