"""``python -m mlxgen`` is the ``mlxgen`` command."""

from .cli import main

main()
