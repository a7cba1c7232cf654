"""Writes torch_results.json: results of torch, for tests that run without torch.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 numpy
    /tmp/torch/bin/python tests/linalg/data/torch_results.py

Results and gradients in float64, or complex64's numbers in complex128, on the CPU. Vectors of a
decomposition are unique up to their phase only, and eigenvalues have no order, so that these cases
are functions that do not depend on them (`tests/linalg/functions.py` has the same ones). Inputs are
multiples of 1/16, which every floating dtype represents.
"""

import json
from pathlib import Path

import numpy as np
import torch

rng = np.random.default_rng(0)
L = torch.linalg


def draw(*shape, complex=False):
    x = (rng.uniform(-2, 2, shape) * 16).round() / 16
    return x + 1j * draw(*shape) if complex else x


def definite(*shape, complex=False):
    """Return Hermitian positive definite matrices, whose numbers have few digits."""
    x = (draw(*shape, complex=complex) * 4).round() / 4
    return x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(shape[-1])


def triangular(*shape):
    return draw(*shape) + 4 * np.eye(shape[-1])


# Functions of decompositions


def svd(a):
    u, s, vh = L.svd(a, full_matrices=False)
    return (u * (s**3)[..., None, :]) @ vh, s


def full_svd(a):
    u, s, vh = L.svd(a)
    k = s.shape[-1]
    return (u[..., :k] * (s**3)[..., None, :]) @ vh[..., :k, :], s


def eigh(a):
    w, v = L.eigh((a + a.mH) / 2)
    return w, v.abs() ** 2, (v * (w**2)[..., None, :]) @ v.mH


def eig(a):
    w, v = L.eig(a)
    return ((v.abs() ** 2).to(w.dtype) @ (w * w)[..., None]).squeeze(-1)


def lu(a):
    _, lower, upper = L.lu(a)
    return lower, upper


def cholesky_inv(a, upper=False):  # torch's gradient includes the other triangle
    return torch.cholesky_inverse(a.triu() if upper else a.tril(), upper)


def cond(a, p):  # torch's own has no gradient: it changes the inverse in place
    return L.matrix_norm(a, p) * L.matrix_norm(L.inv(a), p)


def matrix_power(a, n):  # as cond
    return L.matrix_power(L.inv(a), -n) if n < 0 else L.matrix_power(a, n)


def solve_triangular(a, b, upper=False):
    return L.solve_triangular(a, b, upper=upper)


def qr(a):
    """Return q and r with a positive diagonal of r."""
    q, r = L.qr(a)
    sign = torch.sign(torch.diagonal(r, 0, -2, -1))
    return q * sign[..., None, :], r * sign[..., :, None]


CASES = [
    ("inv", L.inv, [draw(3, 3)], {}),
    ("inv", L.inv, [draw(2, 2, 4, 4)], {}),
    ("pinv", L.pinv, [draw(4, 2)], {}),
    ("pinv", L.pinv, [draw(2, 2, 4)], {}),
    ("pinv", L.pinv, [draw(4, 2) @ draw(2, 3)], {"rtol": 1e-4}),
    ("pinv", L.pinv, [draw(3, 2, complex=True)], {}),
    ("solve", L.solve, [draw(3, 3), draw(3)], {}),
    ("solve", L.solve, [draw(2, 3, 3), draw(2, 3)], {}),
    ("solve", L.solve, [draw(2, 1, 3, 3), draw(4, 3, 2)], {}),
    ("solve_triangular", solve_triangular, [triangular(2, 3, 3), draw(3, 2)], {}),
    ("solve_triangular", solve_triangular, [triangular(3, 3), draw(2, 3, 4)], {"upper": True}),
    ("cholesky", L.cholesky, [definite(2, 4, 4)], {}),
    ("cholesky", L.cholesky, [definite(3, 3)], {"upper": True}),
    ("cholesky_inv", cholesky_inv, [triangular(3, 3)], {}),
    ("cholesky_inv", cholesky_inv, [triangular(2, 3, 3)], {"upper": True}),
    ("qr", qr, [draw(4, 3)], {}),
    ("qr", qr, [draw(2, 3, 3)], {}),
    ("qr", qr, [draw(3, 5)], {}),
    ("svd", svd, [draw(4, 3)], {}),
    ("svd", svd, [draw(2, 3, 4)], {}),
    ("svd", svd, [draw(4, 3, complex=True)], {}),
    ("svd", svd, [draw(2, 4, complex=True)], {}),
    ("full_svd", full_svd, [draw(4, 3)], {}),
    ("svdvals", L.svdvals, [draw(2, 4, 3)], {}),
    ("svdvals", L.svdvals, [draw(3, 4, complex=True)], {}),
    ("svdvals", L.svdvals, [np.eye(3)], {}),
    ("eigh", eigh, [definite(3, 3)], {}),
    ("eigh", eigh, [definite(2, 3, 3, complex=True)], {}),
    ("eigvalsh", L.eigvalsh, [definite(2, 3, 3)], {}),
    ("eigvalsh", L.eigvalsh, [2 * np.eye(3)], {}),
    ("eigvalsh", L.eigvalsh, [definite(3, 3, complex=True)], {"UPLO": "U"}),
    ("eig", eig, [draw(3, 3)], {}),
    ("eig", eig, [draw(2, 3, 3, complex=True)], {}),
    ("eigvals", lambda a: (L.eigvals(a) ** 3).sum(-1), [draw(2, 3, 3)], {}),
    ("lu", lu, [draw(4, 4)], {}),
    ("lu", lu, [draw(2, 5, 3)], {}),
    ("lu", lu, [draw(3, 5)], {}),
    ("lu_factor", lambda a: L.lu_factor(a)[0], [draw(2, 4, 4)], {}),
    ("det", L.det, [draw(2, 4, 4)], {}),
    ("slogdet", lambda a: L.slogdet(a)[1], [draw(2, 4, 4)], {}),
    ("logdet", torch.logdet, [definite(2, 4, 4)], {}),
    ("lstsq", lambda a, b: L.lstsq(a, b).solution, [draw(5, 3), draw(5, 2)], {}),
    ("lstsq", lambda a, b: L.lstsq(a, b).solution, [draw(2, 2, 4), draw(2, 2, 3)], {}),
    ("matrix_exp", L.matrix_exp, [draw(2, 4, 4)], {}),
    ("matrix_power", matrix_power, [draw(2, 3, 3)], {"n": 5}),
    ("matrix_power", matrix_power, [draw(3, 3)], {"n": -2}),
    ("matrix_power", matrix_power, [draw(3, 3, complex=True)], {"n": 3}),
    ("multi_dot", lambda *x: L.multi_dot(x), [draw(2, 6), draw(6, 3), draw(3, 4), draw(4)], {}),
    ("multi_dot", lambda *x: L.multi_dot(x), [draw(3), draw(3, 4), draw(4)], {}),
    *(
        ("norm", L.norm, [draw(3, 4)], {"ord": p})
        for p in (None, 1, -1, 2, -2, "inf", "-inf", "fro", "nuc")
    ),
    *(("norm", L.norm, [draw(5)], {"ord": p}) for p in (0, 0.5, 1, 2, 3, -1.5, "inf", "-inf")),
    ("norm", L.norm, [np.zeros(3)], {"ord": 2}),
    ("norm", L.norm, [np.zeros(3)], {"ord": 3}),
    ("norm", L.norm, [np.array([1.0, -2, 2])], {"ord": "inf"}),
    ("norm", L.norm, [draw(2, 3, 4)], {"ord": "nuc", "axis": [2, 0], "keepdims": True}),
    ("norm", L.norm, [draw(2, 3, 4)], {"ord": 1, "axis": [-1, 0]}),
    ("norm", L.norm, [draw(3, 2, complex=True)], {"ord": 2}),
    ("norm", L.norm, [draw(4, complex=True)], {"ord": 3}),
    *(("cond", L.cond, [draw(3, 3)], {"p": p}) for p in (None, 2, -2)),
    *(("cond", cond, [draw(3, 3)], {"p": p}) for p in (1, -1, "inf", "fro", "nuc")),
    ("cond", L.cond, [draw(2, 4, 3)], {}),
]  # fmt: skip

TORCH_NAMES = {"axis": "dim", "keepdims": "keepdim"}


def infinite(value):
    return float(value) if value in ("inf", "-inf") else value


def number(x):
    return [number(x.real), number(x.imag)] if isinstance(x, complex) else float(f"{x:.12g}")


def stored(x):
    x = np.asarray(x)
    kind = "complex" if np.iscomplexobj(x) else "float"
    return {"kind": kind, "shape": x.shape, "values": [number(v) for v in x.ravel().tolist()]}


def record(name, function, arrays, options):
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    given = {TORCH_NAMES.get(key, key): infinite(value) for key, value in options.items()}
    outputs = function(*tensors, **given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = [draw(*y.shape, complex=y.is_complex()) for y in outputs]
    given = [torch.as_tensor(c) for c in cotangents]
    gradients = torch.autograd.grad(outputs, tensors, given, materialize_grads=True)
    return {
        "op": name,
        "options": options,
        "arrays": [stored(a) for a in arrays],
        "results": [stored(y.detach()) for y in outputs],
        "cotangents": [stored(c) for c in cotangents],
        "gradients": [stored(g) for g in gradients],
    }


records = [record(*case) for case in CASES]
text = ",\n".join(json.dumps(r) for r in records)
path = Path(__file__).with_name("torch_results.json")
path.write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{text}\n]}}\n')
