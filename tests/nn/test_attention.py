"""attention: against softmax(scores) v, computed in float64 with the scores in memory."""

import math

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import gradcheck, metal_backend, to_numpy

KEY = 7, 2**32 - 3  # of dropout
EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-22, mx.float64: 2**-50}


def exact(
    q, k, v, mask, sinks, cu_seqlens, slopes, cotangent, scale, causal, window, softcap, factors=1.0
):
    """Return the result and the gradients of q, k, v, a mask of numbers, sinks and slopes.

    All scores are in memory. The factors are those of dropout.
    """
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
    if cu_seqlens is not None:
        i, seen = own_sequence(*cu_seqlens, queries, keys)
    if slopes is not None:
        scores = scores + slopes[:, None, None] * (j - i)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= (i - j < window) & (j - i < window)
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:  # as an additional key, whose value is 0
        scores = np.append(scores, np.broadcast_to(sinks[:, None, None], (*q.shape[:3], 1)), -1)
    most = scores.max(-1, keepdims=True, initial=-1e300)
    e = np.exp(scores - np.where(most == -np.inf, 0, most))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    dp = np.zeros_like(p)
    dp[..., :keys] = factors * (cotangent @ v.swapaxes(-1, -2))
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    grad_sinks = None if sinks is None else ds[..., keys].sum((0, 2))
    grad_mask = None
    if mask is not None and mask.dtype != bool:
        grad_mask = sum_to(ds[..., :keys], mask.shape)
    tilted = ds[..., :keys] * (j - i)
    grad_slopes = None if slopes is None else tilted.sum((0, 2, 3))
    p, ds = p[..., :keys] * factors, ds[..., :keys] * slope * scale

    def of_groups(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    grad_k = of_groups(ds.swapaxes(-1, -2) @ q)
    grads = [ds @ k, grad_k, of_groups(p.swapaxes(-1, -2) @ cotangent)]
    grads += [x for x in (grad_mask, grad_sinks) if x is not None]
    if slopes is not None:  # with the size of its summands, which cancel
        grads.append((grad_slopes, np.abs(tilted).sum((0, 2, 3)).max()))
    return p @ v, *grads


def own_sequence(starts, key_starts, queries, keys):
    """Return the key at each query's position, (queries, 1), and the keys of its own sequence."""
    own, seen = np.zeros((queries, 1)), np.zeros((queries, keys), bool)
    ends = zip(starts[:-1], starts[1:], key_starts[:-1], key_starts[1:], strict=True)
    for first, end, first_key, end_key in ends:
        rows = slice(max(first, 0), max(end, 0))
        seen[rows, max(first_key, 0) : max(end_key, 0)] = True
        own[rows, 0] = np.arange(queries)[rows] + end_key - end
    return own, seen


def sum_to(x, shape):
    """Undo the broadcasting of an array of this shape."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def inputs(dtype, batch=2, heads=4, key_heads=2, queries=5, keys=7, size=8, width=8):
    shapes = ((heads, queries, size), (key_heads, keys, size), (key_heads, keys, width))
    return [draw(dtype, (batch, *s), -2, 2, seed=i)[0] for i, s in enumerate(shapes)]


def philox(counter, key):
    """Return the words (..., 4) of Philox4x32-10 for counters (..., 4); Salmon et al. (2011)."""
    counter, key = np.asarray(counter, np.uint64), [int(word) for word in key]
    low = np.uint64(2**32 - 1)
    for _ in range(10):
        first, second = (
            counter[..., i] * np.uint64(by) for i, by in ((0, 0xD2511F53), (2, 0xCD9E8D57))
        )
        high = [x >> np.uint64(32) for x in (first, second)]
        left = high[1] ^ counter[..., 1] ^ np.uint64(key[0])
        right = high[0] ^ counter[..., 3] ^ np.uint64(key[1])
        counter = np.stack([left, second & low, right, first & low], -1)
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def kept(shape, key, dropout):
    """Return the pairs (B, H, Lq, Lk) that dropout keeps."""
    batch, heads, queries, keys = map(np.arange, (*shape[:3], (shape[3] + 3) // 4))
    counters = np.stack(np.meshgrid(keys, queries, heads, batch, indexing="ij"), -1)
    words = philox(counters.transpose(3, 2, 1, 0, 4), key).reshape(*shape[:3], -1)[..., : shape[3]]
    return words >= 2**32 * float(np.float32(dropout))


def check(
    arrays,
    mask=None,
    sinks=None,
    cu_seqlens=None,
    alibi_slopes=None,
    gradients=True,
    dropout=0,
    **options,
):
    """Compare results and gradients with exact ones for the same numbers."""
    factors, dropping = 1.0, {}
    if dropout > 0:
        dropping = {"dropout": dropout, "key": mx.array(KEY, mx.uint32)}
        pairs = (*arrays[0].shape[:3], arrays[1].shape[2])
        factors = kept(pairs, KEY, dropout) / (1 - dropout)
    options = {"scale": 0.3, "causal": False, "window": None, "softcap": None, **options}
    dtype = arrays[0].dtype
    shape = (*arrays[0].shape[:3], arrays[2].shape[3])
    cotangent = draw(dtype, shape, -1, 1, seed=9)[0]
    optional = {"mask": mask, "sinks": sinks, "alibi_slopes": alibi_slopes}
    given = {name: None if x is None else to_numpy(x) for name, x in optional.items()}
    fixed, starts = {"cu_seqlens": cu_seqlens}, None
    if cu_seqlens is not None:
        pair = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens,) * 2
        starts = [x.tolist() for x in pair]
    if isinstance(cu_seqlens, tuple):
        fixed = {"cu_seqlens_q": pair[0], "cu_seqlens_k": pair[1]}
    if mask is not None and mask.dtype == mx.bool_:
        given["mask"], fixed["mask"] = given["mask"].astype(bool), mask
    others = given["mask"], given["sinks"], starts, given["alibi_slopes"], to_numpy(cotangent)
    expected = exact(*map(to_numpy, arrays), *others, *options.values(), factors)
    options |= dropping
    names = [name for name, x in optional.items() if x is not None and name not in fixed]
    trained = [*arrays, *(optional[name] for name in names)]

    def call(q, k, v, *more):
        named = {**fixed, **dict(zip(names, more, strict=True))}
        return mlxops.nn.attention(q, k, v, **named, **options)

    got = call(*trained)
    assert got.dtype == dtype
    close(got, expected[0], dtype)
    if gradients:
        argnums = tuple(range(len(trained)))
        grads = mx.grad(lambda *x: (call(*x) * cotangent).sum(), argnums)(*trained)
        for got, wanted in zip(grads, expected[1:], strict=True):
            wanted, size = wanted if isinstance(wanted, tuple) else (wanted, 1.0)
            close(got, wanted, dtype, size)


def close(got, wanted, dtype, size=1.0):
    """Compare within some roundings relative to the largest number, or to summands of a size."""
    atol = 8 * EPSILON[dtype] * max(1.0, size, np.abs(wanted).max(initial=0))
    got = got if isinstance(got, np.ndarray) else to_numpy(got)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


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


# More than one block of queries, keys and elements on either backend, and remainders of all.
@pytest.mark.parametrize(
    ("queries", "keys", "size", "width"),
    [
        (1, 1, 1, 1),
        (1, 40, 16, 16),
        (33, 65, 20, 9),
        (70, 40, 8, 136),
        (100, 140, 136, 24),
        (17, 18, 264, 300),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
def test_sizes(queries, keys, size, width, causal):
    arrays = inputs(mx.float32, 1, 2, 1, queries, keys, size, width)
    check(arrays, causal=causal, scale=size**-0.5)


def test_blocks(dtype):
    """Compare products that are large enough for tiles, with remainders."""
    check(inputs(dtype, 1, 4, 2, 50, 70, 22, 18), causal=True, softcap=4.0)


# Parts of the keys are computed apart if there are many keys and few blocks of queries.
@pytest.mark.parametrize(
    ("queries", "options"),
    [
        (1, {}),
        (3, {"causal": True}),
        (3, {"window": 300, "softcap": 3.0, "alibi_slopes": mx.array([0.01, 0.5, -0.01, 0.02])}),
        (20, {"causal": True, "window": 30, "sinks": mx.array([0.5, 1.0, -1.0, 0.0])}),
    ],
    ids=str,
)
def test_decode(queries, options):
    keys = 1200
    arrays = inputs(mx.float32, 2, 4, 2, queries, keys, 24, 9)
    mask = np.where(np.arange(keys) % 7 == 3, -np.inf, 0).astype(np.float32)
    check(arrays, **options)
    check(arrays, mask=mx.array(mask), **options)


def test_decode_in_all_dtypes(dtype):
    check(inputs(dtype, 1, 4, 1, 1, 1100, 16, 16), causal=True)


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("part", [0, 1], ids=str)
def test_decode_without_a_part_of_the_keys(part, poison):
    """Hide all keys of one of two parts, and some of the other, with whatever values they have."""
    arrays = inputs(mx.float32, 1, 4, 2, 2, 1280, 8, 8)
    cotangent = draw(mx.float32, arrays[0].shape, -1, 1, seed=9)[0]
    seen = np.zeros((2, 1280), bool)
    seen[0, part * 640 + 100 : part * 640 + 500] = True  # query 1 sees no key
    expected = by_rows(*map(to_numpy, (*arrays, cotangent)), seen, 0.3)
    hidden = mx.array(np.flatnonzero(~seen[0]))
    arrays[1][:, :, hidden] = arrays[2][:, :, hidden] = poison

    def call(*arrays):
        return mlxops.nn.attention(*arrays, mask=mx.array(seen), scale=0.3)

    (y,), grads = mx.vjp(call, arrays, [cotangent])
    for got, wanted in zip((y, *grads), expected, strict=True):
        close(got, wanted, mx.float32)


@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_head_sizes(size):
    check(inputs(mx.float32, 1, 2, 1, 9, 12, size, size), causal=True, scale=size**-0.5)


def test_heads_without_elements():
    """All scores are 0, so that the result is the mean of all values."""
    arrays = inputs(mx.float32, 1, 2, 1, 18, 140, 0, 8)
    cotangent = draw(mx.float32, (1, 2, 18, 8), -1, 1, seed=9)[0]
    (y,), grads = mx.vjp(lambda *x: mlxops.nn.attention(*x, scale=1.0), arrays, [cotangent])
    values = to_numpy(arrays[2])
    np.testing.assert_allclose(y, np.broadcast_to(values.mean(2, keepdims=True), y.shape), 0, 1e-6)
    of_value = to_numpy(cotangent).sum((1, 2)) / 140
    np.testing.assert_allclose(grads[2], np.broadcast_to(of_value, values.shape), 0, 1e-6)
    assert [grad.shape for grad in grads] == [x.shape for x in arrays]


@pytest.mark.parametrize("heads", [(1, 1), (6, 6), (6, 3), (6, 1)], ids=str)
def test_grouped_queries(heads):
    check(inputs(mx.float32, 2, *heads), causal=True)


MASKS = [(7,), (1, 7), (5, 1), (5, 7), (4, 1, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(shape):
    arrays = inputs(mx.float32)
    check(arrays, draw(mx.float32, shape, seed=4)[0], causal=True)
    check(arrays, mx.array(np.random.default_rng(5).uniform(size=shape) < 0.7))


def test_bools_of_trained_arrays():
    """A comparison has the gradient 0, as with MLX's own functions."""
    q, k, v = inputs(mx.float32)

    def loss(threshold, q):
        mask = mx.arange(7) * 1.0 < threshold
        return mlxops.nn.attention(q, k, v, mask, scale=0.3).sum() + threshold.sum()

    gradient, of_q = mx.grad(loss, (0, 1))(mx.array(3.5), q)
    assert gradient.item() == 1 and mx.any(of_q)


# More blocks than one along all axes, on either backend, and remainders of all of them.
@pytest.mark.parametrize(
    "shape", [(100, 140), (140,), (100, 1), (1,), (2, 1, 140), (2, 1, 100, 1)], ids=str
)
def test_gradients_of_masks(shape):
    arrays = inputs(mx.float32, 2, 2, 1, 100, 140, 4, 4)
    check(arrays, draw(mx.float32, shape, seed=4)[0], causal=True)


def test_gradients_of_masks_in_all_dtypes(dtype):
    """With all other options: -inf, softcap, window and sinks."""
    mask, sinks = draw(dtype, (4, 5, 7), seed=4)[0], draw(dtype, (4,), seed=6)[0]
    mask[:, :, 3] = mask[1, 2] = mask[2, 0, 5] = -mx.inf
    check(inputs(dtype), mask, sinks, softcap=1.5, window=4)


def test_gradients_of_masks_in_sequences():
    arrays = inputs(mx.float32, 1, queries=7)
    check(arrays, draw(mx.float32, (7, 7), seed=4)[0], cu_seqlens=mx.array([1, 3, 6]))


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_gradients_of_masks_are_those_of_mlx(shape):
    arrays = [*inputs(mx.float32), draw(mx.float32, shape, seed=4)[0]]
    arrays.append(draw(mx.float32, arrays[0].shape, -1, 1, seed=9)[0])

    def gradient(function, q, k, v, mask, cotangent):
        def call(mask):
            return function(q, k, v, scale=0.3, mask=mask)

        return mx.vjp(call, [mask], [cotangent])[1][0]

    got = gradient(mlxops.nn.attention, *arrays)
    with mx.stream(mx.cpu):
        doubles = [x.astype(mx.float64) for x in arrays]
        wanted = to_numpy(gradient(mx.fast.scaled_dot_product_attention, *doubles))
    close(got, wanted, mx.float32)


def test_gradients_of_masks_by_differences():
    with mx.stream(mx.cpu):
        q, k, v = inputs(mx.float64)
        mask, step = to_numpy(draw(mx.float64, (4, 1, 7), seed=4)[0]), 1e-5

        def loss(mask):
            return mlxops.nn.attention(q, k, v, mask, scale=0.3, softcap=2.0).square().sum()

        got = to_numpy(mx.grad(loss)(mx.array(mask, mx.float64)))
        for at in np.ndindex(mask.shape):
            ends = [mask.copy(), mask.copy()]
            ends[0][at] -= step
            ends[1][at] += step
            low, high = (loss(mx.array(end, mx.float64)).item() for end in ends)
            assert got[at] == pytest.approx((high - low) / (2 * step), rel=1e-7, abs=1e-8)


def test_gradients_of_masks_repeat_and_are_optional(request):
    """They are the same in each run; without them, their kernel does not run."""
    q, k, v = inputs(mx.float32, 3, 2, 1, 40, 40)
    mask = draw(mx.float32, (40, 1), seed=4)[0]

    def loss(q, mask):
        return mlxops.nn.attention(q, k, v, mask, scale=0.3).square().sum()

    first, again = (mx.grad(loss, 1)(q, mask) for _ in range(2))
    assert mx.array_equal(first, again)
    if metal_backend() == "emulation":
        launches = request.getfixturevalue("metal_launches")
        mx.eval(mx.grad(loss, 1)(q, mask))
        assert "attention_vjp_mask_parts_float32" in launches()
        mx.eval(mx.grad(loss, 0)(q, mask))
        assert "attention_vjp_mask_parts_float32" not in launches()


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_gradients_of_masks_for_hidden_keys(poison):
    """A key and value that no query sees change nothing; those that some see, only their rows."""
    q, k, v = inputs(mx.float32)
    mask = to_numpy(draw(mx.float32, (5, 7), seed=4)[0])
    mask[:, 5] = mask[1, 2] = -np.inf

    def gradient(k, v):
        def loss(mask):
            return mlxops.nn.attention(q, k, v, mask, scale=0.3).square().sum()

        return to_numpy(mx.grad(loss)(mx.array(mask)))

    wanted = gradient(k, v)
    assert not wanted[:, 5].any() and wanted[1, 2] == 0
    k[:, :, 5] = v[:, :, 5] = poison
    np.testing.assert_array_equal(gradient(k, v), wanted)
    v[:, :, 2] = poison
    got = gradient(k, v)
    np.testing.assert_array_equal(got[1], wanted[1])
    assert np.isnan(got[0, :5]).all() and not got[:, 5].any()


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)], ids=str)
def test_gradients_of_masks_without_pairs(sizes):
    q, k, v = inputs(mx.float32, queries=sizes[0], keys=sizes[1])
    for shape in (sizes, (1, 1), (4, 1, 1), (2, 1, *sizes)):
        mask = mx.ones(shape)
        got = mx.grad(lambda mask: mlxops.nn.attention(q, k, v, mask, scale=1.0).sum())(mask)
        assert got.shape == shape and not mx.any(got)


def test_gradients_of_masks_under_vmap():
    q, k, v = inputs(mx.float32)
    masks = draw(mx.float32, (3, 4, 1, 7), seed=4)[0]

    def loss(mask):
        return mlxops.nn.attention(q, k, v, mask, scale=0.3).square().sum()

    gradient = mx.grad(loss)

    expected = mx.stack([gradient(mask) for mask in masks])
    np.testing.assert_allclose(mx.vmap(gradient)(masks), expected, atol=1e-6)
    turned = mx.vmap(gradient, in_axes=3)(mx.moveaxis(masks, 0, 3))
    np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_masks_of_other_dtypes_do_not_widen():
    check(inputs(mx.bfloat16), mx.zeros((5, 7)))


def test_nothing_to_see(dtype):
    """Fully masked rows yield 0, with gradients of 0."""
    mask = np.ones((5, 7), bool)
    mask[[0, 3]] = False
    arrays = inputs(dtype)
    check(arrays, mx.array(mask))
    check(arrays, mx.array(np.where(mask, 0, -np.inf)).astype(dtype))
    check(inputs(dtype, queries=9, keys=4), causal=True)  # the first queries see no key


def test_sinks(dtype):
    check(inputs(dtype), sinks=draw(dtype, (4,), seed=6)[0], causal=True)
    check(inputs(dtype), mx.array(np.arange(7) > 6), draw(dtype, (4,), seed=6)[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": 3, "softcap": 1.5},
        {"cu_seqlens": (mx.array([0, 2, 5]), mx.array([0, 4, 7])), "causal": True},
    ],
    ids=["all", "causal", "softcap", "sequences"],
)
def test_alibi(dtype, options):
    """Without sinks, only differences of distances matter."""
    slopes, sinks = mx.array([0.5, -0.25, 0.0, 2.0], dtype), draw(dtype, (4,), seed=6)[0]
    check(inputs(dtype), alibi_slopes=slopes, **options)
    check(inputs(dtype), sinks=sinks, alibi_slopes=slopes, **options)


def test_alibi_in_blocks():
    arrays = inputs(mx.float32, 2, 2, 1, 110, 140)
    bias, slopes = draw(mx.float32, (140,), seed=4)[0], mx.array([0.05, 0.25])
    check(arrays, bias, alibi_slopes=slopes, causal=True)


def test_alibi_is_a_bias_of_distances():
    """As Press et al. add it; slopes of 16-bit arrays can be float32."""
    q, k, v = inputs(mx.float32, queries=7)
    slopes = mx.array([2.0 ** (-8 * (h + 1) / 4) for h in range(4)])
    bias = slopes[:, None, None] * -mx.maximum(mx.arange(7)[:, None] - mx.arange(7)[None], 0)
    wanted = mlxops.nn.attention(q, k, v, bias, scale=0.3, causal=True)
    got = mlxops.nn.attention(q, k, v, alibi_slopes=slopes, scale=0.3, causal=True)
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    half = [x.astype(mx.bfloat16) for x in (q, k, v)]
    got = mlxops.nn.attention(*half, alibi_slopes=slopes, scale=0.3, causal=True)
    assert got.dtype == mx.bfloat16
    gradient = mx.grad(
        lambda s: mlxops.nn.attention(*half, alibi_slopes=s, scale=0.3, causal=True).sum()
    )(slopes)
    assert gradient.dtype == mx.float32


# Also with queries outside of all sequences, before and after them.
STARTS = [
    [0, 7],
    [0, 3, 7],
    [0, 1, 1, 5, 7],
    [0, 4],
    [0],
    [2, 7],
    [3, 5, 6],
    [3],
    [7, 9],
    [-3, 2, 9],
]


@pytest.mark.parametrize("cu_seqlens", STARTS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_behind_each_other(cu_seqlens, causal):
    arrays = inputs(mx.float32, 1, queries=7)
    check(arrays, cu_seqlens=mx.array(cu_seqlens), causal=causal)


# Fewer and more queries than keys, none of either, and queries and keys of no sequence.
PAIRS = [
    ([0, 2, 5], [0, 4, 7]),
    ([0, 4, 5], [0, 1, 7]),
    ([0, 0, 5], [0, 3, 7]),
    ([0, 3, 5], [0, 7, 7]),
    ([1, 2, 4], [2, 4, 6]),
    ([0], [0]),
    ([-1, 3, 9], [0, 2, 9]),
]
WAYS_OF_PAIRS = [{}, {"causal": True}, {"window": 2}, {"causal": True, "window": 2}]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("options", WAYS_OF_PAIRS, ids=str)
def test_sequences_of_two_lengths(pair, options):
    check(inputs(mx.float32), cu_seqlens=tuple(map(mx.array, pair)), **options)


def test_sequences_of_two_lengths_in_blocks():
    """More blocks than one of queries and of keys, whose sequences end elsewhere."""
    arrays = inputs(mx.float32, 1, 2, 1, 110, 140)
    mask = draw(mx.float32, (140,), seed=4)[0]
    starts = mx.array([0, 30, 35, 110]), mx.array([0, 10, 100, 135])
    check(arrays, mask, cu_seqlens=starts, causal=True)


def test_each_pair_of_sequences_is_as_alone():
    q, k, v = inputs(mx.float32, 1, queries=9)
    pair = {"cu_seqlens_q": mx.array([0, 2, 9]), "cu_seqlens_k": mx.array([0, 4, 7])}
    together = mlxops.nn.attention(q, k, v, scale=0.3, causal=True, **pair)
    for a, b, c, d in ((0, 2, 0, 4), (2, 9, 4, 7)):
        alone = mlxops.nn.attention(
            q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], scale=0.3, mask="causal"
        )
        np.testing.assert_allclose(alone, together[:, :, a:b], atol=1e-6)
    same = mx.array([0, 3, 7])
    q = q[:, :, :7]
    wanted = mlxops.nn.attention(q, k, v, scale=0.3, causal=True, cu_seqlens=same)
    pair = {"cu_seqlens_q": same, "cu_seqlens_k": same.astype(mx.int64)}
    got = mlxops.nn.attention(q, k, v, scale=0.3, causal=True, **pair)
    assert mx.array_equal(got, wanted)


@pytest.mark.parametrize("starts", [[5, 0, 3], [2**31 - 1, 0, -(2**31)], [0, -(2**31), 5]], ids=str)
def test_starts_of_keys_that_do_not_ascend(starts):
    """The keys are unspecified, but no query reads outside of the arrays."""
    q, k, v = inputs(mx.float32)
    pair = {"cu_seqlens_q": mx.array([0, 3, 5]), "cu_seqlens_k": mx.array(starts)}
    for options in WAYS_OF_PAIRS:
        assert mx.all(mx.isfinite(mlxops.nn.attention(q, k, v, scale=0.3, **options, **pair)))


def test_each_sequence_is_as_alone():
    q, k, v = inputs(mx.float32, 1, queries=7)
    together = mlxops.nn.attention(
        q, k, v, cu_seqlens=mx.array([0, 3, 7]), scale=0.3, causal=True, window=2
    )
    for a, b in ((0, 3), (3, 7)):
        alone = (x[:, :, a:b] for x in (q, k, v))
        part = mlxops.nn.attention(*alone, scale=0.3, causal=True, window=2)
        np.testing.assert_allclose(part, together[:, :, a:b], atol=1e-6)


def test_queries_of_no_sequence():
    """They yield 0 and have no gradient, for any values, and other queries do not see them."""
    arrays = inputs(mx.float32, 1, queries=7)
    inside = slice(2, 5)
    for x in arrays:
        x[:, :, :2] = x[:, :, 5:] = mx.nan

    def loss(*arrays):
        y = mlxops.nn.attention(*arrays, cu_seqlens=mx.array([2, 5]), scale=0.3)
        return y.sum(), y

    (_, y), grads = mx.value_and_grad(loss, argnums=(0, 1, 2))(*arrays)
    alone = mx.value_and_grad(lambda *x: mlxops.nn.attention(*x, scale=0.3).sum(), (0, 1, 2))
    wanted, (rows, *_) = alone(*(x[:, :, inside] for x in arrays))
    close(y.sum(), to_numpy(wanted), mx.float32)
    close(grads[0][:, :, inside], to_numpy(rows), mx.float32)
    outside = np.delete(np.arange(7), inside)
    for x in (y, *grads):
        assert not to_numpy(x)[:, :, outside].any()


UNSORTED = [[0, 5, 3, 7], [7, 3, 0], [2**31 - 1, -(2**31)], [4, 1, 99, -7, 2, 7]]


@pytest.mark.parametrize("starts", UNSORTED, ids=str)
def test_starts_that_do_not_ascend(starts):
    """Each query sees the keys that a binary search finds, on every backend and in gradients."""

    def search(query):
        low, high = 0, len(starts)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if starts[middle] <= query else (low, middle)
        return (starts[low - 1], starts[low]) if 0 < low < len(starts) else (0, 0)

    arrays = inputs(mx.float32, 1, queries=7)
    cotangent = draw(mx.float32, arrays[0].shape, -1, 1, seed=9)[0]
    seen = np.array([[a <= key < b for key in range(7)] for a, b in map(search, range(7))])
    (y,), grads = mx.vjp(
        lambda *x: mlxops.nn.attention(*x, cu_seqlens=mx.array(starts), scale=0.3),
        arrays,
        [cotangent],
    )
    expected = by_rows(*map(to_numpy, (*arrays, cotangent)), seen, 0.3)
    for got, wanted in zip((y, *grads), expected, strict=True):
        close(got, wanted, mx.float32)


def by_rows(q, k, v, cotangent, seen, scale):
    """Return the result and the gradients in float64, from the visible pairs only."""
    group = q.shape[1] // k.shape[1]
    y = np.zeros_like(cotangent)
    grads = [np.zeros_like(x) for x in (q, k, v)]
    for b, h, i in np.ndindex(q.shape[:3]):
        keys = np.flatnonzero(seen[i])
        k_here, v_here = (x[b, h // group, keys] for x in (k, v))
        scores = scale * k_here @ q[b, h, i]
        e = np.exp(scores - scores.max(initial=-1e300))
        p = e / (e.sum() or 1)
        y[b, h, i] = p @ v_here
        dp = v_here @ cotangent[b, h, i]
        ds = scale * p * (dp - p @ dp)
        grads[0][b, h, i] = ds @ k_here
        grads[1][b, h // group, keys] += ds[:, None] * q[b, h, i]
        grads[2][b, h // group, keys] += p[:, None] * cotangent[b, h, i]
    return y, *grads


HIDDEN = np.ones((5, 7), bool)  # key 2 from some queries, key 5 from all of them
HIDDEN[[0, 3], 2] = HIDDEN[:, 5] = False
IN_SEGMENTS = np.add.outer(np.arange(5) < 2, -1 * (np.arange(5) < 2)) == 0
DISTANCES = np.subtract.outer(np.arange(5) + 2, np.arange(7))
WAYS = {
    "bools": (HIDDEN, {"mask": mx.array(HIDDEN)}),
    "numbers": (HIDDEN, {"mask": mx.array(np.where(HIDDEN, 0, -np.inf), mx.float32)}),
    "row of bools": (np.tile(HIDDEN[0], (5, 1)), {"mask": mx.array(HIDDEN[0])}),
    "causal": (DISTANCES >= 0, {"causal": True}),
    "slopes": (DISTANCES >= 0, {"causal": True, "alibi_slopes": mx.zeros(4)}),
    "window": (np.abs(DISTANCES) < 2, {"window": 2}),
    "causal window": ((DISTANCES >= 0) & (DISTANCES < 3), {"causal": True, "window": 3}),
    "sequences": (IN_SEGMENTS, {"cu_seqlens": mx.array([0, 2, 5])}),
    "two lengths": (
        own_sequence([0, 2, 5], [0, 4, 7], 5, 7)[1],
        {"cu_seqlens_q": mx.array([0, 2, 5]), "cu_seqlens_k": mx.array([0, 4, 7])},
    ),
}


@pytest.mark.parametrize(
    "dtype",
    [mx.float32, mx.float16, mx.bfloat16],
    ids=["float32", "float16", "bfloat16"],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", ["keys", "queries"])
def test_what_is_not_seen_reaches_nothing(dtype, way, side):
    """Put NaN, infinities and large numbers into a key and value, or a query and its cotangent."""
    seen, options = WAYS[way]
    arrays = inputs(dtype, queries=5, keys=seen.shape[1])
    cotangent = draw(dtype, arrays[0].shape, -1, 1, seed=9)[0]
    expected = by_rows(*map(to_numpy, (*arrays, cotangent)), seen, 0.3)
    if side == "keys":
        at, poisoned = 2, (arrays[1], arrays[2])
        queries = seen[:, at]  # those that it may affect
    else:
        at, poisoned = 1, (arrays[0], cotangent)
        queries = np.arange(5) == at
    keys = seen[queries].any(0)

    def call(*arrays):
        return mlxops.nn.attention(*arrays, scale=0.3, **options)

    for poison in (np.nan, np.inf, 1e38):
        for array in poisoned:
            array[0, :, at] = poison  # in one element of the batch only
        (y,), grads = mx.vjp(call, arrays, [cotangent])
        reached = (queries, queries, keys, keys)
        for got, wanted, rows in zip((y, *grads), expected, reached, strict=True):
            close(got[1], wanted[1], dtype)
            close(to_numpy(got)[0][:, ~rows], wanted[0][:, ~rows], dtype)
        if np.isnan(poison):
            assert np.isnan(to_numpy(y)[0][:, queries]).all()


OF_HEADS = np.stack([np.roll(HIDDEN, head, 1) for head in range(4)])
WAYS_OF_HEADS = {
    **WAYS,
    "bools of heads": (OF_HEADS, {"mask": mx.array(OF_HEADS)}),
    "numbers of heads": (OF_HEADS, {"mask": mx.array(np.where(OF_HEADS, 0, -np.inf), mx.float32)}),
}


def by_heads(q, k, v, cotangent, seen):
    """Return the result and the values' gradient of each query's head, with a scale of 0.3."""
    heads = [
        by_rows(q[:, [h]], k[:, [h // 2]], v[:, [h // 2]], cotangent[:, [h]], seen[h], 0.3)
        for h in range(4)
    ]
    return (np.concatenate([head[i] for head in heads], 1) for i in (0, 3))


@pytest.mark.parametrize("way", WAYS_OF_HEADS)
def test_an_infinite_number_reaches_all_that_see_it(way):
    """A block is then computed again, without what its other queries do not see."""
    seen, options = WAYS_OF_HEADS[way]
    seen = np.broadcast_to(seen, (4, *seen.shape[-2:]))
    q, k, v = inputs(mx.float32, queries=5, keys=seen.shape[-1])
    given = draw(mx.float32, q.shape, -1, 1, seed=9)[0]
    expected, of_v = by_heads(*map(to_numpy, (q, k, v, given)), seen)

    def call(values):
        return mlxops.nn.attention(q, k, values, scale=0.3, **options)

    for key in range(seen.shape[-1]):
        values = mx.array(v)
        values[:, :, key] = np.inf
        wanted = np.where(seen[:, :, key, None], np.inf, expected)
        np.testing.assert_allclose(to_numpy(call(values)), wanted, atol=1e-5)
    for query in range(5):
        cotangent = mx.array(given)
        cotangent[:, :, query] = np.inf
        wanted = np.where(seen[:, query, :, None], np.inf, of_v)
        wanted = wanted[:, ::2] + wanted[:, 1::2]  # heads that share values
        grad = mx.vjp(call, [v], [cotangent])[1][0]
        np.testing.assert_allclose(to_numpy(grad), wanted, atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_what_is_not_seen_in_other_blocks(poison):
    """Test blocks with queries that see keys that others of the same block do not see."""
    arrays = inputs(mx.float32, 1, 2, 1, 140, 140, 8, 40)
    cotangent = draw(mx.float32, (1, 2, 140, 40), -1, 1, seed=9)[0]
    distances = np.subtract.outer(np.arange(140), np.arange(140))
    seen = (distances >= 0) & (distances < 20)
    expected = by_rows(*map(to_numpy, (*arrays, cotangent)), seen, 0.3)
    arrays[1][:, :, 70] = arrays[2][:, :, 70] = poison
    arrays[2][:, :, 130, 3] = poison  # its other columns stay unchanged

    def call(*arrays):
        return mlxops.nn.attention(*arrays, scale=0.3, softcap=1e6, causal=True, window=20)

    (y,), grads = mx.vjp(call, arrays, [cotangent])
    reached = (slice(70, 90), slice(130, 140))
    for got, wanted in zip((y, grads[0]), expected[:2], strict=True):
        got = to_numpy(got)
        assert not np.isfinite(got[:, :, 75]).any()
        if got.shape[-1] == 40:
            assert np.isfinite(got[:, :, 135, 4:]).all()
        for rows in reached:
            got[:, :, rows] = wanted[:, :, rows]
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    for got, wanted in zip(grads[1:], expected[2:], strict=True):
        for rows in (slice(0, 51), slice(90, 111)):
            np.testing.assert_allclose(got[:, :, rows], wanted[:, :, rows], atol=1e-5)


@pytest.mark.parametrize("first", [0, 8, 16, 24])
def test_only_some_rows_do_not_see_an_infinity(first):
    """The others of 32 rows are infinite, not NaN, so that only these 8 must be computed again."""
    rows = slice(first, first + 8)
    q, k, v = inputs(mx.float32, 1, 1, 1, 32, 9, 4, 3)
    seen = np.ones((32, 9), bool)
    seen[rows, 2] = False
    expected = by_rows(*map(to_numpy, (q, k, v, mx.ones((1, 1, 32, 3)))), seen, 0.3)[0]
    v[:, :, 2] = np.inf
    y = to_numpy(mlxops.nn.attention(q, k, v, mx.array(seen), scale=0.3))[0, 0]
    close(y[rows], expected[0, 0, rows], mx.float32)
    assert np.isposinf(np.delete(y, rows, 0)).all()

    # The same for gradients: of keys 0 to 31, whose v is positive, y and so delta are negative.
    q, k, v = inputs(mx.float32, 1, 1, 1, 9, 40, 32, 3)  # 32: without columns of zeros
    v = abs(v)
    v[:, :, 35] = -1000
    seen = np.ones((9, 40), bool)
    seen[2, rows] = False
    cotangent = draw(mx.float32, (1, 1, 9, 3), -1, 1, seed=9)[0]
    expected = by_rows(*map(to_numpy, (q, k, v, cotangent)), seen, 0.3)
    cotangent[:, :, 2, 1] = np.inf

    def call(*arrays):
        return mlxops.nn.attention(*arrays, mx.array(seen), scale=0.3)

    _, grads = mx.vjp(call, [q, k, v], [cotangent])
    for got, wanted in zip(grads[1:], expected[2:], strict=True):
        close(to_numpy(got)[0, 0, rows], wanted[0, 0, rows], mx.float32)
    assert np.isinf(np.delete(to_numpy(grads[1])[0, 0, :32], rows, 0)).all()


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_no_queries_or_keys(dtype, sizes):
    q, k, v = inputs(dtype, queries=sizes[0], keys=sizes[1])
    value, grads = mx.value_and_grad(
        lambda *x: mlxops.nn.attention(*x, scale=1.0).sum(), argnums=(0, 1, 2)
    )(q, k, v)
    assert value == 0
    assert all(g.shape == x.shape and not mx.any(g) for g, x in zip(grads, (q, k, v), strict=True))


@pytest.mark.parametrize("evaluated", [False, True], ids=str)
def test_strides(evaluated):
    """The axis of heads follows that of the length, as in the output of projections."""
    arrays = [x.swapaxes(1, 2) for x in inputs(mx.float32)]
    arrays = [mx.contiguous(x).swapaxes(1, 2) for x in arrays]
    if evaluated:
        mx.eval(arrays)
    check(arrays, causal=True)


@pytest.mark.skipif(metal_backend() == "emulation", reason="Metal has other kernels")
def test_gradients_copy_cotangents_once(tmp_path):
    """Arguments are row-contiguous; the cotangents are numbers, broadcast by sum() and zeros()."""
    arrays = inputs(mx.float32)
    mx.eval(arrays)
    grads = mx.grad(lambda *x: mlxops.nn.attention(*x, scale=0.3).sum(), (0, 1, 2))(*arrays)
    mx.export_to_dot(str(tmp_path / "graph.dot"), *grads)
    assert (tmp_path / "graph.dot").read_text().count('"RowContiguous"') == 2


@pytest.mark.parametrize("keys", [1, 3, 4, 5, 34, 39])
def test_products_of_one_query(dtype, keys):
    """Keys are multiplied four at a time, and the last ones by themselves."""
    check(inputs(dtype, 1, 2, 2, 1, keys, 20, 12))


def test_large_scores():
    q, k, v = inputs(mx.float32)
    check((300 * q, k, v), gradients=False)
    assert mx.all(mx.isnan(mlxops.nn.attention(q, k * mx.nan, v, scale=1.0)))


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_cotangents_as_of_scaled_losses(half):
    """Their products with results exceed float16; with one key the scores' gradients are 0."""
    q, k = (mx.random.normal((1, 1, 3, 4)).astype(half) for _ in range(2))
    v, cotangent = (mx.full((1, 1, 3, 4), x, half) for x in (100.0, 1000.0))

    def call(*arrays):
        return mlxops.nn.attention(*arrays, scale=1.0, causal=True, window=1)

    for gradient, wanted in zip(mx.vjp(call, [q, k, v], [cotangent])[1], (0, 0, 1000), strict=True):
        np.testing.assert_array_equal(gradient.astype(mx.float32), np.full(q.shape, wanted))


def with_lse(q, k, v, bias, sinks, scale=0.3):
    """Return the results of attention_with_lse from MLX's operations."""
    k, v = (mx.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2) + bias
    scores = mx.concatenate([scores, mx.broadcast_to(sinks[:, None, None], (*q.shape[:3], 1))], -1)
    return mx.softmax(scores, -1)[..., :-1] @ v, mx.logsumexp(scores, -1)


def test_lse_and_its_gradient(dtype):
    """The cotangents of both outputs reach all arrays."""
    arrays = [*inputs(dtype), draw(dtype, (4, 1, 7), seed=4)[0], draw(dtype, (4,), seed=6)[0]]
    kept = mx.float64 if dtype == mx.float64 else mx.float32
    cotangents = [draw(dtype, (2, 4, 5, 8), -1, 1, seed=9)[0], draw(kept, (2, 4, 5), seed=8)[0]]

    def call(*x):
        return mlxops.nn.attention_with_lse(*x, scale=0.3)

    (y, lse), grads = mx.vjp(call, arrays, cotangents)
    assert (y.dtype, lse.dtype) == (dtype, kept)
    assert mx.array_equal(y, mlxops.nn.attention(*arrays, scale=0.3))
    with mx.stream(mx.cpu):
        doubles = [x.astype(mx.float64) for x in (*arrays, *cotangents)]
        wanted, wanted_grads = mx.vjp(with_lse, doubles[:5], doubles[5:])
    for got, expected in zip((y, *grads), (wanted[0], *wanted_grads), strict=True):
        # MLX's exp is accurate to 2.6e-8 in float64.
        np.testing.assert_allclose(
            to_numpy(got), to_numpy(expected), rtol=0, atol=max(16 * EPSILON[dtype], 1e-6)
        )
    np.testing.assert_allclose(to_numpy(lse), to_numpy(wanted[1]), rtol=1e-6)


def test_lse_with_sinks_in_float64():
    """It is exact for sinks below, at and far from the other logarithm."""
    s = np.array([-800.0, 0.0, 1.5, 800.0])

    def call(sinks):
        zeros = [mx.zeros((1, 4, 1, 2), mx.float64)] * 3
        return mlxops.nn.attention_with_lse(*zeros, sinks=sinks, scale=0.3)[1][0, :, 0]

    with mx.stream(mx.cpu):
        lse, (slope,) = mx.vjp(call, [mx.array(s, mx.float64)], [mx.ones(4, mx.float64)])
    np.testing.assert_allclose(to_numpy(lse[0]), np.logaddexp(0, s), rtol=1e-15, atol=1e-300)
    np.testing.assert_allclose(to_numpy(slope), np.exp(s - np.logaddexp(0, s)), rtol=1e-14)


@pytest.mark.parametrize("sinks", [None, 1.0, -np.inf])
def test_lse_of_queries_that_see_nothing(sinks):
    arrays = inputs(mx.float32)
    mask = mx.array([[True] * 7, [False] * 7, [True] * 7, [False] * 7, [True] * 7])
    sinks = None if sinks is None else mx.full((4,), sinks)

    def call(*x):
        return mlxops.nn.attention_with_lse(*x, mask, sinks, scale=0.3)

    y, lse = call(*arrays)
    wanted = -np.inf if sinks is None else sinks[0].item()
    assert not mx.any(y[:, :, 1::2]) and mx.all(lse[:, :, 1::2] == wanted)
    assert mx.all(mx.isfinite(lse[:, :, ::2]))
    grads = mx.grad(lambda *x: call(*x)[1][:, :, ::2].sum() + call(*x)[0].sum(), (0, 1, 2))(*arrays)
    assert all(mx.all(mx.isfinite(g)) for g in grads) and not mx.any(grads[0][:, :, 1::2])
    if sinks is not None:
        gradient = mx.grad(
            lambda s: mlxops.nn.attention_with_lse(*arrays, mask, s, scale=0.3)[1].sum()
        )
        assert mx.all(mx.isfinite(gradient(sinks)))


def test_parts_of_the_keys_are_combined():
    """With the logarithms, results and gradients of parts make up those of all keys."""
    arrays = inputs(mx.float32)

    def combined(q, k, v):
        parts = [(k[:, :, at], v[:, :, at]) for at in (slice(0, 3), slice(3, 7))]
        (y1, lse1), (y2, lse2) = (
            mlxops.nn.attention_with_lse(q, *part, scale=0.3) for part in parts
        )
        lse = mx.logaddexp(lse1, lse2)
        return mx.exp(lse1 - lse)[..., None] * y1 + mx.exp(lse2 - lse)[..., None] * y2

    def whole(*x):
        return mlxops.nn.attention(*x, scale=0.3)

    cotangent = [draw(mx.float32, (2, 4, 5, 8), -1, 1, seed=9)[0]]
    (got,), grads = mx.vjp(combined, arrays, cotangent)
    (wanted,), expected = mx.vjp(whole, arrays, cotangent)
    for a, b in zip((got, *grads), (wanted, *expected), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)


def test_attention_with_lse_checks_its_arguments():
    q, k, v = inputs(mx.float32)
    for options in ({"window": 0}, {"mask": mx.zeros((3, 3))}, {"cu_seqlens": mx.array([0, 5])}):
        with pytest.raises(ValueError, match=r"^\[attention_with_lse\] "):
            mlxops.nn.attention_with_lse(q, k, v, scale=1.0, **options)
    causal = mlxops.nn.attention_with_lse(q, k, v, "causal", scale=1.0)
    for got, wanted in zip(
        causal, mlxops.nn.attention_with_lse(q, k, v, scale=1.0, causal=True), strict=True
    ):
        assert mx.array_equal(got, wanted)


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


# Random123's known answers: counters, keys and words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def test_philox_of_these_tests():
    for numbers in KNOWN:
        counter, key, words = ([int(x, 16) for x in text.split()] for text in numbers)
        assert philox(counter, key).tolist() == words


def test_words_of_dropout():
    """The smallest probability that drops a pair is its word, here the first known answer."""
    q, key = mx.zeros((1, 1, 1, 1)), mx.array([0, 0], mx.uint32)
    for i, word in enumerate((0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)):
        above = np.float32(word / 2**32)
        above = above if float(above) * 2**32 > word else np.nextafter(above, np.float32(1))
        for dropout in (above, np.nextafter(above, np.float32(0))):
            mask = mlxops.nn.attention_dropout_mask(
                q, mx.zeros((1, 1, i + 1, 1)), key, dropout=dropout
            )
            assert mask[0, 0, 0, i].item() == (dropout < above)


def test_words_that_are_the_probability():
    """Such a pair stays: exactly ``2**32 * dropout`` of the words are smaller."""
    words = philox([[i, 0, 0, 0] for i in range(400)], (0, 0)).reshape(-1)
    at = np.flatnonzero(words % 256 == 0)[:4]  # float32 represents them
    q, k, key = mx.zeros((1, 1, 1, 1)), mx.zeros((1, 1, 1600, 1)), mx.array([0, 0], mx.uint32)
    for i in at.tolist():
        mask = mlxops.nn.attention_dropout_mask(q, k, key, dropout=int(words[i]) / 2**32)
        np.testing.assert_array_equal(mask.flatten(), words >= words[i])


@pytest.mark.parametrize("key", [(0, 0), KEY, (2**32 - 1, 2**31)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 2, 40, 150)], ids=str)
def test_mask_of_dropout(shape, key):
    batch, heads, queries, keys = shape
    q, k = mx.zeros((batch, heads, queries, 2)), mx.zeros((batch, 1, keys, 3), mx.float16)
    for dropout in (0, 1e-9, 0.1, 0.5, 0.9, 1 - 1e-9, 1):
        got = mlxops.nn.attention_dropout_mask(q, k, mx.array(key, mx.uint32), dropout=dropout)
        assert got.dtype == mx.bool_
        np.testing.assert_array_equal(got, kept(shape, key, dropout))


def test_pairs_are_dropped_independently():
    """The share of dropped pairs, and that of those whose neighbors are dropped, too."""
    q, k = mx.zeros((16, 16, 64, 1)), mx.zeros((16, 16, 64, 1))
    keys = [mx.array(key, mx.uint32) for key in ((0, 0), (0, 1), (1, 0))]
    masks = [mlxops.nn.attention_dropout_mask(q, k, key, dropout=0.3) for key in keys]
    first, *others = (~np.array(mask) for mask in masks)
    assert abs(first.mean() - 0.3) < 4 * (0.3 * 0.7 / first.size) ** 0.5
    shifted = [np.roll(first, by, axis) for axis in range(4) for by in (1, 2, 4)]
    swapped = [np.roll(first.swapaxes(i, i + 1), 1, i) for i in (0, 2)]
    for other in (*shifted, *others, *swapped):
        assert abs((first & other).mean() - 0.09) < 4.5 * (0.09 * 0.91 / first.size) ** 0.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"softcap": 1.5, "window": 4},
        {"cu_seqlens": (mx.array([0, 2, 5]), mx.array([0, 4, 7])), "causal": True},
    ],
    ids=["all", "causal", "softcap", "sequences"],
)
def test_dropout(dtype, options):
    """Gradients in all arrays, where two heads use the same keys."""
    bias, sinks = draw(dtype, (4, 1, 7), seed=4)[0], draw(dtype, (4,), seed=6)[0]
    slopes = mx.array([0.5, -0.25, 0.0, 1.0], dtype)
    check(inputs(dtype), dropout=0.4, **options)
    check(inputs(dtype), bias, sinks, alibi_slopes=slopes, dropout=0.25, **options)


def test_dropout_in_blocks():
    """More blocks than one along all axes, on either backend, and remainders of all of them."""
    arrays = inputs(mx.float32, 1, 2, 1, 100, 140, 8, 8)
    mask = draw(mx.float32, (100, 140), seed=4)[0]
    check(arrays, mask, alibi_slopes=mx.array([0.05, 0.02]), dropout=0.3, window=90)


@pytest.mark.parametrize("sizes", [(7, 9), (40, 140)], ids=str)
def test_dropped_pairs(sizes):
    """With equal scores and a unit matrix of values, the result is the factors."""
    queries, keys = sizes
    q, k = mx.zeros((1, 2, queries, 1)), mx.zeros((1, 2, keys, 1))
    v = mx.broadcast_to(mx.eye(keys), (1, 2, keys, keys))
    got = mlxops.nn.attention(q, k, v, scale=1.0, dropout=0.25, key=mx.array(KEY, mx.uint32))
    wanted = kept((1, 2, queries, keys), KEY, 0.25) / (0.75 * keys)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_no_dropout_and_nothing_else():
    """Both with a key: 0 changes no bit, and 1 yields zeros, as torch's attention does."""
    arrays, key = inputs(mx.float32), mx.random.key(0)

    def run(**options):
        def call(*x):
            return mlxops.nn.attention_with_lse(*x, scale=0.3, causal=True, **options)

        cotangents = [mx.ones((2, 4, 5, 8)), mx.zeros((2, 4, 5))]
        outputs, grads = mx.vjp(call, arrays, cotangents)
        return *outputs, *grads

    plain, same, dropped, all_dropped = (
        run(**options) for options in ({}, *({"dropout": p, "key": key} for p in (0, 0.5, 1)))
    )
    for got, wanted in zip(same, plain, strict=True):
        assert mx.array_equal(got, wanted)
    assert mx.array_equal(dropped[1], plain[1]) and mx.array_equal(all_dropped[1], plain[1])
    assert not any(mx.any(x) for x in (all_dropped[0], *all_dropped[2:]))
    second = mx.grad(lambda q: mx.grad(
        lambda q: mlxops.nn.attention(q, *arrays[1:], scale=0.3, dropout=1, key=key).sum()
    )(q).sum())(arrays[0])  # fmt: skip
    assert not mx.any(second)


def test_dropout_does_not_change_logarithms_or_their_gradients():
    arrays, key = inputs(mx.float32), mx.random.key(0)

    def loss(dropout):
        def call(*x):
            return mlxops.nn.attention_with_lse(*x, scale=0.3, dropout=dropout, key=key)[1].sum()

        return mx.grad(call, (0, 1))(*arrays)

    for got, wanted in zip(loss(0.5), loss(0), strict=True):
        assert mx.array_equal(got, wanted)


def test_dropout_of_what_is_not_seen():
    """Values of hidden keys may be NaN, and those of dropped keys count as in torch: 0 NaN."""
    q, k, v = inputs(mx.float32, 1, queries=7)
    options = {"scale": 0.3, "causal": True, "dropout": 0.5, "key": mx.array(KEY, mx.uint32)}

    def run(v):
        y = mlxops.nn.attention(q, k, v, **options)
        return y, mx.grad(lambda q: mlxops.nn.attention(q, k, v, **options).sum())(q)

    wanted = run(v)
    v[:, :, 4] = mx.nan
    for got, expected in zip(run(v), wanted, strict=True):
        assert mx.array_equal(got[:, :, :4], expected[:, :, :4])
        assert mx.all(mx.isnan(got[:, :, 4:]))


def test_vmap_of_dropout():
    """Elements have the masks of their own calls: equal ones, unless there are several keys."""
    arrays = [mx.stack([x, x + 1]) for x in inputs(mx.float32)]
    keys = mx.random.split(mx.random.key(3), 2)

    def call(key, *x):
        return mlxops.nn.attention(*x, scale=0.3, dropout=0.5, key=key)

    def gradient(key, *x):
        return mx.grad(lambda *x: call(key, *x).square().sum(), (0, 1, 2))(*x)

    for axes in ((0, 0, 0, 0), (None, 0, 0, 0), (0, None, None, None)):
        given = [x[0] if axis is None else x for x, axis in zip((keys, *arrays), axes, strict=True)]
        each = [
            [
                y if axis is None else x[i]
                for x, y, axis in zip((keys, *arrays), given, axes, strict=True)
            ]
            for i in range(2)
        ]
        expected = mx.stack([call(*x) for x in each])
        np.testing.assert_allclose(mx.vmap(call, axes)(*given), expected, atol=1e-6)
        expected = map(mx.stack, zip(*(gradient(*x) for x in each), strict=True))
        for got, wanted in zip(mx.vmap(gradient, axes)(*given), expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_drawn_keys():
    """Without a key, each call draws one from MLX's state, which its gradient uses, too."""
    q, k = mx.zeros((1, 2, 6, 2)), mx.zeros((1, 2, 8, 2))
    v, state = mx.broadcast_to(mx.eye(8), (1, 2, 8, 8)), mx.random.state

    def call(v):
        return mlxops.nn.attention(q, k, v, scale=1.0, dropout=0.5)

    mx.random.seed(5)
    first, second = call(v), call(v)
    assert not mx.array_equal(first, second)
    mx.random.seed(5)
    assert mx.array_equal(call(v), first)
    (y,), (gradient,) = mx.vjp(call, [v], [mx.ones_like(first)])
    np.testing.assert_allclose(gradient[..., 0], y.sum(-2), rtol=1e-6)
    compiled = mx.compile(call, inputs=state, outputs=state)
    mx.random.seed(5)
    assert mx.array_equal(compiled(v), first) and mx.array_equal(compiled(v), second)
    before = mx.array(state[0])
    mlxops.nn.attention(q, k, v, scale=1.0)
    mlxops.nn.attention(q, k, v, scale=1.0, dropout=0.5, key=mx.random.key(0))
    assert mx.array_equal(before, state[0])


LENGTHS = {"B": 2, "H": 4, "Hk": 2, "Lq": 5, "Lk": 7, "D": 8, "Dv": 6}
WITH = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window": 3},
    "causal window": {"causal": True, "window": 2},
    "bools": {"mask": lambda n: mx.arange(n["Lq"] * n["Lk"]).reshape(n["Lq"], -1) % 3 > 0},
    "numbers with gradients": {"mask": lambda n: draw(mx.float32, (n["H"], 1, n["Lk"]), seed=4)[0]},
    "all axes with gradients": {
        "mask": lambda n: draw(mx.float32, (n["B"], n["H"], n["Lq"], n["Lk"]), seed=4)[0]
    },
    "sinks": {"sinks": lambda n: draw(mx.float32, (n["H"],), seed=6)[0], "causal": True},
    "slopes with gradients": {"alibi_slopes": lambda n: draw(mx.float32, (n["H"],), seed=6)[0]},
    "two lengths": {
        "cu_seqlens_q": lambda n: mx.array([0, 2, *range(4, 8)][: n["N"]]),
        "cu_seqlens_k": lambda n: mx.array([1, 3, *range(5, 9)][: n["N"]]),
        "causal": True,
    },
    "sequences": {"cu_seqlens": lambda n: mx.array([0, 2, *range(4, 8)][: n["N"]]), "window": 3},
    "dropout": {"key": lambda n: mx.array([n["Lq"], n["B"]], mx.uint32), "dropout": 0.3},
}


@pytest.mark.parametrize("way", WITH)
def test_shapeless_compile(way):
    """Each size is changed in turn, and all of them; results and gradients are compared."""
    options = {name: x for name, x in WITH[way].items() if not callable(x)}
    optional = {name: x for name, x in WITH[way].items() if callable(x)}
    lengths = dict(LENGTHS, Lk=5, N=3) if way in ("sequences", "two lengths") else LENGTHS

    def arguments(n):
        arrays = inputs(mx.float32, n["B"], n["H"], n["Hk"], n["Lq"], n["Lk"], n["D"], n["Dv"])
        cotangent = draw(mx.float32, (*arrays[0].shape[:3], n["Dv"]), -1, 1, seed=9)[0]
        return cotangent, *arrays, *(make(n) for make in optional.values())

    def call(cotangent, *arrays):
        trained = 4 if way == "sinks" or "gradients" in way else 3

        def forward(*trained):
            others = dict(zip(optional, (*trained[3:], *arrays[len(trained) :]), strict=True))
            return mlxops.nn.attention(*trained[:3], scale=0.3, **options, **others)

        y, grads = mx.vjp(forward, list(arrays[:trained]), [cotangent])
        return *y, *grads

    compiled = mx.compile(call, shapeless=True)
    compiled(*arguments(lengths))
    more = {name: n + 2 for name, n in lengths.items()}
    less = {name: 2 for name in lengths}
    changes = [{name: n} for name, n in more.items()]
    if way == "sequences":  # their queries and keys have the same length
        changes = [{**x, "Lq": 7, "Lk": 7} if {"Lq", "Lk"} & {*x} else x for x in changes]
    changes = [{**x, "H": 8} if "Hk" in x else x for x in changes]
    for change in [*changes, {**more, "H": 8}, less]:
        given = arguments({**lengths, **change})
        for i, (got, wanted) in enumerate(zip(compiled(*given), call(*given), strict=True)):
            assert got.shape == wanted.shape
            # A mask's gradient has as many parts as for the traced shapes; it is the last result.
            atol = 4e-6 if "gradients" in way and i == 4 else 0
            np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


def test_shapeless_compile_refuses_what_does_not_fit():
    """The kernels are called with other shapes than those that the operator has checked."""
    q, k, v = inputs(mx.float32)
    mask, starts = mx.ones((5, 7), mx.bool_), mx.array([0, 4])

    def call(q, k, v, mask):
        return mlxops.nn.attention(q, k, v, mask, scale=0.3)

    compiled = mx.compile(call, shapeless=True)
    compiled(q, k, v, mask)
    for given in ((q, k, v, mask[:, :6]), (q, k, v[:, :, :6], mask), (q, k[:, :1], v, mask)):
        with pytest.raises(ValueError, match=r"^\[attention_parts\]"):
            mx.eval(compiled(*given))

    def of_sequences(q, k, v, starts):
        return mlxops.nn.attention(q, k, v, cu_seqlens=starts, scale=0.3)

    compiled = mx.compile(of_sequences, shapeless=True)
    compiled(q, k[:, :, :5], v[:, :, :5], starts)
    for n in (2, 7):
        with pytest.raises(ValueError, match=r"^\[attention_segments\] .*same length"):
            mx.eval(compiled(q, k[:, :, :n], v[:, :, :n], starts))
    with pytest.raises(ValueError, match=r"^\[attention_segments\] .*at least one number"):
        mx.eval(compiled(q, k[:, :, :5], v[:, :, :5], starts[:0]))


@pytest.mark.parametrize("dtype", [mx.int64, mx.uint64, mx.uint32], ids=str)
def test_sequences_beyond_32_bits(dtype):
    """Large ends become the number of keys; they do not wrap to other numbers."""
    arrays = inputs(mx.float32, 1, queries=7)
    far = [2**32 + 5, 2**31 + 3] if dtype != mx.uint32 else [2**31 + 3, 2**32 - 1]
    for end in far:
        got = mlxops.nn.attention(*arrays, cu_seqlens=mx.array([0, 3, end], dtype), scale=0.3)
        wanted = mlxops.nn.attention(*arrays, cu_seqlens=mx.array([0, 3, 7]), scale=0.3)
        np.testing.assert_array_equal(got, wanted)
    if dtype == mx.int64:
        got = mlxops.nn.attention(*arrays, cu_seqlens=mx.array([-(2**32), 3, 7], dtype), scale=0.3)
        np.testing.assert_array_equal(got, wanted)


def test_it_is_mlx_attention():
    q, k, v = inputs(mx.float32, size=64, width=64)
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask="causal")
    np.testing.assert_allclose(
        mlxops.nn.attention(q, k, v, scale=0.125, mask="causal"), theirs, atol=2e-6
    )


def test_causal_as_a_mask():
    """It is the argument ``causal``, next to all other options and in gradients."""
    arrays = inputs(mx.float32, 1, queries=7)
    starts = mx.array([0, 3, 7])

    def run(**options):
        def loss(*arrays):
            y = mlxops.nn.attention(*arrays, scale=0.3, window=2, cu_seqlens=starts, **options)
            return y.square().sum(), y

        (_, y), grads = mx.value_and_grad(loss, (0, 1, 2))(*arrays)
        return y, *grads

    wanted = run(causal=True)
    for options in ({"mask": "causal"}, {"mask": "causal", "causal": True}):
        for got, expected in zip(run(**options), wanted, strict=True):
            assert mx.array_equal(got, expected)
    assert not mx.array_equal(run()[0], wanted[0])


@pytest.mark.skipif(metal_backend() == "emulation", reason="16 million scores take a minute")
@pytest.mark.parametrize("dropout", [0, 0.5])
def test_memory_is_that_of_blocks(dropout):
    """MLX's memory contains neither scores nor their gradients: 64 MB for these lengths."""
    q, k, v = inputs(mx.float32, 1, 1, 1, 4096, 4096, 8, 8)
    options = {"scale": 0.3, "causal": True, "dropout": dropout, "key": mx.random.key(0)}
    mx.eval(q, k, v, options["key"])
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run = mx.grad(lambda *x: mlxops.nn.attention(*x, **options).sum(), (0, 1, 2))
    mx.eval(run(q, k, v))
    assert mx.get_peak_memory() - before < 4e6


def small(seed=0, heads=4, queries=3, keys=5):
    """Return float64 arrays for finite differences: two heads use the same keys."""
    rng = np.random.default_rng(seed)
    shapes = (1, heads, queries, 2), (1, heads // 2, keys, 2), (1, heads // 2, keys, 3)
    return [mx.array(rng.normal(size=shape), mx.float64) for shape in shapes]


@pytest.mark.extended
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "window": 2, "softcap": 1.5, "sinks": mx.array([0.5, -1.0, 0.0, 2.0])},
        {"window": 2, "alibi_slopes": mx.array([0.5, 0.25, -0.1, 1.0])},
        {"mask": mx.array(np.arange(60).reshape(4, 3, 5) % 4 > 0)},
        {"mask": mx.array([[0.5], [-1.0], [0.0]])},
        {"cu_seqlens_q": mx.array([0, 1, 3]), "cu_seqlens_k": mx.array([1, 3, 5]), "causal": True},
        {"dropout": 0.4, "key": mx.array([3, 4], mx.uint32), "softcap": 1.5,
         "sinks": mx.array([0.5, -1.0, 0.0, 2.0])},
    ],
)  # fmt: skip
def test_second_derivatives(options):
    arrays = {n: a.astype(mx.float64) if a.dtype == mx.float32 else a for n, a in options.items()
              if isinstance(a, mx.array)}  # fmt: skip

    def fn(q, k, v):
        return mlxops.nn.attention(q, k, v, scale=0.7, **{**options, **arrays})

    gradcheck(fn, *small(), checks=("second", "jvp"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", ["keys", "queries"])
def test_second_derivatives_of_what_is_not_seen(way, side):
    """A NaN, an infinity or a large number changes only what sees it, also in tangents."""
    seen, options = WAYS[way]
    arrays = inputs(mx.float32, queries=5, keys=seen.shape[1])
    at, poisoned = (2, arrays[1:]) if side == "keys" else (1, arrays[:1])
    queries = seen[:, at] if side == "keys" else np.arange(5) == at
    keys = seen[queries].any(0)  # which those queries see
    others = seen[:, keys].any(1)  # which see such keys

    def call(*arrays):
        return mlxops.nn.attention(*arrays, scale=0.3, **options)

    def along(*arrays):
        grads = mx.grad(lambda *x: mx.square(call(*x)).sum(), (0, 1, 2))(*arrays)
        # Only what the number does not reach.
        kept = zip(grads, (~queries, ~keys, ~keys), strict=True)
        return sum(mx.square(mx.where(mx.array(k)[:, None], g, 0)).sum() for g, k in kept)

    def derivatives():
        tangent = mx.jvp(call, arrays, [mx.ones_like(a) for a in arrays])[1]
        return *tangent, *mx.grad(along, (0, 1, 2))(*arrays)

    wanted = derivatives()
    for poison in (np.nan, np.inf, 1e38):
        for array in poisoned:
            array[0, :, at] = poison
        reached = (queries, others, keys, keys)
        for got, exact, rows in zip(derivatives(), wanted, reached, strict=True):
            got, exact = to_numpy(got), to_numpy(exact)
            np.testing.assert_allclose(got[1], exact[1], atol=1e-5)
            np.testing.assert_allclose(got[0][:, ~rows], exact[0][:, ~rows], atol=1e-5)


def test_third_derivatives():
    q, k, v = small()

    def gradient(q):
        return mx.grad(lambda q: mx.square(mlxops.nn.attention(q, k, v, scale=0.7)).sum())(q)

    gradcheck(gradient, q, checks=("vjp", "second"))


def test_second_derivatives_of_logarithms():
    q, k, v = small()
    gradcheck(
        lambda q, k: mlxops.nn.attention_with_lse(q, k, v, scale=0.7), q, k, checks=("second",)
    )


@pytest.mark.extended
@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 5), (4, 1, 1), (3, 1), (1, 1, 1, 5)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "softcap": 1.5},
        {"window": 2, "dropout": 0.4, "key": mx.array([3, 4], mx.uint32)},
        {"cu_seqlens_q": mx.array([0, 1, 3]), "cu_seqlens_k": mx.array([1, 3, 5])},
    ],
)  # fmt: skip
def test_second_derivatives_in_masks_and_slopes(shape, options):
    mask = mx.sin(mx.arange(math.prod(shape)).astype(mx.float64)).reshape(shape)
    slopes = mx.array([0.5, 0.25, -0.1, 1.0], mx.float64)

    def fn(q, v, mask, slopes):
        return mlxops.nn.attention(q, k, v, mask, scale=0.7, alibi_slopes=slopes, **options)

    q, k, v = small()
    gradcheck(fn, q, v, mask, slopes, checks=("second", "jvp"))


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
        ({"mask": "casual"}, "mask must be an array or one of 'causal', got 'casual'"),
        ({"mask": mx.zeros((5, 7), mx.int32)}, "mask must be bools or floating"),
        ({"mask": mx.zeros((5, 7), mx.complex64)}, "mask must be bools or floating"),
        ({"sinks": (3,)}, r"sinks must be \(H,\)"),
        ({"alibi_slopes": (3,)}, r"alibi_slopes must be \(H,\)"),
        ({"alibi_slopes": mx.zeros(4, mx.int32)}, "alibi_slopes must be floating"),
        ({"cu_seqlens": (2,)}, "same length"),
        ({"cu_seqlens": mx.zeros(2), "q": (2, 4, 7, 8)}, "cu_seqlens must be integers"),
        ({"cu_seqlens_q": (2,)}, "cu_seqlens_q and cu_seqlens_k belong together"),
        ({"cu_seqlens_k": (2,)}, "cu_seqlens_q and cu_seqlens_k belong together"),
        ({"cu_seqlens_q": (2,), "cu_seqlens_k": (3,)}, "belong together, with the same shape"),
        ({"cu_seqlens_q": mx.zeros(2), "cu_seqlens_k": (2,)}, "cu_seqlens_q must be integers"),
        ({"cu_seqlens_q": (2,), "cu_seqlens_k": mx.zeros(2)}, "cu_seqlens_k must be integers"),
        (
            {"q": (2, 4, 7, 8), "cu_seqlens": (2,), "cu_seqlens_q": (2,), "cu_seqlens_k": (2,)},
            "cu_seqlens_q and cu_seqlens_k replace cu_seqlens",
        ),
        ({"window": 0}, "window"),
        ({"softcap": -1.0}, "softcap"),
        *(({"dropout": p}, "dropout must be between 0 and 1") for p in (-0.1, 1.5, np.nan)),
        ({"dropout": 0.5, "key": mx.zeros(3, mx.uint32)}, r"key must be \(2,\)"),
        ({"dropout": 0.5, "key": mx.zeros(2, mx.int32)}, r"key must be uint32, such as mx\.random"),
    ],
)
def test_what_does_not_fit(change, message):
    arguments = dict(zip("qkv", inputs(mx.float32), strict=True), scale=1.0)
    for name, value in change.items():
        dtype = mx.int32 if name.startswith("cu_seqlens") else mx.float32
        arguments[name] = mx.zeros(value, dtype) if isinstance(value, tuple) else value
    with pytest.raises(ValueError, match=rf"^\[attention\] .*{message}"):
        mlxops.nn.attention(**arguments)
