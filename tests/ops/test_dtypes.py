"""The dtypes that operators accept.

The check of samples decides without MLX (DtypeRule.resolve in model/op.py), an operator with MLX
(DtypeRule::resolve in runtime/src/op.cpp). Both accept the same dtypes.
"""

import json
from importlib import resources
from pathlib import Path

import mlx.core as mx
import mlxops
from mlxops.checks.test_gradients import CASES

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.dtypes import DTYPES
from mlxgen.model.op import Integers
from mlxgen.read.settings import load
from mlxgen.testing.cases import Subject

ROOT = Path(__file__).parents[2]


def accepts(subject, names, dtype):
    """True if a call accepts this dtype of the arguments with these names."""
    arrays = [
        array.astype(dtype) if slot.arg in names else array
        for slot, array in zip(subject.slots, subject.draw(mx.float32), strict=True)
    ]
    try:
        subject.call(*arrays)
    except ValueError as error:
        if "is not supported" in str(error):
            return False
        raise
    return True


def test_check_and_operators_accept_the_same_dtypes():
    table = json.loads(resources.files(mlxops).joinpath("ops.json").read_text("utf-8"))["operators"]
    kernels = {op["name"]: op for op in table if op["form"] == "kernels"}
    ops, _ = operators.load(load(ROOT, Diagnostics()), Diagnostics())
    tried = set()
    for op in ops:
        case = next((c for c in CASES if c.function.__name__ == op.python_name), None)
        if case is None or op.name not in kernels:
            continue
        subject = Subject(mlxops, kernels[op.name], case, 0)
        given = {slot.arg for slot in subject.slots}
        for rule in op.arguments.rules:
            names = {p.name for p in rule.params}
            if names <= given and (rule.dtypes, rule.integers) not in tried:
                tried.add((rule.dtypes, rule.integers))
                found = [d for d in DTYPES if accepts(subject, names, getattr(mx, d))]
                assert found == [d for d in DTYPES if rule.resolve(d)], (op.name, rule)
    assert {integers for _, integers in tried} == {Integers.FLOAT32, Integers.KEEP}
