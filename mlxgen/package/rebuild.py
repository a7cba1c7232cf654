"""Finds packages that `mlxgen rebuild` has compiled for a release of MLX that their wheels lack.

The plug-in compiles them into the cache, under a hash of the sources and of what they are compiled
for. `import` looks there (cmake/package/_load.py), so that little is imported here.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from ..command.inputs import contents, digest
from .cache import Cache, folder

KIND = "packages"


def find(package: Path, release: str) -> Path | None:
    """Return the folder with the compiled files of an installed package, if they are cached.

    Args:
        package: The folder in which the package is installed.
        release: The release of MLX.
    """
    return Cache(folder()).find(KIND, key(package, release))


def key(package: Path, release: str) -> str:
    """Return the hash under which a package is cached."""
    sources = contents(package / "sources", "**/*")
    return digest(release, sys.platform, sysconfig.get_config_var("EXT_SUFFIX"), *sources)
