"""mlxgen uses no feature of a later Python that ruff and mypy accept for 3.10."""

from __future__ import annotations

import ast
from pathlib import Path

MLXGEN = Path(__file__).parents[2] / "mlxgen"


def test_classes_work_in_python_3_10() -> None:
    """Only later releases accept NamedTuple with another base."""
    for path in MLXGEN.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
            assert bases == ["NamedTuple"] or "NamedTuple" not in bases, f"{path}: {bases}"
