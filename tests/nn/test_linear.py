"""linear and its derivatives against NumPy in float64, and against MLX's operations."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from mlxops import nn
from ops.accuracy import draw

from mlxgen.testing import to_numpy

ROUNDING = {mx.float16: 2**-11, mx.bfloat16: 2**-8, mx.float32: 2**-24, mx.float64: 2**-53}
# The axes of x, and the number of outputs: with and without remainders of vectors, of tiles and of
# blocks; few rows, and several blocks of rows; a deep product.
SIZES = [
    *[((5,), 3), ((1,), 1), ((2, 3, 4), 5), ((1, 64), 256), ((7, 33), 65), ((17, 40), 70)],
    *[
        ((2, 8, 20), 600),
        ((230, 9), 300),
        ((100, 530), 33),
        ((20, 1), 40),
        ((300, 20), 1),
        ((1, 1), 70),
    ],
]
EMPTY = [((0, 4), 3), ((3, 0), 2), ((3, 4), 0), ((2, 0, 4), 3), ((0,), 2), ((0, 0), 0)]


def inputs(dtype, shape, outputs):
    """Return x, weight and bias."""
    shapes = (shape, (outputs, shape[-1]), (outputs,))
    return [draw(dtype, shape, -1, 1, seed=n)[0] for n, shape in enumerate(shapes)]


def composition(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias


def check(got, terms, dtype, like):
    """Compare with a sum of products, for the largest error of any order of a sum.

    ``terms`` computes the sum from numbers and, for the bound of the error, from their sizes.
    """
    assert got.dtype == dtype
    assert got.shape == like
    exact, sizes, count = terms
    wide = ROUNDING[mx.float64 if dtype == mx.float64 else mx.float32]
    limit = (count + 2) * wide * sizes + ROUNDING[dtype] * np.abs(exact) * 1.01 + 1e-300
    limit += 2.0**-25 if dtype == mx.float16 else 0  # subnormal numbers
    error = np.abs(to_numpy(got) - exact)
    assert (error <= limit).all(), f"{np.max(error / limit)} times the limit"


def of(function, *arrays, count):
    """Return the arguments of check for a product."""
    return function(*arrays), function(*map(np.abs, arrays)), count


@pytest.mark.parametrize("shape, outputs", SIZES + EMPTY, ids=str)
def test_values(dtype, shape, outputs):
    x, weight, bias = inputs(dtype, shape, outputs)
    for arrays in ([x, weight], [x, weight, bias]):
        terms = of(composition, *map(to_numpy, arrays), count=shape[-1])
        check(nn.linear(*arrays), terms, dtype, (*shape[:-1], outputs))


@pytest.mark.parametrize("shape, outputs", SIZES + EMPTY, ids=str)
def test_gradients(dtype, shape, outputs):
    arrays = inputs(dtype, shape, outputs)
    cotangent, c = draw(dtype, (*shape[:-1], outputs), -1, 1, seed=9)
    x, weight, _ = map(to_numpy, arrays)
    _, got = mx.vjp(nn.linear, arrays, [cotangent])
    rows = c.size // outputs if outputs else 1
    flat = [a.reshape(int(np.prod(shape[:-1])), a.shape[-1]) for a in (c, x)]
    check(got[0], of(np.matmul, c, weight, count=outputs), dtype, shape)
    products = of(lambda c, x: c.T @ x, *flat, count=rows)
    check(got[1], products, dtype, weight.shape)
    check(got[2], of(lambda c: c.sum(axis=0), flat[0], count=rows), dtype, (outputs,))
    (alone,) = mx.vjp(lambda x: nn.linear(x, *arrays[1:]), [arrays[0]], [cotangent])[1]
    assert mx.array_equal(alone, got[0])


def layouts(a):
    """Yield the numbers of an array in other layouts: transposed, reversed, a part, broadcast."""
    turned = mx.contiguous(mx.swapaxes(a, 0, -1))
    mx.eval(turned)
    yield mx.swapaxes(turned, 0, -1)
    transposed = mx.swapaxes(turned, 0, -1)
    mx.eval(transposed)
    yield transposed
    yield a[::-1][::-1]
    yield mx.stack([a, 2 * a], axis=-1)[..., 0]


def test_layouts(dtype):
    x, weight, bias = inputs(dtype, (6, 33), 40)
    wanted = to_numpy(nn.linear(x, weight, bias))
    cases = [(a, weight, bias) for a in layouts(x)]
    cases += [(x, a, bias) for a in layouts(weight)]
    cases += [(x, weight, mx.stack([bias, bias], axis=-1)[:, 1])]
    for arrays in cases:
        # Another order of the sums.
        limit = 40 * 2 * ROUNDING[dtype] * np.abs(wanted).max()
        np.testing.assert_allclose(to_numpy(nn.linear(*arrays)), wanted, 0, limit)
    one = mx.broadcast_to(x[:1], x.shape)
    same = nn.linear(one, weight, mx.broadcast_to(bias[:1], bias.shape))
    np.testing.assert_allclose(
        to_numpy(same)[3], to_numpy(nn.linear(x[0], weight, bias * 0 + bias[0])), 0, limit
    )


def test_gradients_of_a_transposed_weight(device):
    x, weight, bias = inputs(mx.float32, (3, 4), 5)
    turned = mx.contiguous(weight.T)
    mx.eval(turned)

    def loss(turned):
        return (nn.linear(x, turned.T, bias) ** 2).sum()

    wanted = mx.grad(lambda weight: (nn.linear(x, weight, bias) ** 2).sum())(weight)
    assert mx.allclose(mx.grad(loss)(turned), wanted.T, 1e-5, 1e-5)
    assert mx.allclose(mx.compile(mx.grad(loss))(turned), wanted.T, 1e-5, 1e-5)
    view = turned.T
    mx.eval(view)
    of_view = mx.grad(lambda view: (nn.linear(x, view, bias) ** 2).sum())(view)
    assert mx.allclose(of_view, wanted, 1e-5, 1e-5)


def test_dtypes(device):
    x, weight, bias = inputs(mx.float16, (3, 4), 5)
    assert nn.linear(x, weight.astype(mx.float32)).dtype == mx.float32
    assert nn.linear(x, weight, bias.astype(mx.float32)).dtype == mx.float32
    assert nn.linear(x, weight.astype(mx.bfloat16)).dtype == mx.float32
    ints = mx.arange(12).reshape(3, 4)
    assert nn.linear(ints, weight).dtype == mx.float16
    both = nn.linear(ints, mx.arange(8).reshape(2, 4))
    assert both.dtype == mx.float32
    assert both.tolist() == [[14, 38], [38, 126], [62, 214]]


def test_nan_and_infinity_stay_in_their_rows(dtype):
    x, weight, bias = inputs(dtype, (9, 21), 30)
    wanted = to_numpy(nn.linear(x, weight, bias))
    x[2, 5] = float("nan")
    x[7, 20] = float("inf")
    got = to_numpy(nn.linear(x, weight, bias))
    assert np.isnan(got[2]).all()
    assert np.isinf(got[7]).all()
    for row in (0, 1, 3, 4, 5, 6, 8):
        assert (got[row] == wanted[row]).all()


def scalar(function):
    """Return a function of arrays whose derivatives of every order differ from zero."""

    def loss(*arrays):
        y = function(*arrays)
        return (y * y * mx.cos(mx.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum() / 2

    return loss


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_second_and_third_derivatives(shape):
    """In float64, against MLX's operations."""
    with mx.stream(mx.cpu):
        arrays = inputs(mx.float64, shape, 5)
        others = [draw(mx.float64, a.shape, -1, 1, seed=20 + n)[0] for n, a in enumerate(arrays)]
        every = (0, 1, 2)
        results = []
        for function in (nn.linear, composition):
            loss = scalar(function)
            first = mx.grad(loss, every)

            def along(*arrays, first=first):
                products = zip(first(*arrays), others, strict=True)
                return sum((mx.sin(g) * o).sum() for g, o in products)

            second = mx.grad(along, every)

            def twice(*arrays, second=second):
                return sum((g * g).sum() for g in second(*arrays))

            tangents = mx.jvp(function, arrays, others)[1]
            forward = mx.jvp(lambda *a, first=first: list(first(*a)), arrays, others)[1]
            results.append([*second(*arrays), *mx.grad(twice, every)(*arrays), *tangents, *forward])
        for got, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(np.array(got), np.array(wanted), 1e-10, 1e-10)


@pytest.mark.parametrize("axes", [*itertools.product((0, None), repeat=3)][:-1], ids=str)
def test_batches(device, axes):
    batch = 3
    shapes = ((2, 4), (5, 4), (5,))
    arrays = [
        draw(mx.float32, (*(() if a is None else (batch,)), *shape), -1, 1, seed=n)[0]
        for n, (shape, a) in enumerate(zip(shapes, axes, strict=True))
    ]

    def elements(n):
        return [x if a is None else x[n] for x, a in zip(arrays, axes, strict=True)]

    def gradients(*arrays):
        return mx.grad(scalar(nn.linear), (0, 1, 2))(*arrays)

    def seconds(*arrays):
        return mx.grad(lambda *a: sum((g**2).sum() for g in gradients(*a)), (0, 1, 2))(*arrays)

    for function in (lambda *a: [nn.linear(*a)], gradients, seconds):
        got = mx.vmap(function, in_axes=axes)(*arrays)
        for n in range(batch):
            for g, w in zip(got, function(*elements(n)), strict=True):
                np.testing.assert_allclose(np.array(g[n]), np.array(w), 1e-4, 1e-4)


def test_batches_of_batches(device):
    """A batch of weights, and then of x, at other axes; and one of vectors."""
    x, weight, bias = (
        draw(mx.float32, shape, -1, 1, seed=n)[0]
        for n, shape in enumerate(((4, 2, 3, 5), (6, 5, 2), (2, 6)))
    )
    inner = mx.vmap(nn.linear, in_axes=(0, 2, 0), out_axes=1)
    got = mx.vmap(inner, in_axes=(0, None, None))(x, weight, bias)
    for i, k in itertools.product(range(4), range(2)):
        wanted = composition(x[i, k], weight[..., k], bias[k])
        np.testing.assert_allclose(np.array(got[i, :, k]), np.array(wanted), 1e-5, 1e-5)
    rows = mx.vmap(nn.linear, in_axes=(0, None))(x[0, 0], weight[..., 0])
    np.testing.assert_allclose(np.array(rows), np.array(x[0, 0] @ weight[..., 0].T), 1e-5, 1e-5)
    jacobian = mx.vmap(
        lambda c: mx.vjp(lambda w: nn.linear(x[0, 0], w), [weight[..., 0]], [c])[1][0]
    )(mx.ones((2, 3, 6)))
    wanted = mx.broadcast_to(x[0, 0].sum(axis=0), (2, 6, 5))
    np.testing.assert_allclose(np.array(jacobian), np.array(wanted), 1e-5, 1e-5)


def test_compiled(device):
    for shapeless in (False, True):
        value = mx.compile(nn.linear, shapeless=shapeless)
        gradient = mx.compile(
            mx.grad(lambda *a: mx.square(nn.linear(*a)).sum(), (0, 1, 2)), shapeless=shapeless
        )
        for shape, outputs in (((2, 3, 4), 5), ((1, 3, 4), 5), ((2, 1, 7), 2), ((3, 2, 1), 1)):
            arrays = inputs(mx.float32, shape, outputs)
            np.testing.assert_allclose(
                np.array(value(*arrays)), np.array(composition(*arrays)), 1e-5, 1e-5
            )
            wanted = mx.grad(lambda *a: mx.square(composition(*a)).sum(), (0, 1, 2))(*arrays)
            for g, w in zip(gradient(*arrays), wanted, strict=True):
                np.testing.assert_allclose(np.array(g), np.array(w), 1e-5, 1e-5)


def test_errors(device):
    x, weight, bias = inputs(mx.float32, (3, 4), 5)
    for arrays, message in (
        ((mx.array(1.0), weight), r"\[linear\] x must be \(..., inputs\)"),
        ((x[:, :3], weight), r"\[linear\] weight must be \(outputs, inputs\), where x is"),
        ((x, weight[0]), r"\[linear\] weight must be \(outputs, inputs\)"),
        ((x, weight[None]), r"\[linear\] weight must be \(outputs, inputs\)"),
        ((x, weight, bias[:4]), r"\[linear\] bias must be \(outputs,\)"),
        ((x, weight, bias[None]), r"\[linear\] bias must be \(outputs,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            nn.linear(*arrays)
    with pytest.raises(ValueError, match="complex64"):
        nn.linear(x.astype(mx.complex64), weight)
