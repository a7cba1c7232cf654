"""Following the helps about formulas removes their errors: fixes are applied, advice by hand.

helps.yaml has the formulas. tests/check follows helps that concern a whole entry.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from formula import formula_samples as samples

from mlxgen.diagnostics import Advice, Rendered
from mlxgen.formula.compile import Want, compile_formula
from mlxgen.formula.explain import messages
from mlxgen.model.signature import Kind

HELPS = yaml.safe_load(Path(__file__).with_name("helps.yaml").read_text(encoding="utf-8"))
ROWS = [(name, *row) for name, formulas in HELPS.items() for row in formulas.items()]


Report = tuple[str, str, int, int, "str | None"]


def reports(text: str, want: Want) -> list[Report]:
    found: list[Report] = []

    def report(said: Rendered, start: int, end: int) -> None:
        found.append((said.code, said.text, start, end, said.help))

    compile_formula(text, samples.SCOPE, want, report)
    return found


@pytest.mark.parametrize(("name", "wrong", "right"), ROWS)
def test_help(name: str, wrong: str, right: str) -> None:
    (code, message, start, end, help), *_ = reports(wrong, Want(Kind.ARRAY))
    assert code == messages()[name].code and help, (code, message, help)
    if isinstance(help, Advice) and help.instead is not None:
        assert wrong[:start] + help.instead + wrong[end:] == right
    assert reports(right, Want(Kind.ARRAY)) == []


def test_every_fix_is_followed() -> None:
    assert {name for name, message in messages().items() if message.fixes} <= HELPS.keys()
