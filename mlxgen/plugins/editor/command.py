"""The command ``mlxgen lsp``. Its server needs pygls, an extra, because builds do not need it."""

from __future__ import annotations

import gc

import rich_click as click


@click.command()
def lsp() -> None:
    """Run the language server for an editor: diagnostics, completion, hover, quick fixes.

    The server communicates over standard input and output.
    """
    try:
        from .server import Server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        message = "the language server needs pygls: pip install 'mlxgen[lsp]'"
        raise click.ClickException(message) from None
    gc.enable()  # disabled for commands that end soon
    Server().run()
