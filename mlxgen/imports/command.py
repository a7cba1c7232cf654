"""`mlxgen import torch`: writes entries for operators of the installed torch."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

from ..command.cli import EXISTING_FILE, command, require
from ..diagnostics import Diagnostics
from . import allowlist, importer, schema, trace, write

_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@command(name="import")
@click.argument("library", type=click.Choice(["torch"]))
@click.option(
    "--allow", type=EXISTING_FILE, multiple=True, required=True, help="List of operators to import."
)
@click.option(
    "--overrides", type=EXISTING_FILE, multiple=True, help="Formulas that precede mlxgen's own."
)
@click.option("--output", "-o", type=_OUTPUT, required=True, help="The file of entries to write.")
@click.option("--report", type=_OUTPUT, help="File for the outcome of each overload.")
def import_command(
    diags: Diagnostics,
    library: str,
    allow: tuple[Path, ...],
    overrides: tuple[Path, ...],
    output: Path,
    report: Path | None,
) -> None:
    """Write entries for operators of another library, from its installed schema.

    LIBRARY is torch. A formula comes from an override, from mlxgen's table, or from torch's
    decompositions. Operators without a formula are rejected, with a reason in the report.
    """
    outputs = [output, *([report] if report else [])]
    require(write.may_replace(outputs, diags))
    found = schema.installed(diags)
    if found is None:
        require(False)
        return
    names = allowlist.read(allow, found, diags)
    table, own = importer.read_tables(overrides, names, found, diags)
    derive = trace.deriver(names, found, table, own, diags)
    require(diags.ok)
    imported = importer.make(names, found, table, own, derive)
    files = {output: write.entries(imported)}
    if report:
        files[report] = write.report(imported)
    require(write.replace(files, diags))
    diags.print()
    for line in write.summary(imported):
        click.echo(line)
    if report:
        click.echo(f"{os.path.relpath(report)}: the outcome of each overload")
