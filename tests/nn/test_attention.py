"""attention: against softmax(scores) v, computed in float64 with the scores in memory."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import metal_backend, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-22, mx.float64: 2**-50}


def exact(q, k, v, mask, sinks, cu_seqlens, cotangent, scale, causal, window, softcap):
    """The result, and the gradients in q, k, v and sinks, with all scores in memory."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    group = heads // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2)
    slope = np.ones_like(scores)
    if softcap is not None:
        share = np.tanh(scores / softcap)
        scores, slope = softcap * share, 1 - share**2
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    i = np.arange(queries)[:, None] + keys - queries
    j = np.arange(keys)[None]
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= (i - j < window) & (j - i < window)
    if cu_seqlens is not None:
        ids = np.searchsorted(cu_seqlens, np.arange(keys), side="right")
        seen &= (ids[:, None] == ids[None]) & (ids < len(cu_seqlens))[:, None]
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:  # as a key more, whose value is 0
        scores = np.append(scores, np.broadcast_to(sinks[:, None, None], (*q.shape[:3], 1)), -1)
    most = scores.max(-1, keepdims=True, initial=-1e300)
    e = np.exp(scores - np.where(most == -np.inf, 0, most))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    dp = np.zeros_like(p)
    dp[..., :keys] = cotangent @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    grad_sinks = None if sinks is None else ds[..., keys].sum((0, 2))
    p, ds = p[..., :keys], ds[..., :keys] * slope * scale

    def of_groups(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    grad_k = of_groups(ds.swapaxes(-1, -2) @ q)
    return p @ v, ds @ k, grad_k, of_groups(p.swapaxes(-1, -2) @ cotangent), grad_sinks


def inputs(dtype, batch=2, heads=4, key_heads=2, queries=5, keys=7, size=8, width=8):
    shapes = ((heads, queries, size), (key_heads, keys, size), (key_heads, keys, width))
    return [draw(dtype, (batch, *s), -2, 2, seed=i)[0] for i, s in enumerate(shapes)]


def check(arrays, mask=None, sinks=None, cu_seqlens=None, gradients=True, **options):
    """Results and gradients, beside exact ones of the same numbers."""
    options = {"scale": 0.3, "causal": False, "window": None, "softcap": None, **options}
    dtype = arrays[0].dtype
    shape = (*arrays[0].shape[:3], arrays[2].shape[3])
    cotangent = draw(dtype, shape, -1, 1, seed=9)[0]
    others = [None if x is None else to_numpy(x) for x in (mask, sinks, cu_seqlens, cotangent)]
    if mask is not None and mask.dtype == mx.bool_:
        others[0] = others[0].astype(bool)
    expected = exact(*map(to_numpy, arrays), *others, *options.values())
    trained = [*arrays] if sinks is None else [*arrays, sinks]

    def call(q, k, v, sinks=sinks):
        return mlxops.nn.attention(q, k, v, mask, sinks, cu_seqlens, **options)

    got = call(*trained)
    assert got.dtype == dtype
    close(got, expected[0], dtype)
    if gradients:
        numbers = tuple(range(len(trained)))
        grads = mx.grad(lambda *x: (call(*x) * cotangent).sum(), argnums=numbers)(*trained)
        for got, wanted in zip(grads, expected[1:], strict=False):
            close(got, wanted, dtype)


def close(got, wanted, dtype):
    """Within some roundings of numbers as large as the largest."""
    atol = 8 * EPSILON[dtype] * max(1.0, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(to_numpy(got), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": 3},
        {"window": 2, "causal": True},
        {"window": 2**31 - 1},
        {"softcap": 1.5},
        {"softcap": 2.0, "causal": True, "window": 4},
    ],
    ids=str,
)
def test_options(dtype, options):
    check(inputs(dtype), **options)


# More than one block of queries and keys on either backend, and rests of all of them.
@pytest.mark.parametrize(
    ("queries", "keys", "size", "width"),
    [(1, 1, 1, 1), (1, 40, 16, 16), (33, 65, 20, 9), (70, 40, 8, 136), (100, 140, 136, 24)],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
def test_sizes(queries, keys, size, width, causal):
    arrays = inputs(mx.float32, 1, 2, 1, queries, keys, size, width)
    check(arrays, causal=causal, scale=size**-0.5)


@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_head_sizes(size):
    check(inputs(mx.float32, 1, 2, 1, 9, 12, size, size), causal=True, scale=size**-0.5)


@pytest.mark.parametrize("heads", [(1, 1), (6, 6), (6, 3), (6, 1)], ids=str)
def test_grouped_queries(heads):
    check(inputs(mx.float32, 2, *heads), causal=True)


MASKS = [(7,), (1, 7), (5, 1), (5, 7), (4, 1, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(shape):
    arrays = inputs(mx.float32)
    check(arrays, draw(mx.float32, shape, seed=4)[0], causal=True)
    check(arrays, mx.array(np.random.default_rng(5).uniform(size=shape) < 0.7))


def test_masks_of_other_dtypes_do_not_widen():
    check(inputs(mx.bfloat16), mx.zeros((5, 7)))


def test_nothing_to_see(dtype):
    """Rows of which all is masked give 0, with gradients of 0."""
    mask = np.ones((5, 7), bool)
    mask[[0, 3]] = False
    arrays = inputs(dtype)
    check(arrays, mx.array(mask))
    check(arrays, mx.array(np.where(mask, 0, -np.inf)).astype(dtype))
    check(inputs(dtype, queries=9, keys=4), causal=True)  # the first queries see no key


def test_sinks(dtype):
    check(inputs(dtype), sinks=draw(dtype, (4,), seed=6)[0], causal=True)
    check(inputs(dtype), mx.array(np.arange(7) > 6), draw(dtype, (4,), seed=6)[0])


@pytest.mark.parametrize("cu_seqlens", [[0, 7], [0, 3, 7], [0, 1, 1, 5, 7], [0, 4], [0]], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_behind_each_other(cu_seqlens, causal):
    arrays = inputs(mx.float32, 1, queries=7)
    check(arrays, cu_seqlens=mx.array(cu_seqlens), causal=causal)


def test_each_sequence_is_as_alone():
    q, k, v = inputs(mx.float32, 1, queries=7)
    together = mlxops.nn.attention(
        q, k, v, cu_seqlens=mx.array([0, 3, 7]), scale=0.3, causal=True, window=2
    )
    for a, b in ((0, 3), (3, 7)):
        alone = (x[:, :, a:b] for x in (q, k, v))
        part = mlxops.nn.attention(*alone, scale=0.3, causal=True, window=2)
        np.testing.assert_allclose(part, together[:, :, a:b], atol=1e-6)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_no_queries_or_keys(dtype, sizes):
    q, k, v = inputs(dtype, queries=sizes[0], keys=sizes[1])
    value, grads = mx.value_and_grad(
        lambda *x: mlxops.nn.attention(*x, scale=1.0).sum(), argnums=(0, 1, 2)
    )(q, k, v)
    assert value == 0
    assert all(g.shape == x.shape and not mx.any(g) for g, x in zip(grads, (q, k, v), strict=True))


def test_strides():
    """Heads behind the length, as projections give them."""
    arrays = [x.swapaxes(1, 2) for x in inputs(mx.float32)]
    arrays = [mx.contiguous(x).swapaxes(1, 2) for x in arrays]
    check(arrays, causal=True)


def test_large_scores():
    q, k, v = inputs(mx.float32)
    check((300 * q, k, v), gradients=False)
    assert mx.all(mx.isnan(mlxops.nn.attention(q, k * mx.nan, v, scale=1.0)))


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_cotangents_as_of_scaled_losses(half):
    """Whose products with results are above float16: of one key the scores' gradients are 0."""
    q, k = (mx.random.normal((1, 1, 3, 4)).astype(half) for _ in range(2))
    v, cotangent = (mx.full((1, 1, 3, 4), x, half) for x in (100.0, 1000.0))

    def call(*arrays):
        return mlxops.nn.attention(*arrays, scale=1.0, causal=True, window=1)

    for gradient, wanted in zip(mx.vjp(call, [q, k, v], [cotangent])[1], (0, 0, 1000), strict=True):
        np.testing.assert_array_equal(gradient.astype(mx.float32), np.full(q.shape, wanted))


@pytest.mark.parametrize("sink", [-np.inf, np.inf, 0.0])
def test_sinks_of_queries_that_see_nothing(sink):
    arrays = [*inputs(mx.float32), mx.full((4,), sink)]

    def call(*arrays):
        return mlxops.nn.attention(*arrays[:3], mx.zeros((5, 7), mx.bool_), arrays[3], scale=1.0)

    assert not np.array(call(*arrays)).any()
    for gradient in mx.grad(lambda *x: call(*x).sum(), (0, 1, 2, 3))(*arrays):
        assert not np.array(gradient).any()


def test_vmap():
    arrays = [mx.stack([x, x + 1]) for x in inputs(mx.float32)]

    def call(*x):
        return mlxops.nn.attention(*x, scale=0.3, causal=True)

    expected = mx.stack([call(*(x[i] for x in arrays)) for i in range(2)])
    np.testing.assert_allclose(mx.vmap(call)(*arrays), expected, atol=1e-6)


def test_it_is_mlx_attention():
    q, k, v = inputs(mx.float32, size=64, width=64)
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask="causal")
    np.testing.assert_allclose(
        mlxops.nn.attention(q, k, v, scale=0.125, causal=True), theirs, atol=2e-6
    )


@pytest.mark.skipif(metal_backend() == "emulation", reason="16 million scores take a minute")
def test_memory_is_that_of_blocks():
    """Neither scores nor their gradients are in MLX's memory: 64 MB for these lengths."""
    q, k, v = inputs(mx.float32, 1, 1, 1, 4096, 4096, 8, 8)
    mx.eval(q, k, v)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run = mx.grad(lambda *x: mlxops.nn.attention(*x, scale=0.3, causal=True).sum(), (0, 1, 2))
    mx.eval(run(q, k, v))
    assert mx.get_peak_memory() - before < 4e6


def test_once_differentiable():
    q, k, v = inputs(mx.float32)

    def gradient(q):
        return mx.grad(lambda q: mlxops.nn.attention(q, k, v, scale=0.3).sum())(q).sum()

    with pytest.raises(ValueError, match=r"^\[attention_vjp_queries\] .* once differentiable"):
        mx.grad(gradient)(q)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (2, 4, 5)}, r"q must be \(B, H, Lq, D\)"),
        ({"k": (2, 2, 7, 9)}, r"k must be \(B, Hk, Lk, D\), where q is \(B, H, Lq, D\)"),
        ({"k": (2, 3, 7, 8), "v": (2, 3, 7, 8)}, "multiple"),
        ({"v": (2, 2, 6, 8)}, r"v must be \(B, Hk, Lk, Dv\), where"),
        ({"k": (3, 2, 7, 8), "v": (3, 2, 7, 8)}, r"k must be \(B, "),
        ({"mask": (5, 6)}, r"mask must be broadcast to \(B, H, Lq, Lk\)"),
        ({"mask": (1, 2, 4, 5, 7)}, "at most 4 axes"),
        ({"mask": mx.zeros((5, 7), mx.int32)}, "mask must be bools or floating"),
        ({"mask": mx.zeros((5, 7), mx.complex64)}, "mask must be bools or floating"),
        ({"sinks": (3,)}, r"sinks must be \(H,\)"),
        ({"cu_seqlens": (2,)}, "same length"),
        ({"cu_seqlens": mx.zeros(2), "q": (2, 4, 7, 8)}, "cu_seqlens must be integers"),
        ({"window": 0}, "window"),
        ({"softcap": -1.0}, "softcap"),
    ],
)
def test_what_does_not_fit(change, message):
    arguments = dict(zip("qkv", inputs(mx.float32), strict=True), scale=1.0)
    for name, value in change.items():
        dtype = mx.int32 if name == "cu_seqlens" else mx.float32
        arguments[name] = mx.zeros(value, dtype) if isinstance(value, tuple) else value
    with pytest.raises(ValueError, match=rf"^\[attention\] .*{message}"):
        mlxops.nn.attention(**arguments)
