"""Requests of `mlxgen.load` and of notebook cells, and the exception that both raise."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ...command.inputs import mlxgen_hash
from ...diagnostics import install
from ...package import compat
from ...package.toolchain import ENVIRONMENT, FROM_ENVIRONMENT

KIND = "modules"


class Say(Protocol):
    """Shows a step that takes a while; "" at the end."""

    def __call__(self, text: str, once: bool = False) -> None:
        """Show the text; ``once`` if the step is done once for a machine, and so takes longer."""


class LoadError(Exception):
    """Operators that cannot be built; the message explains the error and its location.

    IPython shows it in color and without a traceback.
    """

    def __init__(self, text: str, coloured: str = "") -> None:
        super().__init__(text)
        self.coloured = coloured or text

    def __str__(self) -> str:
        # In a traceback, the message starts on a new line after the exception's name.
        text = str(self.args[0]).rstrip()
        return f"\n{text}" if "\n" in text else text

    def _render_traceback_(self) -> list[str]:
        return self.coloured.rstrip().split("\n")


class Excerpt(NamedTuple):
    """A string with its origin, for messages."""

    text: str
    name: str
    above: int = 0  # lines added above its first line
    whole: str = ""  # the string that contains it

    @property
    def content(self) -> str:
        """The text without empty lines around it, which only move it.

        Empty lines inside can belong to a string, in YAML and in C++.
        """
        return self.text.strip("\n")


class Request(NamedTuple):
    """The input of a load: a file, or strings by kind (yaml, cpp, metal)."""

    file: Path | None
    texts: Mapping[str, Excerpt]


def machine() -> Sequence[object]:
    """Return the inputs that all modules share: mlxgen, Python, MLX and the environment."""
    core = compat.core_module()
    if core is None:
        raise LoadError(install.no_mlx())
    stat = core.stat()
    return [
        *(mlxgen_hash(), sysconfig.get_config_var("EXT_SUFFIX")),
        *(str(core), stat.st_size, stat.st_mtime_ns, compat.version("mlx")),
        *(os.environ.get(name) for name in (*ENVIRONMENT, *FROM_ENVIRONMENT)),
    ]
