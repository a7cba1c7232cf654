"""expert_routing against sorting in NumPy, and gradients of the chosen scores in MLX."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
KINDS = [(s, n, b) for s in ("softmax", "sigmoid") for n in (True, False) for b in (True, False)]
each = pytest.mark.parametrize(("score", "normalize", "biased"), KINDS)


def scores_of(logits, score):
    if score == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def reference(logits, k, score, normalize, bias=None):
    scores = scores_of(logits, score)
    keys = logits if bias is None else scores + bias
    indices = np.argsort(-keys, axis=-1, kind="stable")[..., :k]
    weights = np.take_along_axis(scores, indices, axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True) if normalize else weights, indices


def inputs(dtype, tokens=(5, 3), experts=40):
    """Return logits that are multiples of 1/8, so that they also differ with a bias."""
    rng = np.random.default_rng(0)
    values = np.stack([rng.permutation(experts) for _ in range(np.prod(tokens))]) / 8 - 2
    logits = mx.array(values.reshape(*tokens, experts), dtype=dtype)
    bias = mx.array(rng.permutation(experts) / 8, dtype=dtype)
    return (logits, bias), (to_numpy(logits), to_numpy(bias))


def assert_near(got, exact, limit=8):
    scale = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


@each
@pytest.mark.parametrize(("experts", "k"), [(40, 6), (8, 8), (64, 1), (33, 32)])
def test_values(dtype, score, normalize, biased, experts, k):
    (logits, bias), (values, biases) = inputs(dtype, experts=experts)
    weights, indices = mlxops.nn.expert_routing(
        logits, k, score=score, normalize=normalize, bias=bias if biased else None
    )
    wanted, places = reference(values, k, score, normalize, biases if biased else None)
    assert weights.dtype == dtype
    assert indices.dtype == mx.uint32
    np.testing.assert_array_equal(to_numpy(indices), places)
    assert_near(weights, wanted)


@each
@pytest.mark.parametrize(("experts", "k"), [(40, 6), (3, 3), (9, 1), (40, 32)])
def test_gradients(dtype, score, normalize, biased, experts, k):
    (logits, bias), _ = inputs(dtype, experts=experts)
    bias = bias if biased else None
    arguments = {"score": score, "normalize": normalize, "bias": bias}
    cotangent, _ = draw(dtype, (5, 3, k), seed=1)
    _, indices = mlxops.nn.expert_routing(logits, k, **arguments)
    fn = lambda x: mlxops.nn.expert_routing(x, k, **arguments)[0]  # noqa: E731
    got = mx.vjp(fn, [logits], [cotangent])[1][0]

    def composition(x):
        scores = (1 + mx.tanh(x / 2)) / 2 if score == "sigmoid" else mx.softmax(x, axis=-1)
        chosen = mx.take_along_axis(scores, indices, axis=-1)
        return chosen / chosen.sum(axis=-1, keepdims=True) if normalize else chosen

    with mx.stream(mx.cpu):
        wide = [a.astype(mx.float64) for a in (logits, cotangent)]
        wanted = mx.vjp(composition, wide[:1], wide[1:])[1][0]
    assert got.dtype == dtype
    # MLX's exp in float64 has only float32's accuracy.
    np.testing.assert_allclose(to_numpy(got), to_numpy(wanted), 0, 40 * max(EPSILON[dtype], 1e-8))


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_of_large_logits(normalize):
    """A number added to all logits has no effect."""
    (logits, _), _ = inputs(mx.float32)
    cotangent, _ = draw(mx.float32, (5, 3, 6), seed=1)
    fn = lambda x: mlxops.nn.expert_routing(x, 6, normalize=normalize)[0]  # noqa: E731
    wanted = mx.vjp(fn, [logits], [cotangent])[1][0]
    for shift in (-512, 512):
        got = mx.vjp(fn, [logits + shift], [cotangent])[1][0]
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-7)


def test_bias_has_no_gradient():
    (logits, bias), _ = inputs(mx.float32)
    fn = lambda b: mlxops.nn.expert_routing(logits, 3, bias=b)[0].sum()  # noqa: E731
    assert not to_numpy(mx.grad(fn)(bias)).any()


def test_equal_scores_in_their_order(dtype):
    for bias in (None, mx.zeros((50,), dtype)):
        _, indices = mlxops.nn.expert_routing(mx.zeros((2, 50), dtype), 5, bias=bias)
        assert indices.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_special_values():
    logits = mx.array([[-np.inf, 1.0, -np.inf, 0.0], [np.nan, 1.0, 5.0, np.nan], [-np.inf] * 4])
    weights, indices = mlxops.nn.expert_routing(logits, 3)
    assert indices.tolist() == [[1, 3, 0], [0, 3, 2], [0, 1, 2]]
    np.testing.assert_allclose(weights[0], [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0], 1e-6)
    assert np.isnan(to_numpy(weights)[1:]).all()


# Logits whose sigmoids are small, 0 in the dtype, or both small and large.
SMALL = (
    [-50.0] * 4,
    [-16, -16.5, -20, -17],
    [-500, -501, -500.5, -900],
    [-3e4] * 4,
    [-80, 2, -0.5, 60],
)


def sigmoids_of(logits, k):
    """Return the normalized weights and the sigmoids of the opposite of the logits."""
    x = np.asarray(logits, np.longdouble)
    chosen = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    e = np.exp(-np.abs(x))
    logs = np.take_along_axis(np.minimum(x, 0) - np.log1p(e), chosen, axis=-1)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    rest = np.where(x < 0, 1, e) / (1 + e)
    return weights / weights.sum(axis=-1, keepdims=True), np.take_along_axis(rest, chosen, axis=-1)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_sigmoids_of_any_size(dtype, k):
    """No sum vanishes next to a constant, and none is 0."""
    logits = mx.array(SMALL).astype(dtype)
    places = mx.argsort(-logits, axis=-1)[:, :k]
    weights, indices = mlxops.nn.expert_routing(logits, k, score="sigmoid")
    assert indices.tolist() == places.tolist()
    wanted, rest = sigmoids_of(to_numpy(logits), k)
    tiny = 1e-7 if dtype == mx.float16 else 1e-37  # below the smallest normal number
    np.testing.assert_allclose(to_numpy(weights), wanted, 8 * EPSILON[dtype], tiny)
    fn = lambda x: mlxops.nn.expert_routing(x, k, score="sigmoid")[0]  # noqa: E731
    cotangent = mx.array(np.linspace(-1, 2, k) * np.ones((len(SMALL), 1)), dtype)
    (got,) = mx.vjp(fn, [logits], [cotangent])[1]
    c = to_numpy(cotangent)
    exact = (c - (c * wanted).sum(axis=-1, keepdims=True)) * wanted * rest
    chosen = mx.take_along_axis(got, places, axis=-1)
    np.testing.assert_allclose(to_numpy(chosen), exact, 16 * EPSILON[dtype], 8 * EPSILON[dtype])


def test_bias_of_small_sigmoids():
    """The bias chooses experts whose sigmoids are all 0 in float32."""
    logits, bias = mx.array([[3.0, -300, -301, -302]]), mx.array([-2.0, 0.5, 1, 2])
    weights, indices = mlxops.nn.expert_routing(logits, 2, score="sigmoid", bias=bias)
    assert indices.tolist() == [[3, 2]]
    np.testing.assert_allclose(weights, [[1 / (1 + np.e), np.e / (1 + np.e)]], 1e-6)


def test_infinite_logits_of_sigmoids(dtype):
    inf = np.inf
    logits = [[-inf] * 4, [inf, -inf, 0, inf], [-inf, -9, -inf, -inf], [np.nan, 1, 2, 3]]
    logits = mx.array(logits, dtype=dtype)

    def weights(x):
        return mlxops.nn.expert_routing(x, 2, score="sigmoid")[0]

    out, gradient = weights(logits), mx.grad(lambda x: mx.square(weights(x)).sum())(logits)
    assert to_numpy(out)[:3].tolist() == [[0, 0], [0.5, 0.5], [1, 0]]
    assert np.isnan(to_numpy(out)[3]).all()
    assert not to_numpy(gradient)[:3].any() and np.isnan(to_numpy(gradient)[3]).any()
    second = mx.grad(lambda x: mx.grad(lambda x: mx.square(weights(x)).sum())(x).sum())(logits)
    assert not to_numpy(second)[:3].any()


@pytest.mark.parametrize("biased", [False, True])
def test_many_experts(biased):
    logits = mx.sin(mx.arange(300)).reshape(1, 300)
    bias = mx.arange(300.0) if biased else None
    weights, indices = mlxops.nn.expert_routing(logits, 20, score="sigmoid", bias=bias)
    wanted, places = reference(
        to_numpy(logits), 20, "sigmoid", True, to_numpy(bias) if biased else None
    )
    np.testing.assert_array_equal(to_numpy(indices), places)
    assert_near(weights, wanted)


def test_on_all_cores():
    (logits, _), (values, _) = inputs(mx.float32, (3000,), 16)
    weights, indices = mlxops.nn.expert_routing(logits, 4)
    wanted, places = reference(values, 4, "softmax", True)
    np.testing.assert_array_equal(to_numpy(indices), places)
    assert_near(weights, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    logits = LAYOUTS[layout](draw(mx.float32, (6, 8))[0])
    weights, indices = mlxops.nn.expert_routing(logits, 2)
    wanted, places = reference(to_numpy(logits), 2, "softmax", True)
    np.testing.assert_array_equal(to_numpy(indices), places)
    assert_near(weights, wanted)


def test_vmap_and_no_tokens():
    (logits, _), _ = inputs(mx.float32)
    got = mx.vmap(lambda x: mlxops.nn.expert_routing(x, 3))(logits)
    for g, w in zip(got, mlxops.nn.expert_routing(logits, 3), strict=True):
        np.testing.assert_array_equal(g, w)
    assert mlxops.nn.expert_routing(mx.zeros((0, 4)), 2)[0].shape == (0, 2)


def test_errors():
    logits = mx.zeros((2, 4))
    for k in (0, 5):
        with pytest.raises(ValueError, match=r"^\[expert_routing\] k must be 1 to 32"):
            mlxops.nn.expert_routing(logits, k)
    with pytest.raises(ValueError, match=r"^\[expert_routing\] k must be 1 to 32"):
        mlxops.nn.expert_routing(mx.zeros((2, 64)), 33)
    with pytest.raises(ValueError, match=r"^\[expert_routing\] bias must be \(experts,\)"):
        mlxops.nn.expert_routing(logits, 2, bias=mx.zeros((3,)))
