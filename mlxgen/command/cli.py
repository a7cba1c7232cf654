"""The command line: check, generate, show, list, schema, explain, diff, metal-check,
metal-test, metal-mutate.

Every command prints for people by default (rich, on a terminal) and for programs with
``--format json``. Exit status: 0 fine, 1 something is wrong in the project or would change, 2 wrong
use of the command line. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from .. import __version__
from ..diagnostics import Diagnostics

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.settings import Settings

click.rich_click.TEXT_MARKUP = "markdown"
click.rich_click.SHOW_ARGUMENTS = True

project_option = click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Folder of the project's pyproject.toml.",
)
yaml_option = click.option(
    "--yaml",
    "yaml_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Another YAML file than the project's.",
)
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output for people or for programs.",
)
select_option = click.option(
    "--select", "-s", multiple=True, help="Only these: an operator's name, or `tag:NAME`."
)
exclude_option = click.option("--exclude", "-x", multiple=True, help="All but these.")


class Failure(Exception):
    """Something was reported; the process ends with status 1."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlxgen")
def cli() -> None:
    """**mlxgen** turns one YAML entry per operator into an MLX extension.

    Bindings, dispatch, vjp, jvp, vmap, stubs, checks and documentation are generated; the kernels
    are yours.
    """


def _settings(project: Path, yaml_path: Path | None, diags: Diagnostics) -> Settings:
    from .generate import load_settings, plain_settings

    if yaml_path is not None and not (project / "pyproject.toml").is_file():
        return plain_settings(project, yaml_path)
    settings = load_settings(project, diags)
    if settings is None:
        raise Failure
    return settings


def _load(
    project: Path,
    yaml_path: Path | None,
    diags: Diagnostics,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    *,
    strict: bool = True,
) -> tuple[list[Op], Any, Settings]:
    from . import generate as generator

    settings = _settings(project, yaml_path, diags)
    ops, sources = generator.load(settings, diags, yaml_path)
    if strict and not diags.ok:
        raise Failure
    chosen = generator.select(ops, include, exclude, diags)
    if strict and not diags.ok:
        raise Failure
    return chosen, sources, settings


def _finish(diags: Diagnostics, form: str) -> None:
    if form == "json":
        click.echo(diags.to_json())
    elif len(diags):
        diags.print(sys.stderr)


@cli.command()
@project_option
@yaml_option
@select_option
@exclude_option
@format_option
def check(
    project: Path,
    yaml_path: Path | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    form: str,
) -> None:
    """Validate the operators: keys, signatures, formulas, gradients, kernels."""
    from . import generate as generator

    diags = Diagnostics()
    try:
        ops, sources, _ = _load(project, yaml_path, diags, select, exclude)
        generator.check_metal(ops, sources, diags)
    except Failure:
        _finish(diags, form)
        raise
    _finish(diags, form)
    if not diags.ok:
        raise Failure
    if form == "text":
        click.echo(f"{len(ops)} operators, no errors")


@cli.command()
@project_option
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/generated"),
    show_default=True,
    help="Folder for the generated files.",
)
@select_option
@exclude_option
@click.option("--check", "dry_run", is_flag=True, help="Write nothing; exit 1 if files differ.")
@format_option
def generate(
    project: Path,
    output: Path,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    dry_run: bool,
    form: str,
) -> None:
    """Write the C++ sources, bindings, stubs, checks and documentation.

    Only files whose text changed are written, and stale ones are removed. When anything is wrong
    in the YAML nothing is touched.
    """
    from . import generate as generator

    diags = Diagnostics()
    result = None
    settings = generator.load_settings(project, diags)
    if settings is not None:
        result = generator.generate(
            settings, output, diags, include=select, exclude=exclude, check=dry_run
        )
    if result is None:
        _finish(diags, form)
        raise Failure
    changes = result.changes
    if form == "json":
        click.echo(
            json.dumps(
                {
                    "written": list(changes.written) if changes else [],
                    "removed": list(changes.removed) if changes else [],
                    "diagnostics": json.loads(diags.to_json()),
                },
                indent=1,
            )
        )
    else:
        if len(diags):
            diags.print(sys.stderr)
        if changes is None or not changes.any:
            click.echo(f"{output}: up to date")
        elif dry_run:
            for path in changes.written:
                click.echo(f"would write {path}")
            for path in changes.removed:
                click.echo(f"would remove {path}")
        else:
            click.echo(
                f"{output}: {result.operators} operators, {len(changes.written)} files written, "
                f"{len(changes.removed)} removed, {changes.unchanged} unchanged"
            )
    if dry_run and changes is not None and changes.any:
        raise Failure


PARTS = ("header", "source", "binding", "stub", "doc", "metal", "json")


@cli.command()
@project_option
@yaml_option
@click.argument("op")
@click.argument("part", type=click.Choice(PARTS), required=False)
def show(project: Path, yaml_path: Path | None, op: str, part: str | None) -> None:
    """Print what an operator generates, without building.

    PART is one of header, source, binding, stub, doc, metal, json; header and source if absent.
    """
    from ..diagnostics import COMMAND_LINE, did_you_mean
    from ..render import files

    diags = Diagnostics()
    try:
        ops, sources, settings = _load(project, yaml_path, diags, strict=False)
        found = next((o for o in ops if op in (o.name, o.python_name, o.path)), None)
        if found is None:
            if diags.ok:
                near = did_you_mean(op, [o.name for o in ops])
                diags.error("MG606", f"no operator '{op}'{near}", COMMAND_LINE)
            raise Failure
    except Failure:
        _finish(diags, "text")
        raise
    for name in [part] if part else ["header", "source"]:
        text = files.part(found, name, settings, sources.metal_text)
        _print_code(text, files.PARTS[name])


def _print_code(text: str, language: str) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, language, background_color="default"))
    else:
        click.echo(text, nl=not text.endswith("\n"))


@cli.command("list")
@project_option
@yaml_option
@select_option
@exclude_option
@format_option
def list_command(
    project: Path,
    yaml_path: Path | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    form: str,
) -> None:
    """List the operators: name, signature, backends, gradient."""
    from ..render.files import op_dict
    from ..render.view import gradient_summary

    diags = Diagnostics()
    try:
        ops, _, _ = _load(project, yaml_path, diags, select, exclude)
    except Failure:
        _finish(diags, "text")
        raise
    if form == "json":
        click.echo(json.dumps([op_dict(op) for op in ops], indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("operator", "signature", "backends", "gradient", "tags")
    for op in ops:
        table.add_row(
            op.path,
            op.signature.python(),
            ", ".join(op.backends),
            gradient_summary(op),
            ", ".join(sorted(op.tags)),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the YAML file, for editors."""
    from ..read.keys import json_schema

    click.echo(json.dumps(json_schema(), indent=1))


@cli.command()
@click.argument("code")
def explain(code: str) -> None:
    """Explain an error code, such as MG403, with an example and its cure."""
    from .. import diagnostics

    if code.upper() not in diagnostics.sections():
        raise click.BadParameter(f"no such code: {code}")
    text = diagnostics.explain(code)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        click.echo(text)


@cli.command()
@project_option
@click.option("--check", "dry_run", is_flag=True, help="Write nothing; exit 1 if pages differ.")
def docs(project: Path, dry_run: bool) -> None:
    """Write the reference pages: operators, and the JSON Schema."""
    from .generate import doc_pages

    diags = Diagnostics()
    try:
        ops, _, settings = _load(project, None, diags)
    except Failure:
        _finish(diags, "text")
        raise
    pages = doc_pages(ops, settings)
    stale = []
    for name, text in pages.items():
        path = settings.docs / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(settings.relative(path))
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    verb = "out of date" if dry_run else "written"
    click.echo(f"{verb}: {', '.join(stale)}" if stale else "all pages are up to date")
    if stale and dry_run:
        raise Failure


@cli.command()
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@project_option
@format_option
def diff(old: Path, new: Path, project: Path, form: str) -> None:
    """Compare two versions of the operators; exit 1 when the change breaks callers.

    OLD and NEW are YAML files, or the `ops.json` of two builds.
    """
    from .diff import compare

    before, after = (_operators(path, project) for path in (old, new))
    changes = compare(before, after)
    breaking = [c for c in changes if c.breaking]
    if form == "json":
        click.echo(json.dumps([c.to_dict() for c in changes], indent=1))
    else:
        for change in changes:
            mark = click.style("breaking", fg="red") if change.breaking else "        "
            click.echo(f"{mark}  {change.op}: {change.message}")
        click.echo(f"{len(changes)} changes, {len(breaking)} breaking")
    if breaking:
        raise Failure


def _operators(path: Path, project: Path) -> list[dict[str, Any]]:
    if path.suffix == ".json":
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, list):
            raise click.BadParameter(f"{path} is not an ops.json")
        return data
    from ..render.files import op_dict

    diags = Diagnostics()
    try:
        ops, _, _ = _load(project, path, diags)
    except Failure:
        diags.print(sys.stderr)
        raise
    return [op_dict(op) for op in ops]


@cli.command("metal-test", context_settings={"ignore_unknown_options": True})
@project_option
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to build; `build/metal` in the project if absent.",
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=0),
    help="Processes that share the tests, 0 for one per core; needs pytest-xdist.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def metal_test(
    project: Path, build_dir: Path | None, jobs: int | None, arguments: tuple[str, ...]
) -> None:
    """Run the project's tests with its Metal kernels on the CPU.

    Checks the kernels against Metal's own rules, builds the operators so that their Metal kernels
    run through their generated launchers without a GPU, and runs pytest. Without ARGUMENTS it runs
    the tests that [tool.mlxgen] names, and a kernel that none of them launches is an error;
    ARGUMENTS are pytest's (`mlxgen metal-test -- tests/ops -k axpby`).
    """
    from ..emulator import EmulationError
    from ..emulator.package import build_package, check_kernels, run_tests

    diags = Diagnostics()
    settings = _settings(project, None, diags)
    folder = (build_dir or settings.root / "build" / "metal").resolve()
    try:
        broken = check_kernels(settings)
        for error in broken:
            click.echo(str(error), err=True)
        if broken:
            raise Failure
        package = build_package(settings, folder, say=click.echo)
        status = run_tests(package, arguments, complete=not arguments, jobs=jobs)
    except EmulationError as error:
        click.echo(f"error: {error}", err=True)
        raise Failure from error
    sys.exit(status)


@cli.command("metal-check")
@project_option
@select_option
@exclude_option
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to generate; `build/macos` in the project if absent.",
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Compilers at a time.")
@click.option(
    "--require",
    is_flag=True,
    envvar="CI",
    help="Fail where MLX for macOS or the compiler cannot be had; so it is where CI is set.",
)
@format_option
def metal_check(
    project: Path,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    build_dir: Path | None,
    jobs: int | None,
    require: bool,
    form: str,
) -> None:
    """Check Metal kernels and their launchers as macOS would, without a Mac.

    The kernels' address spaces are compared. Every generated file with Metal code is compiled
    against the headers of MLX's macOS wheel, and the symbols that it needs are compared with those
    that the wheel's library exports.
    """
    from ..emulator.host import HostUnavailable, check_host
    from ..emulator.spaces import available, check_project
    from . import generate as generator

    diags = Diagnostics()
    try:
        ops, sources, settings = _load(project, None, diags, select, exclude)
    except Failure:
        _finish(diags, form)
        raise
    generator.check_metal(ops, sources, diags)
    folder = build_dir or settings.root / "build" / "macos"
    try:
        if not available():
            raise HostUnavailable("ziglang is not installed: pip install ziglang")
        for error in check_project(ops, sources, jobs):
            diags.error(error.code, error.message, error.span)
        found = check_host(settings, folder, diags, include=select, exclude=exclude, jobs=jobs)
    except HostUnavailable as error:
        _finish(diags, form)
        verb = "cannot be checked" if require else "was NOT checked"
        click.echo(f"the code for macOS {verb}: {error}", err=True)
        if require or not diags.ok:
            raise Failure from error
        return
    _finish(diags, form)
    if not diags.ok:
        raise Failure
    if form == "text":
        click.echo(
            f"{len(found.files)} files compile with MLX {found.wheel.version} for macOS, which "
            "exports all that they need"
        )


@cli.command("metal-mutate", context_settings={"ignore_unknown_options": True})
@project_option
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to build; `build/metal` in the project if absent.",
)
@click.option("--op", "ops", multiple=True, help="Change the kernels of this operator only.")
@click.option("--jobs", default=os.cpu_count() or 1, help="How many mutants run at the same time.")
@click.option(
    "--equivalent",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The mutants that change no result; `tests/mutants.yaml` in the project if absent.",
)
@click.option(
    "--write",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Put the results into this Markdown page.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def metal_mutate(
    project: Path,
    build_dir: Path | None,
    ops: tuple[str, ...],
    jobs: int,
    equivalent: Path | None,
    page: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Change the Metal kernels and their launchers one place at a time; do the tests notice?

    Fails if they miss a change that is not listed as one without effect. ARGUMENTS are pytest's, as
    for metal-test: which tests to run (`mlxgen metal-mutate -- tests/ops`).
    """
    from ..emulator import EmulationError
    from ..emulator.mutation import Options
    from ..emulator.mutation_report import equivalents, run, write_page
    from ..emulator.package import build_package

    if page is not None and ops:
        raise click.UsageError("the page holds all operators: --write does not go with --op")
    settings = _settings(project, None, Diagnostics())
    try:
        expected = equivalents(equivalent or settings.root / "tests" / "mutants.yaml")
        folder = (build_dir or settings.root / "build" / "metal").resolve()
        package = build_package(settings, folder)
        report = run(package, Options("", "", ops, jobs), expected, arguments)
    except EmulationError as error:
        click.echo(str(error), err=True)
        raise Failure from error
    if page is not None:
        write_page(page, report.page())
    click.echo(report.summary())
    if report.missed or (report.idle and not ops):
        raise Failure


def main() -> None:
    """Entry point of the ``mlxgen`` command."""
    try:
        cli(standalone_mode=True)
    except Failure:
        sys.exit(1)


if __name__ == "__main__":
    main()
