"""The table of functions in shapeless traces, data/shapeless.txt."""

from __future__ import annotations

from pathlib import Path

from ..diagnostics.messages import rows

TABLE = Path(__file__).parent / "data" / "shapeless.txt"
_ROWS = [(what, names.split()) for what, names in rows(TABLE, " : ")]


def _named(*kinds: str) -> frozenset[str]:
    return frozenset(name for what, names in _ROWS if what in kinds for name in names)


GRADIENT = _named("gradient")
"""Functions of MLX that are right for other shapes than those of the trace, gradients included."""

FORWARD = _named("gradient", "forward")
"""Those that are right, whatever their gradients are."""

WRAPPED = {f"mx::{name}": f"mlxgen::{name}" for name in _named("wrapped")}
"""What is called in place of MLX's function in C++."""
