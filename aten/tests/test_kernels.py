"""The operators of mlx_aten that have kernels, in all their dtypes, against plain NumPy.

Torch's samples (test_samples.py) have few dtypes, and neither NaN nor ties. Resampling has no short
reference here: torch's samples have its values, and these tests compare each operator with its
transposed map, which is a kernel of its own.
"""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import mlx_aten as aten
import numpy as np
import pytest

Array = np.ndarray[Any, Any]
FLOATS = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 2e-2}
INTEGERS = [
    *(mx.int8, mx.int16, mx.int32, mx.int64),
    *(mx.uint8, mx.uint16, mx.uint32, mx.uint64),
]
MODES = ["sum", "prod", "mean", "amax", "amin"]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Any:
    """References are computed in the precision of the CPU."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def values(shape: tuple[int, ...], seed: int = 0, few: bool = False) -> Array:
    """Return random numbers that all floating dtypes have; with ``few``, many are equal."""
    generator = np.random.default_rng(seed)
    if few:
        return generator.integers(0, 3, shape).astype(np.float64)
    return np.round(generator.normal(size=shape) * 32) / 16


def to_numpy(x: mx.array) -> Array:
    """Return an array in double precision, integers in their own."""
    is_integer = mx.issubdtype(x.dtype, mx.integer)
    return np.array(x) if is_integer else np.array(x.astype(mx.float32)).astype(np.float64)


def close(actual: mx.array, expected: Array, dtype: mx.Dtype, tolerance: float) -> None:
    """Compare dtype, shape and values."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    scale = tolerance * max(
        1.0, float(np.max(np.abs(expected), initial=0, where=np.isfinite(expected)))
    )
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=tolerance, atol=scale)


def pooled(
    x: Array, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[Array, Array]:
    """Return the maxima of windows, as torch defines them, and their places in the plane."""
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)
    ]
    flat = x.reshape(-1, *x.shape[-2:])
    out = np.zeros((len(flat), *sizes))
    places = np.zeros(out.shape, np.int64)
    for n, i, j in itertools.product(*map(range, out.shape)):
        best, place = -np.inf, -1
        for k, m in itertools.product(range(kernel[0]), range(kernel[1])):
            row = i * stride[0] - padding[0] + k * dilation[0]
            column = j * stride[1] - padding[1] + m * dilation[1]
            if not (0 <= row < x.shape[-2] and 0 <= column < x.shape[-1]):
                continue
            value = flat[n, row, column]
            if place < 0 or value > best or np.isnan(value):
                best, place = value, row * x.shape[-1] + column
        out[n, i, j], places[n, i, j] = best, place
    shape = (*x.shape[:-2], *sizes)
    return out.reshape(shape), places.reshape(shape)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_max_pool(dtype: mx.Dtype) -> None:
    x = values((2, 3, 7, 8), few=True)
    if dtype in FLOATS:
        x[0, 0, 2:4, 3] = np.nan
        x[1, 2] = -np.inf
    window = [3, 2], [2, 1], [1, 0], [1, 2]
    expected, places = pooled(x, *window)
    out, indices = aten.max_pool2d_with_indices(mx.array(x, dtype=dtype), *window)
    close(out, expected, dtype, 0)
    close(indices, places, mx.int64, 0)
    deep = mx.array(x[:, :, None].repeat(2, axis=2), dtype=dtype)
    first = 1, 1, 0, 1
    window3d = ([n, *each] for n, each in zip(first, window, strict=True))
    out, indices = aten.max_pool3d_with_indices(deep, *window3d)
    close(out[:, :, 1], expected, dtype, 0)
    close(indices[:, :, 1] - x[0, 0].size, places, mx.int64, 0)
    if dtype in FLOATS:
        cotangent = values(expected.shape, seed=1)
        gradient = np.zeros((6, 56))
        for plane, place, value in zip(
            gradient, places.reshape(6, -1), cotangent.reshape(6, -1), strict=True
        ):
            np.add.at(plane, place, value)
        found = aten.max_pool2d_with_indices_backward(
            mx.array(cotangent, dtype=dtype),
            mx.array(x, dtype=dtype),
            *window,
            False,
            mx.array(places),
        )
        close(found, gradient.reshape(x.shape), dtype, FLOATS[dtype])


@pytest.mark.parametrize("name", ["linear1d", "nearest1d", "nearest_exact1d"])
def test_resampling_of_a_ramp(name: str) -> None:
    ramp = mx.array(np.arange(5, dtype=np.float32))[None, None]
    if name == "linear1d":
        found = aten.upsample_linear1d(ramp, [9], True)[0, 0]
        close(found, np.arange(9) / 2, mx.float32, 1e-6)
    else:
        function = (
            aten.upsample_nearest1d if name == "nearest1d" else aten._upsample_nearest_exact1d
        )
        places = np.arange(7) * 5 // 7 if name == "nearest1d" else (np.arange(7) * 2 + 1) * 5 // 14
        close(function(ramp, [7])[0, 0], places.astype(np.float64), mx.float32, 0)


RESAMPLED = {
    "upsample_bilinear2d": (False,),
    "upsample_bicubic2d": (True,),
    "_upsample_bilinear2d_aa": (False,),
    "_upsample_bicubic2d_aa": (False,),
    "upsample_nearest2d": (),
    "_upsample_nearest_exact2d": (),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", RESAMPLED)
@pytest.mark.parametrize("size", [[3, 11], [8, 4]])
def test_resampling_and_its_transposed_map(name: str, size: list[int], dtype: mx.Dtype) -> None:
    x, y = values((2, 2, 6, 5)), values((2, 2, *size), seed=1)
    forward = getattr(aten, name)(mx.array(x, dtype=dtype), size, *RESAMPLED[name])
    backward = getattr(aten, f"{name}_backward")(
        mx.array(y, dtype=dtype), size, [2, 2, 6, 5], *RESAMPLED[name]
    )
    assert forward.dtype == backward.dtype == dtype
    product, transposed = (to_numpy(forward) * y).sum(), (x * to_numpy(backward)).sum()
    assert abs(product - transposed) < 20 * FLOATS[dtype] * max(1, np.abs(y).max())
    ones = getattr(aten, name)(mx.ones((1, 1, 6, 5), dtype=dtype), size, *RESAMPLED[name])
    close(ones, np.ones((1, 1, *size)), dtype, FLOATS[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_average_pool(dtype: mx.Dtype) -> None:
    x = values((2, 3, 6, 7))
    found = aten.avg_pool2d(mx.array(x, dtype=dtype), [2, 3], [2, 2], [1, 1])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))[:, :, ::2, ::2]
    close(found, windows.mean((-2, -1)), dtype, FLOATS[dtype])
    found = aten.adaptive_avg_pool2d(mx.array(x, dtype=dtype), [3, 1])
    expected = x.reshape(2, 3, 3, 2, 7).mean((3, 4))[..., None]
    close(found, expected, dtype, FLOATS[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_blocks(dtype: mx.Dtype) -> None:
    x = values((2, 3, 6, 7))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 5), (2, 3))
    windows = windows[:, :, ::2, :, :, ::2]  # a dilation of 2 along the last axis
    columns = windows.transpose(0, 1, 4, 5, 2, 3).reshape(2, 18, -1)
    arguments = [2, 3], [1, 2], [1, 0], [2, 1]
    found = aten.im2col(mx.array(x, dtype=dtype), *arguments)
    close(found, columns, dtype, 0)
    y = values(columns.shape, seed=1)
    folded = aten.col2im(mx.array(y, dtype=dtype), [6, 7], *arguments)
    assert folded.dtype == dtype
    assert np.isclose((columns * y).sum(), (x * to_numpy(folded)).sum(), rtol=20 * FLOATS[dtype])


def scattered(x: Array, index: Array, src: Array, mode: str, include_self: bool) -> Array:
    """Return scatter_reduce along the first axis of matrices."""
    out = x.copy()
    terms: dict[tuple[int, int], list[Any]] = {}
    for i, j in itertools.product(*map(range, index.shape)):
        terms.setdefault((index[i, j], j), []).append(src[i, j])
    for place, found in terms.items():
        found = [out[place], *found] if include_self else found
        match mode:
            case "sum":
                out[place] = np.sum(found)
            case "prod":
                out[place] = np.prod(found)
            case "mean" if np.issubdtype(out.dtype, np.integer):
                out[place] = np.sum(found) // len(found)
            case "mean":
                out[place] = np.mean(found)
            case _:
                out[place] = (np.max if mode == "amax" else np.min)(found)
    return out


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(mode: str, include_self: bool, dtype: mx.Dtype) -> None:
    index = np.random.default_rng(2).integers(0, 4, (6, 3))
    x, src = values((4, 5), few=True), values((7, 3), seed=1, few=True)
    if dtype in FLOATS:
        x[0, 0] = src[0, 1] = np.nan
    else:
        kind = np.array(mx.zeros(0, dtype)).dtype
        x, src = x.astype(kind), src.astype(kind)
    expected = scattered(x, index, src, mode, include_self)
    found = aten.scatter_reduce(
        mx.array(x, dtype=dtype), 0, mx.array(index), mx.array(src, dtype=dtype), mode,
        include_self=include_self,
    )  # fmt: skip
    close(found, expected, dtype, FLOATS.get(dtype, 0))
    if mode != "sum":
        source = src[:, [0, 1, 2, 0, 1]][:6]
        expected = scattered(x, index[:, :1].repeat(5, axis=1), source, mode, include_self)
        found = aten.index_reduce(
            mx.array(x, dtype=dtype), 0, mx.array(index[:, 0]), mx.array(source, dtype=dtype), mode,
            include_self=include_self,
        )  # fmt: skip
        close(found, expected, dtype, FLOATS.get(dtype, 0))


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint8])
def test_mean_of_many_bytes(dtype: mx.Dtype) -> None:
    """The count wraps around, and may be 0: so in torch."""
    for count, mean in ((200, 1), (256, 0), (300, 1)):
        index, src = mx.zeros(count, mx.int64), mx.ones(count, dtype)
        found = aten.scatter_reduce(mx.zeros(2, dtype), 0, index, src, "mean", include_self=False)
        close(found, np.array([mean, 0]), dtype, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scatter_reduce_shares_the_gradient_of_ties(dtype: mx.Dtype) -> None:
    def gradients(mode: str, include_self: bool) -> list[list[float]]:
        def reduced(x: mx.array, src: mx.array) -> list[mx.array]:
            index = mx.array([0, 0, 1, 1, 2, 2])
            return [aten.scatter_reduce(x, 0, index, src, mode, include_self=include_self)]

        x = mx.array([2, 3, 0, 5], dtype=dtype)
        src = mx.array([2, 1, 0, 3, 0, 0], dtype=dtype)
        _, found = mx.vjp(reduced, [x, src], [mx.array([1, 2, 3, 4], dtype=dtype)])
        return [[float(v) for v in part.astype(mx.float32)] for part in found]

    # Recorded from torch 2.13.
    assert gradients("amax", True) == [[0.5, 1, 1, 4], [0.5, 0, 0, 1, 1, 1]]
    assert gradients("amax", False) == [[0, 0, 0, 4], [0.5, 0, 0, 1, 1, 1]]
    assert gradients("prod", True) == [[2, 0, 0, 4], [2, 4, 18, 0, 0, 0]]
    assert gradients("mean", False) == [[0, 0, 0, 4], [0.5, 0.5, 1, 1, 1.5, 1.5]]
    assert gradients("sum", True) == [[1, 2, 3, 4], [1, 1, 2, 2, 3, 3]]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, np.inf])
def test_distances(p: float, dtype: mx.Dtype) -> None:
    x, y = values((2, 4, 3)), values((2, 5, 3), seed=1)
    difference = x[:, :, None] - y[:, None]
    size = np.abs(difference)
    if p == 0:
        distance = (size > 0).sum(-1).astype(np.float64)
    else:
        distance = size.max(-1) if p == np.inf else (size**p).sum(-1) ** (1 / p)
    found = aten._cdist_forward(mx.array(x, dtype=dtype), mx.array(y, dtype=dtype), p, None)
    close(found, distance, dtype, FLOATS[dtype])
    if p == 0:
        slope = np.zeros(size.shape)
    elif p == np.inf:
        slope = np.where(size == distance[..., None], np.sign(difference), 0)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.sign(difference) * (size / distance[..., None]) ** (p - 1)
        slope = np.where(size > 0, slope, 0)
    rounded = mx.array(distance, dtype=dtype)
    if p != np.inf or dtype == mx.float32:
        ones = mx.ones((2, 4, 5), dtype=dtype)
        arrays = mx.array(x, dtype=dtype), mx.array(y, dtype=dtype)
        found = aten._cdist_backward(ones, *arrays, p, rounded)
        close(found, slope.sum(2), dtype, 2 * FLOATS[dtype])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_searches(dtype: mx.Dtype) -> None:
    rows, sought = np.sort(values((3, 7), few=True)), values((3, 4), seed=1, few=True)
    for side in ("left", "right"):
        expected = [np.searchsorted(row, x, side) for row, x in zip(rows, sought, strict=True)]
        arrays = mx.array(rows, dtype=dtype), mx.array(sought, dtype=dtype)
        found = aten.searchsorted(*arrays, right=side == "right")
        close(found, np.stack(expected), mx.int64, 0)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_products_of_integers(dtype: mx.Dtype) -> None:
    """They wrap around."""
    kind = np.array(mx.zeros(0, dtype)).dtype
    generator, info = np.random.default_rng(0), np.iinfo(kind)
    x, y = (
        generator.integers(info.min, info.max, shape, kind, endpoint=True)
        for shape in ((2, 3, 5), (2, 5, 4))
    )
    found = np.array(aten.matmul(mx.array(x), mx.array(y)))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, x @ y)


def ctc_loss(probabilities: Array, target: list[int]) -> float:
    """Return the loss of one sequence by trying all paths."""
    total = 0.0
    for path in itertools.product(range(probabilities.shape[1]), repeat=len(probabilities)):
        labels = [label for label, _ in itertools.groupby(path) if label != 0]
        if labels == target:
            total += float(
                np.prod([row[label] for row, label in zip(probabilities, path, strict=True)])
            )
    return -np.log(total) if total else np.inf


def test_ctc_loss() -> None:
    logits = values((5, 3, 3)).astype(np.float32)
    targets, lengths, times = [[1, 1], [2, 1], [2, 0]], [2, 2, 1], [5, 4, 3]

    def losses(logits: mx.array, concatenated: bool = False) -> mx.array:
        flat = [label for row, n in zip(targets, lengths, strict=True) for label in row[:n]]
        log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        given = mx.array(flat if concatenated else targets)
        return aten._ctc_loss(log_probs, given, mx.array(times), mx.array(lengths))[0]

    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [
        ctc_loss(probabilities[:t, n], targets[n][: lengths[n]]) for n, t in enumerate(times)
    ]
    close(losses(mx.array(logits)), np.array(expected), mx.float32, 1e-5)
    close(losses(mx.array(logits), concatenated=True), np.array(expected), mx.float32, 1e-5)
    gradient = mx.grad(lambda x: losses(x).sum())(mx.array(logits))
    for place in itertools.product(range(5), range(3), range(3)):
        step = np.zeros(logits.shape, np.float32)
        step[place] = 1e-2
        ahead, behind = losses(mx.array(logits + step)), losses(mx.array(logits - step))
        slope = float((ahead - behind).sum()) / 2e-2
        assert abs(slope - float(gradient[place])) < 2e-3, place


def test_ctc_loss_of_nan() -> None:
    """It is NaN if a path to the target has a NaN."""
    for place in np.ndindex(5, 3):
        log_probs = np.log(np.full((5, 1, 3), 1 / 3, np.float32))
        log_probs[place[0], 0, place[1]] = np.nan
        given = mx.array(log_probs), mx.array([[1, 2]]), mx.array([5]), mx.array([2])
        expected = ctc_loss(np.exp(log_probs[:, 0]), [1, 2])
        close(aten._ctc_loss(*given)[0], np.array([expected]), mx.float32, 1e-5)


def test_ctc_loss_without_a_path() -> None:
    log_probs = mx.full((2, 1, 3), -np.log(3))
    arguments = log_probs, mx.array([[1, 1]]), mx.array([2]), mx.array([2])
    loss, alpha = aten._ctc_loss(*arguments)
    assert float(loss[0]) == np.inf
    given = mx.ones(1), *arguments, loss, alpha, 0
    assert np.all(np.isnan(np.array(aten._ctc_loss_backward(*given))[:, :, 1]))
    assert not np.array(aten._ctc_loss_backward(*given, True)).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_group_norm(dtype: mx.Dtype) -> None:
    x, weight, bias = values((2, 6, 5)), values((6,), seed=1), values((6,), seed=2)
    groups = x.reshape(2, 3, 10)
    mean, rstd = groups.mean(-1), 1 / np.sqrt(groups.var(-1) + 1e-5)
    normal = ((groups - mean[..., None]) * rstd[..., None]).reshape(x.shape)
    arrays = (mx.array(each, dtype=dtype) for each in (x, weight, bias))
    found = aten.native_group_norm(*arrays, 2, 6, 5, 3, 1e-5)
    references = normal * weight[:, None] + bias[:, None], mean, rstd
    for actual, expected in zip(found, references, strict=True):
        close(actual, expected, dtype, 2 * FLOATS[dtype])
