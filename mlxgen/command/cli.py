"""The commands check, generate, show, list, schema, explain, docs and diff.

Every command prints for people by default (rich, on a terminal) and for programs with
``--format json``. Exit status: 0 fine, 1 something is wrong in the project or would change, 2 wrong
use of the command line. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from ..diagnostics import Diagnostics, sections

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.settings import Settings
    from ..read.sources import Sources

Names = tuple[str, ...]
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "project": click.option(
        "--project",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder of the project's pyproject.toml; default: the one around the file or here.",
    ),
    "file": click.argument("file", type=EXISTING_FILE, required=False),
    "select": click.option(
        "--select", "-s", multiple=True, help="Only these: an operator's name, or `tag:NAME`."
    ),
    "exclude": click.option("--exclude", "-x", multiple=True, help="All but these."),
    "format": click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Output for people or for programs.",
    ),
    "max_errors": click.option(
        "--max-errors",
        type=click.IntRange(min=0),
        default=50,
        show_default=True,
        help="Show so many errors, and so many warnings; 0: all.",
    ),
}


class Failure(Exception):
    """Something was reported; the process ends with status 1."""


class Commands(click.RichGroup):
    """Commands by their names: each is imported when it is asked for."""

    def __init__(self, *arguments: Any, places: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.places = places  # module and function below mlxgen

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return None
        module, _, function = self.places[cmd_name].rpartition(".")
        found: click.Command = getattr(import_module(f"mlxgen.{module}"), function)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a file that cannot be read or written is one message."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read the output has gone: click ends without a word
        except OSError as error:
            raise click.ClickException(reason(error)) from error


def reason(error: OSError) -> str:
    """Why a file cannot be used: ``my-ops/mlx_ops.yaml: No space left on device``."""
    name = error.filename2 or error.filename
    shown = f"{os.path.relpath(os.fsdecode(name))}: " if isinstance(name, str | bytes) else ""
    return f"{shown}{error.strerror or error}"


def command(*options: str, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
    """A command with these options, which is handed a ``Diagnostics`` before them.

    When it fails, what it has reported is printed in the format that it was asked for.
    """

    def decorate(function: Callable[..., None]) -> Any:
        @wraps(function)
        def run(**given: Any) -> None:
            diags = Diagnostics(given.pop("max_errors"))
            try:
                function(diags, **given)
            except Failure:
                if given.get("form") == "json":
                    click.echo(diags.to_json())
                elif len(diags):
                    diags.print(sys.stderr)
                raise

        made: Callable[..., None] = run
        for option in reversed((*options, "max_errors")):
            made = OPTIONS[option](made)
        register: Any = click.command(name, **settings)
        return register(made)

    return decorate


def require(value: bool) -> None:
    """The command fails, unless ``value``."""
    if not value:
        raise Failure


def warn(diags: Diagnostics, form: str) -> None:
    """Print what is reported although nothing is wrong; JSON has it in its place."""
    if form != "json":
        diags.print()


def settings_of(diags: Diagnostics, project: Path | None, file: Path | None = None) -> Settings:
    """The settings of the project, or for a YAML file."""
    from . import operators

    settings = operators.settings_of(project, file, diags)
    if settings is None:
        raise Failure
    return settings


def load(
    diags: Diagnostics,
    project: Path | None,
    file: Path | None = None,
    select: Names = (),
    exclude: Names = (),
    *,
    strict: bool = True,
    partly: bool = False,
) -> tuple[list[Op], Sources, Settings]:
    """The operators that are chosen.

    Fails if anything is wrong with any entry, unless not ``strict``. With ``partly`` those that are
    not chosen are not looked at, as long as nothing is wrong.
    """
    from . import operators

    settings = settings_of(diags, project, file)
    if partly and select:
        unsaid = Diagnostics()
        ops, sources = operators.load(settings, unsaid, select)
        chosen = operators.select(ops, select, exclude, unsaid)
        if unsaid.ok:
            return chosen, sources, settings
    ops, sources = operators.load(settings, diags)
    require(diags.ok or not strict)
    chosen = operators.select(ops, select, exclude, diags if diags.ok else Diagnostics())
    require(diags.ok or not strict)
    return chosen, sources, settings


@command("file", "project", "select", "exclude", "format")
@click.option("--fix", is_flag=True, help="First write the fixes that are certain into the file.")
def check(diags: Diagnostics, fix: bool, form: str, **chosen: Any) -> None:
    """Validate the operators: keys, signatures, formulas, gradients, kernels."""
    from . import operators
    from .fix import fix_file

    if fix:
        settings = settings_of(diags, chosen["project"], chosen["file"])
        count = fix_file(settings)
        shown = os.path.relpath(settings.yaml)
        click.echo(f"{shown}: {count} fix{'es' * (count != 1)} applied", err=form == "json")
    ops, sources, _ = load(diags, **chosen)
    operators.check_metal(ops, sources, diags)
    require(diags.ok)
    warn(diags, form)
    click.echo(diags.to_json() if form == "json" else f"{_count(len(ops))}, no errors")


@command("file", "project", "select", "exclude", "format")
@click.option(
    "--output",
    "-o",
    type=FOLDER,
    default=Path("build/generated"),
    show_default=True,
    help="Folder for the generated files.",
)
@click.option("--mlx", help="Release of MLX: the one that is pinned, or else installed, if absent.")
@click.option("--check", "dry_run", is_flag=True, help="Write nothing; exit 1 if files differ.")
def generate(
    diags: Diagnostics,
    file: Path | None,
    project: Path | None,
    output: Path,
    mlx: str | None,
    dry_run: bool,
    form: str,
    select: Names,
    exclude: Names,
) -> None:
    """Write the C++ sources, bindings, stubs, checks and documentation.

    Only files whose text changed are written, and stale ones are removed. When anything is wrong
    in the YAML nothing is touched.
    """
    from . import generate as generator
    from .write import Changes

    settings = settings_of(diags, project, file)
    settings = settings._replace(mlx=mlx or settings.mlx)
    result = generator.generate(
        settings, output, diags, include=select, exclude=exclude, check=dry_run
    )
    if result is None:
        raise Failure
    warn(diags, form)
    changes = result.changes or Changes((), (), 0)
    if form == "json":
        warnings = json.loads(diags.to_json())
        listed = {"written": changes.written, "removed": changes.removed, "diagnostics": warnings}
        click.echo(json.dumps(listed, indent=1))
    elif not changes.any:
        click.echo(f"{output}: up to date")
    elif dry_run:
        for verb, paths in (("write", changes.written), ("remove", changes.removed)):
            click.echo("".join(f"would {verb} {path}\n" for path in paths), nl=False)
    else:
        click.echo(
            f"{output}: {_count(result.operators)}, {len(changes.written)} files written, "
            f"{len(changes.removed)} removed, {changes.unchanged} unchanged"
        )
    if dry_run and changes.any:
        sys.exit(1)


def _count(operators: int) -> str:
    return f"{operators} operator{'s' * (operators != 1)}"


@command("project")
@click.argument("words", nargs=-1, required=True, metavar="[FILE] OP [PART]")
def show(diags: Diagnostics, project: Path | None, words: Names) -> None:
    """Print what an operator generates, without building.

    PART is one of header, source, binding, stub, doc, metal, json; header and source if absent.
    """
    from ..render import files

    file = None
    if Path(words[0]).suffix in (".yaml", ".yml") or not {*words[1:2]} <= files.PARTS.keys():
        file, words = EXISTING_FILE.convert(words[0], None, None), words[1:]
    if not words or len(words) > 2 or not {*words[1:]} <= files.PARTS.keys():
        parts = ", ".join(files.PARTS)
        raise click.UsageError(f"give [FILE] OP [PART], where PART is one of {parts}")
    ops, sources, settings = load(diags, project, file, words[:1], strict=False, partly=True)
    require(bool(ops))
    for name in words[1:] or ("header", "source"):
        say(files.part(ops[0], name, settings, sources.metal_text), files.PARTS[name])


def say(text: str, language: str) -> None:
    """Print code; in colours on a terminal."""
    if not sys.stdout.isatty():
        click.echo(text, nl=not text.endswith("\n"))
        return
    from rich.console import Console
    from rich.syntax import Syntax

    wrapped = language == "markdown"
    Console().print(Syntax(text, language, background_color="default", word_wrap=wrapped))


@command("file", "project", "select", "exclude", "format", name="list")
def list_command(diags: Diagnostics, form: str, **chosen: Any) -> None:
    """List the operators: name, signature, backends, gradient."""
    from ..render.python import gradient_summary, op_dict

    ops, _, _ = load(diags, **chosen, partly=True)
    if form == "json":
        click.echo(json.dumps([op_dict(op) for op in ops], indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("operator", "signature", "backends", "gradient", "tags")
    for op in ops:
        backends, tags = ", ".join(op.backends), ", ".join(sorted(op.entry.tags))
        table.add_row(op.path, op.signature.python(), backends, gradient_summary(op), tags)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@click.command()
def schema() -> None:
    """Print the JSON Schema of the YAML file, for editors."""
    from ..read.keys import json_schema

    click.echo(json.dumps(json_schema(), indent=1))


@click.command()
@click.argument("code")
def explain(code: str) -> None:
    """Explain an error code, such as MG403, with an example and its cure."""
    if code.upper() not in sections():
        raise click.BadParameter(f"no such code: {code}")
    say(sections()[code.upper()], "markdown")


@command("project")
@click.option("--check", "dry_run", is_flag=True, help="Write nothing; exit 1 if pages differ.")
def docs(diags: Diagnostics, project: Path | None, dry_run: bool) -> None:
    """Write the reference pages: operators, and the JSON Schema."""
    from .generate import doc_pages
    from .write import differing, put, reported

    ops, _, settings = load(diags, project)
    with reported(settings.docs, diags):
        stale = differing(settings.docs, doc_pages(ops, settings), {})
        if not dry_run:
            put(settings.docs, stale)
    require(diags.ok)
    paths = ", ".join(settings.relative(settings.docs / name) for name in stale)
    verb = "out of date" if dry_run else "written"
    click.echo(f"{verb}: {paths}" if stale else "all pages are up to date")
    if stale and dry_run:
        sys.exit(1)


@command("project", "format")
@click.argument("old", type=EXISTING_FILE)
@click.argument("new", type=EXISTING_FILE)
def diff(diags: Diagnostics, old: Path, new: Path, project: Path | None, form: str) -> None:
    """Compare two versions of the operators; exit 1 when the change breaks callers.

    OLD and NEW are YAML files, or the `ops.json` of two builds.
    """
    from .diff import compare

    before, after = (_operators(diags, path, project) for path in (old, new))
    try:
        changes = compare(before, after)
    except (AttributeError, KeyError, TypeError) as error:
        raise click.BadParameter(f"{old} or {new} is not an ops.json") from error
    breaking = [c for c in changes if c.breaking]
    if form == "json":
        click.echo(json.dumps([c._asdict() for c in changes], indent=1))
    else:
        for change in changes:
            mark = click.style("breaking", fg="red") if change.breaking else "        "
            click.echo(f"{mark}  {change.op}: {change.message}")
        click.echo(f"{len(changes)} change{'s' * (len(changes) != 1)}, {len(breaking)} breaking")
    if breaking:
        sys.exit(1)


def _operators(diags: Diagnostics, path: Path, project: Path | None) -> list[dict[str, Any]]:
    from ..render.python import op_dict

    if path.suffix != ".json":
        return [op_dict(op) for op in load(diags, project, path)[0]]
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, list) and all(isinstance(op, dict) for op in found):
            return found
    raise click.BadParameter(f"{path} is not an ops.json")
