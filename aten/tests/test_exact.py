"""Calls for which torch has no result to compare with, or one of fewer digits: NumPy and SciPy.

report.yaml names the samples of which torch's result is not exact. Here are the results that are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx_aten as aten
import numpy as np
import pytest
import scipy.special

BESSEL_I = [88.0, 89.0, 90.5, 91.5, -91.5]
HYPERBOLIC = [88.0, 89.0, 89.4, -89.4]
HALVES = [mx.float16, mx.bfloat16]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    """References are computed in the precision of the CPU."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def double(x: mx.array) -> np.ndarray[Any, Any]:
    """Return an array in double precision."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def random(*shape: int, seed: int = 0) -> mx.array:
    """Return random numbers of both signs."""
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "points", "reference"),
    [
        ("i0", BESSEL_I, scipy.special.i0),
        ("special_i0", BESSEL_I, scipy.special.i0),
        ("special_modified_bessel_i0", BESSEL_I, scipy.special.i0),
        ("special_i1", BESSEL_I, scipy.special.i1),
        ("special_modified_bessel_i1", BESSEL_I, scipy.special.i1),
        ("cosh", HYPERBOLIC, np.cosh),
        ("sinh", HYPERBOLIC, np.sinh),
    ],
)
def test_functions_overflow_late(
    name: str, points: list[float], reference: Callable[..., Any]
) -> None:
    x = mx.array(points)
    np.testing.assert_allclose(double(getattr(aten, name)(x)), reference(double(x)), rtol=3e-6)


@pytest.mark.parametrize("name", ["digamma", "special_digamma", "special_psi"])
def test_slope_of_digamma_at_its_poles(name: str) -> None:
    x = mx.array([0.0, -1.0, -2.0, -30.0, -1e30, 0.5, -0.5, -1.5])
    slope = mx.grad(lambda x: getattr(aten, name)(x).sum())(x)
    expected = [np.inf] * 5 + list(scipy.special.polygamma(1, double(x[5:6])))
    assert double(slope)[:5].tolist() == expected[:5]
    np.testing.assert_allclose(double(slope)[5], expected[5], rtol=1e-6)
    # DLMF 5.15.6: the reflection
    for value, found in zip((-0.5, -1.5), double(slope)[6:], strict=True):
        reflected = np.pi**2 / np.sin(np.pi * value) ** 2 - scipy.special.polygamma(1, 1 - value)
        np.testing.assert_allclose(found, reflected, rtol=1e-6)


@pytest.mark.parametrize("name", ["polygamma", "special_polygamma"])
def test_trigamma_at_its_poles(name: str) -> None:
    found = getattr(aten, name)(1, mx.array([0.0, -1.0, -30.0, -1e30, 0.5]))
    assert found.tolist()[:4] == [np.inf] * 4
    assert found[4].item() == pytest.approx(np.pi**2 / 2, rel=1e-6)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_slopes_of_mixed_precision(name: str) -> None:
    """A gradient of float32 has its digits also where another argument is bfloat16."""
    x, y, z = random(5, 5), random(5, 5, seed=1).astype(mx.bfloat16), random(1, 5, seed=2)

    def total(*arrays: mx.array) -> mx.array:
        return getattr(aten, name)(*arrays, value=3.14).sum()

    slopes = mx.grad(total, argnums=(0, 1, 2))(x, y, z)
    wide = mx.grad(total, argnums=(0, 1, 2))(x, y.astype(mx.float32), z)
    assert [slope.dtype for slope in slopes] == [mx.float32, mx.bfloat16, mx.float32]
    outer = 3.14 * double(y) * (1.0 if name == "addcmul" else -1 / double(z) ** 2)
    np.testing.assert_allclose(double(slopes[2]), outer.sum(0, keepdims=True), rtol=2e-6)
    np.testing.assert_array_equal(double(slopes[1]), double(wide[1].astype(mx.bfloat16)))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["nll_loss2d", "nll_loss2d_forward"])
def test_mean_of_losses_in_half_precision(name: str, dtype: mx.Dtype) -> None:
    """The result is the exact mean, rounded once."""
    logs = random(6, 3, 2, 2).astype(dtype)
    labels = np.random.default_rng(3).integers(0, 3, (6, 2, 2))
    found = getattr(aten, name)(logs, mx.array(labels), None, 1, -100)
    found = found[0] if name.endswith("forward") else found
    exact = -np.take_along_axis(double(logs), labels[:, None], 1).mean()
    assert found.dtype == dtype
    assert found.item() == mx.array(exact).astype(dtype).item()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["batch_norm", "native_batch_norm", "_native_batch_norm_legit"])
def test_normalization_by_given_statistics_is_rounded_once(name: str, dtype: mx.Dtype) -> None:
    shapes = [(3, 2, 4), (2,), (2,), (2,)]
    x, weight, bias, mean = (random(*n, seed=i).astype(dtype) for i, n in enumerate(shapes))
    spread = (mx.abs(random(2, seed=4)) + 0.1).astype(dtype)
    more = {"cudnn_enabled": False} if name == "batch_norm" else {}
    found = getattr(aten, name)(x, weight, bias, mean, spread, False, 0.1, 1e-5, **more)
    found = found if name == "batch_norm" else found[0]
    scale, shift, center, width = (double(a)[:, None] for a in (weight, bias, mean, spread))
    exact = (double(x) - center) / np.sqrt(width + 1e-5) * scale + shift
    bound = 2.0 ** (-10.9 if dtype == mx.float16 else -7.9)
    assert found.dtype == dtype
    np.testing.assert_allclose(double(found), exact, rtol=bound, atol=1e-5)


def test_info_says_where_a_factorization_fails() -> None:
    """The first row, counted from 1, or 0."""
    good = np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]], np.float32)
    matrices = np.stack([good, -good, good, good])
    matrices[2, 1, 1], matrices[3, 2, 2] = -3, np.nan
    _, info = aten.linalg_cholesky_ex(mx.array(matrices))
    assert info.dtype == mx.int32
    assert info.tolist() == [0, 1, 2, 3]
    assert aten.linalg_cholesky_ex(mx.array(matrices), upper=True)[1].tolist() == [0, 1, 2, 3]
    assert aten.linalg_cholesky_ex(mx.zeros((2, 0, 0)))[1].tolist() == [0, 0]
    singular = np.stack([good, np.ones((3, 3), np.float32), np.zeros((3, 3), np.float32)])
    _, _, info = aten.linalg_lu_factor_ex(mx.array(singular))
    assert info.tolist() == [0, 2, 1]


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_least_squares_up_to_a_rank(driver: str, shape: tuple[int, int]) -> None:
    """Singular values up to rcond times the largest one count as 0, as in NumPy."""
    left, _ = np.linalg.qr(double(random(shape[0], shape[0], seed=5)))
    right, _ = np.linalg.qr(double(random(shape[1], shape[1], seed=6)))
    sizes = [3.0, 1.0, 1e-3, 1e-3][: min(shape)]
    a = (left[:, : len(sizes)] * sizes) @ right[: len(sizes)]
    b = double(random(shape[0], 2, seed=7))
    for rcond, rank in ((1e-2, 2), (None, len(sizes))):
        found, _, count, _ = aten.linalg_lstsq(mx.array(a), mx.array(b), rcond, driver=driver)
        exact = np.linalg.lstsq(a, b, rcond=rcond)[0]
        assert count.item() == rank
        np.testing.assert_allclose(double(found), exact, rtol=2e-3, atol=2e-3 * abs(exact).max())


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_half_to_float(name: str) -> None:
    """torch has this on graphics processors only."""
    x = random(4, 7).astype(mx.float16)
    found = getattr(aten, name)(x, 1, True)
    exact = scipy.special.softmax(double(x), 1)
    assert found.dtype == mx.float32
    expected = exact if name == "_softmax" else np.log(exact)
    np.testing.assert_allclose(double(found), expected, rtol=2e-6, atol=1e-6)
    assert getattr(aten, name)(mx.array(2.0, mx.float16), 0, True).dtype == mx.float32


def test_logarithms_of_0_do_no_harm_where_they_are_ignored() -> None:
    logs = mx.array([[-mx.inf, -0.7, -0.7], [-0.1, -mx.inf, -2.0]])
    labels = mx.array([1, -100])
    for name in ("nll_loss", "nll_loss_forward"):

        def loss(logs: mx.array, name: str = name) -> mx.array:
            found = getattr(aten, name)(logs, labels, None, 1, -100)
            return found[0] if isinstance(found, tuple) else found

        assert loss(logs).item() == pytest.approx(0.7)
        assert mx.grad(loss)(logs).tolist() == [[0, -1, 0], [0, 0, 0]]


def test_slope_of_a_loss_with_an_unsigned_factor() -> None:
    x, target = random(4), mx.sign(random(4, seed=1))
    found = aten.soft_margin_loss_backward(mx.array([2], mx.uint8), x, target, 1)
    exact = -2 * double(target) * scipy.special.expit(-double(x) * double(target)) / 4
    np.testing.assert_allclose(double(found), exact, rtol=2e-6)


def test_gradients_at_infinities() -> None:
    """Those of torch 2.13."""
    x = mx.array([-mx.inf, -3.0, -1.5, 1.5, 3.0, mx.inf])
    assert mx.grad(lambda x: aten.hardswish(x).sum())(x).tolist() == [0, 0, 0, 1, 1, 1]
    x, target = mx.array([1.0, -2.0]), mx.array([0.5, 3.0])
    near = mx.grad(lambda x: aten.huber_loss(x, target, 0, mx.inf).sum())(x)
    assert near.tolist() == [0.5, -5.0]


@pytest.mark.parametrize("name", ["svd", "linalg_svd"])
@pytest.mark.parametrize("scale", [2.0**-80, 1.0, 2.0**70])
def test_gradient_of_close_singular_values(name: str, scale: float) -> None:
    """It divides by differences of squares, which must neither cancel, overflow nor underflow."""
    values = np.array([1 + 2.0**-12, 1, 1 - 2.0**-11]).astype(np.float32)
    a = mx.array(scale * np.diag(values))
    weights = random(3, 3), random(3, seed=1), random(3, 3, seed=2)
    svd = getattr(aten, name)
    gradient = mx.vjp(svd, [a], list(weights))[1][0]
    u, s, v = map(double, svd(a))
    v = v.T if name == "linalg_svd" else v
    to_u, to_s, to_v = map(double, weights)
    to_v = to_v.T if name == "linalg_svd" else to_v
    left, right = u.T @ to_u, v.T @ to_v
    gaps = s**2 - s[:, None] ** 2 + np.eye(3)
    inner = ((left - left.T) * s + s[:, None] * (right - right.T)) / gaps + np.diag(to_s)
    np.testing.assert_allclose(double(gradient), u @ inner @ v.T, rtol=1e-5, atol=1e-3 / scale)


def test_slope_of_tanh_near_1() -> None:
    x = mx.array([0.5, 0.99, 1 - 2.0**-12, 1 - 2.0**-13, -1 + 2.0**-12])
    for output in (x, x.astype(mx.float16), x.astype(mx.bfloat16)):
        exact = 1 - double(output) ** 2
        found = double(aten.tanh_backward(mx.ones_like(output), output))
        digits = {mx.float32: 24, mx.float16: 11, mx.bfloat16: 8}[output.dtype]
        np.testing.assert_allclose(found, exact, rtol=2.0 ** (1 - digits))
