"""`mlxgen import metal_kernel`: writes entries and Metal files for recorded kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import rich_click as click

from ...command.cli import command, require, settings_of
from ...diagnostics import COMMAND_LINE, Diagnostics
from ..common import entries as write
from . import MESSAGES, records
from .convert import Entry, Names, Unfit, convert
from .records import Call, Kernel, Record

_FILE = click.Path(dir_okay=False, path_type=Path)


@command(name="metal_kernel")
@click.argument("sources", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option(
    "--output", "-o", "entries", type=_FILE, required=True, help="The file of entries to write."
)
@click.option(
    "--kernels",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the Metal files. Default: the project's, or `kernels/metal` next to OUTPUT. "
    "Another folder must be in it.",
)
@click.option("--select", "-s", multiple=True, help="Import only the kernels of this name.")
@click.option("--report", type=_FILE, help="File for the outcome of each kernel.")
def from_metal_kernel(
    diags: Diagnostics,
    sources: tuple[Path, ...],
    entries: Path,
    kernels: Path | None,
    select: tuple[str, ...],
    report: Path | None,
) -> None:
    """Write entries and Metal files for kernels of `mx.fast.metal_kernel`.

    A SOURCE is a folder of records of `mlxgen.metal.record`, a file of one, or a Python program,
    which is run and recorded. Kernels that cannot be entries are listed with the reason at the end
    of the file and in the report.
    """
    searched = settings_of(diags, None, entries).metal
    folder = kernels or searched
    if not folder.resolve().is_relative_to(searched.resolve()):
        about = {"folder": folder, "searched": os.path.relpath(searched)}
        diags.error(MESSAGES("not_searched", **about), COMMAND_LINE)
    outputs = [entries, *([report] if report else [])]
    require(write.may_replace(outputs, diags))
    found = _records(sources, diags)
    names = dict.fromkeys(record.kernel.name for record in found)
    for name in dict.fromkeys(select) if found else ():
        if name not in names:
            about = {"name": name, "recorded": ", ".join(names)}
            diags.error(MESSAGES("not_recorded", **about), COMMAND_LINE)
    found = [record for record in found if not select or record.kernel.name in select]
    require(diags.ok)
    taken, outcomes = Names(), dict[str, list[Entry | Unfit]]()
    for record in found:
        outcomes.setdefault(record.kernel.name, []).extend(convert(record, taken))
    made = [each for several in outcomes.values() for each in several if isinstance(each, Entry)]
    if not made:
        _, (reason, *_) = next(iter(outcomes.items()))
        diags.error(MESSAGES("none_fits", name=next(iter(outcomes)), reason=reason), COMMAND_LINE)
    require(diags.ok)
    metal = {folder / f"{entry.name}.metal": entry.metal for entry in made}
    require(write.may_replace(metal, diags))
    files = {entries: _entries(outcomes)} | metal
    if report:
        files[report] = _report(outcomes)
    for path in metal:
        path.parent.mkdir(parents=True, exist_ok=True)
    require(write.replace(files, diags))
    whole = sum(any(isinstance(each, Entry) for each in several) for several in outcomes.values())
    entry = "entry" if len(made) == 1 else "entries"
    click.echo(f"{len(made)} {entry} for {whole} of {len(outcomes)} kernels")
    if report:
        click.echo(f"{os.path.relpath(report)}: the outcome of each kernel")


def _records(sources: tuple[Path, ...], diags: Diagnostics) -> list[Record]:
    """Return the records of all sources, one for each kernel, sorted by name."""
    found: dict[Kernel, dict[Call, Call]] = {}
    for source in sources:
        if source.suffix == ".py":
            with tempfile.TemporaryDirectory() as folder:
                if reason := _run(source, Path(folder)):
                    diags.error(MESSAGES("program_fails", file=source, reason=reason), COMMAND_LINE)
                    continue
                new = _read(Path(folder), diags)
        else:
            new = _read(source, diags)
        if not new and diags.ok:
            key = "program" if source.suffix == ".py" else ""
            diags.error(MESSAGES("no_records", key, place=source), COMMAND_LINE)
        for record in new:
            for call in record.calls:
                records.join(found.setdefault(record.kernel, {}), call)
    kernels = sorted(found, key=lambda kernel: (kernel.name, kernel.file))
    return [Record(kernel=kernel, calls=tuple(found[kernel].values())) for kernel in kernels]


def _read(source: Path, diags: Diagnostics) -> list[Record]:
    found = []
    for path in sorted(source.glob("*.json")) if source.is_dir() else [source]:
        try:
            found.append(records.read(path))
        except records.RecordError as error:
            diags.error(MESSAGES("no_record", reason=error), COMMAND_LINE)
    return [record for record in found if record.calls]


def _run(program: Path, folder: Path) -> str:
    """Run a program with its kernels recorded; return the reason if it fails."""
    import subprocess
    import sys

    with tempfile.TemporaryDirectory() as place:
        reason = Path(place) / "reason"
        run = [sys.executable, "-m", "mlxgen.plugins.metal.run"]
        line = [*run, str(program), str(folder), str(reason)]
        status = subprocess.run(line, stdout=subprocess.DEVNULL).returncode
        if reason.exists():
            return reason.read_text("utf-8")
    return f"it ends with status {status}" if status else ""


def _entries(outcomes: Mapping[str, list[Entry | Unfit]]) -> str:
    """Return the file of entries; comments at its end list the kernels without any."""
    blocks = []
    for each in (each for several in outcomes.values() for each in several):
        if isinstance(each, Entry):
            blocks.append(write.block(each.keys, "\n# ".join(each.notes)))
    listed = [f"# - {line}" for line in _left_out(outcomes)]
    if listed:
        blocks.append("\n".join(["# Calls without an entry.\n#", *listed]) + "\n")
    return write.file("records of mx.fast.metal_kernel", "Edit them.", blocks)


def _left_out(outcomes: Mapping[str, list[Entry | Unfit]]) -> Iterator[str]:
    for name, several in outcomes.items():
        reasons = dict.fromkeys(str(each) for each in several if isinstance(each, Unfit))
        if reasons:
            yield f"{name}: {'; '.join(reasons)}."


def _report(outcomes: Mapping[str, list[Entry | Unfit]]) -> str:
    rows = {}
    for name, several in outcomes.items():
        made = [each.name for each in several if isinstance(each, Entry)]
        reasons = dict.fromkeys(str(each) for each in several if isinstance(each, Unfit))
        rows[name] = {"entries": ", ".join(made)} if made else {}
        rows[name] |= {"left out": "; ".join(reasons)} if reasons else {}
    lines = ["the outcome of each kernel.", f"Kernels: {len(rows)}."]
    return write.report("records of mx.fast.metal_kernel", lines, rows)
