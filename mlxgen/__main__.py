"""The command ``mlxgen``, also ``python -m mlxgen``: that of command.cli, and of other rooms."""

from .command.cli import Commands, cli, main

Commands.elsewhere = {
    "new": "mlxgen.package.start",
    "add": "mlxgen.package.start",
    "cache": "mlxgen.package.kept",
    "lsp": "mlxgen.editor.command",
    "metal-check": "mlxgen.emulator.commands",
    "metal-test": "mlxgen.emulator.commands",
}

__all__ = ["cli", "main"]

if __name__ == "__main__":
    main()
