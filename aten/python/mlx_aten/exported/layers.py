"""Layers and losses that mlx_aten has no entry for, composed of MLX's functions.

The names and arguments are ATen's. `reduction` is torch's number: 0 for none, 1 for the mean, 2
for the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import mlx.core as mx

from . import fused
from .convolutions import _aten

Function = Callable[..., Any]


# Normalization in training, with new running statistics.


def _along_channels(x: mx.array, ndim: int) -> mx.array:
    return x.reshape(1, -1, *(1 for _ in range(ndim - 2)))


def _scaled(x: mx.array, weight: mx.array | None, bias: mx.array | None) -> mx.array:
    x = x if weight is None else x * _along_channels(weight, x.ndim)
    return x if bias is None else x + _along_channels(bias, x.ndim)


def _updated(old: mx.array, new: mx.array, momentum: float) -> mx.array:
    return ((1 - momentum) * old + momentum * mx.stop_gradient(new)).astype(old.dtype)


def batch_norm_training(
    input: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    running_mean: mx.array,
    running_var: mx.array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[mx.array, ...]:
    """Return the result, its mean and inverse deviation, and the new running statistics."""
    if not training:
        output, mean, scale = _aten("_native_batch_norm_legit")(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )
        return output, mean, scale, running_mean, running_var
    axes = [axis for axis in range(input.ndim) if axis != 1]
    x = input.astype(mx.float32) if input.dtype in (mx.float16, mx.bfloat16) else input
    mean, variance = mx.mean(x, axis=axes), mx.var(x, axis=axes)
    scale = mx.rsqrt(variance + eps)
    normed = (x - _along_channels(mean, x.ndim)) * _along_channels(scale, x.ndim)
    count = x.size // x.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    return (
        _scaled(normed, weight, bias).astype(input.dtype),
        mean,
        scale,
        _updated(running_mean, mean, momentum),
        _updated(running_var, unbiased, momentum),
    )


def instance_norm(
    input: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    running_mean: mx.array | None,
    running_var: mx.array | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> mx.array:
    """Normalize each channel of each sample, or all by the running statistics."""
    if not use_input_stats:
        return _aten("batch_norm")(  # type: ignore[no-any-return]
            input, weight, bias, running_mean, running_var, False, momentum, eps, False
        )
    return instance_norm_training(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )[0]


def instance_norm_training(
    input: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    running_mean: mx.array | None,
    running_var: mx.array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[mx.array, ...]:
    """Return the result, and the new running statistics if there are some."""
    x = input.astype(mx.float32) if input.dtype in (mx.float16, mx.bfloat16) else input
    axes = list(range(2, input.ndim))
    mean, variance = mx.mean(x, axis=axes, keepdims=True), mx.var(x, axis=axes, keepdims=True)
    normed = (x - mean) * mx.rsqrt(variance + eps)
    result = _scaled(normed, weight, bias).astype(input.dtype)
    if running_mean is None or running_var is None:
        return (result,)
    count = math.prod(input.shape[2:])
    over_batch = [axis for axis in range(input.ndim) if axis != 1]
    unbiased = mx.mean(variance, axis=over_batch) * (count / max(count - 1, 1))
    return (
        result,
        _updated(running_mean, mx.mean(mean, axis=over_batch), momentum),
        _updated(running_var, unbiased, momentum),
    )


def weight_norm(v: mx.array, g: mx.array, dim: int = 0) -> tuple[mx.array, mx.array]:
    """Return the direction v with the length g, and the lengths of v."""
    axes = None if dim == -1 else [axis for axis in range(v.ndim) if axis != dim % v.ndim]
    norm = mx.sqrt(mx.sum(v * v, axis=axes, keepdims=dim != -1))
    return v * (g / norm), norm


# Pooling of one axis.


def _pool_1d(name: str, *lists: str) -> Function:
    """Return a pooling of the last axis, by the operator for two axes."""

    def pool(self: mx.array, *args: Any, **kwargs: Any) -> Any:
        if unknown := kwargs.keys() - {*lists}:
            raise TypeError(f"unknown argument '{min(unknown)}'")
        names = {"stride": 1, "kernel_size": 1, "output_size": 1, "padding": 0, "dilation": 1}
        given = dict(zip(lists, args, strict=False)) | kwargs
        for key, value in given.items():
            if key in names and value:
                given[key] = [names[key], *(value if isinstance(value, list) else [value])]
        found = _aten(name)(self[..., None, :], **given)
        squeezed = [x.squeeze(-2) for x in (found if isinstance(found, tuple | list) else [found])]
        return squeezed if isinstance(found, tuple | list) else squeezed[0]

    return pool


_WINDOW = ("kernel_size", "stride", "padding")
_max_pool1d_with_indices = _pool_1d("max_pool2d_with_indices", *_WINDOW, "dilation", "ceil_mode")


# Embeddings, products and cells.


def embedding_bag(
    weight: mx.array,
    indices: mx.array,
    offsets: mx.array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: mx.array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Return sums (mode 0), means (1) or maxima (2) of bags of rows, the bag of each index, the
    sizes of the bags, and the indices of the maxima."""
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq is not supported")
    starts = offsets[:-1] if include_last_offset else offsets
    bag = mx.sum(mx.arange(indices.size)[:, None] >= starts, axis=1) - 1
    n = -1 if padding_idx is None else padding_idx
    counted = indices != n if n >= 0 else mx.ones(indices.shape, mx.bool_)
    rows = mx.take(weight, indices, axis=0)
    inside = (bag == mx.arange(starts.size)[:, None]) & counted
    sizes = mx.sum(inside, axis=1)
    if mode == 2:
        candidates = mx.where(inside[..., None], rows, -math.inf)
        best = mx.stop_gradient(mx.argmax(candidates, axis=1))
        found = mx.take_along_axis(rows, best, axis=0)
        result = mx.where(sizes[:, None] > 0, found, 0)
        return result, bag, sizes, mx.take(indices, best)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    result = inside.astype(rows.dtype) @ rows
    if mode == 1:
        result = result / mx.maximum(sizes, 1)[:, None]
    return result, bag, sizes, sizes


def bilinear(
    input1: mx.array, input2: mx.array, weight: mx.array, bias: mx.array | None = None
) -> mx.array:
    """Return a product of each output's matrix with two vectors."""
    outer = mx.flatten(input1[..., :, None] * input2[..., None, :], -2)
    result = outer @ mx.flatten(weight, 1).T
    return result if bias is None else result + bias


def trilinear(
    i1: mx.array,
    i2: mx.array,
    i3: mx.array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> mx.array:
    """Return the sum of products of three arrays, each with new axes."""
    arrays = [
        mx.expand_dims(x, list(axes)) for x, axes in ((i1, expand1), (i2, expand2), (i3, expand3))
    ]
    return mx.sum(arrays[0] * arrays[1] * arrays[2], axis=list(sumdim))


def _variance(name: str) -> Function:
    """Return a function of axes, `unbiased` and `keepdim`, which mlx_aten lacks."""

    def call(
        self: mx.array,
        dim: int | Sequence[int] | None = None,
        unbiased: bool = True,
        keepdim: bool = False,
    ) -> Any:
        return _aten(name)(self, dim, correction=int(unbiased), keepdim=keepdim)

    return call


def std_mean(
    self: mx.array,
    dim: Sequence[int] | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> tuple[mx.array, mx.array]:
    """Return the deviation and the mean over axes, or over all."""
    correction = int(unbiased) if correction is None else correction
    variance, mean = _aten("var_mean")(self, dim, correction=correction, keepdim=keepdim)
    return mx.sqrt(variance), mean


def pdist(self: mx.array, p: float = 2) -> mx.array:
    """Return the distances of all pairs of rows."""
    n = self.shape[0]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    first, second = mx.array(pairs, mx.int32).reshape(-1, 2).T
    result: mx.array = _aten("linalg_vector_norm")(self[first] - self[second], p, [-1])
    return result


def grouped_mm(input: mx.array, weight: mx.array, offs: mx.array, *_: None) -> mx.array:
    """Multiply rows (n, k), sorted by group, with the matrices (groups, k, m) of their groups.

    Args:
        offs: the ends of the groups; later rows have the result 0.
    """
    rows = mx.arange(input.shape[0])[:, None]
    group = mx.minimum(mx.sum(rows >= offs, axis=1), weight.shape[0] - 1)
    product = mx.gather_mm(input[:, None], weight, rhs_indices=group, sorted_indices=True)
    return mx.where(rows < offs[-1], product[:, 0], 0)


def embedding_renorm(
    self: mx.array, indices: mx.array, max_norm: float, norm_type: float
) -> mx.array:
    """Return the rows; those at the indices are shortened to a length of at most `max_norm`."""
    indices = indices.reshape(-1)
    rows = mx.take(self, indices, axis=0)
    lengths = _aten("linalg_vector_norm")(rows, norm_type, [-1], True)
    shortened = mx.where(lengths > max_norm, rows * (max_norm / (lengths + 1e-7)), rows)
    result = mx.array(self)
    result[indices] = shortened
    return result


# Attention of torch.nn.Transformer, in the form of its fused operators of inference.


def native_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    embed_dim: int,
    num_head: int,
    qkv_weight: mx.array,
    qkv_bias: mx.array,
    proj_weight: mx.array,
    proj_bias: mx.array,
    mask: mx.array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[mx.array, mx.array]:
    """Return multi-head attention over (batch, length, embed_dim), and its weights if needed.

    Args:
        mask: not 0 where a key is hidden.
        mask_type: the axes of the mask: (query, key) for 0, (batch, key) for 1, and (batch, head,
            query, key) for 2.
    """
    projections = zip(
        (query, key, value), mx.split(qkv_weight, 3), mx.split(qkv_bias, 3), strict=True
    )
    q, k, v = (
        mx.swapaxes(mx.unflatten(x @ w.T + b, -1, (num_head, -1)), 1, 2) for x, w, b in projections
    )
    visible = None if mask is None else mask == 0
    if visible is not None and mask_type == 1:
        visible = visible[:, None, None]
    if need_weights:
        scores = (q @ mx.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
        scores = scores if visible is None else mx.where(visible, scores, -math.inf)
        weights = mx.softmax(scores, axis=-1)
        result = weights @ v
        weights = mx.mean(weights, axis=1) if average_attn_weights else weights
    else:
        result, weights = fused.attention(q, k, v, visible, False, None), mx.zeros(0, q.dtype)
    result = mx.flatten(mx.swapaxes(result, 1, 2), -2)
    return result @ proj_weight.T + proj_bias, weights


def transformer_encoder_layer(
    src: mx.array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: mx.array,
    qkv_bias: mx.array,
    proj_weight: mx.array,
    proj_bias: mx.array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: mx.array,
    norm_bias_1: mx.array,
    norm_weight_2: mx.array,
    norm_bias_2: mx.array,
    ffn_weight_1: mx.array,
    ffn_bias_1: mx.array,
    ffn_weight_2: mx.array,
    ffn_bias_2: mx.array,
    mask: mx.array | None = None,
    mask_type: int | None = None,
) -> mx.array:
    """Return a layer of torch.nn.TransformerEncoder, without dropout."""

    def attend(x: mx.array) -> mx.array:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, False, mask_type=mask_type
        )[0]

    def feed_forward(x: mx.array) -> mx.array:
        hidden = x @ ffn_weight_1.T + ffn_bias_1
        hidden = _aten("gelu")(hidden) if use_gelu else mx.maximum(hidden, 0)
        return hidden @ ffn_weight_2.T + ffn_bias_2

    def norm_1(x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, norm_weight_1, norm_bias_1, eps)

    def norm_2(x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


# Sampling at places of a grid.


def _reflected(x: mx.array, low: float, high: float) -> mx.array:
    """Reflect places at two borders."""
    if high <= low:
        return mx.zeros_like(x)
    distance = mx.abs(x - low)
    rest, turns = distance % (high - low), mx.floor(distance / (high - low))
    return mx.where(turns % 2 == 0, low + rest, high - rest)


def _inside(x: mx.array, n: int, padding_mode: int, align_corners: bool) -> mx.array:
    """Return places of the array for places outside: the same (0), the border (1), reflected."""
    if padding_mode == 2:
        low, high = (0, n - 1) if align_corners else (-0.5, n - 0.5)
        x = _reflected(x, low, high)
    return x if padding_mode == 0 else mx.clip(x, 0, n - 1)


def _cubic(t: mx.array) -> list[mx.array]:
    """Return the weights of four neighbors for places between the second and the third."""
    a = -0.75

    def near(x: mx.array) -> mx.array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: mx.array) -> mx.array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def grid_sampler(
    input: mx.array,
    grid: mx.array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> mx.array:
    """Return the input (batch, channels, *sizes) at the places of a grid (batch, ..., axes).

    Args:
        grid: places from -1 to 1; the first is that of the last axis.
        interpolation_mode: 0 for linear, 1 for nearest, 2 for cubic.
        padding_mode: of places outside, 0 for zeros, 1 for the border, 2 for reflection.
        align_corners: whether -1 and 1 are the centers of the outermost elements.
    """
    sizes = input.shape[2:]
    taps: list[list[tuple[mx.array, mx.array | None]]] = []  # of each axis: place and weight
    for axis, n in enumerate(sizes):
        place = grid[..., len(sizes) - 1 - axis]
        x = (place + 1) / 2 * (n - 1) if align_corners else ((place + 1) * n - 1) / 2
        if interpolation_mode == 2:
            first = mx.stop_gradient(mx.floor(x))
            weights = _cubic(x - first)
            near = [first + i - 1 for i in range(4)]
            places = [_inside(tap, n, padding_mode, align_corners) for tap in near]
            taps.append(list(zip(places, weights, strict=True)))
            continue
        x = _inside(x, n, padding_mode, align_corners)
        if padding_mode:
            x = mx.where(mx.isnan(x), 0, x)
        if interpolation_mode == 1:
            taps.append([(mx.round(x), None)])
        else:
            first = mx.stop_gradient(mx.floor(x))
            taps.append([(first, first + 1 - x), (first + 1, x - first)])
    flat = mx.flatten(input, 2)
    result = mx.zeros((*input.shape[:2], math.prod(grid.shape[1:-1])), input.dtype)
    for corner in product(*taps):
        index = mx.zeros(grid.shape[:-1], mx.int32)
        weight = mx.ones(grid.shape[:-1], input.dtype)
        inside = mx.ones(grid.shape[:-1], mx.bool_)
        for (place, factor), n in zip(corner, sizes, strict=True):
            nearest = mx.where(mx.isnan(place), 0, mx.clip(place, 0, n - 1))
            index = index * n + mx.stop_gradient(nearest).astype(mx.int32)
            inside = inside & (place >= 0) & (place < n)
            weight = weight if factor is None else weight * factor
        # In torch, NaN in a grid over two axes makes the result NaN, and 0 over three.
        known = inside if len(sizes) == 3 else inside | mx.isnan(weight)
        weight = mx.where(known, weight, 0)
        index = mx.flatten(index, 1)[:, None]
        found = mx.take_along_axis(
            flat, mx.broadcast_to(index, (*flat.shape[:2], index.shape[-1])), axis=-1
        )
        result = result + found * weight.reshape(index.shape)
    return result.reshape(*input.shape[:2], *grid.shape[1:-1])


def affine_grid_generator(theta: mx.array, size: Sequence[int], align_corners: bool) -> mx.array:
    """Return the places of a grid after an affine map."""
    lines = []
    for n in size[2:]:
        line = mx.linspace(-1, 1, n, dtype=theta.dtype) if n > 1 else mx.zeros(1, theta.dtype)
        lines.append(line if align_corners else line * ((n - 1) / n))
    grids = mx.meshgrid(*lines, indexing="ij")[::-1]
    base = mx.stack([*grids, mx.ones_like(grids[0])], axis=-1)
    flat = base.reshape(-1, base.shape[-1]) @ mx.swapaxes(theta, 1, 2)
    return flat.reshape(theta.shape[0], *size[2:], len(lines))


# Losses.


def _reduced(loss: mx.array, reduction: int) -> mx.array:
    return mx.mean(loss) if reduction == 1 else mx.sum(loss) if reduction == 2 else loss


def _hinge(x: mx.array) -> mx.array:
    return mx.where(x > 0, x, 0)


def poisson_nll_loss(
    input: mx.array, target: mx.array, log_input: bool, full: bool, eps: float, reduction: int
) -> mx.array:
    """Return the negative log likelihood of counts."""
    loss = mx.exp(input) - target * input if log_input else input - target * mx.log(input + eps)
    if full:
        large = mx.where(target > 1, target, 2)
        stirling = large * mx.log(large) - large + 0.5 * mx.log(2 * math.pi * large)
        loss = loss + mx.where(target > 1, stirling, 0)
    return _reduced(loss, reduction)


def margin_ranking_loss(
    input1: mx.array, input2: mx.array, target: mx.array, margin: float = 0, reduction: int = 1
) -> mx.array:
    """Return the hinge loss of ranking one input above the other."""
    return _reduced(_hinge(margin - target * (input1 - input2)), reduction)


def hinge_embedding_loss(
    self: mx.array, target: mx.array, margin: float = 1, reduction: int = 1
) -> mx.array:
    """Return distances of similar pairs, and hinge losses of others."""
    apart = mx.where(target != 1, _hinge(margin - self), 0)
    return _reduced(apart + mx.where(target != -1, self, 0), reduction)


def cosine_embedding_loss(
    input1: mx.array, input2: mx.array, target: mx.array, margin: float = 0, reduction: int = 1
) -> mx.array:
    """Return losses of the cosine of similar and of other pairs."""
    lengths = (mx.sum(x * x, axis=-1) + 1e-12 for x in (input1, input2))
    cosine = mx.sum(input1 * input2, axis=-1) * mx.rsqrt(math.prod(lengths, start=mx.array(1.0)))
    apart = mx.where(target == -1, _hinge(cosine - margin), 0)
    return _reduced(mx.where(target == 1, 1 - cosine, apart), reduction)


def pairwise_distance(
    x1: mx.array, x2: mx.array, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> mx.array:
    """Return the distances of vectors."""
    result: mx.array = _aten("linalg_vector_norm")(x1 - x2 + eps, p, [-1], keepdim)
    return result


def triplet_margin_loss(
    anchor: mx.array,
    positive: mx.array,
    negative: mx.array,
    margin: float = 1,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = 1,
) -> mx.array:
    """Return the hinge loss of a distance that should be less than another."""
    near, far = (pairwise_distance(anchor, x, p, eps) for x in (positive, negative))
    if swap:
        far = mx.minimum(far, pairwise_distance(positive, negative, p, eps))
    return _reduced(_hinge(margin + near - far), reduction)


def ctc_loss(
    log_probs: mx.array,
    targets: mx.array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> mx.array:
    """Return the loss of connectionist temporal classification."""
    alone = log_probs.ndim == 2
    if alone:
        log_probs = log_probs[:, None]
    lengths = [
        x.reshape(-1) if isinstance(x, mx.array) else mx.array(x)
        for x in (input_lengths, target_lengths)
    ]
    loss = _aten("_ctc_loss")(log_probs, targets, *lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = mx.where(mx.isinf(loss), 0, loss)
    if reduction == 1:
        loss = loss / mx.maximum(lengths[1], 1).astype(loss.dtype)
    result = _reduced(loss, reduction)
    return result.squeeze(0) if alone and reduction == 0 else result


FUNCTIONS: dict[str, Function] = {
    "aten._native_batch_norm_legit_functional.default": batch_norm_training,
    "aten.instance_norm.default": instance_norm,
    "mlx.instance_norm": instance_norm_training,
    "aten._weight_norm.default": lambda v, g, dim=0: weight_norm(v, g, dim)[0],
    "aten._weight_norm_interface.default": weight_norm,
    "aten.max_pool1d.default": lambda *args, **kwargs: _max_pool1d_with_indices(*args, **kwargs)[0],
    "aten.max_pool1d_with_indices.default": _max_pool1d_with_indices,
    "aten.avg_pool1d.default": _pool_1d("avg_pool2d", *_WINDOW, "ceil_mode", "count_include_pad"),
    "aten.adaptive_avg_pool1d.default": _pool_1d("adaptive_avg_pool2d", "output_size"),
    "aten.adaptive_max_pool1d.default": _pool_1d("adaptive_max_pool2d", "output_size"),
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.embedding_renorm.default": embedding_renorm,
    "aten._native_multi_head_attention.default": native_attention,
    "aten._transformer_encoder_layer_fwd.default": transformer_encoder_layer,
    "aten.bilinear.default": bilinear,
    "aten._trilinear.default": trilinear,
    "aten.std_mean.default": lambda self, unbiased=True: std_mean(self, None, unbiased),
    "aten.std_mean.dim": std_mean,
    "aten.var_mean.dim": _variance("var_mean"),
    "aten.std_mean.correction": std_mean,
    "aten.cdist.default": lambda x1, x2, p=2, compute_mode=None: _aten("_cdist_forward")(
        x1, x2, p, compute_mode
    ),
    "aten.pdist.default": pdist,
    "aten.dist.default": lambda self, other, p=2: _aten("linalg_vector_norm")(self - other, p),
    "aten.logdet.default": lambda self: mx.log(_aten("linalg_det")(self)),
    "aten.trace.default": mx.trace,
    "aten._grouped_mm.default": grouped_mm,
    "transformers.grouped_mm_fallback.default": grouped_mm,
    "aten.grid_sampler.default": grid_sampler,
    "aten.grid_sampler_2d.default": grid_sampler,
    "aten.grid_sampler_3d.default": grid_sampler,
    "aten.affine_grid_generator.default": affine_grid_generator,
    "aten.poisson_nll_loss.default": poisson_nll_loss,
    "aten.margin_ranking_loss.default": margin_ranking_loss,
    "aten.hinge_embedding_loss.default": hinge_embedding_loss,
    "aten.cosine_embedding_loss.default": cosine_embedding_loss,
    "aten.pairwise_distance.default": pairwise_distance,
    "aten.triplet_margin_loss.default": triplet_margin_loss,
    "aten.ctc_loss.IntList": ctc_loss,
    "aten.ctc_loss.Tensor": ctc_loss,
}
