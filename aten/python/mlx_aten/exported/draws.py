"""Operators that draw random numbers, from MLX's global state: dropout, noise, samples.

The operators of mlx_aten take a key instead. They agree with torch in distribution, not in numbers.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

Function = Callable[..., Any]
ALPHA = 1.7580993408473766  # the scale of SELU times its alpha: the value of dropped units


def _key() -> mx.array:
    """Return a new key, drawn from the global state."""
    return mx.random.randint(0, 2**31 - 1, (2,)).astype(mx.uint32)


def _with_key(name: str) -> Function:
    """Return an operator of mlx_aten with a key from the global state."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("mlx_aten"), name)(*args, **kwargs, key=_key())

    return call


def _kept(shape: tuple[int, ...], p: float, dtype: mx.Dtype) -> mx.array:
    return mx.random.bernoulli(1 - p, shape).astype(dtype)


def _channels(input: mx.array) -> tuple[int, ...]:
    """Return the shape of one number per sample and channel."""
    return (*input.shape[:2], *(1 for _ in input.shape[2:]))


def _dropped(input: mx.array, p: float, train: bool, shape: tuple[int, ...]) -> mx.array:
    if not train or p == 0:
        return input
    if p == 1:
        return mx.zeros_like(input)
    return mx.where(mx.random.bernoulli(1 - p, shape), input / (1 - p), 0)


def dropout(input: mx.array, p: float, train: bool) -> mx.array:
    """Set elements to 0 with the probability p, and scale the others."""
    return _dropped(input, p, train, input.shape)


def feature_dropout(input: mx.array, p: float, train: bool) -> mx.array:
    """Set channels to 0 with the probability p, and scale the others."""
    return _dropped(input, p, train, _channels(input))


def native_dropout(input: mx.array, p: float, train: bool | None) -> tuple[mx.array, mx.array]:
    """Return the result of dropout, and where elements were kept."""
    if train is False or p == 0:
        return input, mx.ones(input.shape, mx.bool_)
    kept = mx.random.bernoulli(1 - p, input.shape)
    return mx.where(kept, input / max(1 - p, 1e-30), 0), kept


def attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    attn_mask: mx.array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> mx.array:
    """Return scaled dot product attention, whose weights are dropped with a probability."""
    if dropout_p == 0:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return importlib.import_module("mlx_aten").scaled_dot_product_attention(  # type: ignore[no-any-return]
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = mx.repeat(key, times, axis=-3), mx.repeat(value, times, axis=-3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ mx.swapaxes(key, -1, -2)
    if is_causal:
        attn_mask = mx.tri(scores.shape[-2], scores.shape[-1]).astype(mx.bool_)
    if attn_mask is not None and attn_mask.dtype == mx.bool_:
        # A query without keys has the result 0.
        scores = mx.where(attn_mask, scores, -math.inf)
        hidden = mx.logical_not(mx.any(attn_mask, axis=-1, keepdims=True))
        weights = mx.where(hidden, 0, mx.softmax(mx.where(hidden, 0, scores), axis=-1))
    else:
        weights = mx.softmax(scores if attn_mask is None else scores + attn_mask, axis=-1)
    return dropout(weights, dropout_p, True) @ value


def _alpha_dropped(input: mx.array, p: float, train: bool, shape: tuple[int, ...]) -> mx.array:
    """Drop to the negative limit of SELU, and restore mean 0 and variance 1."""
    if not train or p == 0:
        return input
    if p == 1:
        return mx.zeros_like(input)
    scale = 1 / math.sqrt((ALPHA**2 * p + 1) * (1 - p))
    kept = _kept(shape, p, input.dtype)
    return input * (kept * scale) + (kept - 1 + p) * (ALPHA * scale)


def alpha_dropout(input: mx.array, p: float, train: bool) -> mx.array:
    """Drop elements as `torch.nn.AlphaDropout`."""
    return _alpha_dropped(input, p, train, input.shape)


def feature_alpha_dropout(input: mx.array, p: float, train: bool) -> mx.array:
    """Drop channels as `torch.nn.FeatureAlphaDropout`."""
    return _alpha_dropped(input, p, train, _channels(input))


def rrelu(
    self: mx.array, lower: float = 0.125, upper: float = 1 / 3, training: bool = False
) -> mx.array:
    """Multiply negative elements by slopes, which training draws."""
    slopes: Any = (lower + upper) / 2
    if training:
        slopes = mx.random.uniform(lower, upper, self.shape, self.dtype)
    return mx.where(self > 0, self, self * slopes)


def _rrelu_with_noise(
    self: mx.array,
    noise: mx.array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
) -> tuple[mx.array, mx.array]:
    return rrelu(self, lower, upper, training), noise


def _like(draw: Function) -> Function:
    """Return a function that draws an array of another array's shape and dtype."""

    def call(self: mx.array, *args: Any, dtype: mx.Dtype | None = None) -> mx.array:
        result: mx.array = draw(*args, self.shape, dtype or self.dtype)
        return result

    return call


def _uniform(low: float, high: float, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.uniform(low, high, shape, dtype)


def _normal(mean: float, std: float, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.normal(shape, dtype, mean, std)


def _integers(low: int, high: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.randint(low, high, shape).astype(dtype)


def _exponential(self: mx.array, lambd: float = 1) -> mx.array:
    # 1 - u is never 0.
    return -mx.log1p(-mx.random.uniform(0, 1, self.shape, self.dtype)) / lambd


def _ranges(function: Function, *defaults: Any) -> Function:
    """Return a function whose arguments between the array and `dtype` have defaults."""
    return lambda self, *args, **kwargs: function(
        self, *args, *defaults[len(args) :], **{k: v for k, v in kwargs.items() if k == "dtype"}
    )


FUNCTIONS: dict[str, Function] = {
    "aten.dropout.default": dropout,
    "aten.scaled_dot_product_attention.default": attention,
    "aten.native_dropout.default": native_dropout,
    "aten.feature_dropout.default": feature_dropout,
    "aten.alpha_dropout.default": alpha_dropout,
    "aten.feature_alpha_dropout.default": feature_alpha_dropout,
    "aten.rrelu.default": rrelu,
    "aten.rrelu_with_noise_functional.default": _rrelu_with_noise,
    "aten.rand_like.default": _ranges(_like(_uniform), 0, 1),
    "aten.randn_like.default": _ranges(_like(_normal), 0, 1),
    "aten.randint_like.default": lambda self, high, **k: _like(_integers)(self, 0, high, **k),
    "aten.randint_like.low_dtype": _like(_integers),
    "aten.uniform.default": _ranges(_like(_uniform), 0, 1),
    "aten.normal.default": _ranges(_like(_normal), 0, 1),
    "aten.normal_functional.default": _ranges(_like(_normal), 0, 1),
    "aten.bernoulli.float": _with_key("bernoulli"),
    "aten.exponential.default": _exponential,
    **{
        f"aten.{name}": _with_key(name.partition(".")[0])
        for name in (
            *("bernoulli.default", "bernoulli.p", "multinomial.default", "rand.default"),
            *("randn.default", "randint.default", "randint.low", "randperm.default"),
            *("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"),
            *("normal.float_float", "rrelu_with_noise.default"),
        )
    },
}
