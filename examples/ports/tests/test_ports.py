"""The operators against NumPy and MLX, and the memory of donated arrays."""

import mlx.core as mx
import mlx_ports as ops
import numpy as np
import pytest


def random(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def address(a: mx.array) -> int:
    """Return the address of an array's memory."""
    mx.eval(a)
    return int(np.array(memoryview(a), copy=False).__array_interface__["data"][0])


def written(cache: mx.array, update: mx.array, positions: list[int]) -> np.ndarray:
    """Return a cache with new tokens."""
    out = np.array(cache)
    for row, first in enumerate(positions):
        tokens = min(update.shape[2], out.shape[2] - first)
        out[row, :, first : first + tokens] = np.array(update)[row, :, :tokens]
    return out


CACHE, UPDATE, POSITIONS = (2, 3, 8, 4), (2, 3, 2, 4), [5, 7]


def test_cache_takes_over_memory() -> None:
    cache, update = mx.zeros(CACHE) + 1, random(*UPDATE)
    before, wanted = address(cache), written(cache, update, POSITIONS)
    cache = ops.kv_cache_update(cache, update, mx.array(POSITIONS))
    assert address(cache) == before
    np.testing.assert_array_equal(np.array(cache), wanted)


@pytest.mark.parametrize("second", ["reference", "view", "pending"])
def test_cache_in_use_is_copied(second: str) -> None:
    cache, update = random(*CACHE), random(*UPDATE)
    before, wanted = np.array(cache), written(cache, update, POSITIONS)
    other = {"reference": cache, "view": cache[:], "pending": cache * 1}[second]
    got = ops.kv_cache_update(cache, update, mx.array(POSITIONS))
    del cache
    mx.eval(got)
    np.testing.assert_array_equal(np.array(got), wanted)
    np.testing.assert_array_equal(np.array(other), before)


def test_cache_is_its_own_update() -> None:
    cache = random(*CACHE)
    wanted = written(cache, cache, POSITIONS)
    got = ops.kv_cache_update(cache, cache, mx.array(POSITIONS))
    del cache
    np.testing.assert_array_equal(np.array(got), wanted)


def test_part_of_a_cache() -> None:
    large, update = random(4, *CACHE[1:]), random(*UPDATE)
    before, wanted = np.array(large), written(large[1:3], update, POSITIONS)
    got = ops.kv_cache_update(large[1:3], update, mx.array(POSITIONS))
    np.testing.assert_array_equal(np.array(got), wanted)
    np.testing.assert_array_equal(np.array(large), before)


def test_compiled_and_mapped() -> None:
    cache, update = random(*CACHE), random(*UPDATE)
    before, wanted = np.array(cache), written(cache, update, POSITIONS)

    def step(cache: mx.array) -> mx.array:
        return ops.kv_cache_update(cache, update, mx.array(POSITIONS))

    np.testing.assert_array_equal(np.array(mx.compile(step)(cache)), wanted)
    both = mx.vmap(step)(mx.stack([cache, cache]))
    np.testing.assert_array_equal(np.array(both), np.stack([wanted, wanted]))
    np.testing.assert_array_equal(np.array(cache), before)


def test_csr_product_with_empty_rows() -> None:
    dense = np.zeros((4, 3), np.float32)
    dense[0, 1], dense[0, 2], dense[3, 0] = 2, 3, 5
    x = random(3, 6)
    csr = [mx.array([2.0, 3, 5]), mx.array([1, 2, 0]), mx.array([0, 2, 2, 2, 3])]
    np.testing.assert_allclose(np.array(ops.csr_matmul(*csr, x)), dense @ np.array(x), rtol=1e-5)


def test_paged_attention() -> None:
    q, keys, values = random(1, 4, 1, 16), random(1, 2, 9, 16), random(1, 2, 9, 16)
    wanted = mx.fast.scaled_dot_product_attention(q, keys, values, scale=0.3)
    order = [2, 0, 1]
    pages = [
        mx.stack([a[0, :, 3 * order.index(i) : 3 * order.index(i) + 3] for i in range(3)])
        for a in (keys, values)
    ]
    got = ops.paged_attention(q[:, :, 0], *pages, mx.array([order]), mx.array([9]), 0.3)
    np.testing.assert_allclose(np.array(got), np.array(wanted[:, :, 0]), rtol=1e-4, atol=1e-5)


def test_random_walk() -> None:
    indptr, indices = [0, 2, 2, 5], [1, 2, 0, 1, 2]  # node 1 has no neighbors
    numbers = np.random.default_rng(0).random((50, 7)).astype(np.float32)
    start = np.arange(50) % 3
    arrays = [mx.array(a, mx.int64) for a in (indptr, indices, start)]
    walks = np.array(ops.random_walk(*arrays, mx.array(numbers)))
    for walk, first, choices in zip(walks, start, numbers, strict=True):
        assert walk[0] == first
        for node, following, number in zip(walk, walk[1:], choices, strict=False):
            neighbors = indices[indptr[node] : indptr[node + 1]] or [node]
            assert following == neighbors[int(number * len(neighbors))]


def test_int4_product_of_quantized_weights() -> None:
    weights, x = random(20, 128), random(9, 128)
    packed = mx.quantize(weights, group_size=64, bits=4)
    wanted = np.array(x) @ np.array(mx.dequantize(*packed, group_size=64, bits=4)).T
    np.testing.assert_allclose(np.array(ops.int4_matmul(x, *packed)), wanted, atol=1e-4)


def test_sinkhorn_is_doubly_stochastic() -> None:
    found = np.array(ops.sinkhorn(random(3, 5, 5), 50))
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-4)
    np.testing.assert_allclose(found.sum(axis=-2), 1, atol=1e-4)
