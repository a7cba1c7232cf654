"""The command ``mlxgen``, also ``python -m mlxgen``: that of command.cli and the emulator's two."""

from .command.cli import Commands, cli, main

Commands.elsewhere = dict.fromkeys(("metal-check", "metal-test"), "mlxgen.emulator.commands")

__all__ = ["cli", "main"]

if __name__ == "__main__":
    main()
