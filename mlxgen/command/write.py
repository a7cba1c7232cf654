"""Generated files on disk: written only when their text changed, removed when they are stale.

A manifest (``.mlxgen.json`` in the output folder) remembers what was written and from which
inputs, so that a second run with nothing changed does no work, and stale files are known. It also
keeps what each entry gave, for the run after an edit (memo.py). Everything is rendered before
anything is written: a failure leaves the folder as it was.

Only files of mlxgen's own are ever replaced or removed: those that say so where they begin, and
those that are as the manifest has them. One run at a time works in a folder; one that is killed
leaves a manifest with all that it may have written, and one temporary file, which the next removes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import COMMAND_LINE, Diagnostics

MANIFEST = ".mlxgen.json"
_TEMPORARY = ".mlxgen.tmp"
# How files of mlxgen's own begin: what says so, and the one that has no comments, ops.json.
_MARK = re.compile(rb"by mlxgen|mlxgen operators|\A\[\s*(\{\"name\"|\]\s*\Z)", re.IGNORECASE)


class Changes(NamedTuple):
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
                inside = {path: known for path, known in dict(files).items() if _is_inside(path)}
                return cls(str(key), str(base), inside, file.readline())
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return cls()

    def save(self, folder: Path) -> None:
        """Put it into the folder."""
        head = json.dumps([self.key, self.base, self.files])
        put(folder, {MANIFEST: f"{head}\n{self.entries}\n".encode()})

    def holds(self, folder: Path) -> bool:
        """Whether all files are as that run left them."""
        root = str(folder)
        return all(_stat(f"{root}/{path}") == known for path, known in self.files.items())


class NotOurs(Exception):
    """Files that stand where mlxgen would write, and are not its own."""


@contextmanager
def reported(folder: Path, diags: Diagnostics) -> Iterator[None]:
    """What goes wrong with files is an error in ``diags``."""
    try:
        yield
    except NotOurs as error:
        for path in error.args:
            message = f"{os.path.relpath(path)} is not written by mlxgen, and would be overwritten"
            diags.error("MG607", message, COMMAND_LINE, help="move it, or choose another folder")
    except OSError as error:
        where = os.path.relpath(error.filename2 or error.filename or folder)
        message = f"cannot write {where}: {error.strerror or error}"
        diags.error("MG607", message, COMMAND_LINE)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """For a run that writes: the only one in a folder, which is made, unless it stays empty."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # which ends with the process, however that does
        yield
    finally:
        with suppress(OSError):
            os.unlink(folder / _TEMPORARY)
        os.close(handle)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def stranger(folder: Path, sources: Iterable[Path]) -> Path | None:
    """What makes a folder none for output: a source inside or around it, or a file of others."""
    folder = Path(os.path.realpath(folder))
    for path in sources:
        if path.is_relative_to(folder) or folder.is_relative_to(path):
            return path
    if (folder / MANIFEST).exists():
        return None
    files = (path for path in folder.rglob("[!.]*") if path.is_file())
    return next((path for path in files if not _MARK.search(_read(str(path), 400) or b"")), None)


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
        folder: The output folder.
        files: Text by path relative to the folder; None for one that stays as ``before`` has it.
        before: What the folder remembers.
        after: What it is to remember; its ``files`` are filled in.
        dry_run: Only say what would change.

    Raises:
        NotOurs: Nothing was written, since that would overwrite files of others.
        OSError: Something could not be written.
    """
    texts = {path: text for path, text in files.items() if text is not None}
    changed = differing(folder, texts, before.files)
    stale = (path for path in before.files.keys() - files.keys() if (folder / path).is_file())
    removed = sorted(path for path in stale if _is_ours(folder, path, before.files))
    changes = Changes(tuple(changed), tuple(removed), len(files) - len(changed))
    if dry_run:
        return changes
    if changes.any:  # what there may be if this run is killed
        Manifest(files={**{path: [] for path in files}, **before.files}).save(folder)
    put(folder, changed)
    for path in removed:
        (folder / path).unlink()
        with suppress(OSError):  # up to one that is not empty: the manifest is in the first
            os.removedirs((folder / path).parent)
    after.files = {
        path: before.files[path] if text is None else _stat(f"{folder}/{path}")
        for path, text in files.items()
    }
    after.save(folder)
    return changes


def differing(
    folder: Path, files: Mapping[str, str], known: Mapping[str, list[int]]
) -> dict[str, bytes]:
    """What is to be written, that the folder may hold these files; raises ``NotOurs``."""
    texts = {path: text.encode() for path, text in files.items()}
    changed = {path: text for path, text in texts.items() if _read(f"{folder}/{path}") != text}
    others = [folder / path for path in changed if not _is_ours(folder, path, known)]
    if others:
        raise NotOurs(*others)
    return changed


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, each in one piece."""
    for parent in {f"{folder}/{path}".rpartition("/")[0] for path in files}:
        os.makedirs(parent, exist_ok=True)
    temporary = f"{folder}/{_TEMPORARY}"
    for path, text in files.items():
        with open(temporary, "wb") as file:
            file.write(text)
        os.replace(temporary, f"{folder}/{path}")


def replace_file(path: Path, text: bytes) -> None:
    """Write a file of the user's: all of it, or nothing where that fails."""
    made = path.with_name(f"{path.name}.new")
    try:
        made.write_bytes(text)
        made.chmod(path.stat().st_mode)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _is_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


def _is_ours(folder: Path, path: str, known: Mapping[str, list[int]]) -> bool:
    """Whether a file is mlxgen's own, or there is none."""
    full = f"{folder}/{path}"
    if not os.path.lexists(full) or (known.get(path) and _stat(full) == known[path]):
        return True
    return bool(_MARK.search(_read(full, 400) or b""))


def _stat(path: str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns]


def _read(path: str, size: int = -1) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(size)
    except OSError:
        return None
