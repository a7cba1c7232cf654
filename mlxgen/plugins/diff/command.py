"""`mlxgen diff`: compares two versions of the operators."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import rich_click as click

from ...command.cli import EXISTING_FILE, command, load
from ...diagnostics import Diagnostics, one_line
from ...read.settings import find
from ...render.python import op_dict
from .compare import compare


@command("project", "format")
@click.argument("old", type=EXISTING_FILE)
@click.argument("new", type=EXISTING_FILE)
def diff(diags: Diagnostics, old: Path, new: Path, project: Path | None, form: str) -> None:
    """Compare two versions of the operators; exit 1 if a change breaks callers.

    OLD and NEW are YAML files, or the `ops.json` of two builds. A file outside of any project uses
    the project of the other file.
    """
    # A copy of an old version, outside of any project, is compared with the kernels of the new one.
    roots = [project or find(path.resolve().parent) for path in (old, new)]
    before, after = (
        _operators(diags, path, root or other)
        for path, root, other in zip((old, new), roots, reversed(roots), strict=True)
    )
    try:
        changes = compare(before, after)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise click.BadParameter(f"{old} or {new} is not an ops.json") from error
    breaking = [c for c in changes if c.breaking]
    if form == "json":
        click.echo(json.dumps([c._asdict() for c in changes], indent=1))
    else:
        for change in changes:
            mark = click.style("breaking", fg="red") if change.breaking else "        "
            click.echo(f"{mark}  {one_line(f'{change.op}: {change.message}')}")
        click.echo(f"{len(changes)} change{'s' * (len(changes) != 1)}, {len(breaking)} breaking")
    if breaking:
        sys.exit(1)


def _operators(diags: Diagnostics, path: Path, project: Path | None) -> list[dict[str, Any]]:
    if path.suffix != ".json":
        return [op_dict(op) for op in load(diags, project, path)[0]]
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):  # releases before 1.0 wrote the list alone
            found = found.get("operators")
        if isinstance(found, list) and all(isinstance(op, dict) for op in found):
            return found
    raise click.BadParameter(f"{path} is not an ops.json")
