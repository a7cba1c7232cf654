"""The commands check and generate, and what all commands have in common.

Commands print text by default (with rich, on a terminal) and JSON with ``--format json``. Exit
status: 0 success, 1 errors in the project or pending changes, 2 invalid command line. Slow imports
are delayed until a command needs them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from ..diagnostics import Diagnostics
from ..model import languages as known

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
        help="Folder of the project's pyproject.toml. Default: the project of the file, or without "
        "one that of the working directory.",
    ),
    "file": click.argument("file", type=EXISTING_FILE, required=False),
    "select": click.option(
        "--select", "-s", multiple=True, help="Select operators by name or by `tag:NAME`."
    ),
    "exclude": click.option(
        "--exclude", "-x", multiple=True, help="Exclude operators by name or by `tag:NAME`."
    ),
    "format": click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Format of the output.",
    ),
    "max_errors": click.option(
        "--max-errors",
        type=click.IntRange(min=0),
        default=50,
        show_default=True,
        help="Maximum number of errors, and of warnings, to show; 0 shows all.",
    ),
}


class Failure(Exception):
    """Raised after errors were reported; the process exits with status 1."""


class Commands(click.RichGroup):
    """A group of commands by name; each command is imported on first use.

    Args:
        places: Module and function of each command, below mlxgen.
        entry_points: The group of the entry points by which installed packages add commands.
    """

    def __init__(
        self,
        *arguments: Any,
        places: Mapping[str, str],
        entry_points: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.places, self.entry_points = places, entry_points

    @cached_property
    def installed(self) -> Mapping[str, EntryPoint]:
        """The commands of other packages."""
        from importlib.metadata import entry_points

        found = entry_points(group=self.entry_points) if self.entry_points else ()
        return {point.name: point for point in found}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.places, *self.installed})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found: click.Command
        if cmd_name in self.places:
            module, _, function = self.places[cmd_name].rpartition(".")
            found = getattr(import_module(f"mlxgen.{module}"), function)
            return found
        if cmd_name not in self.installed:
            return None
        try:
            found = self.installed[cmd_name].load()
        except Exception as error:  # of the package, of which this command is a part
            return _unusable(self.installed[cmd_name], error)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; report a file that cannot be read or written as one message."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of the output has exited; click ends silently
        except OSError as error:
            raise click.ClickException(reason(error)) from error
        except known.LanguageError as error:
            raise click.ClickException(str(error)) from error


def _unusable(point: EntryPoint, error: Exception) -> click.Command:
    """Return a command in place of one that cannot be imported."""
    message = f"cannot import {point.value}: {error.__class__.__name__}: {error}"

    def report() -> None:
        raise click.ClickException(message)

    return click.Command(point.name, callback=report, help=message)


def reason(error: OSError) -> str:
    """Return the reason of a file error: ``my-ops/mlx_ops.yaml: No space left on device``."""
    name = error.filename2 or error.filename
    shown = f"{os.path.relpath(os.fsdecode(name))}: " if isinstance(name, str | bytes) else ""
    return f"{shown}{error.strerror or error}"


def command(*options: str, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
    """Decorate a function as a command with these options.

    Its first argument is a ``Diagnostics``. If it raises ``Failure``, the diagnostics are printed
    in the requested format.
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
    """Raise ``Failure`` if ``value`` is false."""
    if not value:
        raise Failure


def warn(diags: Diagnostics, form: str) -> None:
    """Print the warnings of a successful command; JSON output already contains them."""
    if form != "json":
        diags.print()


def settings_of(diags: Diagnostics, project: Path | None, file: Path | None = None) -> Settings:
    """Return the settings of the project, or for a YAML file; raise ``Failure`` if invalid."""
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
    """Return the selected operators.

    With ``strict``, an error in any entry raises ``Failure``. With ``partly``, other entries are
    not resolved unless an error occurs.
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
@click.option("--fix", is_flag=True, help="First apply all certain fixes to the files.")
def check(diags: Diagnostics, fix: bool, form: str, **chosen: Any) -> None:
    """Validate the operators: keys, signatures, formulas, gradients, kernels."""
    from . import operators
    from .fix import fix_files

    if fix:
        settings = settings_of(diags, chosen["project"], chosen["file"])
        for path, count in fix_files(settings).items():
            shown = os.path.relpath(path)
            click.echo(f"{shown}: {count} fix{'es' * (count != 1)} applied", err=form == "json")
    ops, sources, _ = load(diags, **chosen)
    operators.check_metal(ops, sources, diags)
    require(diags.ok)
    warn(diags, form)
    click.echo(diags.to_json() if form == "json" else f"{_count(len(ops))}, no errors")


def _known_languages(ctx: click.Context, param: click.Parameter, given: Names) -> Names:
    """Check names of languages; a ``Choice`` as type would search for them in every command."""
    return tuple(click.Choice(known.names()).convert(name, param, ctx) for name in given)


@command("file", "project", "select", "exclude", "format")
@click.option(
    "--output",
    "-o",
    type=FOLDER,
    default=Path("build/generated"),
    show_default=True,
    help="Folder for the generated files.",
)
@click.option("--mlx", help="Release of MLX. Default: the pinned one, or else the installed one.")
@click.option(
    "--language",
    "languages",
    callback=_known_languages,
    multiple=True,
    metavar="NAME",
    help="Also write the interface for this language, such as c or rust. Default: those of the "
    "project.",
)
@click.option("--check", "dry_run", is_flag=True, help="Write nothing; exit 1 if files differ.")
def generate(
    diags: Diagnostics,
    file: Path | None,
    project: Path | None,
    output: Path,
    mlx: str | None,
    languages: Names,
    dry_run: bool,
    form: str,
    select: Names,
    exclude: Names,
) -> None:
    """Write the C++ sources, bindings, stubs, checks and documentation.

    Only files whose text changed are written, and stale files are removed. If the YAML has errors,
    no file is changed.
    """
    from . import generate as generator
    from .write import Changes

    settings = settings_of(diags, project, file)
    every = known.with_required((*settings.languages, *languages))
    settings = settings._replace(mlx=mlx or settings.mlx, languages=every)
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
