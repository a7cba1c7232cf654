"""Fused operators of mx.fast and mlxops, in the form in which `rewrites.py` uses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import mlx.core as mx

from . import recurrent

mlxops: Any = import_module("mlxops") if find_spec("mlxops") else None

REDUCTIONS = ("none", "mean", "sum")  # by torch's numbers


def attention(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, causal: bool, scale: float | None
) -> mx.array:
    """Return softmax(scale * q @ k.T + mask) @ v over the last two axes.

    A query whose mask excludes all keys, such as one of padding, has the result 0, as in torch.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if mask is None:
        return mx.fast.scaled_dot_product_attention(
            q, k, v, scale=scale, mask="causal" if causal else None
        )
    visible = mx.any(mask if mask.dtype == mx.bool_ else mask > -math.inf, axis=-1, keepdims=True)
    # Without keys, softmax would be NaN, also in gradients.
    mask = mx.where(visible, mask, mx.array(mask.dtype == mx.bool_, mask.dtype))
    result = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
    return mx.where(visible, result, 0)


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """Normalize to mean 0 and variance 1 over the last axis."""
    return mx.fast.layer_norm(x, weight, bias, eps)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float | None) -> mx.array:
    """Divide by the root mean square over the last axis."""
    return mx.fast.rms_norm(x, weight, mx.finfo(x.dtype).eps if eps is None else eps)


def swiglu(x: mx.array, gate: mx.array) -> mx.array:
    """Return x * silu(gate)."""
    result: mx.array = mlxops.swiglu(x, gate)
    return result


def geglu(x: mx.array, gate: mx.array, approximate: str) -> mx.array:
    """Return x * gelu(gate)."""
    result: mx.array = mlxops.nn.geglu(x, gate, approximate=approximate)
    return result


def cross_entropy(
    logits: mx.array,
    target: mx.array,
    weight: mx.array | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    axis: int,
) -> mx.array:
    """Return the cross entropy of logits whose classes are along an axis."""
    loss: mx.array = mlxops.nn.cross_entropy(
        mx.moveaxis(logits, axis, -1),
        target,
        weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=REDUCTIONS[reduction],
    )
    if REDUCTIONS[reduction] == "mean":  # the mean of nothing is NaN in torch
        counted = target != ignore_index
        if weight is not None:
            counted &= weight[mx.where(counted, target, 0)] != 0
        loss = mx.where(mx.any(counted), loss, math.nan)
    return loss


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "attention": attention,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "swiglu": swiglu,
    "geglu": geglu,
    "cross_entropy": cross_entropy,
    "lstm": partial(recurrent.lstm, fused=True),
    "gru": partial(recurrent.gru, fused=True),
}
