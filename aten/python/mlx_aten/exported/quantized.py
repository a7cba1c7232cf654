"""Quantization: conversions to integers and back, and fake quantization for training.

The operators are those of torchao, of torch's pt2e and ATen's `fake_quantize`. A number x becomes
the integer `clip(round(x / scale) + zero_point, low, high)`, of which the number
`scale * (integer - zero_point)` is left. Scales and zero points are numbers, or arrays with one
element per block of the array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .convolutions import LEAST_ROWS, linear
from .operands import inside

Function = Callable[..., Any]
Numbers = mx.array | float


@mx.custom_function
def _replaced(old: mx.array, new: mx.array) -> mx.array:
    return new


@_replaced.vjp
def _replaced_vjp(primals: Any, cotangent: mx.array, _: mx.array) -> tuple[mx.array, mx.array]:
    return cotangent, mx.zeros_like(primals[1])


@_replaced.jvp
def _replaced_jvp(_: Any, tangents: Any) -> mx.array:
    old: mx.array = tangents[0]
    return old


def straight_through(old: mx.array, new: mx.array) -> mx.array:
    """Return the new content of an array, with the gradient of the array itself."""
    if not mx.issubdtype(new.dtype, mx.inexact):
        return new
    result: mx.array = _replaced(old, mx.stop_gradient(new))
    return result


def _quantized(
    x: mx.array, scale: Numbers, zero_point: Numbers, low: int, high: int, dtype: mx.Dtype
) -> mx.array:
    inverse = 1.0 / scale
    numbers = mx.round(x * (inverse.astype(x.dtype) if isinstance(inverse, mx.array) else inverse))
    return mx.clip(numbers + zero_point, low, high).astype(dtype)  # integers have no gradients


def _dequantized(
    x: mx.array, scale: Numbers, zero_point: Numbers | None, dtype: mx.Dtype | None
) -> mx.array:
    dtype = dtype or mx.float32
    steps = x.astype(mx.int32) - (0 if zero_point is None else zero_point)
    return (steps.astype(dtype) * scale).astype(dtype)


# Scales of the whole array, and of the places of an axis.


def quantize(
    input: mx.array,
    scale: Numbers,
    zero_point: Numbers,
    quant_min: int,
    quant_max: int,
    dtype: mx.Dtype,
) -> mx.array:
    """Return integers, with scales that are broadcast."""
    return _quantized(input, scale, zero_point, quant_min, quant_max, dtype)


def dequantize(
    input: mx.array,
    scale: Numbers,
    zero_point: Numbers,
    quant_min: int,
    quant_max: int,
    dtype: mx.Dtype,
    output_dtype: mx.Dtype | None = None,
    *,
    out_dtype: mx.Dtype | None = None,
) -> mx.array:
    """Return the numbers of integers, with scales that are broadcast."""
    return _dequantized(input, scale, zero_point, output_dtype or out_dtype)


def _along(x: mx.array, numbers: mx.array, axis: int) -> mx.array:
    """Return numbers for the places of an axis, so that they can be broadcast."""
    return numbers.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _per_channel(function: Function) -> Function:
    def call(
        input: mx.array,
        scales: mx.array,
        zero_points: mx.array | None,
        axis: int,
        *rest: Any,
        out_dtype: mx.Dtype | None = None,
    ) -> Any:
        zeros = None if zero_points is None else _along(input, zero_points, axis)
        options = {} if out_dtype is None else {"out_dtype": out_dtype}
        return function(input, _along(input, scales, axis), zeros, *rest, **options)

    return call


# Scales of blocks, as torchao has them.


def _by_block(x: mx.array, block_size: Sequence[int]) -> tuple[mx.array, list[int]]:
    """Return the array with an axis of blocks and one within the blocks for each of its axes.

    The second result is the shape of numbers for the blocks.
    """
    if len(block_size) != x.ndim or any(
        size < 1 or n % size for n, size in zip(x.shape, block_size, strict=True)
    ):
        raise ValueError(f"blocks of {list(block_size)} do not divide an array of {x.shape}")
    pairs = [(n // size, size) for n, size in zip(x.shape, block_size, strict=True)]
    return x.reshape([n for pair in pairs for n in pair]), [n for m, _ in pairs for n in (m, 1)]


def quantize_affine(
    input: mx.array,
    block_size: Sequence[int],
    scale: mx.array,
    zero_point: mx.array | None,
    output_dtype: mx.Dtype,
    quant_min: int,
    quant_max: int,
) -> mx.array:
    """Return integers, with a scale and zero point for each block."""
    blocks, shape = _by_block(input, block_size)
    zero = 0 if zero_point is None else zero_point.reshape(shape)
    found = _quantized(blocks, scale.reshape(shape), zero, quant_min, quant_max, output_dtype)
    return found.reshape(input.shape)


def dequantize_affine(
    input: mx.array,
    block_size: Sequence[int],
    scale: mx.array,
    zero_point: mx.array | None,
    input_dtype: mx.Dtype,
    quant_min: int,
    quant_max: int,
    output_dtype: mx.Dtype | None = None,
) -> mx.array:
    """Return the numbers of integers, with a scale and zero point for each block."""
    blocks, shape = _by_block(input, block_size)
    zero = None if zero_point is None else zero_point.astype(mx.int32).reshape(shape)
    return _dequantized(blocks, scale.reshape(shape), zero, output_dtype).reshape(input.shape)


def choose_qparams_affine(
    input: mx.array,
    mapping_type: str,
    block_size: Sequence[int],
    target_dtype: mx.Dtype,
    quant_min: int | None = None,
    quant_max: int | None = None,
    eps: float | None = None,
    scale_dtype: mx.Dtype | None = None,
    zero_point_dtype: mx.Dtype | None = None,
    keepdim: bool = False,
) -> tuple[mx.array, mx.array]:
    """Return the scale and the zero point of each block, by its least and its largest number."""
    limits = mx.iinfo(target_dtype)
    low = limits.min if quant_min is None else quant_min
    high = limits.max if quant_max is None else quant_max
    eps = mx.finfo(mx.float32).smallest_normal if eps is None else eps
    blocks, _ = _by_block(mx.stop_gradient(input), block_size)
    inside = list(range(1, blocks.ndim, 2))
    least = mx.minimum(mx.min(blocks, axis=inside), 0)
    most = mx.maximum(mx.max(blocks, axis=inside), 0)
    if mapping_type == "ASYMMETRIC":
        scale = mx.maximum((most - least) / (high - low), eps)
        zero = mx.clip(low - mx.round(least / scale), low, high)
    else:
        if mapping_type == "SYMMETRIC":
            scale = mx.maximum(-least, most) / ((high - low) / 2)
        else:
            scale = mx.maximum(least / low, most / high)
        scale = mx.maximum(scale, eps)
        zero = mx.full(scale.shape, int((high + low + 1) / 2), mx.int32)
    if not keepdim:  # torch leaves out the axes of which a block has all places
        sizes = zip(input.shape, block_size, strict=True)
        kept = [n // size for n, size in sizes if size == 1 or n != size]
        scale, zero = scale.reshape(kept), zero.reshape(kept)
    return scale.astype(scale_dtype or input.dtype), zero.astype(zero_point_dtype or mx.int32)


def quantize_groups(
    input: mx.array,
    scales: mx.array,
    zero_points: mx.array | None,
    quant_min: int,
    quant_max: int,
    dtype: mx.Dtype,
    group_size: int = 128,
) -> mx.array:
    """Return integers, with scales for groups of columns of a matrix."""
    blocks = [1, group_size]
    return quantize_affine(input, blocks, scales, zero_points, dtype, quant_min, quant_max)


def dequantize_groups(
    w_int8: mx.array,
    scales: mx.array,
    zero_points: mx.array | None,
    quant_min: int,
    quant_max: int,
    dtype: mx.Dtype,
    group_size: int = 128,
    output_dtype: mx.Dtype | None = None,
) -> mx.array:
    """Return the numbers of integers, with scales for groups of columns of a matrix."""
    group = w_int8.shape[-1] if scales.shape[-1] == 1 else group_size
    limits = (dtype, quant_min, quant_max)
    return dequantize_affine(w_int8, [1, group], scales, zero_points, *limits, output_dtype)


# Scales that are computed of the whole array, or of its rows.


def _parameters(
    least: mx.array, most: mx.array, low: int, high: int, eps: float, symmetric: bool
) -> tuple[mx.array, mx.array]:
    """Return scales and zero points of ranges."""
    least, most = mx.minimum(least, 0), mx.maximum(most, 0)
    if symmetric:
        scale = mx.maximum(mx.maximum(-least, most) / ((high - low) / 2), eps)
        return scale, mx.full(scale.shape, 128 if low == 0 else 0, mx.int64)
    scale = mx.maximum((most - least) / (high - low), eps)
    return scale, mx.clip(low - mx.round(least / scale), low, high).astype(mx.int64)


def _choose_qparams(symmetric: bool) -> Function:
    def choose_qparams(
        input: mx.array, quant_min: int, quant_max: int, eps: float, dtype: mx.Dtype
    ) -> tuple[mx.array, mx.array]:
        input = mx.stop_gradient(input)
        least, most = mx.min(input).reshape(1), mx.max(input).reshape(1)
        return _parameters(least, most, quant_min, quant_max, eps, symmetric)

    return choose_qparams


def _choose_qparams_per_token(symmetric: bool) -> Function:
    def choose_qparams(input: mx.array, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        input = mx.stop_gradient(input)
        least, most = (f(input, axis=-1, keepdims=True) for f in (mx.min, mx.max))
        if symmetric:
            scale = mx.maximum(mx.maximum(-least, most), 1e-5) / 127
            return scale, mx.zeros_like(scale)
        least, most = mx.minimum(least, 0), mx.maximum(most, 0)
        scale = mx.maximum((most - least) / 255, mx.finfo(mx.float32).eps)
        from_least, from_most = -128 - least / scale, 127 - most / scale
        errors = (-128 + least / scale) + (127 + most / scale)
        zero = mx.where(errors > 0, from_least, from_most)
        return scale, mx.round(mx.clip(zero, -128, 127))

    return choose_qparams


def int_mm(self: mx.array, mat2: mx.array) -> mx.array:
    """Return the product of matrices of integers, which MLX computes in float32."""
    return mx.round(self.astype(mx.float32) @ mat2.astype(mx.float32)).astype(mx.int32)


# Fake quantization: the numbers that are left, with the gradient of the array itself inside of the
# range, and 0 outside.


def _faked(
    x: mx.array, scale: Numbers, zero_point: Numbers, low: int, high: int
) -> tuple[mx.array, mx.array]:
    """Return the numbers that are left, and whether each was in the range."""
    inverse = mx.array(1.0, mx.float32) / scale
    steps = mx.round(x.astype(mx.float32) * inverse) + zero_point
    inside = (steps >= low) & (steps <= high)
    left = ((mx.clip(steps, low, high) - zero_point) * scale).astype(x.dtype)
    return straight_through(mx.where(inside, x, 0), left), inside


def fake_quantize(
    self: mx.array, scale: Numbers, zero_point: Numbers, quant_min: int, quant_max: int
) -> mx.array:
    """Return the numbers that quantization leaves."""
    return _faked(self, scale, zero_point, quant_min, quant_max)[0]


def fake_quantize_by_flag(
    self: mx.array,
    scale: mx.array,
    zero_point: mx.array,
    fake_quant_enabled: mx.array,
    quant_min: int,
    quant_max: int,
) -> tuple[mx.array, mx.array]:
    """Return the numbers that quantization leaves if the flag is 1, and where gradients are."""
    left, inside = _faked(self, scale, zero_point, quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return mx.where(enabled, left, self), inside | mx.logical_not(enabled)


def _learnable(
    x: mx.array, scale: mx.array, zero_point: mx.array, low: int, high: int, factor: float
) -> mx.array:
    """Return the numbers that are left, with gradients also of the scales and zero points."""
    zero = mx.clip(mx.floor(mx.stop_gradient(zero_point) + 0.5), low, high)
    inverse = 1 / mx.stop_gradient(scale)
    steps = mx.round(mx.stop_gradient(x) * inverse) + zero
    inside = (steps >= low) & (steps <= high)
    clipped = mx.clip(steps, low, high)
    left = (clipped - zero) * mx.stop_gradient(scale)
    error = (left - mx.stop_gradient(x)) * inverse
    # Linear functions of all three with the gradients of Esser et al., "Learned step size
    # quantization" (2020): d/d scale is the error inside, and the clipped number outside.
    slope = mx.where(inside, error, clipped - zero)
    shift = mx.where(inside, 0, -mx.stop_gradient(scale))
    linear = mx.where(inside, x, 0) + factor * (slope * scale + shift * zero_point)
    return straight_through(linear, left)


def _learnable_fake_quantize(
    self: mx.array,
    scale: mx.array,
    zero_point: mx.array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> mx.array:
    return _learnable(self, scale, zero_point, quant_min, quant_max, grad_factor)


SMALL_SCALE = 6.1e-5  # torch's least scale of fake quantization


def moving_average_fake_quantize(
    self: mx.array,
    observer_on: mx.array,
    fake_quant_on: mx.array,
    running_min: mx.array,
    running_max: mx.array,
    scale: mx.array,
    zero_point: mx.array,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[mx.array, ...]:
    """Quantize by a moving average of the range.

    Returns:
        The numbers that are left, and the new range, scale and zero point.
    """
    observes = observer_on.reshape(()) != 0
    axes = [i for i in range(self.ndim) if not per_row_fake_quant or i != ch_axis % self.ndim]
    old = (running_min, running_max)
    range_ = []
    for before, function in zip(old, (mx.min, mx.max), strict=True):
        now = mx.stop_gradient(function(self, axis=axes)).astype(before.dtype).reshape(-1)
        before = before.reshape(-1)
        moved = before + averaging_const * (now - before)
        new = mx.where(mx.isinf(before), now, moved)
        range_.append(mx.where(observes, new, before))
    least, most = mx.minimum(range_[0], 0), mx.maximum(range_[1], 0)
    both = (range_[0] < 0) & (range_[1] > 0)
    if symmetric_quant:
        half = (quant_max - quant_min) // 2
        widest = mx.maximum(mx.abs(least) / (half + 1), mx.abs(most) / half)
        least = mx.where(both, -widest * (half + 1), least)
        most = mx.where(both, widest * half, most)
    found = (most - least) / (quant_max - quant_min)
    found = mx.where((found == 0) | mx.isinf(1 / found), 0.1, found)
    wider = mx.maximum(found, SMALL_SCALE)
    least, most, found = least * (wider / found), most * (wider / found), wider
    from_least, from_most = quant_min - least / found, quant_max - most / found
    errors = [abs(n) + mx.abs(x / found) for n, x in ((quant_min, least), (quant_max, most))]
    zero = mx.where(errors[0] < errors[1], from_least, from_most)
    if symmetric_quant:
        zero = mx.where(both, (quant_min + quant_max) / 2, zero)
    zero = mx.round(mx.clip(zero, quant_min, quant_max))
    new_scale = mx.where(observes, found, scale.reshape(-1)).astype(scale.dtype)
    new_zero = mx.where(observes, zero, zero_point.reshape(-1)).astype(zero_point.dtype)
    scale_of, zero_of = new_scale, new_zero
    if per_row_fake_quant:
        scale_of, zero_of = (_along(self, x, ch_axis) for x in (new_scale, new_zero))
    left, _ = _faked(self, scale_of, zero_of, quant_min, quant_max)
    enabled = fake_quant_on.reshape(()) != 0
    changed = zip((*range_, new_scale, new_zero), (*old, scale, zero_point), strict=True)
    return mx.where(enabled, left, self), *(x.reshape(before.shape) for x, before in changed)


# Matrix products with quantized weights.


def quantized_linear(
    x: mx.array,
    weight: mx.array,
    scales: mx.array,
    biases: mx.array,
    bias: mx.array | None,
    group_size: int,
    bits: int,
) -> mx.array:
    """Return the product with a matrix in MLX's packed form, plus a bias.

    On the CPU, the products of many rows are faster with numbers than with packed integers.
    """
    on_cpu = mx.default_device().type == mx.cpu
    dtype = mx.float32 if on_cpu else x.dtype  # the CPU would add up numbers of 16 bits in 16 bits
    numbers = (scales.astype(dtype), biases.astype(dtype))
    if on_cpu and x.size >= LEAST_ROWS * x.shape[-1]:
        matrix = mx.dequantize(weight, *numbers, group_size, bits)
        product = linear(x.astype(dtype), matrix)
    else:
        product = mx.quantized_matmul(x.astype(dtype), weight, *numbers, True, group_size, bits)
    return product.astype(x.dtype) if bias is None else product.astype(x.dtype) + bias


def quantized_embedding(
    indices: mx.array,
    weight: mx.array,
    scales: mx.array,
    biases: mx.array,
    _: None,
    group_size: int,
    bits: int,
) -> mx.array:
    """Return rows of a matrix in MLX's packed form."""
    rows = inside(indices, weight, 0, None).reshape(-1)
    parts = [x[rows] for x in (weight, scales, biases)]
    return mx.dequantize(*parts, group_size, bits).reshape(*indices.shape, -1)


FUNCTIONS: dict[str, Function] = {
    **{
        f"quantized_decomposed.{name}_per_tensor.{kind}": function
        for name, function in (("quantize", quantize), ("dequantize", dequantize))
        for kind in ("default", "tensor", "tensor2")
    },
    "quantized_decomposed.quantize_per_channel.default": _per_channel(quantize),
    "quantized_decomposed.dequantize_per_channel.default": _per_channel(dequantize),
    "quantized_decomposed.quantize_per_channel_group.default": quantize_groups,
    "quantized_decomposed.dequantize_per_channel_group.default": dequantize_groups,
    "quantized_decomposed.quantize_per_token.default": quantize,
    "quantized_decomposed.dequantize_per_token.default": dequantize,
    "quantized_decomposed.choose_qparams.tensor": _choose_qparams(False),
    "quantized_decomposed.choose_qparams_symmetric.tensor": _choose_qparams(True),
    "quantized_decomposed.choose_qparams_per_token.default": _choose_qparams_per_token(True),
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default": _choose_qparams_per_token(
        False
    ),
    "torchao.quantize_affine.default": quantize_affine,
    "torchao.dequantize_affine.default": dequantize_affine,
    "torchao.choose_qparams_affine.default": choose_qparams_affine,
    "aten._int_mm.default": int_mm,
    "aten.fake_quantize_per_tensor_affine.default": fake_quantize,
    "aten.fake_quantize_per_tensor_affine.tensor_qparams": fake_quantize,
    "aten.fake_quantize_per_tensor_affine_cachemask.default": _faked,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": fake_quantize_by_flag,
    "aten.fake_quantize_per_channel_affine.default": _per_channel(fake_quantize),
    "aten.fake_quantize_per_channel_affine_cachemask.default": _per_channel(_faked),
    "aten._fake_quantize_learnable_per_tensor_affine.default": _learnable_fake_quantize,
    "aten._fake_quantize_learnable_per_channel_affine.default": _per_channel(
        _learnable_fake_quantize
    ),
    "mlx.moving_average_fake_quantize": moving_average_fake_quantize,
    "mlx.quantized_linear": quantized_linear,
    "mlx.quantized_embedding": quantized_embedding,
}
