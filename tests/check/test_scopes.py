"""Reserved names of formulas: an argument cannot have one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample import project

from mlxgen.check import context as contexts
from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.names import meanings


def test_all_names_of_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[contexts.Context, set[str]]] = []
    made = contexts.Context.task

    def task(
        self: contexts.Context, path: Any, text: str, want: Any, names: Any, *more: Any, **by: Any
    ) -> Any:
        launch = self.raw.dispatch if isinstance(self.raw.dispatch, dict) else {}
        metal = launch.get("metal")
        own = {*getattr(metal, "constants", ()), *getattr(metal, "template", ())}
        seen.append((self, {*names} - own))
        return made(self, path, text, want, names, *more, **by)

    monkeypatch.setattr(contexts.Context, "task", task)
    operators.load(project.settings(project.YAML), Diagnostics())
    mlxops = operators.settings_of(Path(__file__).parents[2], None, Diagnostics())
    assert mlxops
    operators.load(mlxops, Diagnostics())
    others = set()
    for context, names in seen:
        arguments = {arg.name for arg in context.signature.args}
        taken = meanings([arg.name for arg in context.signature.arrays], context.output_names)
        mine = names - arguments - {*context.output_names}
        assert mine <= taken.keys()
        others |= mine
    assert {"grad", "result", "grads", "asked_x", "tangent", "max_threads", "accumulator"} <= others
