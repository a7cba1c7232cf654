"""The compiled files of the packages that a project uses (the setting ``uses``).

A library of operators is linked with those of other packages, which are next to it in
``site-packages`` when it is used. All must be built for one release of MLX.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import Diagnostics
from ..read import MESSAGES
from ..read.packages import find
from ..read.settings import Settings
from . import rebuild


class Compiled(NamedTuple):
    """A used package."""

    name: str
    version: str
    include: Path
    library: Path | None  # None if its operators only bind functions of MLX
    place: str  # the folder of the library, from the folder that contains both packages


def compiled(settings: Settings, release: str, diags: Diagnostics) -> list[Compiled]:
    """Return the packages that a project uses, built for a release of MLX; report others."""
    made = []
    for use in settings.uses:
        found = find(use.name)
        if found is None:
            continue  # reported when the entries are read
        folder = found.binaries(release) or rebuild.find(found.folder, release)
        if folder is None:
            about = {"package": use.name, "release": release, "python": sys.executable}
            built = ", ".join(found.releases())
            diags.error(MESSAGES("package_of_other_release", built=built, **about), use.span)
            continue
        library = next(folder.glob(f"lib/lib{use.name}.*"), None)
        inside = folder.is_relative_to(found.folder)
        place = folder / "lib"
        if inside:
            place = Path(use.name) / place.relative_to(found.folder)
        version, include = found.version, found.folder / "include"
        made.append(Compiled(use.name, version, include, library, place.as_posix()))
    return made
