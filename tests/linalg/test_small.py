"""The kernels for matrices of up to 32 rows, against NumPy in float64, and against MLX.

Under ``mlxgen metal-test``, float32 uses the Metal kernels, and float64 those of the CPU.
"""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from evaluation import in_thread

from mlxgen.testing import metal_backend, to_numpy

ops = mlxops.linalg
DTYPES = {mx.float32: 2e-5, mx.float64: 4e-14}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# The emulation is slow.
EMULATED = metal_backend() == "emulation"
SIZES = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32) if EMULATED else range(1, 33)


@pytest.fixture(autouse=True)
def on_cpu(request):
    """Use a GPU for float32, in place of the CPU in conftest.py."""
    call = getattr(request.node, "callspec", None)
    gpu = metal_backend() == "gpu" and call is not None and call.params.get("dtype") == mx.float32
    with mx.stream(mx.gpu if gpu else mx.cpu):
        yield


# Fewer than the lanes of a vector, as many, and more of several threadgroups.
BATCHES = (1, 3, 21)


def matrices(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def definite(batch, n):
    """Condition numbers are about 10."""
    x = matrices(batch, n, n)
    return x @ np.swapaxes(x, 1, 2) / n + np.eye(n) / 2


def invertible(batch, n):
    """Elimination needs pivots: the large elements are not on the diagonal."""
    x = matrices(batch, n, n) / n
    order = np.random.default_rng(n).permutation(n)
    return x + np.eye(n)[order]


def layouts(a, dtype):
    """Return a batch as contiguous, transposed, reversed and strided arrays."""
    whole = mx.array(a, dtype)
    moved = mx.swapaxes(mx.array(np.swapaxes(a, -1, -2).copy(), dtype), -1, -2)
    padded = mx.array(np.pad(a, ((0, 0), (1, 2), (2, 1))), dtype)[:, 1:-2, 2:-1]
    return [whole, moved, mx.array(a[::-1].copy(), dtype)[::-1], padded]


def close(got, wanted, dtype, factor=1):
    """Compare relative to the largest number."""
    got = to_numpy(got) if isinstance(got, mx.array) else got
    assert got.shape == wanted.shape
    limit = factor * DTYPES[dtype] * np.abs(wanted).max(initial=1)
    np.testing.assert_allclose(got, wanted, 0, limit)


def rounded(a, dtype):
    """Return the numbers of the dtype, in float64."""
    return a.astype(np.float32).astype(np.float64) if dtype == mx.float32 else a


@each_dtype
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n, dtype):
    for batch in BATCHES:
        a = rounded(definite(batch, n), dtype)
        wanted = np.linalg.cholesky(a)
        for x in layouts(a, dtype) if batch == 3 else [mx.array(a, dtype)]:
            close(ops.cholesky(x), wanted, dtype)
            close(ops.cholesky(x, upper=True), np.swapaxes(wanted, 1, 2), dtype)
    # Only one triangle is read, and the other one of the result is 0.
    noise = 1e3 * matrices(3, n, n)
    a = definite(3, n)
    lower = ops.cholesky(mx.array(np.tril(a) + np.triu(noise, 1), dtype))
    upper = ops.cholesky(mx.array(np.triu(a) + np.tril(noise, -1), dtype), upper=True)
    close(lower, np.linalg.cholesky(a), dtype)
    assert (to_numpy(lower) == np.tril(to_numpy(lower))).all()
    np.testing.assert_array_equal(to_numpy(upper), np.swapaxes(to_numpy(lower), 1, 2))


@each_dtype
@pytest.mark.parametrize("n", SIZES)
def test_solve(n, dtype):
    for batch, columns in ((1, 1), (3, 17), (21, 2)):
        a, b = rounded(invertible(batch, n), dtype), matrices(batch, n, columns, seed=1)
        b = rounded(b, dtype)
        wanted = np.linalg.solve(a, b)
        pairs = [(mx.array(a, dtype), mx.array(b, dtype))]
        if batch == 3:
            pairs = zip(layouts(a, dtype), layouts(b, dtype), strict=True)
        for x, y in pairs:
            close(ops.solve(x, y), wanted, dtype, factor=np.linalg.cond(a).max())


@each_dtype
@pytest.mark.parametrize("n", SIZES)
def test_solve_triangular(n, dtype):
    for batch, columns in ((1, 1), (3, 17), (21, 2)):
        a, b = matrices(batch, n, n) / n + 2 * np.eye(n), matrices(batch, n, columns, seed=1)
        a, b = rounded(a, dtype), rounded(b, dtype)
        for upper, half in ((False, np.tril(a)), (True, np.triu(a))):
            wanted = np.linalg.solve(half, b)
            pairs = [(mx.array(a, dtype), mx.array(b, dtype))]  # the other triangle is not 0
            if batch == 3:
                pairs = zip(layouts(a, dtype), layouts(b, dtype), strict=True)
            for x, y in pairs:
                close(ops.solve_triangular(x, y, upper), wanted, dtype)


@each_dtype
@pytest.mark.parametrize("n", SIZES)
def test_qr(n, dtype):
    """The signs are those of LAPACK, so that results equal NumPy's."""
    for batch, rows in ((1, n), (3, max(1, n - 3)), (21, min(32, n + 2)), (2, 1), (2, 32)):
        a = rounded(matrices(batch, rows, n), dtype)
        for x in layouts(a, dtype) if batch == 3 else [mx.array(a, dtype)]:
            q, r = ops.qr(x)
            k = min(rows, n)
            assert q.shape == (batch, rows, k) and r.shape == (batch, k, n)
            ours, theirs = to_numpy(q), np.linalg.qr(a)
            # The last vectors depend on the condition of the first columns.
            worst = np.linalg.cond(a[..., :k]).max()
            close(q, theirs[0], dtype, factor=worst)
            close(r, theirs[1], dtype, factor=worst)
            close(q @ r, a, dtype)
            close(mx.swapaxes(q, 1, 2) @ q, np.broadcast_to(np.eye(k), (batch, k, k)), dtype)
            assert (to_numpy(r) == np.triu(to_numpy(r))).all() and np.isfinite(ours).all()


@each_dtype
@pytest.mark.parametrize("sign", [1, -1])
def test_qr_of_numbers_whose_squares_overflow(sign, dtype):
    large = {mx.float32: 1e30, mx.float64: 1e200}[dtype]
    a = np.array([[[sign * large, 1], [1, 2], [0.5, 3]], [[1, 2], [sign * large, 1], [-1, 3]]])
    q, r = ops.qr(mx.array(a, dtype))
    close(q @ r / large, a / large, dtype)
    close(mx.swapaxes(q, 1, 2) @ q, np.broadcast_to(np.eye(2), (2, 2, 2)), dtype)


def columns_of_sizes(*sizes):
    return lambda rng: rng.normal(size=(12, len(sizes))) * sizes


COLUMNS = {
    "ones": lambda rng: np.ones((16, 16)),
    "ones, wide": lambda rng: np.ones((7, 32)),
    "ones, high": lambda rng: np.ones((32, 6)),
    "zeros": lambda rng: np.zeros((5, 4)),
    "rank 2": lambda rng: rng.normal(size=(32, 2)) @ rng.normal(size=(2, 32)),
    "a column": lambda rng: 1e-30 * rng.normal(size=(32, 1)),
    "a row": lambda rng: 1e30 * rng.normal(size=(1, 32)),
    "one number": lambda rng: np.full((1, 1), -1e-45),
    "sizes of columns": columns_of_sizes(1e-30, 1e30, 1, 1e-41, 1e20, 0, 1e-44),
    "equal columns": lambda rng: np.repeat(rng.normal(size=(10, 2)), 5, axis=1),
    "hilbert": lambda rng: 1 / (np.arange(20)[:, None] + np.arange(20) + 1.0),
    "graded": lambda rng: rng.normal(size=(24, 24)) * 10.0 ** -np.arange(24)[:, None],
}


@each_dtype
@pytest.mark.parametrize("case", COLUMNS)
def test_orthogonal_factors(case, dtype):
    """Also of dependent columns, whose remainders are smaller with each reflection, until they
    underflow, and of columns of any size."""
    a = rounded(COLUMNS[case](np.random.default_rng(0)), dtype)
    if EMULATED and dtype == mx.float32 and case == "sizes of columns":
        pytest.skip("the Metal kernel does not scale columns")
    epsilon = 2.0 ** (-23 if dtype == mx.float32 else -52)
    for batch in (a, np.stack([a, rounded(matrices(*a.shape), dtype), a[::-1]])):
        q, r = (to_numpy(x).astype(np.float64) for x in ops.qr(mx.array(batch, dtype)))
        error = np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1])
        assert np.abs(error).max() <= 10 * epsilon
        sizes = np.linalg.norm(batch, axis=-2, keepdims=True)
        assert (np.abs(q @ r - batch) <= 10 * epsilon * sizes + 1e-45).all()
        assert (r == np.triu(r)).all()


@pytest.mark.skipif(EMULATED, reason="the Metal kernels do not scale")
@each_dtype
def test_numbers_of_all_sizes(dtype):
    """Next to each other, in a matrix or in columns of b."""
    sizes = np.array([1e38, 1e-30, 3.0, 1e-3, 2e-20])
    for upper in (False, True):
        a = mx.array(np.diag(sizes), dtype)
        b = mx.array(sizes[:, None] * [1, 1e-3, np.nan, np.inf, 0], dtype)
        for x in (ops.solve(a, b), ops.solve_triangular(a, b, upper)):
            wanted = to_numpy(b) / to_numpy(a).diagonal()[:, None]
            np.testing.assert_allclose(to_numpy(x)[:, :2], wanted[:, :2], 1e-6)
        diagonal = to_numpy(ops.cholesky(a, upper)).diagonal()
        np.testing.assert_allclose(diagonal, np.sqrt(to_numpy(a).diagonal()), 1e-6)
    columns = mx.array(np.ones((5, 1)) * [1e38, 1e-3, 1e-44, np.nan, 0], dtype)
    one, finite = mx.eye(5, dtype=dtype), [0, 1, 2, 4]
    for x in (ops.solve(one, columns), ops.solve_triangular(one, columns)):
        assert np.isnan(to_numpy(x)[:, 3]).all()
        np.testing.assert_array_equal(to_numpy(x)[:, finite], to_numpy(columns)[:, finite])


# Functions of a matrix of integers, and by how much the exponents of their results grow with its.
SCALED = {
    "qr": (lambda a, b: ops.qr(a), [0, 1]),
    "eigh": (lambda a, b: ops.eigh(a), [1, 0]),
    "cholesky": (lambda a, b: [ops.cholesky(a)], [0.5]),
    "upper cholesky": (lambda a, b: [ops.cholesky(a, True)], [0.5]),
    "solve": (lambda a, b: [ops.solve(a, b)], [-1]),
    "lower triangle": (lambda a, b: [ops.solve_triangular(a, b)], [-1]),
    "upper triangle": (lambda a, b: [ops.solve_triangular(a, b, True)], [-1]),
}


@pytest.mark.skipif(EMULATED, reason="the Metal kernels do not scale")
@each_dtype
@pytest.mark.parametrize("name", SCALED)
def test_scales(name, dtype):
    """Powers of 2 change exponents only: results of numbers at the ends of the range, also of
    subnormal ones, have the bits of others."""
    function, growth = SCALED[name]
    ends = (-136, 116) if dtype == mx.float32 else (-1060, 1010)
    number = np.float32 if dtype == mx.float32 else np.float64
    least = np.finfo(number).smallest_subnormal
    rng = np.random.default_rng(0)
    for n, batch in ((1, 1), (3, 21), (8, 1), (32, 5)):
        x = rng.integers(-4, 5, size=(batch, n, n))
        a = np.tril(x) + np.tril(x, -1).swapaxes(1, 2) + 8 * n * np.eye(n)
        b = rng.integers(-4, 5, size=(batch, n, 3)).astype(float)

        def run(k, j, a=a, b=b):
            arrays = (mx.array(np.ldexp(x, k), dtype) for x, k in ((a, k), (b, j)))
            return [to_numpy(y).astype(number) for y in function(*arrays)]

        wanted = run(0, 0)
        for k in (*ends, ends[0] // 4 * 2, ends[1] // 4 * 2):
            # Right-hand sides of the same and of another size; solutions may overflow.
            for j in (k, k // 2, 0) if growth == [-1] else (0,):
                for y, w, times in zip(run(k, j), wanted, growth, strict=True):
                    power = int(times * k) + (j if growth == [-1] else 0)
                    with np.errstate(over="ignore"):
                        np.testing.assert_allclose(y, np.ldexp(w, power), 0, least)


@each_dtype
@pytest.mark.parametrize("n", SIZES)
def test_eigh(n, dtype):
    for batch in BATCHES:
        a = matrices(batch, n, n)
        a = rounded(a + np.swapaxes(a, 1, 2), dtype)
        wanted = np.linalg.eigvalsh(a)
        for x in layouts(a, dtype) if batch == 3 else [mx.array(a, dtype)]:
            check_eigh(x, a, wanted, dtype)
            close(ops.eigvalsh(x), wanted, dtype)
    check_eigh(mx.array(np.tril(a), dtype), a, wanted, dtype)
    w, v = ops.eigh(mx.array(np.triu(a), dtype), "U")
    close(w, wanted, dtype)
    close(mx.array(a, dtype) @ v, to_numpy(v) * to_numpy(w)[:, None], dtype)


def check_eigh(x, a, wanted, dtype):
    w, v = ops.eigh(x)
    close(w, wanted, dtype)
    assert (np.diff(to_numpy(w)) >= 0).all()
    vectors = to_numpy(v).astype(np.float64)
    one = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    close(np.swapaxes(vectors, 1, 2) @ vectors, one, dtype)
    residual = a @ vectors - vectors * wanted[:, None]
    assert np.abs(residual).max() <= DTYPES[dtype] * np.abs(a).max(initial=1) * 4


# Special eigenvalues: equal, opposite, zero, of very different sizes, and numbers whose squares
# overflow or underflow.
SPECIAL = {
    "zero": np.zeros((5, 5)),
    "one": np.eye(7),
    "opposite": np.array([[0.0, 1], [1, 0]]),
    "opposite blocks": np.kron(np.eye(4), [[0.0, 1], [1, 0]]),
    "ones": np.ones((9, 9)),
    "graded": np.diag(10.0 ** -np.arange(6)) + 1e-6,
    "tridiagonal": 2 * np.eye(32) - np.eye(32, k=1) - np.eye(32, k=-1),
    "projection": np.kron(np.ones((4, 4)) / 4, np.eye(3)),
    "diagonal": np.diag([3.0, -1, 2, 0, 5]),
    "sparse": np.diag([1.0, 0, 0, 0, 2]) + np.eye(5, k=4) + np.eye(5, k=-4),
    "wilkinson": np.diag(np.abs(np.arange(-10.0, 11))) + np.eye(21, k=1) + np.eye(21, k=-1),
}


@each_dtype
@pytest.mark.parametrize("case", SPECIAL)
def test_special_eigenvalues(case, dtype):
    """Next to other matrices, since the matrices of a vector take the same steps."""
    a = SPECIAL[case]
    n = len(a)
    for scale in (1, 1e-25, 1e25):
        other = matrices(n, n)
        batch = rounded(np.stack([a, other + other.T, -a]) * scale, dtype)
        w, v = (to_numpy(x).astype(np.float64) for x in ops.eigh(mx.array(batch, dtype)))
        close(w / scale, np.linalg.eigvalsh(batch / scale), dtype)
        product = (v * w[:, None] / scale) @ np.swapaxes(v, 1, 2)
        close(product, batch / scale, dtype, factor=2)
        one = np.broadcast_to(np.eye(n), batch.shape)
        close(np.swapaxes(v, 1, 2) @ v, one, dtype)


@each_dtype
def test_special_columns(dtype):
    """Columns that are zero or triangular already have the identity as reflection, negative zeros
    count as negative, and squares of numbers may be out of range."""
    triangular = np.triu(matrices(4, 4))
    for a in (
        np.zeros((3, 3)),
        triangular,
        np.array([[-0.0, 1], [2, 3]]),
        np.array([[0.0, 1], [2, 3]]),
        np.array([[0.0, 1, 2], [0, 2, 1]]),
    ):
        for scale in (1, 1e-25, 1e25):
            x = rounded(a * scale, dtype)
            q, r = ops.qr(mx.array(x, dtype))
            wanted = np.linalg.qr(x)
            close(q, wanted[0], dtype)
            close(to_numpy(r) / scale, wanted[1] / scale, dtype)
    x = mx.array(triangular, dtype)
    np.testing.assert_array_equal(to_numpy(ops.qr(x)[1]), to_numpy(x))


@each_dtype
def test_equal_to_mlx(dtype):
    """At the limit of 32 rows, the results of the kernels and of MLX's functions are the same."""
    for n in (32, 33):
        a = mx.array(definite(2, n), dtype)
        b = mx.array(matrices(2, n, 3), dtype)
        if n == 33 and metal_backend() is not None:
            continue
        q, r = ops.qr(a)
        wanted = mx.linalg.qr(a, stream=mx.cpu)
        close(q, to_numpy(wanted[0]), dtype, factor=10)
        close(r, to_numpy(wanted[1]), dtype, factor=10)
        for got, right in (
            (ops.cholesky(a), mx.linalg.cholesky(a, stream=mx.cpu)),
            (ops.solve(a, b), mx.linalg.solve(a, b, stream=mx.cpu)),
            (
                ops.solve_triangular(a, b),
                mx.linalg.solve_triangular(mx.tril(a), b, stream=mx.cpu),
            ),
            (ops.eigh(a)[0], mx.linalg.eigvalsh(a, stream=mx.cpu)),
        ):
            close(got, to_numpy(right), dtype, factor=10)


@each_dtype
def test_not_positive_definite(dtype):
    """Such a matrix is NaN, and those in the same vector are not affected."""
    a = definite(40, 6)
    a[5] -= 3 * np.eye(6)
    a[17, 3, 3] = 0
    a[30, 5, 5] = np.nan
    a[31, 4, 2] = np.nan
    a[32] = 0
    a[33] = np.diag([1.0, 1, 1, 1, 1, 0])
    bad = [5, 17, 30, 31, 32, 33]
    wanted = np.linalg.cholesky(np.delete(a, bad, 0))
    for upper in (False, True):
        x = np.swapaxes(a, 1, 2) if upper else a
        got = to_numpy(ops.cholesky(mx.array(x, dtype), upper))
        assert np.isnan(got[bad]).all()
        left = np.delete(got, bad, 0)
        close(np.swapaxes(left, 1, 2) if upper else left, wanted, dtype)


@each_dtype
@in_thread
def test_singular(dtype):
    """An error on the CPU, which a GPU cannot raise: there, the solution is not finite."""
    singular = {
        "zero": np.zeros((3, 3)),
        "rank": np.array([[1.0, 2, 0], [2, 4, 0], [0, 0, 1]]),
        "last": np.diag([1.0, 2, 0]),
    }
    on_gpu = dtype == mx.float32 and metal_backend() is not None
    for a in singular.values():
        batch = np.tile(np.eye(3), (20, 1, 1))
        batch[7] = a
        x, b = mx.array(batch, dtype), mx.ones((20, 3, 2), dtype)
        calls = [lambda x=x, b=b: ops.solve(x, b)]
        if a[0, 1] == 0:
            calls += [lambda x=x, b=b, u=u: ops.solve_triangular(x, b, u) for u in (False, True)]
        for call in calls:
            if on_gpu:
                got = to_numpy(call())
                assert not np.isfinite(got[7]).all()
                assert (np.delete(got, 7, 0) == 1).all()
            else:
                found = call()
                with pytest.raises(RuntimeError, match="failed with error code"):
                    mx.eval(found)
                assert np.isnan(to_numpy(found)).all()  # not memory that nothing wrote


@each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad, dtype):
    """All results are NaN, and those of the other matrices are not affected."""
    a, b = definite(20, 5), matrices(20, 5, 1)
    clean = mx.array(a, dtype)
    a[3, 2, 1] = a[11, 4, 4] = a[17, 0, 0] = bad
    x, y = mx.array(a, dtype), mx.array(b, dtype)
    for function in (
        ops.eigh,
        ops.qr,
        ops.cholesky,
        lambda a: ops.solve(a, y),
        lambda a: ops.solve_triangular(a, y),
    ):
        for got, wanted in zip(listed(function(x)), listed(function(clean)), strict=True):
            assert np.isnan(to_numpy(got)[[3, 11, 17]]).all()
            finite = np.delete(np.arange(20), [3, 11, 17])
            np.testing.assert_array_equal(to_numpy(got)[finite], to_numpy(wanted)[finite])


def listed(outputs):
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


@each_dtype
def test_elements_that_are_not_read(dtype):
    """The other triangle may have any numbers, also for LAPACK's functions."""
    for n in (5, 34):
        if n == 34 and dtype == mx.float32 and metal_backend() is not None:
            continue
        a = definite(3, n)
        lower = mx.array(np.tril(a) + np.triu(np.full((n, n), np.nan), 1), dtype)
        upper = mx.swapaxes(lower, 1, 2)
        close(ops.cholesky(lower), np.linalg.cholesky(a), dtype)
        close(ops.cholesky(upper, upper=True), np.linalg.cholesky(a).swapaxes(1, 2), dtype)
        close(ops.eigvalsh(lower), np.linalg.eigvalsh(a), dtype)
        close(ops.eigh(upper, "U")[0], np.linalg.eigvalsh(a), dtype)
        for x, half in ((lower, np.tril(a)), (upper, np.triu(a))):
            b, up = mx.ones((3, n, 2), dtype), x is upper
            wanted = np.linalg.solve(half, np.ones((3, n, 2)))
            close(ops.solve_triangular(x, b, up), wanted, dtype, factor=10)
            close(ops.tri_inv(x, up, stream=mx.cpu), np.linalg.inv(half), dtype, factor=10)


@each_dtype
def test_many_columns_and_batches(dtype):
    """Right-hand sides of several blocks of columns, batches of two axes, and vectors."""
    a = invertible(6, 7).reshape(2, 3, 7, 7)
    b = matrices(3, 7, 40)
    close(ops.solve(mx.array(a, dtype), mx.array(b, dtype)), np.linalg.solve(a, b), dtype, 40)
    vectors = matrices(2, 3, 7)
    wanted = np.linalg.solve(a, vectors[..., None])[..., 0]
    close(ops.solve(mx.array(a, dtype), mx.array(vectors, dtype)), wanted, dtype, 40)


@pytest.mark.skipif(not EMULATED, reason="for mlxgen metal-test")
def test_kernels_are_used(request):
    """Also for a single matrix."""
    metal_launches = request.getfixturevalue("metal_launches")
    a = mx.array(definite(1, 5)[0], mx.float32)
    metal_launches()
    mx.eval(ops.cholesky(a), ops.solve(a, a), ops.solve_triangular(a, a), ops.qr(a), ops.eigh(a))
    names = ("small_cholesky", "solve_small", "solve_small_triangle", "small_qr", "small_eigh")
    assert metal_launches() == {f"{name}_float32_8": 1 for name in names}


@each_dtype
@pytest.mark.parametrize("n", [2, 8, 20])
def test_gradients_of_batches(n, dtype):
    """Those of a batch are those of its matrices, in float64 by the CPU kernels."""
    a, b = definite(5, n), matrices(5, n, 2)

    def loss(a, b):
        q, r = ops.qr(a)
        systems = (ops.solve(a, b), ops.solve_triangular(a, b))
        parts = (ops.cholesky(a), *systems, ops.eigvalsh(a), q, r)
        return sum(
            (y * mx.cos(mx.arange(y[0].size, dtype=y.dtype)).reshape(y[0].shape)).sum()
            for y in parts
        )

    got = mx.grad(loss, argnums=(0, 1))(mx.array(a, dtype), mx.array(b, dtype))
    for k in range(5):
        with mx.stream(mx.cpu):
            each = mx.grad(loss, argnums=(0, 1))(
                mx.array(a[k : k + 1], mx.float64), mx.array(b[k : k + 1], mx.float64)
            )
        for g, w in zip(got, each, strict=True):
            close(g[k : k + 1], to_numpy(w), dtype, factor=10)


@each_dtype
def test_larger_matrices_in_a_shapeless_graph(dtype):
    """The kernel of qr computes any size on the CPU, since the graph remains that of the first."""
    if dtype == mx.float32 and metal_backend() is not None:
        pytest.skip("a Metal kernel has a limit")
    function = mx.compile(lambda a: list(ops.qr(a)), shapeless=True)
    mx.eval(function(mx.array(matrices(2, 3, 4), dtype)))
    for shape in ((2, 40, 35), (3, 7, 50), (1, 50, 7)):
        a = rounded(matrices(*shape), dtype)
        for got, wanted in zip(function(mx.array(a, dtype)), np.linalg.qr(a), strict=True):
            close(got, wanted, dtype, factor=100)
