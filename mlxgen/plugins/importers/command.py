"""`mlxgen import`: writes entries for the functions of an installed library, torch or MLX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import rich_click as click

from ...command.cli import EXISTING_FILE, Commands, command, require
from ...diagnostics import Diagnostics
from ..common import entries as write
from . import allowlist, functions, importer, output, schema, trace

_FILE = click.Path(dir_okay=False, path_type=Path)
_OUTPUT = click.option(
    "--output", "-o", "entries", type=_FILE, required=True, help="The file of entries to write."
)

import_command = Commands(
    name="import",
    places={
        "metal_kernel": "plugins.metal.command.from_metal_kernel",
        "mlx": "plugins.importers.command.from_mlx",
        "torch": "plugins.importers.command.from_torch",
    },
    help="Write entries for the functions of another library, or for Metal kernels.",
    no_args_is_help=True,
)


@command(name="torch")
@click.option(
    "--allow", type=EXISTING_FILE, multiple=True, required=True, help="List of operators to import."
)
@click.option(
    "--overrides", type=EXISTING_FILE, multiple=True, help="Formulas that precede mlxgen's own."
)
@_OUTPUT
@click.option("--report", type=_FILE, help="File for the outcome of each overload.")
def from_torch(
    diags: Diagnostics,
    allow: tuple[Path, ...],
    overrides: tuple[Path, ...],
    entries: Path,
    report: Path | None,
) -> None:
    """Write entries for operators of the installed torch.

    A formula comes from an override, from mlxgen's table, or from torch's decompositions. Operators
    without a formula are rejected, with a reason in the report.
    """
    outputs = [entries, *([report] if report else [])]
    require(write.may_replace(outputs, diags))
    found = schema.installed(diags)
    if found is None:
        require(False)
        return
    names = allowlist.read(allow, found, diags)
    table, own = importer.read_tables(overrides, found, diags)
    derive = trace.deriver(names, found, table, own, diags)
    require(diags.ok)
    imported = importer.make(names, found, table, own, derive)
    importer.check_used(own, imported, found, diags)
    files = {entries: output.entries(imported)}
    if report:
        files[report] = output.report(imported)
    _write(files, output.summary(imported), report, "overload", diags)


@command(name="mlx")
@click.option(
    "--select", "-s", multiple=True, help="Select functions by name, or those of a submodule."
)
@_OUTPUT
@click.option("--report", type=_FILE, help="File for the outcome of each function.")
def from_mlx(
    diags: Diagnostics, select: tuple[str, ...], entries: Path, report: Path | None
) -> None:
    """Write entries for the functions of the installed MLX.

    Most entries bind a C++ function of MLX. Functions that cannot be entries, such as those that
    take functions, are listed with the reason at the end of the file and in the report.
    """
    outputs = [entries, *([report] if report else [])]
    require(write.may_replace(outputs, diags))
    mlx = functions.installed(diags)
    if mlx is None:
        require(False)
        return
    names = functions.select(select, mlx, diags)
    require(diags.ok)
    imported = functions.make(names, mlx)
    files = {entries: functions.entries(imported)}
    if report:
        files[report] = functions.report(imported)
    _write(files, functions.summary(imported), report, "function", diags)


def _write(
    files: Mapping[Path, str], summary: str, report: Path | None, what: str, diags: Diagnostics
) -> None:
    """Write the files, and print what they contain."""
    require(write.replace(files, diags))
    diags.print()
    click.echo(summary)
    if report:
        click.echo(f"{os.path.relpath(report)}: the outcome of each {what}")
