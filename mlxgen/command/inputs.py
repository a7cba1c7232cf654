"""Hashes of the inputs of generated output: mlxgen itself, a project's files, and others.

This module imports little, because a cache hit needs only a hash.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..model.languages import LANGUAGES, language
from ..read.packages import find
from ..read.settings import Settings
from .operators import mlx_include

MLXGEN = Path(__file__).resolve().parents[1]
# The files of mlxgen that its output and builds depend on; the emulator tracks its own files.
_OWN = """**/*.py */*.json plugins/*/*.json plugins/*/*.cpp formula/data/* render/templates/**/*
    plugins/*/templates/**/* package/cmake/**/* runtime/**/*.h runtime/**/*.cpp""".split()  # noqa: SIM905
_KERNELS = "**/*"  # an included file can have any ending


def digest(*parts: object) -> str:
    """Return one hash of several values."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(b"%d " % len(data) + data)
    return found.hexdigest()[:32]


def files(root: Path, *patterns: str) -> list[Path]:
    """Return the files below a folder, sorted."""
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def contents(root: Path, *patterns: str) -> Iterator[bytes]:
    """Yield the names and contents of files below a folder."""
    for path in files(root, *patterns):
        yield path.relative_to(root).as_posix().encode()
        yield path.read_bytes()


def kernel_files(settings: Settings) -> list[Path]:
    """Return the hand-written C++ and Metal files."""
    return sorted({p for at in (settings.csrc, settings.metal) for p in files(at, _KERNELS)})


def language_files(settings: Settings) -> list[Path]:
    """Return the files of the package's languages that are not part of mlxgen."""
    sources = (language(name).source for name in settings.languages if name not in LANGUAGES)
    return [path for at in sources for path in (files(at, "**/*") if at.is_dir() else [at])]


@cache
def mlxgen_hash() -> str:
    """Return a hash of mlxgen itself."""
    return digest(sys.version, *contents(MLXGEN, *_OWN))


def base_hash(settings: Settings, *more: object) -> str:
    """Return a hash of the inputs shared by all entries.

    These are mlxgen, MLX, the settings, the kernels, the operators of used packages, and languages
    of other packages. The list of the files of operators is not among them.
    """
    mlx = mlx_include() or Path()
    kernels = (contents(at, _KERNELS) for at in (settings.csrc, settings.metal))
    texts = (part for found in (contents(mlx, "mlx/version.h"), *kernels) for part in found)
    used = [found and found.digest for found in map(find, (use.name for use in settings.uses))]
    languages = [(str(path), path.read_bytes()) for path in language_files(settings)]
    own = settings._replace(more=())
    return digest(mlxgen_hash(), str(mlx), own, more, used, languages, *texts)
