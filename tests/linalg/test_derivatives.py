"""Gradients, second derivatives, jvp, vmap and compilation of every function, in float64: against
finite differences and loops."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from linalg.functions import call

from mlxgen.testing import to_numpy

rng = np.random.default_rng(0)


def square(*shape):
    return rng.normal(size=shape)


def definite(*shape):
    x = rng.normal(size=shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def triangular(*shape):
    return rng.normal(size=shape) + 3 * np.eye(shape[-1])


def symmetric(x):
    return (x + mx.swapaxes(x, -1, -2)) / 2


def on_symmetric(name):
    return lambda a, **options: call(mlxops.linalg, name, symmetric(a), **options)


CASES = [
    ("inv", [square(2, 4, 4)], {}),
    ("inv", [square(1, 1)], {}),
    ("tri_inv", [triangular(3, 3)], {"upper": True}),
    ("pinv", [square(4, 2)], {}),
    ("pinv", [square(2, 2, 4)], {}),
    ("solve", [square(3, 3), square(3)], {}),
    ("solve", [square(2, 3, 3), square(3, 2)], {}),
    ("solve_triangular", [triangular(3, 3), square(2, 3, 2)], {}),
    ("solve_triangular", [triangular(2, 3, 3), square(2, 3)], {"upper": True}),
    (on_symmetric("cholesky"), [definite(2, 3, 3)], {}),
    (on_symmetric("cholesky"), [definite(3, 3)], {"upper": True}),
    ("cholesky_inv", [triangular(3, 3)], {}),
    ("cholesky_inv", [triangular(3, 3)], {"upper": True}),
    ("qr", [square(4, 3)], {}),
    ("qr", [square(2, 3, 5)], {}),
    ("svd", [square(4, 3)], {}),
    ("svd", [square(2, 3, 4)], {}),
    ("svdvals", [square(3, 4)], {}),
    ("eigh", [definite(3, 3)], {}),
    (on_symmetric("eigvalsh"), [definite(2, 3, 3)], {}),
    ("lu", [square(4, 4)], {}),
    ("lu", [square(3, 5)], {}),
    ("lu_factor", [square(2, 5, 3)], {}),
    ("det", [square(2, 4, 4)], {}),
    ("det", [np.diag([1.0, 2, 0, 3]) @ square(4, 4)], {}),
    ("det", [np.diag([1.0, 0, 0, 3])], {}),
    ("det", [np.eye(4)], {}),
    ("slogdet", [square(4, 4)], {}),
    ("logdet", [definite(4, 4)], {}),
    ("lstsq", [square(4, 2), square(4)], {}),
    ("lstsq", [square(2, 4), square(2, 3)], {}),
    ("matrix_exp", [square(2, 3, 3)], {}),
    ("matrix_power", [square(3, 3)], {"n": 6}),
    ("matrix_power", [square(3, 3)], {"n": -3}),
    ("multi_dot", [square(2, 5), square(5, 3), square(3)], {}),
    ("norm", [square(2, 3)], {}),
    ("norm", [square(2, 3)], {"ord": 3.5, "axis": 1}),
    ("norm", [square(2, 3)], {"ord": 2}),
    ("norm", [square(2, 3, 4)], {"ord": "nuc", "axis": (0, 2)}),
    ("cond", [square(3, 3)], {}),
    ("cond", [square(3, 3)], {"p": 1}),
    ("cond", [square(3, 3)], {"p": "fro"}),
]


def name(case):
    function = case[0] if isinstance(case[0], str) else "symmetric"
    return f"{function}-{case[1][0].shape}-{case[2]}"


each = pytest.mark.parametrize("case", CASES, ids=name)


def function_of(case):
    """Return the function, and its arrays."""
    function, arrays, options = case
    if isinstance(function, str):
        return lambda *x: call(mlxops.linalg, function, *x, **options), arrays
    return lambda *x: function(*x, **options), arrays


def weighed(outputs):
    """Return a scalar that depends on all elements of the outputs."""
    total = mx.array(0.0, mx.float64)
    for i, y in enumerate(outputs):
        weights = np.random.default_rng(100 + i).normal(size=y.shape)
        total = total + (y * mx.array(weights, mx.float64)).sum()
    return total


def gradients_of(scalar):
    """Return the function of all gradients; mx.grad returns no list for a single argument."""

    def function(*x):
        found = mx.grad(scalar, argnums=tuple(range(len(x))))(*x)
        return [found] if len(x) == 1 else list(found)

    return function


def float64(arrays):
    return [mx.array(a, mx.float64) for a in arrays]


def differences(function, arrays):
    """Return the central differences of a scalar function."""
    found = []
    for i, a in enumerate(arrays):
        gradient = np.zeros_like(a)
        for index in np.ndindex(a.shape):
            step = np.zeros_like(a)
            step[index] = 1e-5
            ends = ([*arrays[:i], a + sign * step, *arrays[i + 1 :]] for sign in (1, -1))
            high, low = (function(*float64(x)).item() for x in ends)
            gradient[index] = (high - low) / 2e-5
        found.append(gradient)
    return found


def assert_close(got, wanted):
    """Differences have an error of about the square of their step, 1e-10, times derivatives."""
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(to_numpy(g), w, 0, 1e-6 * np.abs(w).max(initial=1))


@each
def test_first_and_second_derivatives(case):
    function, arrays = function_of(case)
    directions = [np.random.default_rng(7).normal(size=a.shape) for a in arrays]

    def scalar(*x):
        return weighed(function(*x))

    def slope(*x):  # the derivative in a direction
        gradients = gradients_of(scalar)(*x)
        return sum((g * d).sum() for g, d in zip(gradients, float64(directions), strict=True))

    wanted = differences(scalar, arrays)
    assert_close(gradients_of(scalar)(*float64(arrays)), wanted)
    _, (tangent,) = mx.jvp(lambda *x: [scalar(*x)], float64(arrays), float64(directions))
    expected = sum((w * d).sum() for w, d in zip(wanted, directions, strict=True))
    np.testing.assert_allclose(tangent.item(), expected, 1e-6, 1e-6)
    second = differences(slope, arrays)
    assert_close(gradients_of(slope)(*float64(arrays)), second)

    def forward(*x):
        return [mx.jvp(lambda *y: [scalar(*y)], list(x), float64(directions))[1][0]]

    # Of the jvp, in both modes.
    assert_close(gradients_of(lambda *x: forward(*x)[0])(*float64(arrays)), second)
    _, (curvature,) = mx.jvp(forward, float64(arrays), float64(directions))
    expected = sum((w * d).sum() for w, d in zip(second, directions, strict=True))
    np.testing.assert_allclose(curvature.item(), expected, 1e-6, 1e-6)


@each
def test_vmap(case):
    """Values and gradients, over each argument, over all, and nested."""
    function, arrays = function_of(case)

    def both(*x):
        return [*function(*x), *gradients_of(lambda *y: weighed(function(*y)))(*x)]

    n = len(arrays)
    choices = [[0 if j == i else None for j in range(n)] for i in range(n)] + [[-1] * n]
    for axes in choices:
        elements = [[a * (1 + 0.1 * k) for a in arrays] for k in range(3)]
        mixed = [
            [e[j] if axis is not None else arrays[j] for j, axis in enumerate(axes)]
            for e in elements
        ]
        stacked = [
            arrays[j] if axis is None else np.stack([e[j] for e in mixed], axis=axis)
            for j, axis in enumerate(axes)
        ]
        wanted = [
            np.stack([to_numpy(y) for y in column])
            for column in zip(*(both(*float64(e)) for e in mixed), strict=True)
        ]
        got = mx.vmap(both, in_axes=tuple(axes))(*float64(stacked))
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(to_numpy(g), w, 1e-9, 1e-9 * np.abs(w).max(initial=1))
    twice = [np.stack([a, a * 1.1])[:, None] for a in arrays]
    nested = mx.vmap(mx.vmap(both))(*float64(twice))
    for g, *w in zip(
        nested, *(both(*float64([a * k for a in arrays])) for k in (1, 1.1)), strict=True
    ):
        w = np.stack([to_numpy(x) for x in w])[:, None]
        np.testing.assert_allclose(to_numpy(g), w, 1e-9, 1e-9 * np.abs(w).max(initial=1))


@each
def test_compile(case):
    """A compiled gradient has the same values, and a shapeless graph is right or an error."""
    function, arrays = function_of(case)
    gradient = gradients_of(lambda *x: weighed(function(*x)))
    for _ in range(2):
        for g, w in zip(
            mx.compile(gradient)(*float64(arrays)), gradient(*float64(arrays)), strict=True
        ):
            np.testing.assert_allclose(to_numpy(g), to_numpy(w), 1e-9, 1e-9)
    other = (
        [np.stack([a, 2 * a]) for a in arrays] if case[0] not in ("norm", "multi_dot") else arrays
    )
    shapeless = mx.compile(function, shapeless=True)
    try:
        shapeless(*float64(arrays))
    except ValueError as error:
        assert "shapeless" in str(error)
        return
    for g, w in zip(shapeless(*float64(other)), function(*float64(other)), strict=True):
        np.testing.assert_allclose(to_numpy(g), to_numpy(w), 1e-9, 1e-9)


# Functions of a matrix, and the degree of their results: f(c a) = c**degree f(a).
DEGREES = {
    "svd, vectors": (lambda a: [x * x * x for x in mlxops.linalg.svd(a, False)[::2]], 0),
    "all vectors": (lambda a: [x * x * x for x in mlxops.linalg.svd(a)[::2]], 0),
    "svd, values": (lambda a: [mlxops.linalg.svd(a)[1]], 1),
    "svdvals": (lambda a: [mlxops.linalg.svdvals(a)], 1),
    "eigh, vectors": (lambda a: [mlxops.linalg.eigh(symmetric(a))[1] ** 2], 0),
    "eigvalsh": (lambda a: [mlxops.linalg.eigvalsh(symmetric(a))], 1),
    "pinv": (lambda a: [mlxops.linalg.pinv(a)], -1),
    "pinv of a wide matrix": (lambda a: [mlxops.linalg.pinv(a[:2])], -1),
    "inv": (lambda a: [mlxops.linalg.inv(a)], -1),
    "lstsq": (lambda a: [mlxops.linalg.lstsq(a[:, :2], a[:, 2])], 0),
    "solve": (lambda a: [mlxops.linalg.solve(a, a[:, :1] + a[:, 1:2])], 0),
    "slogdet": (lambda a: [mlxops.linalg.slogdet(a)[1]], 0),
    "cond": (lambda a: [mlxops.linalg.cond(a)], 0),
    "norm 2": (lambda a: [mlxops.linalg.norm(a, 2)], 1),
    "norm nuc": (lambda a: [mlxops.linalg.norm(a, "nuc")], 1),
    "qr": (lambda a: [mlxops.linalg.qr(a)[0]], 0),
    "cholesky": (
        lambda a: [mlxops.linalg.cholesky(symmetric(a) + 8 * a[0, 0] * mx.eye(3, dtype=a.dtype))],
        0.5,
    ),
}


@pytest.mark.parametrize("power", [60, -80])
@pytest.mark.parametrize("case", DEGREES)
def test_derivatives_of_scaled_matrices(case, power):
    """They grow with a power of the scale, also where squares of numbers are out of range."""
    function, degree = DEGREES[case]
    matrix = np.array([[3.0, 1, 0.5], [-1, 4, 0.2], [0.3, -0.4, 2]])
    for dtype, exponent in ((mx.float32, power), (mx.float64, 8 * power)):

        def scalar(a, scale):
            outputs = function(a)
            weights = [mx.arange(1, y.size + 1, dtype=a.dtype).reshape(y.shape) for y in outputs]
            products = (y * w for y, w in zip(outputs, weights, strict=True))
            return sum(x.sum() for x in products) * scale

        def derivatives(exponent, dtype=dtype):
            # The scales keep the results in range: their degrees are -1, -1 and 0.
            a = mx.array(np.ldexp(matrix, exponent), dtype)
            direction = mx.array(np.arange(9.0).reshape(3, 3), dtype)
            scale = 2.0 ** (-degree * exponent)
            first = mx.grad(lambda x: scalar(x, scale))
            second = mx.grad(lambda x: (first(x) * direction).sum() * 2.0**exponent)
            tangents = [mx.array(np.ldexp(np.arange(9.0).reshape(3, 3), exponent), dtype)]
            (slope,) = mx.jvp(lambda x: [scalar(x, scale)], [a], tangents)[1]
            found = [first(a) * 2.0**exponent, second(a) * 2.0**exponent, slope]
            return [to_numpy(x) for x in found]

        limit = 1e-3 if dtype == mx.float32 else 1e-9
        for got, wanted in zip(derivatives(exponent), derivatives(0), strict=True):
            np.testing.assert_allclose(got, wanted, 0, limit * np.abs(wanted).max(initial=1e-3))
