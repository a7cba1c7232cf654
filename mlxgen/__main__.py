"""``python -m mlxgen`` is the ``mlxgen`` command."""

from .command.cli import main

main()
