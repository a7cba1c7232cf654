"""mlxgen: one YAML entry per operator becomes an MLX extension.

``python -m mlxgen --help`` is the way in for people, ``mlxgen.load`` for scripts and notebooks;
``mlxgen.command.generate`` holds the same as functions. The folders follow the data: read, formula
and check, model, render, command. See docs/architecture.md.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Found when somebody asks for it, since little is needed to find what was built before.
_ELSEWHERE = {
    "load": "package.load",
    "LoadError": "package.request",
    "load_ipython_extension": "package.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(import_module(f"mlxgen.{_ELSEWHERE[name]}"), name)
    raise AttributeError(f"module 'mlxgen' has no attribute '{name}'")
