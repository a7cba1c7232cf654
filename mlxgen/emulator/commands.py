"""The emulator's commands: metal-check and metal-test."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from ..command import operators
from ..command.cli import FOLDER, Failure, Names, command, load, require, settings_of
from ..diagnostics import Diagnostics
from .cxx import EmulationError
from .host import HostUnavailable, check_host
from .package import build_package, check_kernels, run_tests
from .spaces import available, check_project


@command("project", name="metal-test", context_settings={"ignore_unknown_options": True})
@click.option(
    "--build-dir", type=FOLDER, help="Build folder; the default is the project's `build/metal`."
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=0),
    help="Number of test processes, 0 for one per core; needs pytest-xdist.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def metal_test(
    diags: Diagnostics,
    project: Path | None,
    build_dir: Path | None,
    jobs: int | None,
    arguments: Names,
) -> None:
    """Run the project's tests with its Metal kernels on the CPU.

    Checks the kernels against Metal's own rules, builds the operators so that their Metal kernels
    run through their generated launchers without a GPU, and runs pytest. Without ARGUMENTS it runs
    the tests that [tool.mlxgen] names, and reports an error for every kernel that no test launches.
    ARGUMENTS are passed to pytest (`mlxgen metal-test -- tests/ops -k axpby`).
    """
    settings = settings_of(diags, project)
    folder = (build_dir or settings.root / "build" / "metal").resolve()
    try:
        broken = check_kernels(settings)
        for error in broken:
            click.echo(str(error), err=True)
        require(not broken)
        package = build_package(settings, folder, say=click.echo)
        status = run_tests(package, arguments, complete=not arguments, jobs=jobs)
    except EmulationError as error:
        click.echo(f"error: {error}", err=True)
        raise Failure from error
    sys.exit(status)


@command("project", "select", "exclude", "format", name="metal-check")
@click.option(
    "--build-dir", type=FOLDER, help="Output folder; the default is the project's `build/macos`."
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Number of parallel compilers.")
@click.option(
    "--require",
    "required",
    is_flag=True,
    envvar="CI",
    help="Fail if MLX for macOS or the compiler is not available; the default if CI is set.",
)
def metal_check(
    diags: Diagnostics,
    project: Path | None,
    select: Names,
    exclude: Names,
    build_dir: Path | None,
    jobs: int | None,
    required: bool,
    form: str,
) -> None:
    """Check Metal kernels and their launchers as macOS would, without a Mac.

    Checks the kernels' address spaces. Compiles every generated file with Metal code against the
    headers of MLX's macOS wheel, and compares the symbols that it needs with the symbols that the
    wheel's library exports.
    """
    ops, sources, settings = load(diags, project, None, select, exclude)
    operators.check_metal(ops, sources, diags)
    folder = build_dir or settings.root / "build" / "macos"
    try:
        if not available():
            raise HostUnavailable("ziglang is not installed: pip install ziglang")
        for error in check_project(ops, sources, jobs):
            diags.error(error.said, error.span)
        found = check_host(settings, folder, diags, include=select, exclude=exclude, jobs=jobs)
    except (EmulationError, HostUnavailable) as error:
        verb = "cannot be checked" if required else "was NOT checked"
        click.echo(f"the code for macOS {verb}: {error}", err=True)
        require(diags.ok and not required)
        if form == "json":
            click.echo(diags.to_json())
        return
    require(diags.ok)
    said = (
        f"{len(found.files)} files compile with MLX {found.wheel.version} for macOS, which exports "
        "all symbols that they need"
    )
    click.echo(diags.to_json() if form == "json" else said)
