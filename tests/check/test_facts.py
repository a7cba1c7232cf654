"""What is right must not be refused for what is known of ranks, dtypes and linearity.

What is refused is in cases/: gradient_*, jvp_not_linear, composite_of_another_shape, formula_*.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sample import project

ELEMENTWISE = """
    grad * sum(x)
    grad + zeros_like(x)
    full_like(x, 0)
    where(x > 0, grad, 0)
    where(x > y, grad, 0.1 * grad)
    where(grad == 0, 0, grad * log(x))
    grad * (x > 0)
    grad if flag else zeros_like(x)
    (grad if flag else y) @ (y if flag else grad)
    sum(grad, keepdims=True) * x
    grad * x.shape[0] / (1 + result)
    split(concatenate([grad, x]), 2)[0]
    x.at[0].add(1) * grads[0]
    grad.astype(float32) * argmax(x)
    helper(x, grad)
""".strip().splitlines()

# The shape rule, the gradient of x, and other keys.
KERNELS = [
    ("x.shape[:-1]", "grad[..., None] * x", ""),
    ("x.shape[:-1]", "broadcast_to(expand_dims(grad, -1), x.shape)", "jvp: linear"),
    ("x.shape[1:]", "stack([grad, grad])", ""),
    ("x.shape[:-1] + (1,)", "grad * x", ""),
    ("()", "full(x.shape, grad)", "jvp: linear"),
    ("()", "grad", "checks: [{that: x.ndim == 0, else: a scalar}]"),
    ("[x.shape[0]]", "sum(x, axis=1) * grad", ""),
    ("(x.shape[1], x.shape[0])", "grad.T", "jvp: linear"),
    ("[x.shape[0]]", "y * sum(grad)", ""),  # x and y may have the same ndim
    ("x.shape", "grad", "dtype: float32, composite: x.astype(float32)"),
    ("x.shape[:-1]", "none", 'dtype: bool_, composite: "any(x > 0, axis=-1)"'),
]
COMPOSITES = [
    ("sum(x, axis=-1)", "grad[..., None] * ones_like(x)"),
    ("x * y", "sum(grad * y)"),  # x is perhaps meant as a scalar
    ("sigmoid(x)", "expand_dims(grad, 0)"),  # broadcasting is undone
    ("x @ y", "grad @ y.T"),
]
HELPER = '- signature: "helper(x: array, y: array) -> array"\n  composite: x * y\n'


def codes(entry: str, folder: Path) -> set[str]:
    yaml = folder / "mlx_ops.yaml"
    yaml.write_text(HELPER + entry)
    found = project.run(yaml, folder / "out").sorted()  # there are warnings, and no kernels
    return {item.code for item in found if item.code[:4] in ("MG30", "MG32", "MG41")}


@pytest.mark.parametrize("formula", ELEMENTWISE)
def test_elementwise(formula: str, tmp_path: Path) -> None:
    signature = "f(x: array, y: array, flag: bool) -> array"
    entry = (
        f'- signature: "{signature}"\n  dispatch: k\n  grad: {{x: "{formula.strip()}", y: grad}}'
    )
    assert codes(entry, tmp_path) == set()


@pytest.mark.parametrize(("shape", "formula", "more"), KERNELS)
def test_kernels(shape: str, formula: str, more: str, tmp_path: Path) -> None:
    keys = f'signature: "f(x: array, y: array) -> array", dispatch: {{cpu: k}}, shape: "{shape}"'
    entry = f'- {{{keys}, grad: {{x: "{formula}", y: zero}}, {more}}}'
    assert codes(entry, tmp_path) == set()


@pytest.mark.parametrize(("composite", "formula"), COMPOSITES)
def test_composites(composite: str, formula: str, tmp_path: Path) -> None:
    keys = f'signature: "f(x: array, y: array) -> array", composite: "{composite}"'
    entry = f'- {{{keys}, grad: {{x: "{formula}", y: none}}}}'
    assert codes(entry, tmp_path) == set()
