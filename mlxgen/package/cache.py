"""What is built once per machine and user, and found again: a folder for each thing, by a hash.

A thing is complete when its manifest is there, which is written last and in one piece: a process
that is interrupted leaves a folder that nothing refers to, and the next one removes it. The
manifest has the checksum of every file, so that what is damaged is built again, and the time of
files elsewhere that went into it, such as the system's headers. A lock keeps two processes from
building the same at once; where there are no locks both build, and the last one is kept.

    runtime/                     what kind of thing it is
      4f0c…a1.json               the manifest: when it was last used is its time
      4f0c…a1-x8dk2j/            its files
      4f0c…a1.lock
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

# What is kept, beside what was used within the last hour: the latest.
MOST_BYTES = 3_000_000_000
RECENT = 3600


def folder() -> Path:
    """Where mlxgen keeps what it builds: $MLXGEN_CACHE, or the user's cache."""
    if given := os.environ.get("MLXGEN_CACHE"):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "mlxgen"


class Kept(NamedTuple):
    """Something that is kept."""

    kind: str
    key: str
    about: str  # for people
    size: int  # bytes
    used: float  # seconds since 1970


class Cache:
    """Things in a folder, by kind and key."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, kind: str, key: str) -> Path | None:
        """The folder of a thing, if it is there, and as it was made."""
        manifest = self.root / kind / f"{key}.json"
        known = _read(manifest)
        if known is None or not _is_whole(self.root / kind, known):
            return None
        with suppress(OSError):  # where nothing can be written, nothing is evicted either
            os.utime(manifest)
        return Path(self.root, kind, known["folder"])

    def obtain(
        self, kind: str, key: str, about: str, build: Callable[[Path], Iterable[str]]
    ) -> Path:
        """The folder of a thing, which ``build`` fills if it is not there.

        Args:
            build: Gets an empty folder, where the files stay. Gives the files elsewhere on which
                they depend. Nothing is kept of what it does when it raises.

        Raises:
            OSError: If nothing can be written.
        """
        if found := self.find(kind, key):
            return found
        place = self.root / kind
        place.mkdir(parents=True, exist_ok=True)
        with _locked(place / f"{key}.lock"):
            if found := self.find(kind, key):  # another process was faster
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
        """What is kept, the last used first."""
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
        """Remove a thing; whoever uses it builds it again."""
        place = self.root / entry.kind
        (place / f"{entry.key}.json").unlink(missing_ok=True)
        for made in place.glob(f"{entry.key}-*"):
            shutil.rmtree(made, ignore_errors=True)

    def _tidy(self, place: Path) -> None:
        """Remove what interrupted processes left, and what was not used for longest."""
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
    """A manifest, if it is one."""
    try:
        known = json.loads(manifest.read_text(encoding="utf-8"))
        complete = {"folder", "about", "files", "outside"} <= known.keys()
        return known if complete and "/" not in known["folder"] else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
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
    """The size and the CRC of a file: against accidents, at the speed at which it is read."""
    size = found = 0
    with open(path, "rb") as file:
        while data := file.read(1 << 22):
            size, found = size + len(data), zlib.crc32(data, found)
    return [size, found]


def _time(path: str) -> int | None:
    """When a file was changed last; None where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Alone among processes, where the file system has locks; they end with the process.

    Raises:
        OSError: If not ``wait``, and another process may be there.
    """
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not wait:
                raise
        yield
