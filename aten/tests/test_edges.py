"""Values and gradients at the edges of domains: those of torch 2.13, written down, or of NumPy.

Half precision is compared with double precision, and gradients of complex numbers with differences.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx_aten as aten
import numpy as np
import pytest
import scipy.linalg
import scipy.special
from mlx_aten.exported import masked

INF, NAN = float("inf"), float("nan")
HALVES = [mx.float16, mx.bfloat16]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    """MLX factors matrices on the CPU."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def numpy(x: mx.array) -> np.ndarray[Any, Any]:
    """Return an array in double precision."""
    x = x.astype(mx.float32) if x.dtype in HALVES else x
    return np.array(x).astype(np.complex128 if x.dtype == mx.complex64 else np.float64)


def first(result: Any) -> mx.array:
    """Return the first result."""
    return result[0] if isinstance(result, (list, tuple)) else result


def gradients(function: Callable[..., Any], *arrays: mx.array) -> list[mx.array]:
    """Return the gradients of the sum of the first result."""
    out = first(function(*arrays))

    def run(*given: mx.array) -> list[mx.array]:
        return [first(function(*given))]

    return mx.vjp(run, list(arrays), [mx.ones_like(out)])[1]


def random(*shape: int, seed: int = 0) -> mx.array:
    """Return random numbers of both signs."""
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def complexes(*shape: int, seed: int = 0) -> mx.array:
    """Return random complex numbers."""
    rng = np.random.default_rng(seed)
    return mx.array((rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64))


A = mx.array
#: name, arguments, and the gradients of the arrays of floats among them
SLOPES: list[tuple[str, list[Any], list[Any]]] = [
    (
        "binary_cross_entropy",
        [A([0.0, 1, 1, 0, 0.5]), A([0.0, 1, 0, 1, 0.3])],
        [[0, 0, 2e11, -2e11, 0.16], [INF, -INF, -INF, INF, 0]],
    ),
    ("nll_loss", [A([[-0.1, -2.0], [-3, -0.2]]), A([-100, -100])], [[[0, 0], [0, 0]]]),
    ("cross_entropy_loss", [A([[0.1, 2.0], [3, 0.2]]), A([-100, -100])], [[[0, 0], [0, 0]]]),
    ("pow", [A([0.0, 1, 2]), 0], [[0, 0, 0]]),
    ("pow", [A([0.0, 1, 2]), A([0.0, 1, 2])], [[0, 1, 4], [0, 0, 4 * np.log(2)]]),
    ("pow", [A([0.0, 0, 0]), A([0, 1, 2])], [[0, 1, 0]]),
    ("pow", [0.0, A([0.0, 1, 2])], [[0, 0, 0]]),
    ("logsumexp", [A([INF, 1]), [0]], [[NAN, 0]]),
    ("xlogy", [A([0.0, 0, 1]), A([0.0, 1, 2])], [[0, 0, np.log(2)], [0, 0, 0.5]]),
    (
        "special_xlog1py",
        [A([0.0, 0, 1]), A([-1.0, 1, 1])],
        [[0, np.log(2), np.log(2)], [0, 0, 0.5]],
    ),
    ("linalg_eigvalsh", [mx.eye(3)], [np.eye(3)]),
    ("linalg_eigh", [mx.eye(3)], [np.eye(3)]),
    ("linalg_svdvals", [mx.eye(3)], [np.eye(3)]),
    ("median", [A([1.0, 2, 2, 2, 3])], [[0, 1 / 3, 1 / 3, 1 / 3, 0]]),
    ("nanmedian", [A([1.0, 2, 2, NAN, 3])], [[0, 0.5, 0.5, 0, 0]]),
    ("median", [A([1.0, NAN, 3])], [[0, 1, 0]]),
    ("max", [A([1.0, NAN, 3, NAN])], [[0, 0.5, 0, 0.5]]),
    ("min", [A([1.0, 1, 3])], [[0.5, 0.5, 0]]),
    ("maximum", [A([NAN, 1, 2]), A([1.0, NAN, 2])], [[1, 1, 0.5], [1, 1, 0.5]]),
    ("minimum", [A([NAN, 1, 2]), A([1.0, 2, 2])], [[1, 1, 0.5], [1, 0, 0.5]]),
    ("remainder", [A([6.0, -7.5]), A([0.1, 2])], [[1, 1], [-59, 4]]),
    ("angle", [A([NAN, -1.0])], [[0, 0]]),
    ("cumprod", [A([2.0, 0, 3, 0, 5]), 0], [[1, 8, 0, 0, 0]]),
    ("cumprod", [A([2.0, 3, INF]), 0], [[INF, INF, 6]]),
    (
        "logcumsumexp",
        [A([-200.0, 0.0, 200.0]), 0],
        [[1, 1, 1]],
    ),
    ("cosine_similarity", [mx.zeros((1, 2)), mx.ones((1, 2))], [[[0.5**0.5 * 1e8] * 2], [[0, 0]]]),
    ("elu", [A([100.0, -100, 0])], [[1, 0, 1]]),
    (
        "clamp",
        [A([0.0, 3]), A([1.0, 1]), A([1.0, 2])],
        [[0, 0], [0, 0], [0, 1]],
    ),
]


HALF = mx.float16
#: calls with the dtypes and values of their results
VALUES: list[tuple[Callable[[], mx.array], mx.Dtype, list[complex]]] = [
    (lambda: aten.erf(A([1e-7, -1e-4, 3])), mx.float32, [1.1283792e-7, -1.1283792e-4, 0.9999779]),
    (lambda: aten.special_erf(A([1e-30, NAN])), mx.float32, [1.1283792e-30, NAN]),
    (lambda: aten.round(A([700, 65504], HALF), decimals=2), HALF, [700, 65504]),
    (lambda: aten.special_round(A([700, 65504], HALF), decimals=5), HALF, [700, 65504]),
    (lambda: aten.hardswish(A([20000, -2], HALF)), HALF, [20000, -0.33325195]),
    (lambda: aten.ldexp(A([0.5, 1], HALF), A([17, 3], mx.int8)), HALF, [INF, 8]),
    (lambda: aten.ldexp(A([2**-15], HALF), A([17], mx.int32)), HALF, [4]),
    (
        lambda: aten.nan_to_num(A([complex(2, NAN), complex(INF, 1)]), 1.5, 9),
        mx.complex64,
        [2 + 1.5j, 9 + 1j],
    ),
]


@pytest.mark.parametrize(("call", "dtype", "expected"), VALUES)
def test_values_of_torch(call: Any, dtype: mx.Dtype, expected: list[complex]) -> None:
    found = call()
    assert found.dtype == dtype
    np.testing.assert_allclose(numpy(found), expected, rtol=2e-7)


@pytest.mark.parametrize("name", ["slogdet", "linalg_slogdet"])
def test_logarithms_of_determinants_out_of_range(name: str) -> None:
    matrices = A(
        [[[1e20, 0, 0], [0, 0, -1e20], [0, 1e30, 0]], [[1e-30, 0, 0], [0, 2, 0], [0, 0, 3]]]
    )
    sign, logarithm = getattr(aten, name)(matrices)
    assert sign.tolist() == [1, 1]
    expected = [70 * np.log(10), np.log(6) - 30 * np.log(10)]
    np.testing.assert_allclose(numpy(logarithm), expected, rtol=1e-6)
    (slope,) = gradients(lambda x: getattr(aten, name)(x)[1], mx.eye(2) * 1e-25)
    np.testing.assert_allclose(numpy(slope), np.eye(2) * 1e25, rtol=1e-6)


def test_histograms_of_what_is_not_finite() -> None:
    """torch raises an error; here counts are undefined, but no memory of others is written."""
    for outlier in (NAN, INF, -INF):
        counts = aten.histc(A([1.0, outlier, 2, 3]), 4)
        assert counts.shape == (4,) and mx.all((counts >= 0) & (counts <= 4))


@pytest.mark.parametrize(("name", "args", "expected"), SLOPES, ids=lambda value: str(value)[:30])
def test_gradients_of_torch(name: str, args: list[Any], expected: list[Any]) -> None:
    places = [
        i
        for i, a in enumerate(args)
        if isinstance(a, mx.array) and mx.issubdtype(a.dtype, mx.floating)
    ]

    def of(*arrays: mx.array) -> Any:
        given = list(args)
        for place, array in zip(places, arrays, strict=True):
            given[place] = array
        return getattr(aten, name)(*given)

    found = gradients(of, *(args[place] for place in places))
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(numpy(actual), np.array(wanted, float), rtol=1e-5, atol=1e-6)


#: functions of half precision, and the same in double precision
SUMS: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray[Any, Any]], Any]]] = {
    "mean": (aten.mean, np.mean),
    "mean of rows": (lambda x: aten.mean(x, [1]), lambda x: x.mean(1)),
    "nanmean": (aten.nanmean, np.mean),
    "var": (aten.var, lambda x: x.var(ddof=1)),
    "std": (lambda x: aten.std(x, [1], False), lambda x: x.std(1)),
    "var_mean": (aten.var_mean, lambda x: x.var(ddof=1)),
    "norm": (lambda x: aten.linalg_vector_norm(x, 2), lambda x: (x**2).sum() ** 0.5),
    "prod": (lambda x: aten.prod(x[:, :2] / 100, 1), lambda x: (x[:, :2] / 100).prod(1)),
    "cosine_similarity": (
        lambda x: aten.cosine_similarity(x, x + x),
        lambda x: np.ones(x.shape[0]),
    ),
    "rms_norm": (
        lambda x: aten.rms_norm(x, [x.shape[1]]),
        lambda x: x / (x**2).mean(1, keepdims=True) ** 0.5,
    ),
    "layer_norm": (
        lambda x: aten.layer_norm(x, [x.shape[1]]),
        lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
    ),
    "group_norm": (
        lambda x: aten.group_norm(x[None], 1),
        lambda x: (x - x.mean()) / x.std(),
    ),
    "mse_loss": (lambda x: aten.mse_loss(x / 2, x / 4), lambda x: (x**2).mean() / 16),
    "logsumexp": (lambda x: aten.logsumexp(x, [1]), lambda x: scipy.special.logsumexp(x, 1)),
    "cumsum": (lambda x: aten.cumsum(x / 64, 1), lambda x: np.cumsum(x / 64, 1)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", SUMS)
def test_sums_of_half_precision(case: str, dtype: mx.Dtype) -> None:
    """Results in range are found and rounded once, and gradients are finite."""
    function, exact = SUMS[case]
    x = (250 + 50 * mx.sin(mx.arange(8 * 3000).reshape(8, 3000) * 0.7)).astype(dtype)
    if case == "mse_loss":
        x = x / 8
    found = first(function(x))
    rtol = 2e-3 if dtype == mx.float16 else 1.6e-2
    if case in ("layer_norm", "group_norm"):
        np.testing.assert_allclose(
            numpy(found).ravel(), exact(numpy(x)).ravel(), rtol=rtol, atol=rtol
        )
    else:
        np.testing.assert_allclose(numpy(found), exact(numpy(x)), rtol=rtol)
    assert found.dtype == dtype
    assert np.isfinite(numpy(gradients(function, x)[0])).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_means_of_many(dtype: mx.Dtype) -> None:
    assert aten.mean(mx.ones(100_000, dtype)).item() == 1
    ones = mx.ones((1, 70_000), dtype)
    assert aten.cosine_similarity(ones, ones).item() == pytest.approx(1, rel=2e-3)


def test_slopes_of_quotients_in_half_precision() -> None:
    """The square of the divisor is out of range."""
    x, y = A([300.0], mx.float16), A([600.0], mx.float16)
    for name in ("div", "divide", "true_divide"):
        to_x, to_y = gradients(getattr(aten, name), x, y)
        assert to_x.item() == pytest.approx(1 / 600, rel=1e-3)
        assert to_y.item() == pytest.approx(-300 / 600**2, rel=1e-3)
    assert gradients(aten.reciprocal, y)[0].item() == pytest.approx(-1 / 600**2, rel=5e-2)


def test_cosine_similarity() -> None:
    """Shapes are broadcast first, and large numbers have finite lengths."""
    assert aten.cosine_similarity(mx.ones((4, 3)), mx.ones((1, 3)), 0).tolist() == pytest.approx(
        [1] * 3
    )
    assert aten.cosine_similarity(mx.ones(3), mx.ones((2, 3))).tolist() == pytest.approx([1, 1])
    huge = A([[1e10, 1e10]])
    assert aten.cosine_similarity(huge, huge).item() == pytest.approx(1)


def test_logarithms_of_large_numbers() -> None:
    x = A([1e6, 1e6, -INF])
    for found in (aten.log_softmax(x, 0), aten._log_softmax(x, 0, False)):
        np.testing.assert_allclose(numpy(found), [-np.log(2), -np.log(2), -np.inf], rtol=1e-6)
    assert aten.cross_entropy_loss(A([[1e6, 1e6]]), A([0])).item() == pytest.approx(np.log(2))


def test_shapes_that_are_refused() -> None:
    with pytest.raises(ValueError, match="num_classes must be given"):
        aten.one_hot(A([0, 2, 1]))
    with pytest.raises(ValueError, match="target must be classes"):
        aten.cross_entropy_loss(A([0.1, 2.0, 3.0]), A([1]))


def test_signs_of_zeros() -> None:
    for dtype in (mx.float64, mx.float32, *HALVES):
        assert aten.signbit(A([-1.0, 0.0, -0.0]).astype(dtype)).tolist() == [True, False, True]


def test_signs_and_angles_of_0() -> None:
    zero = A([0j, 3 + 4j])
    assert gradients(aten.angle, zero)[0][0].item() == 0
    np.testing.assert_allclose(numpy(aten.sgn(zero)), [0, 0.6 + 0.8j], rtol=1e-6)
    assert gradients(aten.sgn, zero)[0][0].item() == 0


#: functions of complex numbers, and NumPy's
COMPLEX: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None, list[Any]]] = {
    "pow": (aten.pow, np.power, [complexes(3), complexes(3, seed=1)]),
    "pow of an array": (lambda x: aten.pow(x, 3), lambda x: x**3, [complexes(3)]),
    "pow of a number": (lambda x: aten.pow(2.0, x), lambda x: 2.0**x, [complexes(3)]),
    "float_power": (aten.float_power, np.power, [complexes(3), complexes(3, seed=1)]),
    "exp2": (aten.exp2, lambda x: 2**x, [complexes(3)]),
    "expm1": (aten.expm1, np.expm1, [complexes(3)]),
    "cumprod": (lambda x: aten.cumprod(x, 1), lambda x: np.cumprod(x, 1), [complexes(2, 4)]),
    "prod": (lambda x: aten.prod(x, 1), lambda x: np.prod(x, 1), [complexes(2, 4)]),
    "logcumsumexp": (
        lambda x: aten.logcumsumexp(x, 0),
        lambda x: np.log(np.cumsum(np.exp(x), 0)),
        [complexes(4)],
    ),
    "inv": (aten.linalg_inv, np.linalg.inv, [complexes(2, 3, 3)]),
    "det": (aten.linalg_det, np.linalg.det, [complexes(2, 3, 3)]),
    "slogdet": (aten.linalg_slogdet, lambda x: np.linalg.slogdet(x)[0], [complexes(2, 3, 3)]),
    "logabsdet": (
        lambda x: aten.linalg_slogdet(x)[1],
        lambda x: np.linalg.slogdet(x)[1],
        [complexes(2, 3, 3)],
    ),
    "solve": (aten.linalg_solve, np.linalg.solve, [complexes(3, 3), complexes(3, 2, seed=1)]),
    "solve_triangular": (
        lambda a, b: aten.linalg_solve_triangular(a, b, upper=True),
        lambda a, b: np.linalg.solve(np.triu(a), b),
        [complexes(3, 3), complexes(3, 2, seed=1)],
    ),
    "cholesky": (
        lambda x: aten.linalg_cholesky(x @ mx.conj(x.T)),
        lambda x: np.linalg.cholesky(x @ x.conj().T),
        [complexes(3, 3)],
    ),
    "lu": (
        lambda x: aten.linalg_lu_factor(x),
        lambda x: np.stack([scipy.linalg.lu_factor(m)[0] for m in x]),
        [complexes(2, 4, 3)],
    ),
    "qr": (aten.linalg_qr, lambda x: np.linalg.qr(x)[0], [complexes(2, 4, 3)]),
    "r of qr": (
        lambda x: aten.linalg_qr(x)[1],
        lambda x: np.linalg.qr(x)[1],
        [complexes(2, 3, 4)],
    ),
    "pinv": (aten.linalg_pinv, np.linalg.pinv, [complexes(2, 4, 3)]),
    "pinv of a wide one": (aten.linalg_pinv, np.linalg.pinv, [complexes(3, 4)]),
    "lstsq": (
        lambda a, b: aten.linalg_lstsq(a, b),
        lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0],
        [complexes(4, 3), complexes(4, 2, seed=1)],
    ),
    "lstsq by qr": (
        lambda a, b: aten.linalg_lstsq(a, b, driver="gels"),
        lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0],
        [complexes(4, 3), complexes(4, 2, seed=1)],
    ),
    "householder_product": (
        aten.linalg_householder_product,
        lambda v, tau: householder(v, tau),
        [complexes(4, 3), complexes(3, seed=1)],
    ),
    "orgqr": (
        aten.orgqr,
        lambda v, tau: householder(v, tau),
        [complexes(4, 3), complexes(3, seed=1)],
    ),
    "eigvalsh": (
        lambda x: aten.linalg_eigvalsh(x + mx.conj(x.T)),
        lambda x: np.linalg.eigvalsh(x + x.conj().T),
        [complexes(3, 3)],
    ),
    "svdvals": (
        aten.linalg_svdvals,
        lambda x: np.linalg.svd(x, compute_uv=False),
        [complexes(4, 3)],
    ),
    "projector of svd": (
        lambda x: (lambda u: u @ mx.conj(u.T))(aten.linalg_svd(x, False)[0][:, :1]),
        lambda x: (lambda u: u @ u.conj().T)(np.linalg.svd(x)[0][:, :1]),
        [complexes(4, 3)],
    ),
    "projector of eigh": (
        lambda x: (lambda v: v @ mx.conj(v.T))(aten.linalg_eigh(x + mx.conj(x.T))[1][:, :1]),
        lambda x: (lambda v: v @ v.conj().T)(np.linalg.eigh(x + x.conj().T)[1][:, :1]),
        [complexes(3, 3)],
    ),
}


def householder(v: np.ndarray[Any, Any], tau: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the first columns of a product of reflections."""
    out = np.eye(len(v), dtype=complex)
    for i, factor in enumerate(tau):
        column = np.where(np.arange(len(v)) > i, v[:, i], 0) + np.eye(len(v))[i]
        out = out @ (np.eye(len(v)) - factor * np.outer(column, column.conj()))
    return out[:, : v.shape[1]]


@pytest.mark.parametrize("case", COMPLEX)
def test_complex_numbers(case: str) -> None:
    """Values of NumPy; a gradient is the conjugate of the derivative, as in torch."""
    function, reference, arrays = COMPLEX[case]
    assert reference is not None
    out = first(function(*arrays))
    exact = [numpy(x) for x in arrays]
    np.testing.assert_allclose(numpy(out), reference(*exact), rtol=1e-4, atol=1e-4)
    weight = numpy(
        complexes(*out.shape, seed=9) if out.dtype == mx.complex64 else random(*out.shape, seed=9)
    )

    def total(values: list[np.ndarray[Any, Any]]) -> float:
        return float((np.conj(weight) * reference(*values)).sum().real)

    def run(*given: mx.array) -> list[mx.array]:
        return [first(function(*given))]

    cotangent = mx.array(weight.astype(np.complex64 if out.dtype == mx.complex64 else np.float32))
    found = mx.vjp(run, arrays, [cotangent])[1]
    for index, x in enumerate(exact):
        for place in np.ndindex(x.shape):
            slope = 0j
            for unit in (1.0, 1j):
                ends = []
                for step in (1e-6, -1e-6):
                    moved = [value.copy() for value in exact]
                    moved[index][place] += step * unit
                    ends.append(total(moved))
                slope += (ends[0] - ends[1]) / 2e-6 * unit
            assert found[index][place].item() == pytest.approx(slope, rel=5e-3, abs=5e-3)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_nearest_neighbors(axes: int, exact: bool) -> None:
    """The factor counts, not the ratio of the sizes, except where torch ignores it."""
    name = f"_upsample_nearest_exact{axes}d" if exact else f"upsample_nearest{axes}d"
    for n in range(1, 9):
        for factor in (0.7, 1.0, 1.3, 1.7, 2.0, 2.1, 2.3):
            size = int(n * factor)
            if size == 0:
                continue
            scale = np.float32(1 / factor)
            if axes == 2 and not exact and size in (n, 2 * n):
                scale = np.float32(n / size)
            at = (np.arange(size, dtype=np.float32) + np.float32(0.5 * exact)) * scale
            wanted = np.minimum(np.floor(at).astype(int), n - 1)
            x = mx.arange(n).astype(mx.float32).reshape([1, 1] + [1] * (axes - 1) + [n])
            function = getattr(aten, name)
            factors = [1.0] * (axes - 1) + [factor]
            assert function(x, None, factors).flatten().tolist() == wanted.tolist()
            (slope,) = gradients(lambda x, f=function, s=factors: f(x, None, s), x)
            assert slope.flatten().tolist() == np.bincount(wanted, minlength=n).tolist()


def test_products_of_integers() -> None:
    """Batches too, in the memory of the matrices, and exact."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 3, 3))
    for name in ("linalg_matrix_power", "matrix_power"):
        assert getattr(aten, name)(mx.array(x), 3).tolist() == np.linalg.matrix_power(x, 3).tolist()
    x, y = rng.integers(-(2**40), 2**40, (300, 400)), rng.integers(-(2**20), 2**20, (400, 300))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    found = aten.mm(mx.array(x), mx.array(y))
    np.testing.assert_array_equal(np.array(found), x @ y)
    assert mx.get_peak_memory() - before < 50e6
    assert aten.matmul(mx.array(x[0]), mx.array(y)).tolist() == (x[0] @ y).tolist()
    assert aten.matmul(mx.array(x), mx.array(y[:, 0])).tolist() == (x @ y[:, 0]).tolist()
    assert aten.mm(mx.ones((1, 256), mx.bool_), mx.ones((256, 1), mx.bool_)).tolist() == [[True]]


def test_memory_of_searches() -> None:
    """It grows with the sizes, not with their product."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 10**6, 50_000), rng.integers(0, 10**6, 50_000)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    assert np.array(aten.isin(mx.array(x), mx.array(y))).tolist() == np.isin(x, y).tolist()
    rows = np.sort(x.reshape(2, -1), axis=1)
    found = np.array(aten.searchsorted(mx.array(rows), mx.array(y.reshape(2, -1)), right=True))
    wanted = [np.searchsorted(a, b, "right") for a, b in zip(rows, y.reshape(2, -1), strict=True)]
    np.testing.assert_array_equal(found, wanted)
    values, place = aten.mode(mx.array(x % 1000))
    counts = np.bincount(x % 1000)
    assert values.item() == counts.argmax()
    assert place.item() == np.flatnonzero(x % 1000 == values.item())[-1]
    assert mx.get_peak_memory() - before < 50e6


SINGULAR = {
    "linalg_inv": lambda a: aten.linalg_inv(a),
    "linalg_inv_ex": lambda a: aten.linalg_inv_ex(a)[0],
    "linalg_solve": lambda a: aten.linalg_solve(a, mx.ones((4, 2), a.dtype)),
    "linalg_solve_triangular": lambda a: aten.linalg_solve_triangular(a, a, upper=True),
    "lu_solve": lambda a: aten.linalg_lu_solve(*aten.linalg_lu_factor(a), a),
    "cholesky_solve": lambda a: aten.cholesky_solve(a, a),
    "cholesky_inverse": lambda a: aten.cholesky_inverse(a),
    "slogdet": lambda a: mx.grad(lambda x: mx.real(aten.slogdet(x)[1]).sum())(a),
    "qr": lambda a: mx.grad(lambda x: mx.real(aten.linalg_qr(x)[1]).sum())(a),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.complex64])
@pytest.mark.parametrize("name", SINGULAR)
def test_singular_matrices(name: str, dtype: mx.Dtype) -> None:
    """No function of MLX is called that raises an error while it evaluates."""
    matrices = mx.stack([mx.zeros((4, 4)), mx.arange(16).reshape(4, 4), mx.eye(4)]).astype(dtype)
    results = [SINGULAR[name](matrices) for _ in range(3)]
    graph = io.StringIO()
    mx.export_to_dot(graph, results[0])
    assert "Inverse" not in graph.getvalue()
    assert not mx.isfinite(results[0][0]).all()
    for result in results:
        assert mx.array_equal(result.view(mx.int32), results[0].view(mx.int32))


@pytest.mark.parametrize("upper", [False, True])
def test_large_triangles(upper: bool) -> None:
    """Matrices of more than 128 rows are solved in blocks, and others with LU factors."""
    a = np.array(random(300, 300, seed=1)) / 20 + 4 * np.eye(300, dtype=np.float32)
    b = np.array(random(300, 5, seed=2))
    triangle = np.triu(a) if upper else np.tril(a)
    found = aten.linalg_solve_triangular(mx.array(a), mx.array(b), upper=upper)
    np.testing.assert_allclose(np.array(found), np.linalg.solve(triangle, b), rtol=1e-4, atol=1e-5)
    for left in (True, False):
        c = b if left else b.T
        found = aten.linalg_solve(mx.array(a), mx.array(c), left=left)
        wanted = np.linalg.solve(a, c) if left else np.linalg.solve(a.T, c.T).T
        np.testing.assert_allclose(np.array(found), wanted, rtol=1e-4, atol=1e-5)


def test_sets_and_searches_at_the_edges() -> None:
    assert aten.isin(A([1.0, NAN, 3]), A([NAN, 3])).tolist() == [False, False, True]
    assert aten.isin(A([1, 2]), mx.zeros((0,), mx.int32), invert=True).tolist() == [True, True]
    assert aten.isin(A([True, False]), A([True])).tolist() == [True, False]
    ordered = A([1.0, 2, NAN])
    assert aten.searchsorted(ordered, A([NAN, 1.5, INF])).tolist() == [3, 1, 3]
    assert aten.bucketize(A([NAN, 1.5, 3]), A([1.0, 2, 3]), right=True).tolist() == [3, 1, 3]
    assert aten.mode(A([1.0, NAN, NAN, 1, 3]))[0].item() == 1
    assert aten.mode(mx.zeros((2, 0, 3)), 0, keepdim=True)[1].shape == (1, 0, 3)
    with pytest.raises(ValueError, match="an axis of size 0 has no mode"):
        aten.mode(mx.zeros((2, 0, 3)), 1)


def test_rows_without_elements() -> None:
    """MLX ends the process for some of these."""
    x, index = mx.zeros((3, 0)), A([0, 1])
    rows, places = mx.zeros((2, 0)), mx.zeros((2, 0), mx.int32)
    for found in (
        aten.index_add(x, 0, index, rows),
        aten.index_copy(x, 0, index, rows),
        aten.index_put(x, [index], rows),
        aten.scatter_add(x, 0, places, rows),
        aten.scatter(x, 0, places, rows),
        aten.index_reduce(x, 0, index, rows, "amax"),
    ):
        assert np.array(found).shape == (3, 0)
    for found in (
        aten.index_select(x, 0, index),
        aten.index(x, [index]),
        aten.embedding(x, index),
        aten.gather(x, 0, places),
        aten.take_along_dim(x, places, 0),
    ):
        assert np.array(found).shape == (2, 0)
    slopes = gradients(lambda x: aten.index_select(x, 0, index), x)
    assert np.array(slopes[0]).shape == (3, 0)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_batches_of_places(name: str) -> None:
    x = A([[1, 3, 2, 3], [5, 1, 7, 1]])
    found = mx.vmap(lambda row: getattr(aten, name)(row, 0))(x)
    wanted = getattr(aten, name)(x, 1)
    assert [part.tolist() for part in found] == [part.tolist() for part in wanted]


@pytest.mark.parametrize(("axes", "groups"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize(
    ("size", "stride", "padding", "extra", "dilation"),
    [(3, 2, 1, 1, 1), (1, 2, 0, 1, 1), (2, 3, 0, 2, 1), (2, 1, 2, 0, 1), (3, 2, 1, 2, 3)],
)
def test_transposed_convolutions(
    axes: int, groups: int, size: int, stride: int, padding: int, extra: int, dilation: int
) -> None:
    """The derivative of a linear map is the map, also with more padding than MLX differentiates."""
    x, weight = random(2, 4, *[4, 5, 3][:axes]), random(4, 3, *[size] * axes, seed=1)
    settings = [[n] * axes for n in (stride, padding, extra)]

    def run(x: mx.array, weight: mx.array) -> mx.array:
        function = getattr(aten, f"conv_transpose{axes}d")
        return function(x, weight, None, *settings, groups, [dilation] * axes)

    out = run(x, weight)
    reach = dilation * (size - 1) + 1
    assert out.shape[2:] == tuple(
        (n - 1) * stride - 2 * padding + reach + extra for n in x.shape[2:]
    )
    cotangent = random(*out.shape, seed=2)
    to_x, to_weight = mx.vjp(lambda *a: [run(*a)], [x, weight], [cotangent])[1]
    for slope, array, moved in (
        (to_x, x, lambda d: run(d, weight)),
        (to_weight, weight, lambda d: run(x, d)),
    ):
        assert slope.shape == array.shape
        direction = random(*array.shape, seed=3)
        change = (cotangent * moved(direction)).sum().item()
        assert (slope * direction).sum().item() == pytest.approx(change, rel=1e-4, abs=1e-3)


X, MASK = A([-1.0, 2, -3]), A([True, False, True])
#: Functions that hide the first and the last element, where the gradient of what follows is NaN or
#: infinite: torch's is 0 there, as that of sqrt(relu(-1)).
HIDING: dict[str, Callable[[mx.array], mx.array]] = {
    "relu": aten.relu,
    "relu6": aten.relu6,
    "hardtanh": lambda x: aten.hardtanh(x, 0.0, 5.0),
    "threshold": lambda x: aten.threshold(x, 0.5, 7.0),
    "maximum": lambda x: aten.maximum(x, mx.zeros(3)),
    "minimum": lambda x: aten.minimum(mx.zeros(3), -x),
    "fmax": lambda x: aten.fmax(x, mx.zeros(3)),
    "fmin": lambda x: aten.fmin(mx.zeros(3), -x),
    "where": lambda x: aten.where(MASK, mx.zeros(3), x),
    "where of a number": lambda x: aten.where(MASK, -INF, x),
    "masked_fill": lambda x: aten.masked_fill(x, MASK, -INF),
}


@pytest.mark.parametrize("name", HIDING)
def test_hidden_elements_have_no_gradient(name: str) -> None:
    (gradient,) = mx.vjp(HIDING[name], [X], [A([NAN, 1, INF])])[1]
    assert np.abs(gradient).tolist() == [0, 1, 0]


@pytest.mark.parametrize("function", [aten.tril, aten.triu])
def test_hidden_triangles_have_no_gradient(function: Callable[[mx.array], mx.array]) -> None:
    shown = function(mx.ones((3, 3)))
    cotangent = mx.where(shown == 1, 1, NAN)
    assert mx.array_equal(mx.vjp(function, [mx.ones((3, 3))], [cotangent])[1][0], shown)


def test_rows_without_any_score_have_no_gradient() -> None:
    def weights(scores: mx.array) -> mx.array:
        hidden = aten.masked_fill(scores, A([[True, True], [False, False]]), -INF)
        return aten.nan_to_num(aten.softmax(hidden, -1))[:, 0]

    gradient = gradients(weights, mx.zeros((2, 2)))[0]
    assert gradient.tolist() == [[0, 0], [0.25, -0.25]]


def test_elements_outside_of_a_mask_have_no_gradient() -> None:
    """As x[mask] = torch.acos(x[mask]) of a program."""

    def changed(x: mx.array) -> mx.array:
        elements = masked.selected(x, MASK, 0)
        return masked.put_selected(x, MASK, 0, mx.arccos(elements))

    (gradient,) = mx.vjp(changed, [A([0.0, 5, 0])], [mx.ones(3)])[1]
    assert gradient.tolist() == [-1, 1, -1]
