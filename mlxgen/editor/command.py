"""The command ``mlxgen lsp``, whose server needs pygls: no build does, so that it is an extra."""

from __future__ import annotations

import gc

import rich_click as click


@click.command()
def lsp() -> None:
    """Run the language server, which editors start: diagnostics, completion, hover, quick fixes.

    It talks to the editor on the standard input and output.
    """
    try:
        from .server import Server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        message = "the language server needs pygls: pip install 'mlxgen[lsp]'"
        raise click.ClickException(message) from None
    gc.enable()  # which commands that end soon do without
    Server().run()
