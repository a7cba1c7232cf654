"""The fused functions of ``mlx_lm.kernels`` and ``mlx_vlm.kernels``, with gradients: Muse Spark.

The two packages have the same kernels, without gradients and without another implementation.
"""

from __future__ import annotations

from types import FunctionType

import mlx.core as mx
import mlx.nn

from mlxops import nn
from mlxops._models import Function, Place


class Fused:
    """The replacements of a package and their operators, as tables of ``_models.Patch``.

    They are copies, because a patch finds a replacement by its identity.
    """

    def __init__(self, package: str) -> None:
        self.replaced: dict[Place, Function] = {}
        self.operators: dict[Function, str] = {}
        for (module, function), operator in _OPERATORS.items():
            copy = FunctionType(function.__code__, globals(), function.__name__)
            copy.__kwdefaults__ = function.__kwdefaults__
            copy.__annotations__ = function.__annotations__
            self.replaced[f"{package}.kernels.{module}", function.__name__] = copy
            self.operators[copy] = operator


def expert_routing(
    logits: mx.array,
    expert_bias: mx.array,
    *,
    top_k: int,
    multiplier: float,
    score_eps: float,
    route_scale: float,
) -> list[mx.array]:
    """Choose experts with ``nn.expert_routing``: indices and weights."""
    scores, indices = nn.expert_routing(
        logits * multiplier, top_k, score="sigmoid", normalize=False, bias=expert_bias
    )
    total = scores.sum(-1, keepdims=True) + score_eps
    return [indices.astype(mx.uint32), (scores / total * route_scale).astype(mx.float32)]


def norm_add_norm(
    branch: mx.array,
    stream: mx.array,
    *,
    alpha: mx.array,
    beta: mx.array,
    post_weight: mx.array | None,
    post_eps: float,
    next_norm: mlx.nn.RMSNorm | None,
) -> tuple[mx.array, mx.array | None]:
    """Compute ``alpha * stream + beta * rms_norm(branch)``, and its norm for the next layer.

    The result is that of ``nn.norm_add_norm``. If the two norms have another epsilon, or there is
    only one, these are MLX's operations.
    """
    if post_weight is not None:
        branch = post_weight.astype(branch.dtype) * branch
    stream = alpha * stream
    if next_norm is not None and next_norm.eps == post_eps:
        normed, stream = nn.norm_add_norm(branch, stream, beta, next_norm.weight, eps=next_norm.eps)
        return stream.astype(mx.float32), normed.astype(branch.dtype)
    stream = (stream + beta * mx.fast.rms_norm(branch, None, post_eps)).astype(mx.float32)
    if next_norm is None:
        return stream, None
    return stream, pre_norm(stream, next_norm, dtype=branch.dtype)


def pre_norm(stream: mx.array, norm: mlx.nn.RMSNorm, *, dtype: mx.Dtype) -> mx.array:
    """Compute the norm of a layer's input with MLX's operations."""
    return mx.fast.rms_norm(stream, norm.weight.astype(stream.dtype), norm.eps).astype(dtype)


def post_expert_norm_combine(
    experts: mx.array, weights: mx.array, *, norm_weight: mx.array, eps: float
) -> mx.array:
    """Norm the weighted outputs of the experts and add them, with MLX's operations."""
    y = mx.fast.rms_norm(experts.astype(mx.float32) * norm_weight, None, eps)
    y = y * weights.astype(experts.dtype)[..., None]
    return y.sum(-2).astype(experts.dtype)


def _heads(
    qkvg: mx.array, n_heads: int, n_kv_heads: int, head_dim: int
) -> tuple[mx.array, mx.array]:
    """Return the queries and keys of all heads."""
    heads = qkvg[..., : (n_heads + n_kv_heads) * head_dim]
    q, k = mx.split(heads.reshape(*qkvg.shape[:-1], -1, head_dim), [n_heads], axis=-2)
    return q, k


def qk_norm(
    qkvg: mx.array,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    eps: float,
    query_scale: float,
) -> list[mx.array]:
    """Norm the heads of queries and keys with MLX's operations."""
    q, k = _heads(qkvg, n_heads, n_kv_heads, head_dim)
    scale = mx.full(head_dim, query_scale, q.dtype)
    return [mx.fast.rms_norm(q, scale, eps), mx.fast.rms_norm(k, None, eps)]


def qk_norm_rope(
    qkvg: mx.array,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    eps: float,
    query_scale: float,
    rope_base: float,
    offset: int | mx.array,
) -> list[mx.array]:
    """Norm and rotate the heads of queries and keys with ``nn.qk_norm_rope``."""
    q, k = _heads(qkvg, n_heads, n_kv_heads, head_dim)
    offset = mx.array(offset).astype(mx.int32)
    offset = offset.flatten() if offset.size > 1 else offset.reshape(())
    scale = mx.full(head_dim, query_scale, q.dtype)
    return list(
        nn.qk_norm_rope(q, k, scale, traditional=True, base=rope_base, offset=offset, eps=eps)
    )


def rms_norm_sigmoid_gate(x: mx.array, gate: mx.array, *, eps: float) -> mx.array:
    """Compute ``rms_norm(x) * sigmoid(gate)`` of each head with ``nn.rms_norm_gate``."""
    batch, heads, steps, size = x.shape
    gate = gate.reshape(batch, steps, heads, size)
    y = nn.rms_norm_gate(x.swapaxes(1, 2), gate, eps=eps, activation="sigmoid")
    return y.reshape(batch, steps, heads * size).astype(x.dtype)


_MLX = "MLX's operations"
_OPERATORS: dict[tuple[str, FunctionType], str] = {
    ("expert_routing", expert_routing): "nn.expert_routing",
    ("norm_add_norm", norm_add_norm): "nn.norm_add_norm",
    ("norm_add_norm", pre_norm): _MLX,
    ("post_expert_norm_combine", post_expert_norm_combine): _MLX,
    ("qk_norm", qk_norm): _MLX,
    ("qk_norm_rope", qk_norm_rope): "nn.qk_norm_rope",
    ("rms_norm_sigmoid_gate", rms_norm_sigmoid_gate): "nn.rms_norm_gate",
}
