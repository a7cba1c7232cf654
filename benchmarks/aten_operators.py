"""Operators of mlx_aten against the same computations as users write them with mlx.core.

The formulas here were written from torch's documentation, not from the entries of aten/aten.yaml.
Each is measured as a call without evaluation, with 16 to 64 numbers, and with about a million.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx_aten as aten

from .measure import Options, Result, alternate, duration

AT_MOST = 1.1  # times the time of the formula: not slower, within the precision of a measurement
BUDGET = 1.0  # seconds of rounds of large arrays
SMALL = 50  # evaluations of small arrays at once, which hides the time that waking a thread takes

# Operators whose axis is a list.
LISTS = {"sum", "mean", "amax", "logsumexp", "var", "std"}

Function = Callable[..., Any]
# Returns the arguments, small or large.
Arguments = Callable[[bool], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """An operator, its arguments, and the formula."""

    name: str
    arguments: Arguments
    ours: Function
    reference: Function


def _draw(*shape: int, low: float = -2, high: float = 2) -> mx.array:
    return mx.random.uniform(low, high, shape)


def _matrices(count: int, low: float = -2, high: float = 2) -> Arguments:
    """Return matrices of 16 or a million numbers."""

    def arguments(large: bool) -> tuple[mx.array, ...]:
        side = 1024 if large else 4
        return tuple(_draw(side, side, low=low, high=high) for _ in range(count))

    return arguments


def _factors(*shapes: str) -> Arguments:
    """Return matrices for products: each letter is a side of 4 or 512, and b a batch of 2 or 8."""

    def arguments(large: bool) -> tuple[mx.array, ...]:
        side = {"b": 8 if large else 2, "m": 512 if large else 4}
        return tuple(_draw(*(side[letter] for letter in shape)) for shape in shapes)

    return arguments


def _image(large: bool) -> tuple[mx.array, ...]:
    return (_draw(4, 64, 64, 64) if large else _draw(1, 4, 4, 4),)


def _convolution(large: bool) -> tuple[mx.array, ...]:
    channels, side = (64, 56) if large else (2, 4)
    return _draw(1, channels, side, side), _draw(channels, channels, 3, 3), _draw(channels)


def _heads(large: bool) -> tuple[mx.array, ...]:
    shape = (1, 8, 256, 64) if large else (1, 2, 4, 8)
    return tuple(_draw(*shape) for _ in range(3))


def _normalized(large: bool) -> tuple[mx.array, ...]:
    side = 1024 if large else 4
    return _draw(side, side), _draw(side), _draw(side)


def _grouped(large: bool) -> tuple[mx.array, ...]:
    (x,) = _image(large)
    return x, _draw(x.shape[1]), _draw(x.shape[1])


def _statistics(large: bool) -> tuple[mx.array, ...]:
    x, weight, bias = _grouped(large)
    return x, weight, bias, _draw(x.shape[1]), _draw(x.shape[1], low=0.5)


def _classes(large: bool) -> tuple[mx.array, ...]:
    rows = 1024 if large else 4
    return _draw(rows, rows), mx.random.randint(0, rows, (rows,))


def _places(large: bool) -> tuple[mx.array, ...]:
    rows = 1024 if large else 4
    return _draw(rows, rows), mx.random.randint(0, rows, (rows, rows)), _draw(rows, rows)


def _chosen_rows(large: bool) -> tuple[mx.array, ...]:
    rows = 1024 if large else 4
    return _draw(rows, rows), mx.random.randint(0, rows, (rows,)), _draw(rows, rows)


def _blocks(large: bool) -> tuple[mx.array, ...]:
    side = 32 if large else 2
    return _draw(side, side), _draw(side, side)


def _flags(large: bool) -> tuple[mx.array, ...]:
    x, y = _matrices(2)(large)
    return x > 0, x, y


def _gelu_backward(g: mx.array, x: mx.array) -> mx.array:
    cumulative = (1 + mx.erf(x * math.sqrt(0.5))) / 2
    return g * (cumulative + x * mx.exp(x * x / -2) / math.sqrt(2 * math.pi))


def _group_norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    groups = x.reshape(x.shape[0], 2, -1)
    normal = mx.fast.layer_norm(groups, None, None, 1e-5).reshape(x.shape)
    return normal * weight[:, None, None] + bias[:, None, None]


def _batch_norm(x: mx.array, w: mx.array, b: mx.array, mean: mx.array, var: mx.array) -> mx.array:
    scale = w * mx.rsqrt(var + 1e-5)
    return x * scale[:, None, None] + (b - mean * scale)[:, None, None]


def _conv2d(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    y = mx.conv2d(x.transpose(0, 2, 3, 1), weight.transpose(0, 2, 3, 1), padding=1)
    return (y + bias).transpose(0, 3, 1, 2)


def _windows(x: mx.array) -> mx.array:
    batch, channels, height, width = x.shape
    return x.reshape(batch, channels, height // 2, 2, width // 2, 2)


def _pixel_shuffle(x: mx.array) -> mx.array:
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, channels // 4, 2, 2, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, channels // 4, 2 * height, 2 * width)


def _channels_last(x: mx.array) -> mx.array:
    return x.transpose(0, 2, 3, 1)


def _cosine(x: mx.array, y: mx.array) -> mx.array:
    product = mx.sum(x * y, axis=1)
    sizes = mx.linalg.norm(x, axis=1) * mx.linalg.norm(y, axis=1)
    return product / mx.maximum(sizes, 1e-8)


def _cross_entropy(x: mx.array, target: mx.array) -> mx.array:
    chosen = mx.take_along_axis(x, target[:, None], axis=1)[:, 0]
    return mx.mean(mx.logsumexp(x, axis=1) - chosen)


def _huber(x: mx.array, y: mx.array) -> mx.array:
    size = mx.abs(x - y)
    return mx.mean(mx.where(size < 1, size * size / 2, size - 0.5))


def _fmod(x: mx.array, y: mx.array) -> mx.array:
    quotient = x / y
    return x - y * mx.where(quotient < 0, mx.ceil(quotient), mx.floor(quotient))


def _topk(x: mx.array) -> tuple[mx.array, mx.array]:
    places = mx.argsort(-x, axis=-1)[:, :3]
    return mx.take_along_axis(x, places, axis=-1), places


def _sorted(x: mx.array) -> tuple[mx.array, mx.array]:
    places = mx.argsort(x, axis=-1)
    return mx.take_along_axis(x, places, axis=-1), places


_ONE, _TWO, _THREE = _matrices(1), _matrices(2), _matrices(3)
_POSITIVE, _SHARE = _matrices(2, low=0.1), _matrices(2, low=0.1, high=0.9)


def _elementwise() -> Iterator[Case]:
    """Yield operators on each number."""
    yield _plain("abs", _ONE, mx.abs)
    yield _plain("exp", _ONE, mx.exp)
    yield _plain("tanh", _ONE, mx.tanh)
    yield _plain("erf", _ONE, mx.erf)
    yield _plain("square", _ONE, mx.square)
    yield _plain("reciprocal", _ONE, lambda x: 1 / x)
    yield _plain("trunc", _ONE, lambda x: mx.where(x < 0, mx.ceil(x), mx.floor(x)))
    yield _plain("exp2", _ONE, lambda x: mx.power(2, x))
    yield _plain("deg2rad", _ONE, lambda x: x * (math.pi / 180))
    yield _plain("sinc", _ONE, lambda x: mx.where(x == 0, 1, mx.sin(math.pi * x) / (math.pi * x)))
    yield _plain("relu", _ONE, lambda x: mx.maximum(x, 0))
    yield _plain("hardswish", _ONE, lambda x: x * mx.clip(x + 3, 0, 6) / 6)
    yield _plain("hardsigmoid", _ONE, lambda x: mx.clip(x + 3, 0, 6) / 6)
    yield _plain("hardtanh", _ONE, lambda x: mx.clip(x, -1, 1))
    yield _plain("silu", _ONE, lambda x: x * mx.sigmoid(x))
    yield _plain("gelu", _ONE, lambda x: x * (1 + mx.erf(x * math.sqrt(0.5))) / 2)
    yield _plain("mish", _ONE, lambda x: x * mx.tanh(mx.logaddexp(x, 0)))
    yield _plain("elu", _ONE, lambda x: mx.where(x > 0, x, mx.expm1(x)))
    yield _plain("leaky_relu", _ONE, lambda x: mx.where(x > 0, x, 0.01 * x))
    yield _plain("softplus", _ONE, lambda x: mx.logaddexp(x, 0))
    yield _plain("log_sigmoid", _ONE, lambda x: -mx.logaddexp(-x, 0))
    yield _plain("softshrink", _ONE, lambda x: mx.where(mx.abs(x) > 0.5, x - 0.5 * mx.sign(x), 0))
    yield _plain("add", _TWO, mx.add)
    yield Case("add, alpha=3", _TWO, lambda x, y: aten.add(x, y, alpha=3), lambda x, y: x + 3 * y)
    yield Case("mul, 2.5", _ONE, lambda x: aten.mul(x, 2.5), lambda x: x * 2.5)
    yield _plain("div", _POSITIVE, mx.divide)
    yield _plain("pow", _POSITIVE, mx.power)
    yield Case("pow, 3", _ONE, lambda x: aten.pow(x, 3), lambda x: x * x * x)
    yield _plain("atan2", _TWO, mx.arctan2)
    yield _plain("hypot", _TWO, lambda x, y: mx.sqrt(x * x + y * y))
    yield _plain("logaddexp", _TWO, mx.logaddexp)
    yield _plain("remainder", _POSITIVE, mx.remainder)
    yield _plain("fmod", _POSITIVE, _fmod)
    yield _plain("xlogy", _POSITIVE, lambda x, y: mx.where(x == 0, 0, x * mx.log(y)))
    yield _plain("copysign", _TWO, lambda x, y: mx.where(y < 0, -mx.abs(x), mx.abs(x)))
    yield _plain("heaviside", _TWO, lambda x, y: mx.where(x == 0, y, (x > 0).astype(x.dtype)))
    yield _plain("eq", _TWO, mx.equal)
    yield _plain("where", _flags, mx.where)
    yield Case(
        "clamp, -1, 1", _ONE, lambda x: aten.clamp(x, -1.0, 1.0), lambda x: mx.clip(x, -1, 1)
    )
    yield Case(
        "masked_fill, 2.0",
        _flags,
        lambda c, x, y: aten.masked_fill(x, c, 2.0),
        lambda c, x, y: mx.where(c, 2.0, x),
    )
    yield Case("lerp, 0.3", _TWO, lambda x, y: aten.lerp(x, y, 0.3), lambda x, y: x + 0.3 * (y - x))
    yield Case(
        "addcmul, value=2",
        _THREE,
        lambda x, y, z: aten.addcmul(x, y, z, value=2),
        lambda x, y, z: x + 2 * y * z,
    )
    yield _plain("sigmoid_backward", _SHARE, lambda g, y: g * y * (1 - y))
    yield _plain("tanh_backward", _SHARE, lambda g, y: g * (1 - y * y))
    yield _plain("gelu_backward", _TWO, _gelu_backward)


def _reductions() -> Iterator[Case]:
    """Yield operators along the last axis or over all numbers, and losses."""
    for name, reference in (("sum", mx.sum), ("mean", mx.mean), ("amax", mx.max), ("any", mx.any)):
        yield _along(name, -1, lambda x, f=reference: f(x, axis=-1))
    yield _along("sum", 0, lambda x: mx.sum(x, axis=0))
    yield _along("argmax", -1, lambda x: mx.argmax(x, axis=-1))
    yield _along("logsumexp", -1, lambda x: mx.logsumexp(x, axis=-1))
    yield _along("softmax", -1, lambda x: mx.softmax(x, axis=-1))
    yield _along("log_softmax", -1, lambda x: x - mx.logsumexp(x, axis=-1, keepdims=True))
    yield _along("cumsum", -1, lambda x: mx.cumsum(x, axis=-1))
    yield _along("var", -1, lambda x: mx.var(x, axis=-1, ddof=1))
    yield _along("std", -1, lambda x: mx.std(x, axis=-1, ddof=1))
    yield _along("sort", -1, _sorted)
    yield Case("topk, 3", _ONE, lambda x: aten.topk(x, 3), _topk)
    yield Case(
        "linalg_vector_norm, 2, -1",
        _ONE,
        lambda x: aten.linalg_vector_norm(x, 2, [-1]),
        lambda x: mx.linalg.norm(x, axis=-1),
    )
    yield Case(
        "_softmax_backward_data",
        _SHARE,
        lambda g, y: aten._softmax_backward_data(g, y, -1, mx.float32),
        lambda g, y: y * (g - mx.sum(g * y, axis=-1, keepdims=True)),
    )
    yield _plain("mse_loss", _TWO, lambda x, y: mx.mean(mx.square(x - y)))
    yield _plain("l1_loss", _TWO, lambda x, y: mx.mean(mx.abs(x - y)))
    yield _plain("huber_loss", _TWO, _huber)
    yield _plain(
        "binary_cross_entropy",
        _SHARE,
        lambda x, y: -mx.mean(y * mx.log(x) + (1 - y) * mx.log(1 - x)),
    )
    yield _plain(
        "binary_cross_entropy_with_logits",
        _SHARE,
        lambda x, y: mx.mean(mx.logaddexp(x, 0) - x * y),
    )
    yield _plain("cross_entropy_loss", _classes, _cross_entropy)
    yield _plain("cosine_similarity", _TWO, _cosine)


def _products() -> Iterator[Case]:
    """Yield products of matrices and layers of models."""
    yield _plain("mm", _factors("mm", "mm"), mx.matmul)
    yield _plain("bmm", _factors("bmm", "bmm"), mx.matmul)
    yield _plain("addmm", _factors("mm", "mm", "mm"), mx.addmm)
    yield _plain("baddbmm", _factors("bmm", "bmm", "bmm"), lambda x, y, z: mx.addmm(x, y, z))
    yield _plain("linear", _factors("mm", "mm", "m"), lambda x, w, b: mx.addmm(b, x, w.T))
    yield _plain("outer", _factors("m", "m"), mx.outer)
    yield _plain("kron", _blocks, mx.kron)
    yield _plain("embedding", _classes, lambda weight, index: weight[index])
    yield _plain(
        "scaled_dot_product_attention",
        _heads,
        lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5),
    )
    yield Case(
        "layer_norm",
        _normalized,
        lambda x, w, b: aten.layer_norm(x, [x.shape[-1]], w, b),
        lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5),
    )
    yield Case(
        "rms_norm",
        _normalized,
        lambda x, w, b: aten.rms_norm(x, [x.shape[-1]], w, 1e-5),
        lambda x, w, b: mx.fast.rms_norm(x, w, 1e-5),
    )
    yield Case("group_norm, 2", _grouped, lambda x, w, b: aten.group_norm(x, 2, w, b), _group_norm)
    yield Case(
        "batch_norm",
        _statistics,
        lambda *x: aten.batch_norm(*x, False, 0.1, 1e-5, True),
        _batch_norm,
    )
    yield Case("conv2d", _convolution, lambda *x: aten.conv2d(*x, padding=[1, 1]), _conv2d)
    yield Case(
        "avg_pool2d, 2",
        _image,
        lambda x: aten.avg_pool2d(x, [2, 2]),
        lambda x: mx.mean(_windows(x), axis=(3, 5)),
    )
    yield Case(
        "max_pool2d, 2",
        _image,
        lambda x: aten.max_pool2d(x, [2, 2]),
        lambda x: mx.max(_windows(x), axis=(3, 5)),
    )
    yield Case(
        "upsample_nearest2d, 2x",
        _image,
        lambda x: aten.upsample_nearest2d(x, [2 * x.shape[2], 2 * x.shape[3]]),
        lambda x: mx.repeat(mx.repeat(x, 2, axis=2), 2, axis=3),
    )


def _rearrangements() -> Iterator[Case]:
    """Yield operators that move numbers."""
    yield Case(
        "cat", _TWO, lambda x, y: aten.cat([x, y], 1), lambda x, y: mx.concatenate([x, y], 1)
    )
    yield Case("stack", _TWO, lambda x, y: aten.stack([x, y]), lambda x, y: mx.stack([x, y]))
    yield Case("permute", _image, lambda x: aten.permute(x, [0, 2, 3, 1]), _channels_last)
    yield Case("flip", _ONE, lambda x: aten.flip(x, [1]), lambda x: x[:, ::-1])
    yield Case("roll", _ONE, lambda x: aten.roll(x, [1], [0]), lambda x: mx.roll(x, 1, axis=0))
    yield _plain("tril", _ONE, mx.tril)
    yield Case(
        "constant_pad_nd",
        _ONE,
        lambda x: aten.constant_pad_nd(x, [1, 1, 1, 1]),
        lambda x: mx.pad(x, 1),
    )
    yield Case("pixel_shuffle, 2", _image, lambda x: aten.pixel_shuffle(x, 2), _pixel_shuffle)
    yield Case(
        "gather",
        _places,
        lambda x, i, y: aten.gather(x, 1, i),
        lambda x, i, y: mx.take_along_axis(x, i, axis=1),
    )
    yield Case(
        "scatter_add",
        _places,
        lambda x, i, y: aten.scatter_add(x, 1, i, y),
        lambda x, i, y: x.at[mx.arange(len(x))[:, None], i].add(y),
    )
    yield Case(
        "index_select",
        _chosen_rows,
        lambda x, i, y: aten.index_select(x, 0, i),
        lambda x, i, y: mx.take(x, i, axis=0),
    )
    yield Case(
        "index_add",
        _chosen_rows,
        lambda x, i, y: aten.index_add(x, 0, i, y),
        lambda x, i, y: x.at[i].add(y),
    )


def _plain(name: str, arguments: Arguments, reference: Function) -> Case:
    """Return a case whose arguments are arrays only."""
    return Case(name, arguments, getattr(aten, name), reference)


def _along(name: str, axis: int, reference: Function) -> Case:
    """Return a case of a reduction along an axis of a matrix."""
    function, axes = getattr(aten, name), [axis] if name in LISTS else axis
    return Case(f"{name}, {axis}", _ONE, lambda x: function(x, axes), reference)


def cases() -> list[Case]:
    """Return all cases."""
    return [*_elementwise(), *_reductions(), *_products(), *_rearrangements()]


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    mx.set_default_device(mx.cpu)
    for case in cases():
        options.progress(f"time {case.name}")
        both = {"ours": case.ours, "theirs": case.reference}
        cells, data = {}, {}
        small, large = case.arguments(False), case.arguments(True)
        mx.eval(small, large)
        for column, timed, limits in (
            ("call", {k: _calls(f, small) for k, f in both.items()}, {"calls": 100}),
            ("small", {k: _many(f, small) for k, f in both.items()}, {"calls": 4}),
            ("large", {k: _one(f, large) for k, f in both.items()}, {"turn": 0.01}),
        ):
            times = alternate(
                timed,
                rounds=5 if options.quick else 15,
                budget=BUDGET / 4 if options.quick else BUDGET,
                clock=time.process_time,
                **limits,
            )
            count = SMALL if column == "small" else 1
            ours, theirs = (times.quartile(name) / count for name in both)
            data |= {column: ours / theirs, f"{column} seconds": ours}
            cells[column] = f"{ours / theirs:.2f}x ({duration(ours)})"
        met = all(data[column] <= AT_MOST for column in cells)
        shown = {k: v if data[k] <= AT_MOST else f"**{v}**" for k, v in cells.items()}
        yield Result("aten_operators", f"`{case.name}`", "", "", met, data, shown)


def _calls(function: Function, arguments: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: function(*arguments)


def _many(function: Function, arguments: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: mx.eval([function(*arguments) for _ in range(SMALL)])


def _one(function: Function, arguments: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: mx.eval(function(*arguments))
