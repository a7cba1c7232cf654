"""Writes generated files whose text changed, and removes stale ones.

A manifest (``.mlxgen.json`` in the output folder) records the written files and their inputs, so
that a run with unchanged inputs does no work, and stale files can be identified. It also caches the
output of each entry for the next incremental run (memo.py). All files are rendered before the first
one is written, so that a failure leaves the folder unchanged.

mlxgen replaces and removes only its own files: files with its marker at the beginning, and files
that are unchanged since the manifest recorded them. Only one run at a time works in a folder. A
run that is killed leaves a manifest that lists every file it may have written, and one temporary
file, which the next run removes.
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
from . import MESSAGES

MANIFEST = ".mlxgen.json"
_TEMPORARY = ".mlxgen.tmp"
# The beginning of mlxgen's own files: the marker, or the beginning of ops.json (no comments).
_MARK = re.compile(
    rb"by mlxgen|mlxgen operators|\A\{\"schema\": \d+, \"operators\": \[", re.IGNORECASE
)


class Changes(NamedTuple):
    """The files that a run changed, or would change."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int

    @property
    def any(self) -> bool:
        """True if any file differs from the disk."""
        return bool(self.written or self.removed)


@dataclass(slots=True)
class Manifest:
    """The record of the run that wrote an output folder."""

    key: str = ""  # hash of all inputs
    base: str = ""  # hash of all inputs except the YAML
    files: dict[str, list[int]] = field(default_factory=dict)  # size and time, by path
    entries: str = ""  # cached output of the entries: lines of JSON, which most runs do not parse

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Load the manifest of a folder; return an empty one if it is missing or invalid."""
        try:
            with open(folder / MANIFEST, encoding="utf-8") as file:
                key, base, files = json.loads(file.readline())
                inside = {path: known for path, known in dict(files).items() if _is_inside(path)}
                return cls(str(key), str(base), inside, file.read())
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return cls()

    def save(self, folder: Path) -> None:
        """Write the manifest to a folder."""
        head = json.dumps([self.key, self.base, self.files])
        put(folder, {MANIFEST: f"{head}\n{self.entries}".encode()})

    def holds(self, folder: Path) -> bool:
        """Return whether all files are unchanged since that run."""
        root = str(folder)
        return all(_stat(f"{root}/{path}") == known for path, known in self.files.items())


class NotOurs(Exception):
    """Raised for foreign files that mlxgen would overwrite."""


@contextmanager
def reported(folder: Path, diags: Diagnostics) -> Iterator[None]:
    """Report file errors in ``diags``."""
    try:
        yield
    except NotOurs as error:
        for path in error.args:
            diags.error(MESSAGES("foreign_file", file=os.path.relpath(path)), COMMAND_LINE)
    except OSError as error:
        where = os.path.relpath(error.filename2 or error.filename or folder)
        reason = error.strerror or error
        diags.error(MESSAGES("unwritable", file=where, reason=reason), COMMAND_LINE)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder for one run; create it, and remove it again if it stays empty."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released at the end of the process in any case
        yield
    finally:
        with suppress(OSError):
            os.unlink(folder / _TEMPORARY)
        os.close(handle)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def foreign(folder: Path, sources: Iterable[Path]) -> Path | None:
    """Return a reason against an output folder: a source inside or around it, or a foreign file."""
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
    """Update the folder to contain exactly these files of mlxgen.

    Args:
        folder: The output folder.
        files: Text by path relative to the folder; None for a file that is unchanged in ``before``.
        before: The current manifest of the folder.
        after: The new manifest; its ``files`` are filled in.
        dry_run: Only return the changes.

    Raises:
        NotOurs: Nothing was written, because foreign files would be overwritten.
        OSError: A file could not be written.
    """
    texts = {path: text for path, text in files.items() if text is not None}
    changed = differing(folder, texts, before.files)
    stale = (path for path in before.files.keys() - files.keys() if (folder / path).is_file())
    removed = sorted(path for path in stale if _is_ours(folder, path, before.files))
    changes = Changes(tuple(changed), tuple(removed), len(files) - len(changed))
    if dry_run:
        return changes
    if files.keys() - before.files.keys():  # records files that may exist if this run is killed
        Manifest(files={**{path: [] for path in files}, **before.files}).save(folder)
    put(folder, changed)
    for path in removed:
        (folder / path).unlink()
        with suppress(OSError):  # stops at a nonempty folder; the top folder has the manifest
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
    """Return the files whose text differs from the folder; raise ``NotOurs`` for foreign ones."""
    texts = {path: text.encode() for path, text in files.items()}
    changed = {path: text for path, text in texts.items() if _read(f"{folder}/{path}") != text}
    others = [folder / path for path in changed if not _is_ours(folder, path, known)]
    if others:
        raise NotOurs(*others)
    return changed


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, each atomically."""
    for parent in {f"{folder}/{path}".rpartition("/")[0] for path in files}:
        os.makedirs(parent, exist_ok=True)
    temporary = f"{folder}/{_TEMPORARY}"
    for path, text in files.items():
        with open(temporary, "wb") as file:
            file.write(text)
        os.replace(temporary, f"{folder}/{path}")


def replace_file(path: Path, text: bytes) -> None:
    """Replace a user's file atomically."""
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
    """Return whether a file was written by mlxgen, or does not exist."""
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
