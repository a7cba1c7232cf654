"""The command ``python -m tools.formulas``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import rich_click as click
import yaml

from mlxgen.command.operators import load, read, settings_of
from mlxgen.diagnostics import Diagnostics

from .operators import Operators
from .report import Report
from .trial import Trial


@click.command()
@click.option("--op", "ops", multiple=True, help="Mutate the formulas of this operator only.")
@click.option("--package", help="The installed package; by default the project's.")
@click.option(
    "--known",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Substitutes and equivalent mutants; by default the project's `tests/formulas.yaml`.",
)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path | None, ops: tuple[str, ...], package: str | None, known: Path | None) -> None:
    """Mutate each gradient formula of a YAML file, one place at a time, and run its samples.

    Fails if a mutant survives that is neither equivalent nor listed as equivalent.
    """
    trial, listed = prepare(file, package, known)
    report = Report.of(trial, listed, ops)
    click.echo(report.text())
    sys.exit(1 if report.left else 0)


def prepare(
    file: Path | None, package: str | None = None, known: Path | None = None
) -> tuple[Trial, list[Mapping[str, Any]]]:
    """Return the operators of a file, ready to be tested, and the listed equivalents."""
    diags = Diagnostics()
    settings = settings_of(None, file, diags)
    found = load(settings, diags)[0] if settings else []
    document = read(settings, Diagnostics())[0] if settings else None
    if settings is None or document is None or not diags.ok:
        diags.print(sys.stderr)
        sys.exit(1)
    entries = {entry.name: entry.data.get("jvp") for entry in document.entries if entry.name}
    jvps = {
        name: {arg: text for arg, text in given.items() if text != "none"}
        for name, given in entries.items()
        if isinstance(given, dict)
    }
    path = known or settings.root / "tests" / "formulas.yaml"
    listed = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    operators = Operators(
        found, jvps, _installed(package or settings.name), listed.get("stand_ins", {})
    )
    trial = Trial(operators, listed.get("points", ()), listed.get("skipped", {}).get("ops", ()))
    return trial, listed.get("equivalent", [])


def _installed(package: str) -> ModuleType | None:
    try:
        return importlib.import_module(package)
    except ImportError:
        return None


if __name__ == "__main__":
    main(prog_name="python -m tools.formulas")
