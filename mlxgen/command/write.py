"""Generated files on disk: written only when their text changed, removed when they are stale.

A manifest (``.mlxgen.json`` in the output folder) remembers what was written and from which
inputs, so that a second run with nothing changed does no work, and so that only files of mlxgen's
own are ever removed. It also keeps what each entry gave, for the run after an edit (edit.py).
Everything is rendered before anything is written: a failure leaves the folder as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(slots=True)
class Manifest:
    """What the output folder remembers of the run that wrote it."""

    key: str = ""  # of everything that the run read
    base: str = ""  # of all but the YAML
    files: dict[str, list[int]] = field(default_factory=dict)  # size and time, by path
    entries: str = ""  # what each entry gave, as JSON, which most runs do not look into

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The one in the folder; an empty one where there is none that can be read."""
        try:
            with open(folder / MANIFEST, encoding="utf-8") as file:
                key, base, files = json.loads(file.readline())
                return cls(str(key), str(base), dict(files), file.readline())
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, folder: Path) -> None:
        """Put it into the folder."""
        head = json.dumps([self.key, self.base, self.files])
        (folder / MANIFEST).write_text(f"{head}\n{self.entries}\n", encoding="utf-8")

    def holds(self, folder: Path) -> bool:
        """Whether all files are as that run left them."""
        root = str(folder)
        return all(_stat(f"{root}/{path}") == known for path, known in self.files.items())


def digest(*parts: str | bytes) -> str:
    """One hash of several texts."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(b"%d " % len(data) + data)
    return found.hexdigest()


def write(
    folder: Path,
    files: Mapping[str, str | None],
    before: Manifest,
    after: Manifest,
    *,
    dry_run: bool = False,
) -> Changes:
    """Bring the folder to hold exactly these files (and others that mlxgen did not write).

    Args:
        folder: The output folder, made if needed.
        files: Text by path relative to the folder; None for one that stays as ``before`` has it.
        before: What the folder remembers.
        after: What it is to remember; its ``files`` are filled in.
        dry_run: Only say what would change.
    """
    changed = differing(folder, {path: text for path, text in files.items() if text is not None})
    removed = sorted(p for p in before.files.keys() - files.keys() if (folder / p).is_file())
    changes = Changes(tuple(changed), tuple(removed), len(files) - len(changed))
    if dry_run:
        return changes
    put(folder, changed)
    for path in removed:
        (folder / path).unlink()
        _remove_empty((folder / path).parent, folder)
    after.files = {
        path: before.files[path] if text is None else _stat(f"{folder}/{path}")
        for path, text in files.items()
    }
    after.save(folder)
    return changes


def differing(folder: Path, files: Mapping[str, str]) -> dict[str, bytes]:
    """What is to be written, that the folder may hold these files."""
    texts = {path: text.encode() for path, text in files.items()}
    return {path: text for path, text in texts.items() if _read(f"{folder}/{path}") != text}


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, each in one piece."""
    for parent in {f"{folder}/{path}".rpartition("/")[0] for path in files}:
        os.makedirs(parent, exist_ok=True)
    for path, text in files.items():
        target = f"{folder}/{path}"
        with open(target + ".tmp", "wb", buffering=0) as file:
            file.write(text)
        os.replace(target + ".tmp", target)


def _stat(path: str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns]


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
