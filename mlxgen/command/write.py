"""Generated files on disk: written only when their text changed, removed when they are stale.

A manifest (``.mlxgen.json`` in the output folder) remembers what was written and from which
inputs, so that a second run with nothing changed does no work, and so that only files of mlxgen's
own are ever removed. Everything is rendered before anything is written: a failure leaves the folder
as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = ".mlxgen.json"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a run did, or would do."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int

    @property
    def any(self) -> bool:
        """Whether anything differs from what is on disk."""
        return bool(self.written or self.removed)


def digest(parts: Iterable[bytes]) -> str:
    """One hash of several texts."""
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.hexdigest()


def up_to_date(folder: Path, key: str) -> bool:
    """Whether the folder holds, untouched, what these inputs gave before."""
    manifest = _load(folder)
    if manifest.get("key") != key:
        return False
    files = manifest.get("files", {})
    root = str(folder)
    for path, recorded in files.items():
        try:
            stat = os.stat(f"{root}/{path}")
        except OSError:
            return False
        if [stat.st_size, stat.st_mtime_ns] != recorded:
            return False
    return True


def write(folder: Path, files: Mapping[str, str], key: str, *, dry_run: bool = False) -> Changes:
    """Bring the folder to hold exactly these files (and others that mlxgen did not write).

    Args:
        folder: The output folder, made if needed.
        files: Text by path relative to the folder.
        key: Identifies the inputs, for ``up_to_date``.
        dry_run: Only say what would change.
    """
    root = str(folder)
    before = set(_load(folder).get("files", {}))
    written = [path for path, text in files.items() if _read(f"{root}/{path}") != text.encode()]
    removed = sorted(p for p in before - set(files) if (folder / p).is_file())
    changes = Changes(tuple(written), tuple(removed), len(files) - len(written))
    if dry_run:
        return changes
    for parent in {path.rpartition("/")[0] for path in written}:
        os.makedirs(f"{root}/{parent}", exist_ok=True)
    for path in written:
        target = f"{root}/{path}"
        with open(target + ".tmp", "wb", buffering=0) as file:
            file.write(files[path].encode())
        os.replace(target + ".tmp", target)
    for path in removed:
        (folder / path).unlink()
        _remove_empty((folder / path).parent, folder)
    stats = {path: os.stat(f"{root}/{path}") for path in files}
    manifest = {
        "key": key,
        "files": {path: [s.st_size, s.st_mtime_ns] for path, s in stats.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return changes


def _load(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    sound = isinstance(manifest, dict) and isinstance(manifest.get("files"), dict)
    return manifest if sound else {}


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
