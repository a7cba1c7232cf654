"""The command ``mlxgen``, also ``python -m mlxgen``, and the modules of its subcommands."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

import rich_click as click

from . import __version__
from .command.cli import Commands, Failure

click.rich_click.TEXT_MARKUP = "markdown"
click.rich_click.SHOW_ARGUMENTS = True

COMMANDS = {
    "add": "plugins.start.commands.add",
    "cache": "plugins.cache.command.cache_command",
    "check": "command.cli.check",
    "diff": "plugins.diff.command.diff",
    "docs": "plugins.describe.command.docs",
    "explain": "plugins.describe.command.explain",
    "generate": "command.cli.generate",
    "import": "plugins.importers.command.import_command",
    "list": "plugins.describe.command.list_command",
    "lsp": "plugins.editor.command.lsp",
    "metal-check": "emulator.commands.metal_check",
    "metal-test": "emulator.commands.metal_test",
    "new": "plugins.start.commands.new",
    "rebuild": "plugins.rebuild.command.rebuild_command",
    "schema": "plugins.describe.command.schema",
    "show": "plugins.describe.command.show",
    "test": "plugins.interactive.test.test",
}


@click.group(
    cls=Commands,
    places=COMMANDS,
    entry_points="mlxgen.commands",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="mlxgen")
def cli() -> None:
    """**mlxgen** turns one YAML entry per operator into an MLX extension.

    mlxgen generates bindings, dispatch, vjp, jvp, vmap, stubs, checks and documentation; you write
    the kernels.
    """


def main() -> None:
    """Entry point of the ``mlxgen`` command."""
    gc.disable()  # commands produce little garbage, and collecting it doubles the time
    try:
        try:
            cli()
        finally:
            sys.stdout.flush()
    except Failure:
        sys.exit(1)
    except OSError as error:  # the output cannot be written
        with suppress(OSError):
            print(f"Error: standard output: {error.strerror or error}", file=sys.stderr)
        os._exit(1)  # otherwise Python would try to write it again


if __name__ == "__main__":
    main()
