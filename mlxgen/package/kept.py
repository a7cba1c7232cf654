"""`mlxgen cache`: lists the cached build products with their sizes and times of last use."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import rich_click as click

from ..command.cli import OPTIONS, Names
from .cache import Cache, Kept, folder

# Without a manifest.
_OTHERS = {
    "green": "names of operators whose checks have passed (`mlxgen test`)",
    "metal": "Metal kernels for the CPU, and MLX for macOS (docs/emulation.md)",
}


@click.command("cache")
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option("--clear", is_flag=True, help="Remove them; later builds rebuild what they need.")
@OPTIONS["format"]
def cache_command(kinds: Names, clear: bool, form: str) -> None:
    """List the build products that mlxgen has cached, or remove them.

    Without a KIND, all kinds are listed. MLXGEN_CACHE selects another cache folder. mlxgen itself
    evicts items that were not used within the last hour if they exceed 3 GB.
    """
    cache = Cache(folder())
    entries = [*cache.entries(), *_others(cache.root)]
    known = sorted({entry.kind for entry in entries})
    if unknown := set(kinds) - set(known):
        listed = ", ".join(known) or "nothing"
        raise click.BadParameter(f"no '{min(unknown)}' is kept: there is {listed}")
    chosen = [entry for entry in entries if not kinds or entry.kind in kinds]
    if clear:
        for entry in chosen:
            _remove(cache, entry)
    if form == "json":
        click.echo(json.dumps([entry._asdict() for entry in chosen], indent=1))
        return
    total = _size(sum(entry.size for entry in chosen))
    if clear:
        click.echo(f"{cache.root}: {total} removed")
        return
    for entry in chosen:
        click.echo(
            f"{entry.kind:<11}  {_size(entry.size):>8}  {_when(entry.used):<14}  {entry.about}"
        )
    click.echo(f"{cache.root}: {total}")


def _others(root: Path) -> Iterator[Kept]:
    for kind, about in _OTHERS.items():
        stats = []
        for path in (root / kind).rglob("*"):
            with suppress(OSError):
                stats.append(path.lstat())
        if stats:
            size, used = sum(s.st_size for s in stats), max(s.st_mtime for s in stats)
            yield Kept(kind, "", about, size, used)


def _remove(cache: Cache, entry: Kept) -> None:
    try:
        if entry.kind in _OTHERS:
            shutil.rmtree(cache.root / entry.kind)
        else:
            cache.remove(entry)
    except OSError as error:
        raise click.ClickException(f"cannot remove {error.filename}: {error.strerror}") from error


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _when(used: float) -> str:
    """Return the age in minutes, hours or days."""
    minutes = max(0, int(time.time() - used)) // 60
    units = {"day": minutes // 1440, "hour": minutes // 60, "minute": minutes}
    unit = next((unit for unit, count in units.items() if count), "minute")
    return f"{units[unit]} {unit}{'s' * (units[unit] != 1)} ago"
