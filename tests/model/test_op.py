"""An operator is rejected if its parts contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample import project

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.op import Form, Jvp, Op, OutputRules, Vmap

OPS = {op.name: op for op in operators.load(project.settings(project.YAML), Diagnostics())[0]}
KERNELS = next(op for op in OPS.values() if op.has_primitive and op.derivatives.grads)
COMPOSITE = next(op for op in OPS.values() if op.forward.form is Form.COMPOSITE)


def wrong(op: Op) -> dict[str, Any]:
    """Return inconsistent changes of an operator with kernels."""
    derivatives, forward = op.derivatives, op.forward
    rule = op.output_rules.dtypes[0] if op.output_rules.dtypes else None
    return {
        "a gradient is missing": {"derivatives": replace(derivatives, grads=())},
        "a gradient is there twice": {
            "derivatives": replace(derivatives, grads=derivatives.grads * 2)
        },
        "no vmap": {"derivatives": replace(derivatives, vmap=Vmap.MLX)},
        "MLX's gradient and its own": {"derivatives": replace(derivatives, own=True)},
        "a composite without formula": {
            "forward": replace(forward, form=Form.COMPOSITE, expr=None),
            "derivatives": replace(derivatives, vmap=Vmap.MLX, jvp=Jvp.MLX),
        },
        "a dtype too many": {"output_rules": OutputRules((), (rule,) * 9)},
        "another signature": {"signature": op.signature._replace(args=())},
    }


@pytest.mark.parametrize("what", wrong(KERNELS))
def test_parts_that_contradict(what: str) -> None:
    with pytest.raises(AssertionError):
        replace(KERNELS, **wrong(KERNELS)[what])


def test_kernels_of_a_composite() -> None:
    with pytest.raises(AssertionError):
        replace(COMPOSITE, forward=replace(COMPOSITE.forward, kernels=KERNELS.forward.kernels))


def test_all_of_the_sample_hold() -> None:
    assert all(replace(op) == op for op in OPS.values())
