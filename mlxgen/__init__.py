"""mlxgen: one YAML entry per operator becomes an MLX extension.

``python -m mlxgen --help`` is the way in for people; ``mlxgen.command.generate`` holds the same as
functions. The folders follow the data: read, formula and check, model, render, command. See
docs/architecture.md.
"""

__version__ = "0.1.0"
