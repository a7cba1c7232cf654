"""mlxgen: one YAML entry per operator becomes an MLX extension.

The command line is ``python -m mlxgen --help``; scripts and notebooks use ``mlxgen.load``, and
``mlxgen.command.generate`` provides the commands as functions. The folders follow the data: read,
formula and check, model, render, command. See docs/architecture.md.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Imported on first use, because loading a cached build needs little of the package.
_ELSEWHERE = {
    "load": "plugins.interactive.load",
    "LoadError": "plugins.interactive.request",
    "load_ipython_extension": "plugins.interactive.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(import_module(f"mlxgen.{_ELSEWHERE[name]}"), name)
    raise AttributeError(f"module 'mlxgen' has no attribute '{name}'")
