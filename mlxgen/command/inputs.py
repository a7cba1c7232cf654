"""Hashes of what an output depends on: mlxgen itself, a project's files, anything.

Little is imported here, since what was built before is found by a hash alone.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..read.settings import Settings
from .operators import mlx_include

MLXGEN = Path(__file__).resolve().parents[1]
# What its output and its builds depend on; the emulator keeps account of its own.
_OWN = """*.py */*.py */*.txt formula/data/* render/templates/* package/cmake/**/* runtime/**/*.h
    runtime/**/*.cpp""".split()  # noqa: SIM905
_KERNELS = ("**/*.h", "**/*.cpp", "**/*.metal")


def digest(*parts: object) -> str:
    """One hash of several things."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(b"%d " % len(data) + data)
    return found.hexdigest()[:32]


def files(root: Path, *patterns: str) -> list[Path]:
    """The files below a folder, in a fixed order."""
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def contents(root: Path, *patterns: str) -> Iterator[bytes]:
    """The names and contents of files below a folder."""
    for path in files(root, *patterns):
        yield path.relative_to(root).as_posix().encode()
        yield path.read_bytes()


def kernel_files(settings: Settings) -> list[Path]:
    """The hand-written C++ and Metal."""
    return sorted({p for at in (settings.csrc, settings.metal) for p in files(at, *_KERNELS)})


@cache
def mlxgen_hash() -> str:
    """A hash of mlxgen itself."""
    return digest(sys.version, *contents(MLXGEN, *_OWN))


def base_hash(settings: Settings, *more: object) -> str:
    """A hash of what all entries depend on: mlxgen, MLX's release, settings and kernels."""
    mlx = mlx_include() or Path()
    kernels = (contents(at, *_KERNELS) for at in (settings.csrc, settings.metal))
    texts = (part for found in (contents(mlx, "mlx/version.h"), *kernels) for part in found)
    return digest(mlxgen_hash(), str(mlx), settings, more, *texts)
