"""The analysis of ranks, dtypes and linearity accepts correct entries.

The rejected entries are in cases/: gradient_*, jvp_not_linear, composite_of_another_shape,
formula_*.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sample import project

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.cpp import KERNEL

ELEMENTWISE = """
    grad * sum(x)
    grad + zeros_like(x)
    full_like(x, 0)
    where(x > 0, grad, 0)
    where(x > y, grad, 0.1 * grad)
    grad * (x > 0)
    grad if flag else zeros_like(x)
    (grad if flag else y) @ (y if flag else grad)
    sum(grad, keepdims=True) * x
    grad * x.shape[0] / (1 + result)
    split(concatenate([grad, 2 * grad]), 2)[0]
    broadcast_arrays(grad, x)[0] * broadcast_arrays(grad, x)[1]
    addmm(grad, zeros_like(x), y)
    addmm(zeros_like(x), grad, y)
    put_along_axis(zeros_like(x), argmax(x, -1, True), grad, -1)
    zeros_like(x).at[0].add(grad)
    linalg.solve(x, grad)
    einsum('ij,jk->ik', grad, y)
    grad.astype(x.dtype if flag else float32)
    product(x, grad)
    product(y=x, x=grad)
    bound(grad)
    opaque(x, grad) * 2
    where(x > 0, opaque(x, grad), 0)
    fast.rms_norm(x, grad, 1e-5)
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
HELPER = """
- {signature: "helper(x: array, y: array) -> array", composite: x * y}
- {signature: "product(x: array, y: array) -> array", composite: "helper(x, 2 * y)"}
- {signature: "bound(x: array) -> array", cpp: mlx::core::negative}
- {signature: "both(x: array, y: array) -> array", dispatch: {cpu: k}, shape: x.shape, jvp: linear,
   grad: {x: grad, y: grad}}
- {signature: "opaque(x: array, y: array) -> array", dispatch: {cpu: k}, shape: x.shape, grad: none}
- {signature: "two(x: array, y: array) -> (a: array, b: array)", composite: "(x, y)"}
"""
NONLINEAR = """
    where(grad == 0, x, grad)
    where(grad == 0, 0, grad * log(x))
    grad + (grad == 0)
    grad * isnan(grad)
    nan_to_num(grad, nan=1)
    grad * array_equal(grad, x)
    addmm(x, grad, grad)
    addmm(grad, x, y)
    addmm(x, grad, y)
    fast.rms_norm(grad, None, 1e-5)
    fast.layer_norm(x, grad, x, 1e-5)
    linalg.inv(grad)
    topk(grad, 1)
    view(grad, int32).astype(float32)
    grad.astype(int32).astype(float32)
    array(grad, int32) * x
    full(x.shape, grad.sum(), int32) * x
    put_along_axis(x, argmax(x, -1, True), grad, -1)
    put_along_axis(x, argmax(grad, -1, True), x, -1)
    zeros_like(x).at[argmax(grad, -1)].add(x)
    x.at[0].multiply(grad)
    take(x, argmax(grad))
    split(concatenate([grad, x]), 2)[0]
    broadcast_arrays(grad, x)[1] * x
    einsum('ij,jk->ik', grad, grad)
    linalg.solve(grad, x)
    linalg.solve(grad, grad)
    quantize(grad)[1]
    divmod(grad, 2)[1]
    random.normal(x.shape, float32, grad, key=y)
    grad ** 1
    grad / grad
    abs(grad)
    maximum(grad, 0)
    grad * grad
    1 / grad
    grad if flag else grad * grad
    (grad if flag else y) * (grad if flag else y)
    (grad if flag else x) * x
    sum([a for a in [grad, x]])
    sum([a * a for a in grads])
    product(grad, grad)
    product(x, product(grad, grad))
    both(grad, x)
    two(grad, x)[1]
    exp(bound(grad))
    stop_gradient(grad)
    x * grad + x * stop_gradient(grad)
    opaque(x, grad) * exp(grad)
""".strip().splitlines()


def codes(entry: str, folder: Path) -> set[str]:
    yaml = folder / "mlx_ops.yaml"
    yaml.write_text(HELPER.lstrip() + entry)
    found = project.run(yaml, folder / "out").sorted()  # there are warnings, and no kernels
    return {item.code for item in found if item.code[:4] in ("MG30", "MG32", "MG41")}


@pytest.mark.parametrize("formula", ELEMENTWISE)
def test_elementwise(formula: str, tmp_path: Path) -> None:
    signature = "f(x: array, y: array, flag: bool) -> array"
    entry = (
        f'- signature: "{signature}"\n  dispatch: k\n  grad: {{x: "{formula.strip()}", y: grad}}'
    )
    assert codes(entry, tmp_path) == set()


@pytest.mark.parametrize("formula", NONLINEAR)
def test_what_is_not_linear_is_refused(formula: str, tmp_path: Path) -> None:
    signature = "f(x: array, y: array, flag: bool) -> array"
    entry = (
        f'- signature: "{signature}"\n  dispatch: k\n  grad: {{x: "{formula.strip()}", y: grad}}'
    )
    assert codes(entry, tmp_path) == {"MG415"}


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


@pytest.mark.parametrize(
    ("rule", "element"),
    [
        ("accumulator", "accum_t<T>"),
        ("result_type(x.dtype, float32)", "accum_t<T>"),
        ("result_type( mx.float32,x.dtype )", "accum_t<T>"),
        ("x.dtype", "T"),
        ("x.dtype if x.ndim > 1 else float32", None),
        ("float32 if x.ndim > 1 else float32", None),
    ],
)
def test_dtypes_of_outputs(rule: str, element: str | None, tmp_path: Path) -> None:
    """The dtype of a kernel's output depends on the meaning of a formula, not on its spelling."""
    text = project.YAML.read_text("utf-8")
    assert "dtype: {last: accumulator}" in text
    yaml = tmp_path / "mlx_ops.yaml"
    yaml.write_text(text.replace("dtype: {last: accumulator}", f'dtype: {{last: "{rule}"}}'))
    diags = Diagnostics()
    ops, _ = operators.load(project.settings(yaml), diags)
    cpu = next((op.forward.kernel("cpu") for op in ops if op.name == "carry"), None)
    codes = {item.code for item in diags.sorted()}
    if element == "accum_t<T>":
        assert cpu is not None and [e.text(KERNEL) for e in cpu.elements] == ["T", element], codes
    elif element:  # the kernel's output is declared for sums
        assert codes >= {"MG503"}
    else:
        assert codes == {"MG126"}
