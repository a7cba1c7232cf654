"""Compares operators of mlxops with MLX's on this machine: ``python -m mlxops.bench``.

The measurements in the documentation come from other machines than yours. This program takes about
two minutes, prints a table, and with ``--json FILE`` writes its numbers for an issue. The file
describes the machine, but contains no names of users or folders.

The order of the rows makes the table useful even if the time is too short for all of them, as on a
CPU, on which each compilation takes about a second: the first rows contain each operator once, the
next ones its other dtypes.

``PAIRS`` is the table of operators, their arguments, and the function of MLX that computes the
same: one function if MLX has it, else the shortest composition.
"""

from __future__ import annotations

import argparse
import difflib
import io
import itertools
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx.nn.layers.activations import gelu, log_sigmoid, softplus

import mlxops
from mlxops import nn, special

SECONDS = 120.0
SIZES = ("small", "typical")
PASSES = ("forward", "gradient")  # the gradient includes the forward pass
DTYPES = ("float32", "float16", "bfloat16")  # of mlxops.nn; float32 of mlxops.special
ON_CPU = {"N": 8, "T": 8, "V": 8}  # divisors of typical sizes: CPUs are slower
MOST = 30  # repetitions of a row
LEAST_BUDGET = 0.05  # seconds for the repetitions of a row
BUSY = 0.5  # the load per core from which other programs affect the times
REMEDY = "use more --seconds, or --only"
NOT_COMPILED = "not compiled: too little time"
TIME_IS_UP = f"not measured: the time is up; {REMEDY}"
GRADIENT = 5  # the time of a gradient as a multiple of the forward pass, until it is known
COLUMNS = (33, 8, 9, 9, 10, 10, 8, 10, 10)  # widths
# The kernels of mx.fast, by their names in a graph, with those of their gradients.
KERNEL = re.compile(
    r"(?:CrossEntropy|GatedDeltaUpdate|LayerNorm|RMSNorm|RoPE|ScaledDotProductAttention)(?:VJP)?"
)

Function = Callable[..., Any]  # from arrays to an array, or to several


@dataclass(frozen=True)
class Argument:
    """A random array: its shape in words (names are sizes of the pair), and its range."""

    shape: str
    low: float = -1.0
    high: float = 1.0
    integers: str = ""  # the size of the pair below which its integers are; "": floats
    gradient: bool = True


@dataclass(frozen=True)
class Pair:
    """An operator, and the function of MLX that computes the same."""

    name: str  # with its module
    ours: Function
    theirs: Function
    compared: str  # what theirs is
    arguments: tuple[Argument, ...]
    small: Mapping[str, int]
    typical: Mapping[str, int]
    compiled: bool = True  # False: a loop over time, which takes seconds to compile
    # Makes the arguments of both from the random ones; those with gradients keep their places.
    prepare: Callable[..., Sequence[mx.array]] | None = None


@dataclass(frozen=True)
class Row:
    """A measurement; numbers are None where the note says why."""

    operator: str
    size: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    what: str  # one of PASSES
    compared: str
    compiled: bool
    repetitions: int = 0
    ours_ms: float | None = None
    mlx_ms: float | None = None
    ratio: float | None = None  # MLX's time divided by ours
    ours_peak_bytes: int | None = None  # above the arguments
    mlx_peak_bytes: int | None = None
    mlx_kernels: tuple[str, ...] = ()  # of mx.fast; the rest of MLX's side are its operations
    note: str = ""


def over_time(step: Callable[..., tuple[Any, Any]], state: Any, *arrays: mx.array) -> mx.array:
    """Loop over the second axis: ``step(state, *arrays)`` returns the next state and a result."""
    results = []
    for t in range(arrays[0].shape[1]):
        state, y = step(state, *(a[:, t] for a in arrays))
        results.append(y)
    return mx.stack(results, axis=1)


def _linear_recurrence(a: mx.array, b: mx.array) -> mx.array:
    def step(h: mx.array, a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
        h = a * h + b
        return h, h

    return over_time(step, mx.zeros((a.shape[0], a.shape[2]), a.dtype), a, b)


def _gated_delta(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array) -> mx.array:
    groups = v.shape[2] // k.shape[2]
    q, k = (mx.repeat(x, groups, axis=2) for x in (q, k))

    def step(
        s: mx.array, q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array
    ) -> tuple[mx.array, mx.array]:
        s = s * g[..., None, None]
        error = beta[..., None] * (v - (s @ k[..., None])[..., 0])
        s = s + error[..., None] * k[..., None, :]
        return s, (s @ q[..., None])[..., 0]

    state = mx.zeros((v.shape[0], v.shape[2], v.shape[3], k.shape[3]), v.dtype)
    return over_time(step, state, q, k, v, g, beta)


def _wkv7(*arrays: mx.array) -> mx.array:
    def step(s: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array]:
        r, w, k, v, a, b = (x[..., None, :] for x in arrays)
        s = s * w + (s @ a.swapaxes(-1, -2)) * b + v.swapaxes(-1, -2) * k
        return s, (s @ r.swapaxes(-1, -2))[..., 0]

    batch, _, heads, size = arrays[0].shape
    return over_time(step, mx.zeros((batch, heads, size, size), arrays[0].dtype), *arrays)


def _gated_linear_attention(q: mx.array, k: mx.array, v: mx.array, g: mx.array) -> mx.array:
    def step(
        s: mx.array, q: mx.array, k: mx.array, v: mx.array, w: mx.array
    ) -> tuple[mx.array, mx.array]:
        s = s * w[..., None, :] + v[..., None] * k[..., None, :]
        return s, (s @ q[..., None])[..., 0]

    state = mx.zeros((v.shape[0], v.shape[2], v.shape[3], k.shape[3]), v.dtype)
    return over_time(step, state, q, k, v, mx.exp(g))


def _wkv6(r: mx.array, w: mx.array, k: mx.array, v: mx.array, u: mx.array) -> mx.array:
    def step(
        s: mx.array, r: mx.array, w: mx.array, k: mx.array, v: mx.array
    ) -> tuple[mx.array, mx.array]:
        own = v[..., None] * k[..., None, :]
        y = ((s + own * u[:, None]) @ r[..., None])[..., 0]
        return s * w[..., None, :] + own, y

    batch, _, heads, size = r.shape
    return over_time(step, mx.zeros((batch, heads, size, size), r.dtype), r, w, k, v)


def _rg_lru(
    x: mx.array, input_gate: mx.array, recurrence_gate: mx.array, param: mx.array
) -> mx.array:
    a = mx.exp(-8 * recurrence_gate * softplus(param))
    factor = mx.sqrt(1 - a * a)
    factor = mx.concatenate([mx.ones_like(factor[:, :1]), factor[:, 1:]], axis=1)
    return _linear_recurrence(a, x * input_gate * factor)


def _ssm_scan(
    x: mx.array, a_log: mx.array, b: mx.array, c: mx.array, d: mx.array, dt: mx.array
) -> mx.array:
    heads = x.shape[2]
    b, c = (mx.repeat(a, heads // a.shape[2], axis=2) for a in (b, c))
    a = -mx.exp(a_log)

    def step(
        s: mx.array, x: mx.array, b: mx.array, c: mx.array, dt: mx.array
    ) -> tuple[mx.array, mx.array]:
        s = mx.exp(a * dt)[..., None, None] * s + (dt[..., None] * x)[..., None] * b[..., None, :]
        return s, (s @ c[..., None])[..., 0] + d[:, None] * x

    state = mx.zeros((x.shape[0], heads, x.shape[3], b.shape[3]), x.dtype)
    return over_time(step, state, x, b, c, dt)


def _selective_scan(
    u: mx.array, delta: mx.array, a: mx.array, b: mx.array, c: mx.array
) -> mx.array:
    def step(
        s: mx.array, u: mx.array, delta: mx.array, b: mx.array, c: mx.array
    ) -> tuple[mx.array, mx.array]:
        s = mx.exp(delta[..., None] * a) * s + (delta * u)[..., None] * b[:, None]
        return s, (s @ c[..., None])[..., 0]

    return over_time(step, mx.zeros((u.shape[0], *a.shape), u.dtype), u, delta, b, c)


def _lstm(x: mx.array, weight: mx.array) -> mx.array:
    def step(state: tuple[mx.array, mx.array], x: mx.array) -> tuple[Any, mx.array]:
        i, f, g, o = mx.split(x + state[0] @ weight.T, 4, axis=-1)
        c = mx.sigmoid(f) * state[1] + mx.sigmoid(i) * mx.tanh(g)
        h = mx.sigmoid(o) * mx.tanh(c)
        return (h, c), h

    zeros = mx.zeros((x.shape[0], weight.shape[1]), x.dtype)
    return over_time(step, (zeros, zeros), x)


def _gru(x: mx.array, weight: mx.array) -> mx.array:
    units = weight.shape[1]

    def step(h: mx.array, x: mx.array) -> tuple[mx.array, mx.array]:
        p = h @ weight.T
        r, z = mx.split(mx.sigmoid(x[:, : 2 * units] + p[:, : 2 * units]), 2, axis=-1)
        n = mx.tanh(x[:, 2 * units :] + r * p[:, 2 * units :])
        h = (1 - z) * n + z * h
        return h, h

    return over_time(step, mx.zeros((x.shape[0], units), x.dtype), x)


def _log_softmax(x: mx.array) -> mx.array:
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def _divergence(p: mx.array, q: mx.array) -> mx.array:
    """Return the divergence of distributions from their logarithms."""
    return mx.sum(mx.exp(p) * (p - q), axis=-1)


def _kl_div_loss(x: mx.array, y: mx.array) -> mx.array:
    return mx.mean(_divergence(_log_softmax(y), _log_softmax(x)))


def _js_div_loss(x: mx.array, y: mx.array) -> mx.array:
    q, p = _log_softmax(x), _log_softmax(y)
    m = mx.logaddexp(p, q) - math.log(2)
    return mx.mean(_divergence(p, m) + _divergence(q, m)) / 2


def _of_quantized_layers(loss: Function, *layers: mx.array) -> Any:
    return loss(mx.quantized_matmul(*layers[:4]), mx.quantized_matmul(*layers[4:]))


def _losses(logits: mx.array, targets: mx.array) -> mx.array:
    return mlx.nn.losses.cross_entropy(logits, targets)


def _attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    scale = q.shape[-1] ** -0.5
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")


def _rope(x: mx.array) -> mx.array:
    size = x.shape[-1]
    return mx.fast.rope(x, size, traditional=False, base=10000.0, scale=1.0, offset=0)


def _qk_norm_rope(
    q: mx.array, k: mx.array, q_weight: mx.array, k_weight: mx.array
) -> tuple[mx.array, ...]:
    pairs = ((q, q_weight), (k, k_weight))
    return tuple(
        _rope(mx.fast.rms_norm(x, w, 1e-6).swapaxes(1, 2)).swapaxes(1, 2) for x, w in pairs
    )


def _norm_add_norm(
    x: mx.array, residual: mx.array, w1: mx.array, w2: mx.array
) -> tuple[mx.array, mx.array]:
    h = residual + mx.fast.rms_norm(x, w1, 1e-6)
    return mx.fast.rms_norm(h, w2, 1e-6), h


def _layer_norm_residual(
    x: mx.array, residual: mx.array, weight: mx.array, bias: mx.array
) -> tuple[mx.array, mx.array]:
    h = x + residual
    return mx.fast.layer_norm(h, weight, bias, 1e-5), h


def _causal_conv1d(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    channels, taps = weight.shape
    padded = mx.pad(x, [(0, 0), (taps - 1, 0), (0, 0)])
    y = mx.conv1d(padded, weight[..., None], groups=channels) + bias
    return y * mx.sigmoid(y)


def _expert_routing(logits: mx.array) -> mx.array:
    scores = mx.softmax(logits, axis=-1)
    chosen = mx.stop_gradient(mx.argpartition(-scores, 7, axis=-1)[..., :8])
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    order = mx.stop_gradient(mx.argsort(-weights, axis=-1))
    weights = mx.take_along_axis(weights, order, axis=-1)
    return weights / mx.sum(weights, axis=-1, keepdims=True)


def _attention_with_lse(q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
    scores = q.shape[-1] ** -0.5 * (q @ k.swapaxes(-1, -2)).astype(mx.float32)
    return [mx.softmax(scores, axis=-1).astype(v.dtype) @ v, mx.logsumexp(scores, axis=-1)]


def _swiglu_experts(product: Callable[[mx.array, int], mx.array], x: mx.array) -> mx.array:
    """Return the results of experts, given the product of rows with one of three matrices."""
    x = x[:, None, None]
    gate = product(x, 0)
    return product(gate * mx.sigmoid(gate) * product(x, 1), 2)[:, :, 0]


def _expert_mlp(x: mx.array, weights: mx.array, indices: mx.array, *matrices: mx.array) -> mx.array:
    def product(x: mx.array, i: int) -> mx.array:
        return mx.gather_mm(x, matrices[i].swapaxes(1, 2), rhs_indices=indices)

    return mx.sum(_swiglu_experts(product, x) * weights[..., None], axis=1)


def _quantized_expert_mlp(
    x: mx.array, weights: mx.array, indices: mx.array, *matrices: mx.array
) -> mx.array:
    def product(x: mx.array, i: int) -> mx.array:
        return mx.gather_qmm(x, *matrices[3 * i : 3 * i + 3], rhs_indices=indices)

    return mx.sum(_swiglu_experts(product, x) * weights[..., None], axis=1)


def _quantized(*places: int) -> Callable[..., Sequence[mx.array]]:
    """Return a function that quantizes the arguments at these places."""

    def prepare(*arrays: mx.array) -> list[mx.array]:
        parts = (mx.quantize(a) if i in places else [a] for i, a in enumerate(arrays))
        return [array for part in parts for array in part]

    return prepare


def _segments(a: mx.array, b: mx.array) -> list[mx.array]:
    """Return the arguments, and eight segments of the inner axis."""
    ends = [b.shape[0] * i // 8 for i in range(9)]
    return [a, b, mx.array([*itertools.pairwise(ends)], mx.uint32)]


def _segmented_matmul(a: mx.array, b: mx.array, segments: mx.array) -> mx.array:
    k = b.shape[0] // 8
    return a.reshape(a.shape[0], 8, k).swapaxes(0, 1) @ b.reshape(8, k, b.shape[1])


def _shifted(x: mx.array) -> tuple[mx.array, list[mx.array]]:
    """Return x + 6, where asymptotic series converge, and the six numbers below."""
    return x + 6, [x + i for i in range(6)]


def _lgamma(x: mx.array) -> mx.array:
    y, below = _shifted(x)
    product = math.prod(below[1:], start=below[0])
    series = (1 / 12 - (1 / 360 - 1 / 1260 / (y * y)) / (y * y)) / y
    return (y - 0.5) * mx.log(y) - y + 0.5 * math.log(2 * math.pi) + series - mx.log(product)


def _digamma(x: mx.array) -> mx.array:
    y, below = _shifted(x)
    s = 1 / (y * y)
    series = s * (1 / 12 - s * (1 / 120 - s / 252))
    return mx.log(y) - 0.5 / y - series - sum(1 / b for b in below)


def _xlogy(x: mx.array, y: mx.array) -> mx.array:
    return mx.where(x == 0, mx.zeros_like(x), x * mx.log(y))


def _kl_div(x: mx.array, y: mx.array) -> mx.array:
    return _xlogy(x, x / y) - x + y


def _huber(delta: mx.array, r: mx.array) -> mx.array:
    size = mx.abs(r)
    return mx.where(size <= delta, 0.5 * r * r, delta * (size - 0.5 * delta))


_DELTA = "fast.gated_delta_update"
_HAS_DELTA = hasattr(mx.fast, "gated_delta_update")  # both are new in MLX 0.32.4
_HAS_CROSS_ENTROPY = hasattr(mx.fast, "cross_entropy")
_WORDS = Argument("N", integers="V", gradient=False)
_LOGITS = Argument("N V", -4, 4)
_ROWS = Argument("N D")
_DISTILLED = (
    _ROWS,
    Argument("V D", -0.1, 0.1),
    Argument("N D", gradient=False),
    Argument("V D", -0.1, 0.1, gradient=False),
)
_QUANTIZED_DISTILLED = (_ROWS, replace(_DISTILLED[1], gradient=False), *_DISTILLED[2:])
_SCALE = Argument("D", 0.5, 1.5)
_HEADS = "B T H D"
_SHARE = Argument("B T H", 0.8, 0.99)
_KEYS = Argument(_HEADS, -0.1, 0.1)
_LAYER = ({"N": 32, "D": 64}, {"N": 4096, "D": 2048})
_EXPERTS = (
    {"N": 32, "D": 64, "H": 64, "E": 4, "k": 2},
    {"N": 1024, "D": 512, "H": 1024, "E": 16, "k": 4},
)
_TOKENS = (Argument("N D"), Argument("N k"), Argument("N k", integers="E", gradient=False))
_MATRICES = (
    Argument("E H D", -0.1, 0.1),
    Argument("E H D", -0.1, 0.1),
    Argument("E D H", -0.1, 0.1),
)
_LOSS = ({"N": 32, "V": 500, "D": 64}, {"N": 1024, "V": 32_000, "D": 512})
_STEPS = ({"B": 1, "T": 16, "H": 4, "D": 32}, {"B": 1, "T": 256, "H": 16, "D": 64})
_CHANNELS = ({"B": 1, "T": 16, "D": 64}, {"B": 1, "T": 256, "D": 2048})
_UNITS = (
    {"B": 2, "T": 16, "U": 16, "3U": 48, "4U": 64},
    {"B": 8, "T": 256, "U": 256, "3U": 768, "4U": 1024},
)

_TRAINING = (
    Pair(
        "nn.attention",
        lambda q, k, v: nn.attention(q, k, v, scale=q.shape[-1] ** -0.5, causal=True),
        _attention,
        "mx.fast.scaled_dot_product_attention, causal",
        (Argument("B H T D"),) * 3,
        {"B": 1, "H": 4, "T": 64, "D": 64},
        {"B": 1, "H": 16, "T": 1024, "D": 128},
    ),
    Pair(
        "nn.attention_with_lse",
        lambda q, k, v: nn.attention_with_lse(q, k, v, scale=q.shape[-1] ** -0.5),
        _attention_with_lse,
        "mx.softmax and mx.logsumexp of the scores",
        (Argument("B H T D"),) * 3,
        {"B": 1, "H": 4, "T": 64, "D": 64},
        {"B": 1, "H": 16, "T": 1024, "D": 128},
    ),
    Pair(
        "nn.causal_conv1d",
        lambda *x: nn.causal_conv1d(*x, activation="silu")[0],
        _causal_conv1d,
        "mx.conv1d with a group per channel, and x * mx.sigmoid(x)",
        (Argument("B T D"), Argument("D 4"), Argument("D")),
        *_CHANNELS,
    ),
    Pair(
        "nn.cross_entropy",
        nn.cross_entropy,
        (lambda x, y: mx.mean(mx.fast.cross_entropy(x, y)))
        if _HAS_CROSS_ENTROPY
        else (lambda x, y: mx.mean(_losses(x, y))),
        f"mx.mean of {'mx.fast' if _HAS_CROSS_ENTROPY else 'mlx.nn.losses'}.cross_entropy",
        (_LOGITS, _WORDS),
        *_LOSS,
    ),
    Pair(
        "nn.embedding_bag",
        nn.embedding_bag,
        lambda weight, indices: mx.mean(weight[indices], axis=1),
        "mx.mean(weight[indices], axis=1)",
        (Argument("V D"), Argument("N 16", integers="V", gradient=False)),
        *_LOSS,
    ),
    Pair(
        "nn.expert_matmul",
        nn.expert_matmul,
        lambda x, weight, indices: mx.gather_mm(
            x[:, None], weight.swapaxes(1, 2), rhs_indices=indices
        )[:, 0],
        "mx.gather_mm",
        (
            Argument("N D"),
            Argument("E H D", -0.1, 0.1),
            Argument("N", integers="E", gradient=False),
        ),
        *_EXPERTS,
    ),
    Pair(
        "nn.expert_mlp",
        lambda x, weights, indices, *matrices: nn.expert_mlp(x, indices, *matrices, weights),
        _expert_mlp,
        "mx.gather_mm, x * mx.sigmoid(x), and the sum of products with the weights",
        (*_TOKENS, *_MATRICES),
        *_EXPERTS,
    ),
    Pair(
        "nn.expert_routing",
        lambda x: nn.expert_routing(x, 8)[0],
        _expert_routing,
        "mx.softmax, mx.argpartition, mx.take_along_axis, mx.argsort and the division by the sum",
        (Argument("N E", -4, 4),),
        {"N": 32, "E": 16},
        {"N": 4096, "E": 128},
    ),
    Pair(
        "nn.gated_delta",
        lambda *x: nn.gated_delta(*x)[0],
        (lambda *x: mx.fast.gated_delta_update(*x)[0]) if _HAS_DELTA else _gated_delta,
        f"mx.{_DELTA}" if _HAS_DELTA else "loop of MLX operations over time",
        (
            Argument("B T K D", -0.1, 0.1),
            Argument("B T K D", -0.1, 0.1),
            Argument(_HEADS),
            _SHARE,
            _SHARE,
        ),
        {"B": 1, "T": 16, "K": 2, "H": 4, "D": 32},
        {"B": 1, "T": 256, "K": 16, "H": 32, "D": 128},  # MLX's kernel has these sizes
        compiled=False,
    ),
    Pair(
        "nn.gated_linear_attention",
        lambda *x: nn.gated_linear_attention(*x)[0],
        _gated_linear_attention,
        "loop of MLX operations over time",
        (Argument(_HEADS), _KEYS, Argument(_HEADS), Argument(_HEADS, -0.1, -0.01)),
        *_STEPS,
        compiled=False,
    ),
    Pair(
        "nn.geglu",
        nn.geglu,
        lambda x, gate: x * gelu(gate),
        "x * mlx.nn.gelu(gate)",
        (_ROWS, Argument("N D", -4, 4)),
        *_LAYER,
    ),
    Pair(
        "nn.gru",
        nn.gru,
        _gru,
        "loop over time of mlx.nn.GRU, after the product with Wx",
        (Argument("B T 3U"), Argument("3U U", -0.1, 0.1)),
        *_UNITS,
        compiled=False,
    ),
    Pair(
        "nn.js_div_loss",
        nn.js_div_loss,
        _js_div_loss,
        "mx.logsumexp and elementwise operations",
        (_LOGITS, _LOGITS),
        *_LOSS,
    ),
    Pair(
        "nn.kl_div_loss",
        nn.kl_div_loss,
        _kl_div_loss,
        "mx.logsumexp and elementwise operations",
        (_LOGITS, _LOGITS),
        *_LOSS,
    ),
    Pair(
        "nn.layer_norm_residual",
        nn.layer_norm_residual,
        _layer_norm_residual,
        "sum, and mx.fast.layer_norm",
        (_ROWS, _ROWS, _SCALE, Argument("D")),
        *_LAYER,
    ),
    Pair(
        "nn.linear",
        nn.linear,
        lambda x, weight, bias: mx.addmm(bias, x, weight.T),
        "mx.addmm",
        (_ROWS, Argument("H D", -0.1, 0.1), Argument("H")),
        {"N": 32, "D": 64, "H": 64},
        {"N": 256, "D": 512, "H": 512},
    ),
    Pair(
        "nn.linear_cross_entropy",
        nn.linear_cross_entropy,
        lambda x, weight, y: mx.mean(_losses(x @ weight.T, y)),
        "mean of mlx.nn.losses.cross_entropy(x @ weight.T)",
        (_ROWS, Argument("V D", -0.1, 0.1), _WORDS),
        *_LOSS,
    ),
    Pair(
        "nn.linear_js_div_loss",
        nn.linear_js_div_loss,
        lambda x, weight, y, target_weight: _js_div_loss(x @ weight.T, y @ target_weight.T),
        "mx.logsumexp and elementwise operations of x @ weight.T",
        _DISTILLED,
        *_LOSS,
    ),
    Pair(
        "nn.linear_kl_div_loss",
        nn.linear_kl_div_loss,
        lambda x, weight, y, target_weight: _kl_div_loss(x @ weight.T, y @ target_weight.T),
        "mx.logsumexp and elementwise operations of x @ weight.T",
        _DISTILLED,
        *_LOSS,
    ),
    Pair(
        "nn.linear_recurrence",
        nn.linear_recurrence,
        _linear_recurrence,
        "loop of MLX operations over time",
        (Argument("B T D", 0.9, 0.999), Argument("B T D")),
        *_CHANNELS,
        compiled=False,
    ),
    Pair(
        "nn.lstm",
        lambda x, weight: nn.lstm(x, weight)[0],
        _lstm,
        "loop over time of mlx.nn.LSTM, after the product with Wx",
        (Argument("B T 4U"), Argument("4U U", -0.1, 0.1)),
        *_UNITS,
        compiled=False,
    ),
    Pair(
        "nn.norm_add_norm",
        nn.norm_add_norm,
        _norm_add_norm,
        "mx.fast.rms_norm, sum, and mx.fast.rms_norm",
        (_ROWS, _ROWS, _SCALE, _SCALE),
        *_LAYER,
    ),
    Pair(
        "nn.quantized_expert_matmul",
        lambda x, weight, scales, biases, indices: nn.quantized_expert_matmul(
            x, weight, scales, indices, biases
        ),
        lambda x, weight, scales, biases, indices: mx.gather_qmm(
            x[:, None], weight, scales, biases, rhs_indices=indices
        )[:, 0],
        "mx.gather_qmm of 4 bits",
        (
            Argument("N D"),
            Argument("E H D", -0.1, 0.1, gradient=False),
            Argument("N", integers="E", gradient=False),
        ),
        *_EXPERTS,
        prepare=_quantized(1),
    ),
    Pair(
        "nn.quantized_expert_mlp",
        lambda x, weights, indices, *m: nn.quantized_expert_mlp(
            *(x, indices, m[0], m[1], m[3], m[4], m[6], m[7], weights),
            gate_biases=m[2],
            up_biases=m[5],
            down_biases=m[8],
        ),
        _quantized_expert_mlp,
        "mx.gather_qmm of 4 bits, x * mx.sigmoid(x), and the sum of products with the weights",
        (*_TOKENS, *(replace(matrix, gradient=False) for matrix in _MATRICES)),
        *_EXPERTS,
        prepare=_quantized(3, 4, 5),
    ),
    Pair(
        "nn.quantized_linear_cross_entropy",
        nn.quantized_linear_cross_entropy,
        lambda x, weight, scales, biases, y: mx.mean(
            _losses(mx.quantized_matmul(x, weight, scales, biases), y)
        ),
        "mean of mlx.nn.losses.cross_entropy of mx.quantized_matmul of 4 bits",
        (_ROWS, Argument("V D", -0.1, 0.1, gradient=False), _WORDS),
        *_LOSS,
        prepare=_quantized(1),
    ),
    Pair(
        "nn.quantized_linear_js_div_loss",
        nn.quantized_linear_js_div_loss,
        partial(_of_quantized_layers, _js_div_loss),
        "mx.logsumexp and elementwise operations of mx.quantized_matmul of 4 bits",
        _QUANTIZED_DISTILLED,
        *_LOSS,
        prepare=_quantized(1, 3),
    ),
    Pair(
        "nn.quantized_linear_kl_div_loss",
        nn.quantized_linear_kl_div_loss,
        partial(_of_quantized_layers, _kl_div_loss),
        "mx.logsumexp and elementwise operations of mx.quantized_matmul of 4 bits",
        _QUANTIZED_DISTILLED,
        *_LOSS,
        prepare=_quantized(1, 3),
    ),
    Pair(
        "nn.qk_norm_rope",
        nn.qk_norm_rope,
        _qk_norm_rope,
        "mx.fast.rms_norm and mx.fast.rope of both, with axes swapped",
        (Argument(_HEADS), Argument("B T K D"), _SCALE, _SCALE),
        {"B": 1, "T": 16, "H": 4, "K": 2, "D": 32},
        {"B": 1, "T": 2048, "H": 16, "K": 4, "D": 128},
    ),
    Pair(
        "nn.rg_lru",
        lambda *x: nn.rg_lru(*x)[0],
        _rg_lru,
        "loop of MLX operations over time",
        (
            Argument("B T D"),
            Argument("B T D", 0.1, 0.9),
            Argument("B T D", 0.1, 0.9),
            Argument("D", -4, -1),
        ),
        *_CHANNELS,
        compiled=False,
    ),
    Pair(
        "nn.rms_norm_gate",
        nn.rms_norm_gate,
        lambda x, gate, w: mx.fast.rms_norm(x, w, 1e-5) * (gate * mx.sigmoid(gate)),
        "mx.fast.rms_norm, and the product with gate * mx.sigmoid(gate)",
        (_ROWS, _ROWS, _SCALE),
        *_LAYER,
    ),
    Pair(
        "nn.rope",
        nn.rope,
        _rope,
        "mx.fast.rope",
        (Argument("B H T D"),),
        {"B": 1, "H": 4, "T": 16, "D": 32},
        {"B": 1, "H": 16, "T": 2048, "D": 128},
    ),
    Pair(
        "nn.segmented_matmul",
        nn.segmented_matmul,
        _segmented_matmul,
        "a batch of eight products: mx.segmented_mm has no gradient",
        (Argument("M T"), Argument("T D")),
        {"M": 64, "T": 128, "D": 64},
        {"M": 1024, "T": 8192, "D": 1024},
        prepare=_segments,
    ),
    Pair(
        "nn.selective_scan",
        lambda *x: nn.selective_scan(*x)[0],
        _selective_scan,
        "loop of MLX operations over time",
        (
            Argument("B T D"),
            Argument("B T D", 0.1, 0.9),
            Argument("D 16", -2, -0.5),
            Argument("B T 16"),
            Argument("B T 16"),
        ),
        *_CHANNELS,
        compiled=False,
    ),
    Pair(
        "nn.ssm_scan",
        lambda *x: nn.ssm_scan(*x)[0],
        _ssm_scan,
        "loop of MLX operations over time",
        (
            Argument(_HEADS),
            Argument("H"),
            Argument("B T 2 D"),
            Argument("B T 2 D"),
            Argument("H"),
            Argument("B T H", 0.1, 0.9),
        ),
        *_STEPS,
        compiled=False,
    ),
    Pair(
        "nn.wkv6",
        lambda *x: nn.wkv6(*x)[0],
        _wkv6,
        "loop of MLX operations over time",
        (
            Argument(_HEADS),
            Argument(_HEADS, 0.9, 0.99),
            _KEYS,
            Argument(_HEADS),
            Argument("H D"),
        ),
        *_STEPS,
        compiled=False,
    ),
    Pair(
        "nn.wkv7",
        lambda *x: nn.wkv7(*x)[0],
        _wkv7,
        "loop of MLX operations over time",
        (Argument(_HEADS), Argument(_HEADS, 0.9, 0.99), *(_KEYS,) * 4),
        *_STEPS,
        compiled=False,
    ),
)


def _special(name: str, theirs: Function, compared: str, *ranges: tuple[float, float]) -> Pair:
    arguments = tuple(Argument("N", *limits) for limits in ranges)
    ours = getattr(special, name)
    return Pair(f"special.{name}", ours, theirs, compared, arguments, {"N": 1000}, {"N": 2**22})


_ROOT = 2**-0.5
_SPECIAL = (
    # Functions that MLX has.
    _special("erf", mx.erf, "mx.erf", (-4, 4)),
    _special("erfinv", mx.erfinv, "mx.erfinv", (-0.99, 0.99)),
    _special("expit", mx.sigmoid, "mx.sigmoid", (-8, 8)),
    _special("expm1", mx.expm1, "mx.expm1", (-4, 4)),
    _special("log1p", mx.log1p, "mx.log1p", (-0.9, 9)),
    _special("log_expit", log_sigmoid, "mlx.nn.log_sigmoid", (-8, 8)),
    _special("softplus", softplus, "mlx.nn.softplus", (-8, 8)),
    # Others, with arguments for which the shortest composition is accurate.
    _special("boxcox", lambda x, p: (x**p - 1) / p, "(x**p - 1) / p", (0.5, 4), (0.5, 2)),
    _special("cosm1", lambda x: -2 * mx.sin(x / 2) ** 2, "-2 * mx.sin(x / 2)**2", (-3, 3)),
    _special("digamma", _digamma, "asymptotic series at x + 6, for positive x", (0.5, 20)),
    _special("entr", lambda x: -x * mx.log(x), "-x * mx.log(x)", (0.1, 4)),
    _special("erfc", lambda x: 1 - mx.erf(x), "1 - mx.erf(x)", (-4, 1)),
    _special("exprel", lambda x: mx.expm1(x) / x, "mx.expm1(x) / x", (0.1, 4)),
    _special("huber", _huber, "mx.where of both cases", (0.5, 1), (-2, 2)),
    _special(
        "hypot", lambda x, y: mx.sqrt(x * x + y * y), "mx.sqrt(x * x + y * y)", (0.5, 4), (0.5, 4)
    ),
    _special("kl_div", _kl_div, "mx.where, mx.log", (0.1, 1), (1.5, 4)),
    _special("lgamma", _lgamma, "asymptotic series at x + 6, for positive x", (3, 20)),
    _special("log1mexp", lambda x: mx.log(-mx.expm1(x)), "mx.log(-mx.expm1(x))", (-4, -0.1)),
    _special(
        "log_ndtr",
        lambda x: mx.log(0.5 * (1 + mx.erf(_ROOT * x))),
        "mx.log(0.5 * (1 + mx.erf(x / sqrt(2))))",
        (-1, 1),
    ),
    _special(
        "logaddexp2",
        lambda x, y: mx.logaddexp(math.log(2) * x, math.log(2) * y) / math.log(2),
        "mx.logaddexp(log(2) * x, log(2) * y) / log(2)",
        (-4, 4),
        (-4, 4),
    ),
    _special("logit", lambda p: mx.log(p / (1 - p)), "mx.log(p / (1 - p))", (0.01, 0.99)),
    _special(
        "ndtr", lambda x: 0.5 * (1 + mx.erf(_ROOT * x)), "0.5 * (1 + mx.erf(x / sqrt(2)))", (-2, 4)
    ),
    _special(
        "ndtri",
        lambda p: mx.erfinv(2 * p - 1) / _ROOT,
        "sqrt(2) * mx.erfinv(2 * p - 1)",
        (0.01, 0.99),
    ),
    _special(
        "pseudo_huber",
        lambda d, r: d * d * (mx.sqrt(1 + (r / d) ** 2) - 1),
        "d * d * (mx.sqrt(1 + (r / d)**2) - 1)",
        (0.5, 1),
        (1, 2),
    ),
    _special("rel_entr", lambda x, y: _xlogy(x, x / y), "mx.where, mx.log", (0.1, 1), (1.5, 4)),
    _special(
        "sinc", lambda x: mx.sin(math.pi * x) / (math.pi * x), "mx.sin(pi * x) / (pi * x)", (0.1, 4)
    ),
    _special("xlog1py", lambda x, y: x * mx.log1p(y), "x * mx.log1p(y)", (-1, 1), (-0.5, 4)),
    _special("xlogy", _xlogy, "mx.where, mx.log", (-1, 1), (0.1, 4)),
)

PAIRS = _TRAINING + _SPECIAL
OPERATORS = ", ".join(pair.name for pair in PAIRS)


def sizes_of(pair: Pair, size: str) -> Mapping[str, int]:
    """Return the sizes on the default device."""
    if size == "small":
        return pair.small
    divisors = ON_CPU if mx.default_device() == mx.cpu else {}
    return {name: n // divisors.get(name, 1) for name, n in pair.typical.items()}


def draw(pair: Pair, sizes: Mapping[str, int], dtype: mx.Dtype) -> list[mx.array]:
    """Return the same random arguments in each call."""
    keys = mx.random.split(mx.random.key(0), len(pair.arguments))
    arrays = []
    for argument, key in zip(pair.arguments, keys, strict=True):
        shape = shape_of(argument, sizes)
        if argument.integers:
            arrays.append(mx.random.randint(0, sizes[argument.integers], shape, key=key))
        else:
            x = mx.random.uniform(argument.low, argument.high, shape, key=key)
            arrays.append(x.astype(dtype))
    if pair.prepare:
        arrays = list(pair.prepare(*arrays))
    mx.eval(arrays)
    return arrays


def shape_of(argument: Argument, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an argument."""
    words = argument.shape.split()
    return tuple(sizes[word] if word in sizes else int(word) for word in words)


def results(function: Function, inputs: Sequence[mx.array]) -> list[mx.array]:
    """Return the results of a function as a list."""
    result = function(*inputs)
    return list(result) if isinstance(result, list | tuple) else [result]


def call_of(
    pair: Pair, function: Function, what: str, inputs: Sequence[mx.array], compiled: bool
) -> Callable[[], list[mx.array]]:
    """Return a function without arguments: the results, and for "gradient" also the gradients."""

    def forward(*inputs: mx.array) -> list[mx.array]:
        return results(function, inputs)

    places = [i for i, argument in enumerate(pair.arguments) if argument.gradient]
    arrays, cotangents, count = list(inputs), [], len(inputs)
    if what == "gradient":
        key = mx.random.key(1)
        # Each side has the dtypes of its own results. Equal cotangents would be a special case:
        # a softmax, for example, has no gradient then.
        for y in forward(*inputs):
            cotangents.append(mx.random.uniform(0.5, 1.5, y.shape, key=key).astype(y.dtype))
        mx.eval(cotangents)

    def gradient(*arrays: mx.array) -> list[mx.array]:
        inputs = list(arrays[:count])

        def of(*chosen: mx.array) -> list[mx.array]:
            for i, x in zip(places, chosen, strict=True):
                inputs[i] = x
            return forward(*inputs)

        outputs, vjps = mx.vjp(of, [inputs[i] for i in places], list(arrays[count:]))
        return [*outputs, *vjps]

    called: Callable[..., list[mx.array]] = gradient if what == "gradient" else forward
    if compiled:
        called = mx.compile(called)
    return lambda: called(*arrays, *cotangents)


def peak(call: Callable[[], list[mx.array]]) -> int:
    """Return the bytes that a call allocates at most."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(call())
    return max(0, mx.get_peak_memory() - before)


def seconds_of(call: Callable[[], list[mx.array]]) -> float:
    """Return the time of a call and its evaluation."""
    begin = time.perf_counter()
    mx.eval(call())
    return time.perf_counter() - begin


def kernels_of(outputs: Sequence[mx.array]) -> tuple[str, ...]:
    """Return the names of the kernels of ``mx.fast`` in a graph."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *outputs)
    labels = re.findall(r'\[label ?="(\w+)"', graph.getvalue())
    return tuple(sorted({label for label in labels if KERNEL.fullmatch(label)}))


def measure(row: Row, pair: Pair, inputs: Sequence[mx.array], budget: float) -> Row:
    """Return the row with its numbers, or with a note. Repetitions take ``budget`` seconds."""
    calls: dict[str, Callable[[], list[mx.array]]] = {}
    peaks: dict[str, int] = {}
    notes: list[str] = []
    kernels: tuple[str, ...] = ()
    for side, function in (("mlxops", pair.ours), ("MLX", pair.theirs)):
        try:
            call = call_of(pair, function, row.what, inputs, row.compiled)
            if side == "MLX" and "mx.fast." in pair.compared:
                kernels = kernels_of(call())
            seconds_of(call)  # compiles
            peaks[side] = peak(call)
        except (RuntimeError, ValueError) as error:  # what MLX raises, also for lacking gradients
            missing = row.what == "gradient" and "implemented" in str(error).lower()
            text = "no gradient" if missing else f"{type(error).__name__}: {one_line(error)}"
            notes.append(f"{side}: {text}")
        else:
            calls[side] = call
    times: dict[str, list[float]] = {side: [] for side in calls}
    order = list(calls)
    repetitions = 0
    begin = time.perf_counter()  # after compilations, which may take far longer
    while order:
        for side in order:
            times[side].append(1e3 * seconds_of(calls[side]))
        order.reverse()  # because the second one profits from the memory of the first
        repetitions += 1
        if time.perf_counter() - begin >= budget or repetitions >= MOST:
            break
    medians = {side: statistics.median(found) for side, found in times.items()}
    ours, theirs = medians.get("mlxops"), medians.get("MLX")
    return replace(
        row,
        repetitions=repetitions,
        ours_ms=ours,
        mlx_ms=theirs,
        ratio=theirs / ours if ours and theirs else None,
        ours_peak_bytes=peaks.get("mlxops"),
        mlx_peak_bytes=peaks.get("MLX"),
        mlx_kernels=kernels,
        note="; ".join(notes),
    )


def one_line(error: Exception) -> str:
    """Return a short message without the user's folder."""
    lines = str(error).splitlines() or [""]
    return lines[0].replace(str(Path.home()), "~")[:120]


def planned(pairs: Sequence[Pair]) -> list[tuple[Pair, str, str, str]]:
    """Return the pair, size, dtype and pass of all rows, in rounds with one row of each pair.

    The first rows of a pair alternate between forward and gradient, and differ in their dtypes. The
    size and the first dtype change from pair to pair. The forward pass precedes its gradient, whose
    time it predicts.
    """
    rounds: list[list[tuple[Pair, str, str, str]]] = []
    for i, pair in enumerate(pairs):
        dtypes = DTYPES if pair.name.startswith("nn.") else DTYPES[:1]
        each = len(dtypes) * len(PASSES)  # rows of a size
        for r in range(each * len(SIZES)):
            if r == len(rounds):
                rounds.append([])
            size = SIZES[(i + r // each) % len(SIZES)]
            dtype = dtypes[(i // len(SIZES) + r // len(PASSES)) % len(dtypes)]
            rounds[r].append((pair, size, dtype, PASSES[r % len(PASSES)]))
    return list(itertools.chain.from_iterable(rounds))


def run(
    pairs: Sequence[Pair],
    seconds: float,
    compiled: bool,
    show: Callable[[Row], None],
    progress: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    """Measure pairs and return their rows.

    Each row gets an equal share of the remaining time. A row is left out, with a note, if an
    earlier row of the operator shows that even one repetition takes far more. Rows are not compiled
    while compilations would take so long that some operators had no row.
    """
    begin = clock()
    plan = planned(pairs)
    rows: list[Row] = []
    costs: dict[tuple[str, str, str], float] = {}  # seconds of a call of both sides
    overheads: list[float] = []  # seconds of compiled rows, without their repetitions
    missing = {pair.name for pair in pairs}  # operators without a row
    for i, (pair, size, dtype, what) in enumerate(plan):
        sizes = sizes_of(pair, size)
        shapes = tuple(shape_of(argument, sizes) for argument in pair.arguments)
        now = clock()
        left = seconds - (now - begin)
        overhead = statistics.fmean(overheads) if overheads else 0
        compiling = compiled and pair.compiled
        hurried = compiling and overhead * len(missing) > left
        compiling = compiling and not hurried
        row = Row(pair.name, size, shapes, dtype, what, pair.compared, compiling)
        share = left / (len(plan) - i)
        forward = costs.get((pair.name, size, "forward"), 0)
        likely = costs.get((pair.name, size, what), GRADIENT * forward)
        expected = 3 * likely  # a call that compiles, one for the memory, and one that is timed
        note = ""
        if expected >= left:
            note = TIME_IS_UP
        elif expected > max(seconds / 10, 4 * share):
            note = f"not measured: may take {expected:.0f} s; {REMEDY}"
        if note:
            row = replace(row, note=note)
        else:
            progress(
                f"{i + 1} of {len(plan)}, {left:.0f} s left: {pair.name} {size} {dtype} {what}"
            )
            inputs = draw(pair, sizes, getattr(mx, dtype))
            row = measure(row, pair, inputs, max(LEAST_BUDGET, share - overhead))
            call = ((row.ours_ms or 0) + (row.mlx_ms or 0)) / 1e3
            costs[pair.name, size, what] = call
            missing.discard(pair.name)
            if compiling:
                overheads.append(max(0, clock() - now - row.repetitions * call))
            if hurried:
                row = replace(row, note="; ".join(filter(None, (row.note, NOT_COMPILED))))
        rows.append(row)
        show(row)
    return rows


def summary(rows: Sequence[Row], seconds: float, pairs: Sequence[Pair]) -> list[str]:
    """Return the lines below the table: how many rows have numbers, and the remedy if few."""
    count = len(planned(pairs))
    found = [row for row in rows if row.repetitions]
    of_dtypes = [(sum(row.dtype == dtype for row in found), dtype) for dtype in DTYPES]
    operators = len({row.operator for row in found})
    lines = [
        f"{len(found)} of {count} rows have numbers ("
        + ", ".join(f"{dtype}: {n}" for n, dtype in of_dtypes)
        + f"), of {operators} of {len(pairs)} operators."
    ]
    if any(row.note == TIME_IS_UP for row in rows):
        needed = 10 * math.ceil(seconds * count / max(len(found), 1) / 10)
        lines.append(f"The time was too short for all: use --seconds {needed}, or --only.")
    return lines


def compiles() -> bool:
    """Tell whether ``mx.compile`` works: on the CPU it needs g++, and has no effect without it."""
    y = mx.compile(lambda x: mx.exp(x) * x + 1)(mx.ones(4))
    graph = io.StringIO()
    mx.export_to_dot(graph, y)
    try:
        mx.eval(y)
    except RuntimeError:  # of g++
        return False
    return "Compiled" in graph.getvalue()


def machine(compiled: bool) -> dict[str, Any]:
    """Describe the machine, without names of users and folders."""
    chip = mx.device_info(mx.cpu).get("device_name") or platform.processor()
    device: dict[str, Any] = {"kind": "gpu" if mx.default_device() == mx.gpu else "cpu"}
    if device["kind"] == "gpu":
        device["name"] = mx.device_info().get("device_name", "")
        device["architecture"] = mx.device_info().get("architecture", "")
    return {
        "chip": str(chip or platform.machine()),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),  # of the last minute
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": platform.platform(),
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlxops": mlxops.__version__,
        "device": device,
        "compile": compiled,
    }


def line(cells: Sequence[str]) -> str:
    """Return a line of the table: text at the left, numbers at the right."""
    padded = [
        cell.ljust(width) if i < 4 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, COLUMNS, strict=True))
    ]
    return " ".join(padded)


def heading(about: Mapping[str, Any]) -> str:
    """Return the lines above the table, from the description of the machine."""
    device = about["device"]
    lines = [
        f"{about['chip']}, {about['memory_bytes'] / 2**30:.0f} GiB, {about['os']}",
        f"MLX {about['mlx']}, mlxops {about['mlxops']}, {device.get('name') or device['kind']}",
        "Times are medians. ratio: MLX's time / ours; MB: peak memory above the arguments.",
    ]
    if about["load"] > BUSY * about["cores"]:
        lines.append(
            f"Warning: the machine is busy (load {about['load']:.1f}, {about['cores']} cores). "
            "Other programs lengthen the times: end them and run this again."
        )
    if not about["compile"]:
        lines.append(
            "Nothing is compiled: mx.compile has no effect here (on the CPU it needs g++)."
        )
    names = ("operator", "size", "dtype", "pass", "ours ms", "MLX ms", "ratio", "ours MB", "MLX MB")
    return "\n".join([*lines, "", line(names)])


def formatted(row: Row) -> str:
    """Return the line of a row, MLX's kernels, and its note."""

    def number(value: float | None, factor: float = 1) -> str:
        return "-" if value is None else f"{value * factor:.4g}"

    cells = (
        *(row.operator, row.size, row.dtype, row.what),
        *map(number, (row.ours_ms, row.mlx_ms, row.ratio)),
        *(number(bytes, 1e-6) for bytes in (row.ours_peak_bytes, row.mlx_peak_bytes)),
    )
    kernels = f"MLX's {', '.join(row.mlx_kernels)}" if row.mlx_kernels else ""
    return "  ".join(filter(None, (line(cells), kernels, row.note)))


def chosen(names: str) -> list[Pair]:
    """Return the pairs of names like "gated_delta,special.erf"; raise ``ValueError``."""
    short = {pair.name.split(".")[1]: pair for pair in PAIRS}
    known = {pair.name: pair for pair in PAIRS} | short
    pairs = []
    for name in (name.strip() for name in names.split(",")):
        if name not in known:
            near = difflib.get_close_matches(name.split(".")[-1].lower(), short)
            hint = " or ".join(short[other].name for other in near)
            raise ValueError(
                f"unknown operator '{name}': "
                + (f"did you mean {hint}?" if hint else f"choose from {OPERATORS}")
            )
        if known[name] not in pairs:
            pairs.append(known[name])
    return pairs


def positive(text: str) -> float:
    """Return a number of seconds; raise argparse's error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, found '{text}'")
    return value


def obstacle(file: Path) -> str:
    """Return why a file cannot be written, or nothing."""
    if file.is_dir():
        return "it is a folder"
    if not file.parent.is_dir():
        return f"there is no folder '{file.parent}'"
    existing = file if file.exists() else file.parent
    return "" if os.access(existing, os.W_OK) else "permission denied"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m mlxops.bench",
        description="Compare operators of mlxops with MLX's on this machine.",
        epilog=f"Operators: {OPERATORS}",
    )
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, help="the time of the whole run (%(default)s)"
    )
    parser.add_argument("--only", metavar="NAMES", help="only these operators: gru,special.erf")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the numbers to FILE")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="the device (MLX's default)")
    options = parser.parse_args(arguments)
    try:
        pairs = chosen(options.only) if options.only is not None else list(PAIRS)
    except ValueError as error:
        parser.error(f"--only: {error}")
    file: Path | None = options.json
    if file and (reason := obstacle(file)):
        parser.error(f"--json: cannot write '{file}': {reason}")
    before = mx.default_device()
    if options.device:
        device = mx.gpu if options.device == "gpu" else mx.cpu
        if not mx.is_available(device):
            parser.error(f"--device: this MLX has no {options.device}")
        mx.set_default_device(device)
    try:
        return report(pairs, options.seconds, file)
    finally:
        mx.set_default_device(before)


def progress(text: str) -> None:
    """Replace the last line of a terminal, on stderr so that it is not in the table."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def report(pairs: Sequence[Pair], seconds: float, file: Path | None) -> int:
    """Measure, print the table, write the file, and return the exit status."""
    compiled = compiles()
    about = machine(compiled)
    rows: list[Row] = []

    def show(row: Row) -> None:
        rows.append(row)
        if row.note != TIME_IS_UP:
            progress("")
            print(formatted(row), flush=True)

    stopped = False
    try:
        print(heading(about))
        try:
            run(pairs, seconds, compiled, show, progress)
        except KeyboardInterrupt:
            stopped = True
        progress("")
        print("", *summary(rows, seconds, pairs), sep="\n", flush=True)
    except BrokenPipeError:  # the table's reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stopped = True
    if file:
        named = [{("pass" if k == "what" else k): v for k, v in asdict(r).items()} for r in rows]
        data = {"format": 1, "machine": about, "seconds": seconds, "rows": named}
        try:
            file.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"--json: cannot write '{file}': {error.strerror}", file=sys.stderr)
            return 2
        print(f"\nThe numbers are in {file}.")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
