"""The command ``python -m tools.mutation``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rich_click as click

from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator import EmulationError
from mlxgen.emulator.package import build_package
from mlxgen.read import settings as project_settings

from .plugin import Options
from .report import equivalents, run, write_page


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Folder of the project's pyproject.toml.",
)
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Build folder; by default the project's `build/metal`.",
)
@click.option("--op", "ops", multiple=True, help="Mutate the kernels of this operator only.")
@click.option("--sample", default=0, help="Number of random mutants of each operator; 0: all.")
@click.option("--seed", default=0, help="Seed of the sample.")
@click.option("--jobs", default=os.cpu_count() or 1, help="Number of mutants that run in parallel.")
@click.option(
    "--equivalent",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The equivalent mutants; by default the project's `tests/mutants.yaml`.",
)
@click.option(
    "--write",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to this Markdown page; with --op, rows of other operators stay.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    project: Path,
    build_dir: Path | None,
    ops: tuple[str, ...],
    sample: int,
    seed: int,
    jobs: int,
    equivalent: Path | None,
    page: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Mutate the Metal kernels and their launchers, one place at a time, and run the tests.

    Fails if a mutant survives that is not listed as equivalent. ARGUMENTS are passed to pytest, as
    in `mlxgen metal-test`, and select the tests (`python -m tools.mutation -- tests/ops`).
    """
    diags = Diagnostics()
    settings = project_settings.load(project, diags)
    if settings is None:
        diags.print(sys.stderr)
        sys.exit(1)
    try:
        expected = equivalents(equivalent or settings.root / "tests" / "mutants.yaml")
        folder = (build_dir or settings.root / "build" / "metal").resolve()
        package = build_package(settings, folder)
        report = run(package, Options("", "", ops, jobs, sample, seed), expected, arguments)
    except EmulationError as error:
        sys.exit(str(error))
    if page is not None:
        write_page(page, report, whole=not ops)
    whole = not (ops or sample)
    click.echo(report.summary(whole))
    if report.missed or (report.idle and whole):
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m tools.mutation")
