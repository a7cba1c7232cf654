"""Finds the packages of the setting ``uses``, which mlxgen built: they have an ``ops.json``.

They are found without importing them, because importing can build an editable install, or fail for
another release of MLX. This module imports little, because every cached build needs it (used.py
reads the operators).
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import runpy
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import Diagnostics
from . import MESSAGES
from .settings import Settings, Use


class Found(NamedTuple):
    """A package that mlxgen built."""

    name: str
    folder: Path  # of the files that mlxgen made

    @property
    def table(self) -> Path:
        """The file that describes its operators."""
        return self.folder / "ops.json"

    @property
    def digest(self) -> str:
        """A hash of the description of its operators."""
        return hashlib.sha256(self.table.read_bytes()).hexdigest()

    @property
    def version(self) -> str:
        """Its version."""
        return str(self._build_info.get("VERSION", "0"))

    def binaries(self, release: str) -> Path | None:
        """Return the folder with the compiled files for a release of MLX, if there is one."""
        if self._build_info.get("MLX_VERSION") == release:
            return self.folder
        folder = self.folder / "releases" / release
        return folder if folder.is_dir() else None

    def releases(self) -> list[str]:
        """Return the releases of MLX that it has compiled files for."""
        first = str(self._build_info.get("MLX_VERSION", "unknown"))
        return [first, *sorted(path.name for path in (self.folder / "releases").glob("*"))]

    @property
    def _build_info(self) -> dict[str, object]:
        path = self.folder / "_build_info.py"  # only constants
        return runpy.run_path(str(path)) if path.is_file() else {}


def find(name: str) -> Found | None:
    """Return an installed package; None if it is missing or was not built by mlxgen."""
    spec = importlib.util.find_spec(name)
    # An editable install has several folders.
    folders = map(Path, (spec and spec.submodule_search_locations) or ())
    return next((Found(name, at) for at in folders if (at / "ops.json").is_file()), None)


def missing(use: Use, diags: Diagnostics) -> None:
    """Report a package that is not installed, or that has no operators for formulas."""
    installed = importlib.util.find_spec(use.name) is not None
    wrong = "foreign_package" if installed else "missing_package"
    diags.error(MESSAGES(wrong, package=use.name), use.span)


def check_requirements(settings: Settings, diags: Diagnostics) -> None:
    """Warn of used packages whose distributions are not among the project's dependencies."""
    if not settings.uses:
        return
    from importlib.metadata import packages_distributions  # slow

    distributions = packages_distributions()
    required = {_normal(name) for name in settings.dependencies}
    for use in settings.uses:
        names = distributions.get(use.name, [])
        if names and required.isdisjoint(map(_normal, names)):
            about = {"name": names[0], "package": use.name}
            diags.error(MESSAGES("missing_dependency", **about), use.span, severity="warning")


def _normal(name: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
