"""embedding_bag against a loop over bags in NumPy, with explicit gradients."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import gradcheck, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
# Indices, some of which are not rows, and offsets; with empty bags, and an item that occurs twice.
INDICES = {
    "rows": ([[0, 2, 6], [4, 4, 1], [6, 7, -1], [5, 4, 3]], None),
    "offsets": ([3, 0, 2, 2, 6, 7, 12, 1, -5, 0], [0, 0, 4, 5, 9, 10]),
    "late": ([3, 0, 2], [1]),
    "no-items": ([], [0, 0]),
    "no-bags": ([], []),
    "empty-rows": ([[], []], None),
}
each = pytest.mark.parametrize("case", INDICES.values(), ids=INDICES)
modes = pytest.mark.parametrize("mode", ["sum", "mean", "max"])


def bags_of(case):
    """Return the items of every bag: positions in the flat indices."""
    indices, offsets = case
    if offsets is None:
        return np.arange(np.size(indices)).reshape(np.shape(indices)).tolist()
    ends = [*offsets, len(indices)][1:]
    return [list(range(a, b)) for a, b in zip(offsets, ends, strict=True)]


def reference(weight, case, mode, factors, cotangent):
    """Return the output, and gradients of the table and of the factors."""
    flat = np.array(case[0], dtype=int).reshape(-1)
    bags = bags_of(case)
    out = np.zeros((len(bags), weight.shape[1]))
    grad = np.zeros(weight.shape)
    grad_factors = np.zeros(len(flat))
    for b, bag in enumerate(bags):
        items = [i for i in bag if 0 <= flat[i] < len(weight)]
        if mode == "max":
            if items:
                rows = weight[flat[items]]
                out[b] = rows.max(axis=0)
                for column, place in enumerate(rows.argmax(axis=0)):
                    grad[flat[items[place]], column] += cotangent[b, column]
            continue
        for i in items:
            factor = factors[i] if mode == "sum" else 1 / len(bag)
            out[b] += factor * weight[flat[i]]
            grad[flat[i]] += factor * cotangent[b]
            grad_factors[i] = weight[flat[i]] @ cotangent[b]
    return out, grad, grad_factors


def arrays_of(case):
    indices, offsets = case
    shape = np.shape(indices)
    return (
        mx.array(np.array(indices, dtype=np.int32).reshape(shape)),
        # The array continues after the last offset.
        None if offsets is None else mx.array(np.array([*offsets, 0], dtype=np.int32))[:-1],
    )


def assert_near(got, exact, limit=8):
    scale = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


@each
@modes
@pytest.mark.parametrize("width", [3, 130])
def test_values_and_gradients(dtype, case, mode, width):
    indices, offsets = arrays_of(case)
    weight, table = draw(dtype, (7, width))
    factors, numbers = draw(dtype, indices.shape, seed=1)
    cotangent, values = draw(dtype, (len(bags_of(case)), width), seed=2)
    given = mode == "sum"

    def fn(weight, *factors):
        return mlxops.nn.embedding_bag(weight, indices, offsets, *factors, mode=mode)

    primals = [weight, factors] if given else [weight]
    (out,), grads = mx.vjp(fn, primals, [cotangent])
    numbers = numbers.reshape(-1)
    wanted, grad, grad_factors = reference(table, case, mode, numbers, values)
    assert out.dtype == grads[0].dtype == dtype
    assert_near(out, wanted)
    assert_near(grads[0], grad)
    if given:
        assert grads[1].shape == indices.shape
        assert_near(grads[1].reshape(-1), grad_factors)


@each
@modes
def test_second_derivatives(case, mode):
    indices, offsets = arrays_of(case)
    weight, _ = draw(mx.float64, (7, 3))
    factors, _ = draw(mx.float64, indices.shape, seed=1)
    args = (weight, factors) if mode == "sum" else (weight,)

    def fn(weight, factors=None):  # not linear: else there is nothing to see
        out = mlxops.nn.embedding_bag(weight, indices, offsets, factors, mode=mode)
        return out * out * weight[0]

    gradcheck(fn, *args, checks=("vjp", "second"))


def test_the_first_of_equal_maxima_has_the_gradient():
    grad = mx.grad(lambda w: mlxops.nn.embedding_bag(w, mx.array([[2, 1, 0]]), mode="max").sum())
    assert grad(mx.ones((3, 2))).tolist() == [[0, 0], [0, 0], [1, 1]]


def test_special_values():
    weight = mx.array([[np.inf, 1.0], [-np.inf, -np.inf], [1.0, np.nan]])
    for mode in ("sum", "mean", "max"):
        out = mlxops.nn.embedding_bag(weight, mx.array([[1, 1], [1, 7]]), mode=mode)
        assert to_numpy(out).tolist() == [[-np.inf, -np.inf]] * 2
    out = mlxops.nn.embedding_bag(weight, mx.array([[0, 2]]), mode="sum")
    assert np.isposinf(to_numpy(out)[0, 0])
    assert np.isnan(to_numpy(out)[0, 1])


def test_on_all_cores():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 300, (200, 9))
    weight, table = draw(mx.float32, (300, 33))
    case = (indices.tolist(), None)
    (out,), (grad,) = mx.vjp(
        lambda w: mlxops.nn.embedding_bag(w, mx.array(indices)), [weight], [mx.ones((200, 33))]
    )
    wanted, slope, _ = reference(table, case, "mean", None, np.ones((200, 33)))
    assert_near(out, wanted)
    assert_near(grad, slope)


def test_strides_and_vmap():
    weight, table = draw(mx.float32, (4, 7))
    indices = mx.array([[0, 3], [2, 1], [1, 1]])
    out = mlxops.nn.embedding_bag(weight.T, indices.T[::-1], mode="sum")
    flat = (np.array(indices).T[::-1].tolist(), None)
    assert_near(out, reference(table.T, flat, "sum", np.ones(6), np.zeros((2, 4)))[0])
    got = mx.vmap(lambda w: mlxops.nn.embedding_bag(w, indices))(mx.stack([weight, 2 * weight]))
    np.testing.assert_allclose(got[1], 2 * got[0])


def test_indices_of_numpy():
    _, table = draw(mx.float32, (4, 7))
    table = mx.array(table)
    for indices, offsets in (([[0, 3], [2, 1]], None), ([0, 3, 2], [0, 1])):
        given = [None if a is None else np.array(a) for a in (indices, offsets)]
        wanted = [None if a is None else mx.array(a) for a in (indices, offsets)]
        out = mlxops.nn.embedding_bag(table, *given)
        assert out.tolist() == mlxops.nn.embedding_bag(table, *wanted).tolist()


def test_errors():
    weight, indices = mx.ones((4, 3)), mx.array([[0, 1]])
    op = mlxops.nn.embedding_bag
    for message, call in {
        r"weight must be \(rows, D\)": lambda: op(weight[0], indices),
        "indices must have 2 axes": lambda: op(weight, indices[0]),
        r"offsets must be \(B,\)": lambda: op(weight, indices[0], indices),
        "per_sample_weights must have": lambda: op(
            weight, indices, None, mx.ones((2,)), mode="sum"
        ),
        "per_sample_weights require": lambda: op(weight, indices, None, mx.ones((1, 2))),
        "indices and offsets must be integers": lambda: op(weight, mx.ones((1, 2))),
        "indices and offsets must": lambda: op(weight, indices[0], mx.zeros((1,))),
    }.items():
        with pytest.raises(ValueError, match=rf"^\[embedding_bag\] {message}"):
            call()


@pytest.mark.parametrize("mode", ["sum", "max"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32], ids=str)
def test_indices_beyond_int32_are_of_no_row(dtype, mode):
    limits = np.iinfo(dtype)
    wide = [2**31, 2**32 - 1, limits.max, limits.max if limits.max < 2**33 else 2**32 + 1]
    indices = mx.array(np.array([[1, *wide[:2]], [3, *wide[2:]]], dtype))
    weight = mx.array(np.arange(8, dtype=np.float32).reshape(4, 2) + 1)

    def bags(weight, indices, offsets=None):
        return mlxops.nn.embedding_bag(weight, indices, offsets, mode=mode)

    wanted = [[3, 4], [7, 8]]
    assert bags(weight, indices).tolist() == wanted
    assert mx.vmap(bags, in_axes=(None, 0))(weight, indices[None]).tolist() == [wanted]
    gradient = mx.grad(lambda w: bags(w, indices).sum())(weight)
    assert gradient.tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    offsets = mx.array(np.array([0, 3, wide[3]], dtype))
    assert bags(weight, indices.flatten(), offsets).tolist() == [*wanted, [0, 0]]
