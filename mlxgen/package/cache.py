"""The on-disk cache of build products: built once per machine and user, addressed by hash.

Each item has its own folder. An item is complete when its manifest exists. The manifest is written
last and atomically, so that an interrupted process leaves only an unreferenced folder, which a
later process removes. The manifest stores a checksum of every file, so that a damaged item is
rebuilt. It also stores the modification times of outside files that the item was built from, such
as system headers. Items contain programs, so a folder that other users can write to is not used. A
lock keeps two processes from building the same item at the same time. On file
systems without locks both processes build it, and the later result is kept.

    runtime/                     the kind of the item
      4f0c…a1.json               its manifest; the modification time is the time of last use
      4f0c…a1-x8dk2j/            its files
      4f0c…a1.lock               its lock
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

# The size limit. Items that were used within the last hour do not count and are never evicted.
MOST_BYTES = 3_000_000_000
RECENT = 3600


def folder() -> Path:
    """Return the folder of mlxgen's caches: $MLXGEN_CACHE, or a folder in the user's cache."""
    if given := os.environ.get("MLXGEN_CACHE"):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "mlxgen"


def private(folder: Path) -> Path:
    """Return a cache folder; create it if it does not exist.

    Raises:
        OSError: If it cannot be created, or another user could put programs into it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    if why := _exposed(folder):
        raise PermissionError(why)
    return folder


def _exposed(folder: Path) -> str | None:
    """Return a reason against a folder that another user except root can change."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    if found.st_uid not in (os.getuid(), 0):
        return f"{folder} belongs to another user: set MLXGEN_CACHE to a folder of your own"
    if found.st_mode & 0o022:
        return f"other users can write to {folder}: run `chmod go-w {shlex.quote(str(folder))}`"
    return None


class Kept(NamedTuple):
    """A cached item."""

    kind: str
    key: str
    about: str  # a description for users
    size: int  # bytes
    used: float  # seconds since 1970


class Cache:
    """The items of a folder, by kind and key."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, kind: str, key: str) -> Path | None:
        """Return the folder of an item if the item exists and its files are unchanged."""
        manifest = self.root / kind / f"{key}.json"
        if _exposed(self.root) or _exposed(manifest.parent):
            return None
        known = _read(manifest)
        if known is None or not _is_whole(self.root / kind, known):
            return None
        with suppress(OSError):  # in a read-only cache nothing is evicted
            os.utime(manifest)
        return Path(self.root, kind, known["folder"])

    def obtain(
        self, kind: str, key: str, about: str, build: Callable[[Path], Iterable[str]]
    ) -> Path:
        """Return the folder of an item; if it does not exist, ``build`` fills it.

        Args:
            build: Receives an empty folder and writes the item's files to it. Returns the outside
                files that the item depends on. If it raises, nothing is cached.

        Raises:
            OSError: If the cache is not writable, or other users can write to it.
        """
        if found := self.find(kind, key):
            return found
        place = private(private(self.root) / kind)
        with _locked(place / f"{key}.lock"):
            if found := self.find(kind, key):  # another process has built it meanwhile
                return found
            made = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=place))
            try:
                outside = {path: _time(path) for path in build(made)}
                _publish(made, place / f"{key}.json", about, outside)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        self._tidy(place)
        return made

    def entries(self) -> list[Kept]:
        """Return all cached items, the most recently used first."""
        found = []
        for manifest in self.root.glob("*/*.json"):
            known = _read(manifest)
            if known is not None:
                size = sum(size for size, _ in known["files"].values())
                used = manifest.stat().st_mtime
                kind, key = manifest.parent.name, manifest.stem
                found.append(Kept(kind, key, known["about"], size, used))
        return sorted(found, key=lambda entry: -entry.used)

    def remove(self, entry: Kept) -> None:
        """Remove an item; the next process that needs it rebuilds it."""
        place = self.root / entry.kind
        (place / f"{entry.key}.json").unlink(missing_ok=True)
        for made in place.glob(f"{entry.key}-*"):
            shutil.rmtree(made, ignore_errors=True)

    def _tidy(self, place: Path) -> None:
        """Remove the leftovers of interrupted processes and the least recently used items."""
        for made in place.glob("*-*"):
            manifest = place / f"{made.name.partition('-')[0]}.json"
            known = _read(manifest)
            if known is None or known["folder"] != made.name:
                with suppress(OSError), _locked(manifest.with_suffix(".lock"), wait=False):
                    shutil.rmtree(made, ignore_errors=True)
        left = MOST_BYTES
        for entry in self.entries():
            left -= entry.size
            if left < 0 and time.time() - entry.used > RECENT:
                self.remove(entry)


def _publish(made: Path, manifest: Path, about: str, outside: dict[str, int | None]) -> None:
    files = {
        path.relative_to(made).as_posix(): _checksum(path)
        for path in sorted(made.rglob("*"))
        if path.is_file()
    }
    known = {"folder": made.name, "about": about, "files": files, "outside": outside}
    handle, temporary = tempfile.mkstemp(dir=made)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(known, file)
    os.replace(temporary, manifest)


def _read(manifest: Path) -> dict[str, Any] | None:
    """Return the contents of a manifest, or None if it is not valid."""
    try:
        known = json.loads(manifest.read_text(encoding="utf-8"))
        complete = {"folder", "about", "files", "outside"} <= known.keys()
        inside = known["folder"].startswith(f"{manifest.stem}-") and "/" not in known["folder"]
        return known if complete and inside else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _is_whole(place: Path, known: dict[str, Any]) -> bool:
    try:
        made = place / known["folder"]
        return all(_time(path) == time for path, time in known["outside"].items()) and all(
            (made / path).stat().st_size == expected[0] and _checksum(made / path) == expected
            for path, expected in known["files"].items()
        )
    except (OSError, TypeError, AttributeError, LookupError):
        return False


def _checksum(path: Path) -> list[int]:
    """Return the size and CRC of a file. The CRC detects accidental damage and is fast."""
    size = found = 0
    with open(path, "rb") as file:
        while data := file.read(1 << 22):
            size, found = size + len(data), zlib.crc32(data, found)
    return [size, found]


def _time(path: str) -> int | None:
    """Return the modification time of a file; None if the file does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock among processes, if the file system has locks. A lock ends with its process.

    Raises:
        OSError: If ``wait`` is false and another process may hold the lock.
    """
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not wait:
                raise
        yield
