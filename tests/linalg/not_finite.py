"""Calls with numbers that are not finite, for a process that may end or run forever.

``python -m linalg.not_finite FIRST`` runs the cases from index FIRST on. It prints the name of each
case, then the problem of its result, or an empty line.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator

import mlx.core as mx
import mlxops
import numpy as np

from mlxgen.testing import to_numpy

ops = mlxops.linalg
SQUARE, ANY, DEFINITE = "square", "any", "definite"
REAL = (mx.float32, mx.float64)
NUMBERS = (*REAL, mx.complex64)


def system(name):
    return lambda a: getattr(ops, name)(a, mx.ones((*a.shape[:-1], 2), a.dtype))


# The function, its matrices, its dtypes.
FUNCTIONS: dict[str, tuple[Callable[[mx.array], object], str, tuple[mx.Dtype, ...]]] = {
    "inv": (ops.inv, SQUARE, REAL),
    "tri_inv": (ops.tri_inv, SQUARE, REAL),
    "upper tri_inv": (lambda a: ops.tri_inv(a, True), SQUARE, REAL),
    "pinv": (ops.pinv, ANY, NUMBERS),
    "solve": (system("solve"), SQUARE, REAL),
    "solve_triangular": (system("solve_triangular"), SQUARE, REAL),
    "cholesky": (ops.cholesky, DEFINITE, REAL),
    "upper cholesky": (lambda a: ops.cholesky(a, True), DEFINITE, REAL),
    "cholesky_inv": (ops.cholesky_inv, SQUARE, REAL),
    "qr": (ops.qr, ANY, REAL),
    "svd": (ops.svd, ANY, NUMBERS),
    "thin svd": (lambda a: ops.svd(a, False), ANY, NUMBERS),
    "svdvals": (ops.svdvals, ANY, NUMBERS),
    "eigh": (ops.eigh, DEFINITE, NUMBERS),
    "eigvalsh": (lambda a: ops.eigvalsh(a, "U"), DEFINITE, NUMBERS),
    "eig": (ops.eig, SQUARE, NUMBERS),
    "eigvals": (ops.eigvals, SQUARE, NUMBERS),
    "lu": (ops.lu, ANY, REAL),
    "lu_factor": (ops.lu_factor, ANY, REAL),
    "det": (ops.det, SQUARE, REAL),
    "slogdet": (ops.slogdet, SQUARE, REAL),
    "logdet": (ops.logdet, DEFINITE, REAL),
    "lstsq": (system("lstsq"), ANY, REAL),
    "matrix_exp": (ops.matrix_exp, SQUARE, REAL),
    "matrix_rank": (ops.matrix_rank, ANY, NUMBERS),
    "matrix_power": (lambda a: ops.matrix_power(a, -2), SQUARE, REAL),
    "cond": (ops.cond, ANY, NUMBERS),
    "cond 1": (lambda a: ops.cond(a, 1), SQUARE, REAL),
    "cond nuc": (lambda a: ops.cond(a, "nuc"), SQUARE, REAL),
    "norm 2": (lambda a: ops.norm(a, 2, axis=(-2, -1)), ANY, NUMBERS),
    "norm -2": (lambda a: ops.norm(a, -2, axis=(-2, -1)), ANY, NUMBERS),
    "norm nuc": (lambda a: ops.norm(a, "nuc", axis=(-2, -1)), ANY, NUMBERS),
}
DERIVATIVES = ("grad", "jvp", "second")


def floating(outputs):
    return [y for y in listed(outputs) if mx.issubdtype(y.dtype, mx.inexact)]


def total(outputs):
    """A real number that depends on all floating outputs."""
    return sum(
        (mx.real(y) * mx.arange(1, y.size + 1).reshape(y.shape)).sum() for y in floating(outputs)
    )


def listed(outputs):
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


# The modes, and the numbers of rows: matrices of up to 32 have kernels.
MODES: dict[str, tuple[Callable[..., Callable[[mx.array], list[mx.array]]], tuple[int, ...]]] = {
    "values": (lambda f: lambda a: listed(f(a)), (2, 34)),
    "compile": (lambda f: mx.compile(lambda a: listed(f(a))), (34,)),
    "vmap": (lambda f: mx.vmap(lambda a: listed(f(a))), (34,)),
    "grad": (lambda f: lambda a: [mx.grad(lambda x: total(f(x)))(a)], (2, 34)),
    "jvp": (lambda f: lambda a: mx.jvp(lambda x: floating(f(x)), [a], [a])[1], (2,)),
    "second": (
        lambda f: lambda a: [mx.grad(lambda x: (mx.grad(lambda y: total(f(y)))(x) * a).sum())(a)],
        (2,),
    ),
}


def batch(kind: str, n: int, dtype: mx.Dtype) -> np.ndarray:
    """Three matrices without equal or zero eigenvalues."""
    rng = np.random.default_rng(n)
    a = rng.normal(size=(3, n, n if kind != ANY else n + 1)) / np.sqrt(n)
    if dtype == mx.complex64:
        a = a + 1j * rng.normal(size=a.shape) / np.sqrt(n)
    if kind == DEFINITE:
        return a @ np.conj(np.swapaxes(a, 1, 2)) + np.diag(np.arange(1.0, n + 1))
    return a + np.eye(*a.shape[1:]) * np.arange(2, a.shape[2] + 2)


def cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """The name of each case, and the function that returns its problem."""
    for name, (function, kind, dtypes) in FUNCTIONS.items():
        for dtype, mode in itertools.product(dtypes, MODES):
            if mode != "values" and (name == "matrix_rank" or dtype != mx.float64):
                continue
            for n in MODES[mode][1]:
                case = functools.partial(problem, name, function, kind, dtype, mode, n)
                yield f"{mode} of {name}, {n} rows, {dtype}", case


def problem(name, function, kind, dtype, mode, n) -> str:
    a = batch(kind, n, dtype)
    run = MODES[mode][0](function)
    good = [to_numpy(y) for y in run(mx.array(a, dtype))]
    for bad in (np.nan, -np.inf if n == 2 else np.inf):
        x = a.copy()
        x[1, n // 2, n // 2] = bad
        outputs = run(mx.array(x, dtype))
        found = [to_numpy(y) for y in outputs]
        for y, wanted in zip(found, good, strict=True):
            if not np.allclose(y[[0, 2]], wanted[[0, 2]], 1e-4, 1e-4):
                return f"{bad}: the other matrices changed"
        unknown = [np.isnan(to_numpy(y)[1]) for y in floating(outputs)]
        if name == "matrix_rank":
            right = found[0][1] == 0
        elif mode in DERIVATIVES:
            right = any(y.any() for y in unknown)
        elif name == "lu":  # the triangles also have zeros and ones
            right = all(y.any() for y in unknown)
        else:
            right = all(y.all() for y in unknown)
        if not right:
            return f"{bad}: numbers that are not NaN"
    return ""


def main() -> None:
    with mx.stream(mx.cpu):
        for name, case in itertools.islice(cases(), int(sys.argv[1]), None):
            print(name, flush=True)
            print(case(), flush=True)


if __name__ == "__main__":
    main()
