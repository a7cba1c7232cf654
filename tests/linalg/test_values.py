"""Values: identities, NumPy's and SciPy's results, and matrices that are empty, singular, of one
element, not square, or have equal eigenvalues."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
import scipy.linalg
from evaluation import in_thread
from linalg.functions import adjoint

from mlxgen.testing import to_numpy

ops = mlxops.linalg
rng = np.random.default_rng(0)
REAL = [mx.float32, mx.float64]
each_dtype = pytest.mark.parametrize("dtype", REAL, ids=str)
EPSILON = {mx.float32: 2e-5, mx.float64: 1e-12, mx.complex64: 2e-5}


def array(values, dtype=mx.float64):
    return mx.array(np.asarray(values), dtype)


def close(got, wanted, dtype=mx.float64):
    """Compare relative to the largest number."""
    got, wanted = (to_numpy(x) if isinstance(x, mx.array) else np.asarray(x) for x in (got, wanted))
    assert got.shape == wanted.shape
    limit = EPSILON[dtype] * np.abs(wanted).max(initial=1)
    np.testing.assert_allclose(got, wanted, 0, limit)


def stack(dtype, rows, columns):
    """Return a batch of matrices in memory that is not contiguous."""
    x = rng.normal(size=(2, columns, 3, rows))
    if dtype == mx.complex64:
        x = x + 1j * rng.normal(size=x.shape)
    return mx.moveaxis(array(x, dtype), 1, -1)


# Identities


@each_dtype
@pytest.mark.parametrize("n", [1, 2, 5])
def test_inverses(dtype, n):
    a, one = stack(dtype, n, n) + 4 * mx.eye(n, dtype=dtype), mx.eye(n, dtype=dtype)
    close(a @ ops.inv(a), mx.broadcast_to(one, a.shape), dtype)
    close(mx.tril(a) @ ops.tri_inv(a), mx.broadcast_to(one, a.shape), dtype)
    b = stack(dtype, n, 2)
    close(a @ ops.solve(a, b), b, dtype)
    close(mx.triu(a) @ ops.solve_triangular(a, b, upper=True), b, dtype)
    gram = a @ adjoint(a)
    lower = ops.cholesky(gram)
    close(lower, mx.tril(lower), dtype)
    close(lower @ adjoint(lower), gram, dtype)
    close(ops.cholesky(gram, upper=True), adjoint(lower), dtype)
    close(gram @ ops.cholesky_inv(lower), mx.broadcast_to(one, a.shape), dtype)
    close(gram @ ops.cholesky_inv(adjoint(lower), upper=True), mx.broadcast_to(one, a.shape), dtype)
    sign, size = ops.slogdet(a)
    close(ops.det(a), np.linalg.det(to_numpy(a)), dtype)
    close(to_numpy(sign) * np.exp(to_numpy(size)), ops.det(a), dtype)
    close(ops.logdet(gram), 2 * size, dtype)


@each_dtype
@pytest.mark.parametrize("rows, columns", [(4, 3), (3, 3), (3, 5), (1, 1), (3, 1), (1, 3)])
def test_real_decompositions(dtype, rows, columns):
    a = stack(dtype, rows, columns)
    k = min(rows, columns)
    q, r = ops.qr(a)
    assert q.shape[-1] == r.shape[-2] == k
    close(q @ r, a, dtype)
    close(adjoint(q) @ q, mx.broadcast_to(mx.eye(k, dtype=dtype), [*a.shape[:-2], k, k]), dtype)
    close(r, mx.triu(r), dtype)
    p, lower, upper = ops.lu(a)
    close(mx.take_along_axis(lower @ upper, p[..., None], axis=-2), a, dtype)
    packed, pivots = ops.lu_factor(a)
    assert pivots.dtype == mx.uint32 and pivots.shape == (*a.shape[:-2], k)
    close(mx.tril(packed[..., :k], -1) + mx.eye(rows, k, dtype=dtype), lower, dtype)
    close(mx.triu(packed[..., :k, :]), upper, dtype)


@pytest.mark.parametrize("dtype", [*REAL, mx.complex64], ids=str)
@pytest.mark.parametrize("rows, columns", [(4, 3), (3, 3), (2, 4), (1, 1)])
def test_singular_values(dtype, rows, columns):
    a = stack(dtype, rows, columns)
    u, s, vh = ops.svd(a, full_matrices=False)
    close((u * s[..., None, :]) @ vh, a, dtype)
    close(ops.svdvals(a), np.linalg.svd(to_numpy(a), compute_uv=False), dtype)
    u, s, vh = ops.svd(a)
    assert u.shape[-2:] == (rows, rows) and vh.shape[-2:] == (columns, columns)
    close(adjoint(u) @ u, mx.broadcast_to(mx.eye(rows, dtype=dtype), u.shape), dtype)
    p = ops.pinv(a)
    close(p, np.linalg.pinv(to_numpy(a)), dtype)
    close(ops.matrix_rank(a), np.linalg.matrix_rank(to_numpy(a)))
    close(ops.cond(a), np.linalg.cond(to_numpy(a)), dtype)


@pytest.mark.parametrize("dtype", [*REAL, mx.complex64], ids=str)
@pytest.mark.parametrize("n", [1, 4])
def test_eigenvalues(dtype, n):
    a = stack(dtype, n, n)
    hermitian = (a + adjoint(a)) / 2
    for uplo, half in (("L", mx.tril(hermitian)), ("U", mx.triu(hermitian))):
        w, v = ops.eigh(half, uplo)
        close(hermitian @ v, v * w[..., None, :], dtype)
        close(ops.eigvalsh(half, uplo), w, dtype)
    w, v = ops.eig(a)
    assert w.dtype == v.dtype == mx.complex64
    close(a.astype(mx.complex64) @ v, v * w[..., None, :], mx.complex64)
    close(ops.eigvals(a), w, mx.complex64)


# NumPy and SciPy

DEFICIENT = rng.normal(size=(5, 2)) @ rng.normal(size=(2, 4))


@pytest.mark.parametrize("order", [None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"])
def test_norms_of_matrices(order):
    a = rng.normal(size=(2, 3, 4))
    for axis in ((0, 1), (-1, 0), (2, 1)):
        for keep in (False, True):
            wanted = np.linalg.norm(a, order, axis, keep)
            close(ops.norm(array(a), order, axis=axis, keepdims=keep), wanted)
    close(ops.norm(array(a[0]), order), np.linalg.norm(a[0], order))


@pytest.mark.parametrize("order", [None, 0, 0.5, 1, 2, 3, -1, np.inf, -np.inf])
def test_norms_of_vectors(order):
    a = rng.normal(size=(2, 3))
    close(ops.norm(array(a), order, axis=1), np.linalg.norm(a, order, 1))
    close(ops.norm(array(a), order, axis=-2, keepdims=True), np.linalg.norm(a, order, -2, True))
    close(ops.norm(array(a[0]), order), np.linalg.norm(a[0], order))


def test_norm_of_all_axes():
    a = rng.normal(size=(2, 3, 4))
    close(ops.norm(array(a)), np.sqrt((a**2).sum()))
    close(ops.norm(array(a), keepdims=True), np.sqrt((a**2).sum()).reshape(1, 1, 1))


@pytest.mark.parametrize("order", [None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"])
def test_condition_numbers(order):
    a = rng.normal(size=(2, 3, 3))
    close(ops.cond(array(a), order), np.linalg.cond(a, order))


def test_rank():
    """By the same limits as NumPy's."""
    a = np.diag([1.0, 1e-3, 1e-15, 0])
    for got, wanted in (
        (ops.matrix_rank(array(a)), np.linalg.matrix_rank(a)),
        (ops.matrix_rank(array(a), rtol=1e-2), np.linalg.matrix_rank(a, rtol=1e-2)),
        (ops.matrix_rank(array(a), atol=1e-2), np.linalg.matrix_rank(a, tol=1e-2)),
        (ops.matrix_rank(array(a, mx.float32)), 2),
        (ops.matrix_rank(array(np.zeros((2, 3)))), 0),
    ):
        assert got.item() == wanted


def test_deficient_rank():
    b = rng.normal(size=(5, 3))
    for a, c in ((DEFICIENT, b), (DEFICIENT.T, b[:4])):
        close(ops.pinv(array(a)), np.linalg.pinv(a))
        close(ops.lstsq(array(a), array(c)), np.linalg.lstsq(a, c)[0])
        close(ops.lstsq(array(a), array(c[:, 0])), np.linalg.lstsq(a, c[:, 0])[0])
    a = np.diag([1.0, 1e-3])
    close(ops.lstsq(array(a), array([1.0, 1.0]), rcond=1e-2), [1, 0])


def test_multi_dot():
    shapes = [(7, 2), (2, 9), (9, 1), (1, 5)]
    a = [rng.normal(size=s) for s in shapes]
    for chain in (
        a,
        a[:2],
        [a[0][0], *a[1:]],
        [*a[:-1], a[-1][:, 0][:1]],
        [a[0][0], a[1], a[2][:, 0]],
    ):
        close(ops.multi_dot([array(x) for x in chain]), np.linalg.multi_dot(chain))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.complex64], ids=str)
def test_powers(dtype):
    a = stack(dtype, 3, 3)
    for n in range(6):
        close(ops.matrix_power(a, n), np.linalg.matrix_power(to_numpy(a), n), dtype)
    if dtype != mx.complex64:
        close(ops.matrix_power(a, -2), np.linalg.matrix_power(to_numpy(a), -2), dtype)


EXPONENTS = {
    "zero": np.zeros((3, 3)),
    "one": np.array([[1.5]]),
    "usual": rng.normal(size=(4, 4)),
    "large": 20 * rng.normal(size=(6, 6)),
    "nilpotent": np.diag(np.ones(4), 1) * 1e30,
    "overscaled": np.array([[1, 1e6], [0, -1]]),
    "tiny": 1e-200 * rng.normal(size=(3, 3)),
    "40 x 40": rng.normal(size=(40, 40)),
}


@pytest.mark.parametrize("case", EXPONENTS)
def test_exponential(case):
    """The errors are those of SciPy's algorithm, which is the same."""
    a = EXPONENTS[case]
    close(ops.matrix_exp(array(a)), scipy.linalg.expm(a))
    if case not in ("nilpotent", "large"):  # not in the range of float32
        close(
            ops.matrix_exp(array(a, mx.float32)),
            scipy.linalg.expm(a.astype(np.float32)),
            mx.float32,
        )


def test_exponential_of_a_rotation():
    """Squaring 8 times multiplies the error of rounding by up to 2**8."""
    got = ops.matrix_exp(array([[0, 1e3], [-1e3, 0]]))
    c, s = np.cos(1e3), np.sin(1e3)
    np.testing.assert_allclose(to_numpy(got), [[c, s], [-s, c]], 0, 2**8 * 4e-16)


def test_exponential_of_a_batch():
    a = rng.normal(size=(100, 5, 5))
    close(ops.matrix_exp(array(a)), scipy.linalg.expm(a))
    close(ops.matrix_exp(array(a)) @ ops.matrix_exp(array(-a)), np.broadcast_to(np.eye(5), a.shape))
    bad = np.stack([np.full((2, 2), np.nan), np.eye(2), [[np.inf, 0], [0, 0]]])
    got = to_numpy(ops.matrix_exp(array(bad)))
    assert np.isnan(got[[0, 2]]).all()
    close(array(got[1]), np.e * np.eye(2))


# Matrices that MLX's functions reject, or that end the process

EMPTY = {
    "inv": [(0, 0), (2, 0, 0), (0, 3, 3)],
    "tri_inv": [(0, 0), (0, 3, 3)],
    "pinv": [(0, 0), (0, 3), (3, 0), (0, 2, 3)],
    "cholesky": [(0, 0), (0, 3, 3)],
    "cholesky_inv": [(0, 0), (0, 3, 3)],
    "qr": [(0, 0), (0, 3), (3, 0), (0, 2, 3)],
    "svd": [(0, 0), (0, 3), (3, 0), (0, 2, 3)],
    "svdvals": [(0, 0), (0, 3), (3, 0), (0, 2, 3)],
    "eigh": [(0, 0), (0, 3, 3)],
    "eigvalsh": [(0, 0), (0, 3, 3)],
    "lu": [(0, 0), (0, 3), (3, 0), (0, 2, 3)],
    "lu_factor": [(0, 0), (0, 3), (3, 0), (0, 2, 3)],
    "det": [(0, 0), (2, 0, 0), (0, 3, 3)],
    "slogdet": [(0, 0), (2, 0, 0), (0, 3, 3)],
    "logdet": [(0, 0), (0, 3, 3)],
    "matrix_exp": [(0, 0), (0, 3, 3)],
    "cond": [(0, 3, 3)],
}
FROM_NUMPY = {
    **{name: getattr(np.linalg, name) for name in ("inv", "pinv", "cholesky", "qr", "svd")},
    **{name: getattr(np.linalg, name) for name in ("eigh", "eigvalsh", "det", "slogdet")},
    "svdvals": lambda a: np.linalg.svd(a, compute_uv=False),
    "matrix_exp": scipy.linalg.expm,
}


def listed(outputs):
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


@pytest.mark.parametrize("name", EMPTY)
def test_empty(name):
    for shape in EMPTY[name]:
        a = mx.zeros(shape, mx.float64)
        outputs = listed(getattr(ops, name)(a))
        mx.eval(outputs)
        if name in FROM_NUMPY:
            for y, w in zip(outputs, listed(FROM_NUMPY[name](np.zeros(shape))), strict=True):
                np.testing.assert_array_equal(to_numpy(y), w)

        def total(a):
            found = listed(getattr(ops, name)(a))
            return sum(y.sum() for y in found if y.dtype == mx.float64)

        gradient = mx.grad(total)(a)
        assert gradient.shape == shape
        mx.eval(gradient)


def test_empty_systems():
    for a, b, shape in (
        ((0, 0), (0,), (0,)),
        ((0, 0), (0, 2), (0, 2)),
        ((3, 3), (3, 0), (3, 0)),
        ((0, 3, 3), (0, 3, 2), (0, 3, 2)),
    ):
        for function in (ops.solve, ops.solve_triangular):
            x = function(mx.ones(a, mx.float64), mx.ones(b, mx.float64))
            assert x.shape == shape
            mx.eval(x)
    assert ops.lstsq(mx.zeros((0, 2)), mx.zeros((0,))).tolist() == [0, 0]
    assert ops.lstsq(mx.zeros((3, 0)), mx.ones((3, 2))).shape == (0, 2)
    assert ops.matrix_rank(mx.zeros((2, 0, 3))).tolist() == [0, 0]
    assert ops.norm(mx.zeros((0, 3))).item() == 0
    assert ops.norm(mx.zeros((0, 3)), 2).item() == 0
    assert ops.norm(mx.zeros((2, 0, 3)), "nuc", axis=(1, 2)).tolist() == [0, 0]


@in_thread
def test_singular():
    singular = array([[1.0, 2], [2, 4]])
    for function in (
        ops.inv,
        lambda a: ops.solve(a, array([1.0, 0])),
        lambda a: ops.matrix_power(a, -1),
    ):
        with pytest.raises(RuntimeError, match="failed with error code"):
            mx.eval(function(singular))
    assert ops.det(singular).item() == 0
    assert ops.logdet(singular).item() == -np.inf
    sign, size = ops.slogdet(singular)
    assert sign.item() == 0 and size.item() == -np.inf
    assert ops.cond(array([[1.0, 0], [0, 0]])).item() == np.inf
    close(mx.grad(ops.det)(singular), [[4, -2], [-2, 1]])
    assert np.isnan(ops.logdet(array([[0.0, 1], [1, 0]])).item())


def test_indefinite():
    """The factor of a matrix that is not positive definite is NaN, and others are not affected."""
    a = array([[[4.0, 0], [0, 1]], [[1, 2], [2, 1]], [[-1, 0], [0, -1]], [[0, 0], [0, 1]]])
    got = to_numpy(ops.cholesky(a))
    close(array(got[0]), [[2, 0], [0, 1]])
    assert np.isnan(got[1:]).all()


def test_equal_eigenvalues():
    """Values have a gradient, and so do functions of eigh and svd that use values only; functions
    of the vectors have none."""
    one = mx.eye(3, dtype=mx.float64)
    weights = array([1.0, 2, 4])
    wanted = mx.diag(weights)
    close(mx.grad(lambda a: (ops.eigh(a)[0] * weights).sum())(one), wanted)
    close(mx.grad(lambda a: (ops.eigvalsh(a) * weights).sum())(one), wanted)
    total = mx.grad(lambda a: ops.svd(a)[1].sum())(2 * one)
    close(total, one)
    close(mx.grad(lambda a: ops.svdvals(a).sum())(2 * one), one)
    close(mx.jvp(lambda a: [ops.eigh(a)[0]], [one], [mx.diag(weights)])[1][0], weights)
    wild = array(rng.normal(size=(3, 3)))
    for function in (lambda a: ops.eigh(a)[1], lambda a: ops.svd(a)[0]):
        gradient = mx.grad(lambda a, f=function: (f(a) * wild).sum())(one)
        assert not np.isfinite(to_numpy(gradient)).all()


OF_MATRICES = [1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"]
OF_VECTORS = [None, 0, 0.5, 1, -1, 2, -2, 3, np.inf, -np.inf]
NORMS = [
    *((order, axis) for order in OF_MATRICES for axis in (None, (0, 1), (1, 0))),
    *((order, axis) for order in OF_VECTORS for axis in (0, 1)),
    (None, None),
]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("order, axis", NORMS)
def test_gradient_at_zero(order, axis, keep):
    """It is 0 for every order, and second derivatives are finite."""
    zero, one = mx.zeros((3, 2), mx.float64), mx.ones((3, 2), mx.float64)

    def norm(a):
        return ops.norm(a, order, axis=axis, keepdims=keep).sum()

    np.testing.assert_array_equal(to_numpy(mx.grad(norm)(zero)), 0)
    assert mx.jvp(lambda a: [norm(a)], [zero], [one])[1][0].item() == 0
    second = mx.grad(lambda a: mx.grad(norm)(a).sum())(zero)
    assert np.isfinite(to_numpy(second)).all()


@pytest.mark.parametrize("order", OF_MATRICES)
def test_gradient_of_deficient_rank(order):
    """Finite with singular values of 0 or equal ones; for ``nuc`` the shortest subgradient."""
    for values in ((2.0, 0, 0), (2, 2, 0), (2, 2, 2)):
        gradient = to_numpy(mx.grad(lambda a: ops.norm(a, order))(array(np.diag(values))))
        assert np.isfinite(gradient).all()
        if order == "nuc":
            close(gradient, np.diag(np.sign(values)))


# Mistakes

MISTAKES = [
    (lambda: ops.inv(mx.ones((2, 3))), "square"),
    (lambda: ops.inv(mx.ones((3,))), "square"),
    (lambda: ops.det(mx.array(1.0)), "square"),
    (lambda: ops.cholesky(mx.ones((2, 3))), "square"),
    (lambda: ops.eigh(mx.ones((2, 3))), "square"),
    (lambda: ops.eigh(mx.ones((2, 2)), "X"), "UPLO"),
    (lambda: ops.qr(mx.ones((3,))), "a matrix"),
    (lambda: ops.solve(mx.ones((3, 3)), mx.ones((2,))), "rows"),
    (lambda: ops.solve(mx.ones((2, 3, 3)), mx.ones((2, 2, 1))), "rows"),
    (lambda: ops.lstsq(mx.ones((3, 2)), mx.ones((2, 2))), "rows"),
    (lambda: ops.solve(mx.ones((2, 3, 3)), mx.ones((4, 3, 1))), "broadcast"),
    (lambda: ops.norm(mx.ones((2, 3)), 3), "order"),
    (lambda: ops.norm(mx.ones((2, 3, 4)), 1), "axis"),
    (lambda: ops.norm(mx.ones((2,)), "fro"), "two axes"),
    (lambda: ops.cond(mx.ones((2, 3)), 1), "square"),
    (lambda: ops.multi_dot([mx.ones((2, 3))]), "two arrays"),
    (lambda: ops.multi_dot([mx.ones((2, 3)), mx.ones((3,)), mx.ones((3, 2))]), "matrices"),
    (lambda: ops.inv(mx.ones((2, 2), mx.float16)), "float16"),
    (lambda: ops.inv(mx.ones((2, 2), mx.complex64)), "complex64"),
    (lambda: ops.matrix_exp(mx.ones((2, 2), mx.complex64)), "complex64"),
]


@pytest.mark.parametrize("call, words", MISTAKES)
def test_messages(call, words):
    with pytest.raises(ValueError, match=words):
        call()
