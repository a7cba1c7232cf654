"""Convolutions and linear layers, with MLX's matrix product where it is faster on the CPU.

MLX's wheels for Linux have a BLAS without blocking, for which `x @ w.T` takes 2.4 times as long as
`x @ v` with v = w.T in row order. MLX's convolution and `addmm` use the first. Here, windows of the
input become rows of a matrix, whose product with the transposed weight is the convolution; of
depthwise ones, elementwise products of shifted inputs are the fastest. See docs/exported.md for
the measured times.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx

from .program import Node, Ref, Tensor, is_dtype

Function = Callable[..., Any]

MOST_TAPS = 64  # elements of a kernel, each of which becomes a slice
LEAST_CHANNELS = 8  # of a group: the products of smaller ones take longer than MLX's convolution
LEAST_WORK = 2**17  # multiplications for each tap, for fewer of which the other nodes take longer
LEAST_ROWS = 16  # of a linear layer: with fewer, the copy of the weight takes longer than it saves


@cache
def _aten(name: str) -> Function:
    function: Function = getattr(importlib.import_module("mlx_aten"), name)
    return function


def _uses_products(*arrays: mx.array) -> bool:
    """Return whether a transposed copy makes MLX's product faster: on CPUs other than Apple's."""
    return (
        sys.platform != "darwin"
        and mx.default_device().type == mx.cpu
        and all(x.dtype == mx.float32 and x.size for x in arrays)
    )


def linear(input: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Return input @ weight.T + bias."""
    if weight.ndim == 2 and weight.size and input.ndim > 1:
        rows, rest = divmod(input.size, weight.shape[1])
        pays = rows >= LEAST_ROWS and rows * weight.size >= LEAST_WORK
        if pays and not rest and _uses_products(input, weight):
            result = input @ mx.contiguous(weight.T)
            return result if bias is None else result + bias
    found: mx.array = _aten("linear")(input, weight, bias)
    return found


def _sizes(numbers: Sequence[int], count: int) -> list[int]:
    return list(numbers) * (count // len(numbers)) if len(numbers) in (1, count) else []


def _by_products(
    input: mx.array,
    weight: mx.array,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> mx.array | None:
    """Return a convolution, or None if MLX's own is faster or has to report an error."""
    count = weight.ndim - 2
    kernel, channels = weight.shape[2:], weight.shape[1]
    if (
        input.ndim != weight.ndim
        or not _uses_products(input, weight)
        or min(len(stride), len(padding), len(dilation)) != count
        or min(*stride, *dilation, groups) < 1
        or min(padding) < 0
        or input.shape[1] != channels * groups
        or weight.shape[0] % groups
        or math.prod(kernel) > MOST_TAPS
        or (groups > 1 and 1 < channels < LEAST_CHANNELS)
    ):
        return None
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    places = zip(input.shape[2:], padding, spans, stride, strict=True)
    sizes = [(n + 2 * p - span - 1) // step + 1 for n, p, span, step in places]
    work = input.shape[0] * math.prod(sizes) * weight.shape[0] * channels
    if min(sizes) < 1 or work < LEAST_WORK:
        return None
    x = mx.pad(mx.moveaxis(input, 1, -1), [(0, 0), *((p, p) for p in padding), (0, 0)])
    taps = []
    for place in product(*map(range, kernel)):
        along = zip(place, dilation, stride, sizes, strict=True)
        ends = [slice(at * d, at * d + step * (n - 1) + 1, step) for at, d, step, n in along]
        taps.append(x[(slice(None), *ends)])
    batch, outputs = input.shape[0], weight.shape[0]
    if channels == 1 and groups > 1:
        factors = weight.reshape(outputs, -1).T
        times = outputs // groups
        parts = (mx.repeat(tap, times, axis=-1) if times > 1 else tap for tap in taps)
        result = sum(part * factor for part, factor in zip(parts, factors, strict=True))
    elif groups == 1:
        rows = taps[0] if len(taps) == 1 else mx.concatenate(taps, axis=-1)
        columns = mx.contiguous(mx.moveaxis(weight, 1, -1).reshape(outputs, -1).T)
        result = rows.reshape(-1, columns.shape[0]) @ columns
    else:
        rows = mx.stack([tap.reshape(-1, groups, channels) for tap in taps], axis=2)
        rows = mx.swapaxes(rows.reshape(rows.shape[0], groups, -1), 0, 1)
        matrices = mx.moveaxis(weight, 1, -1).reshape(groups, outputs // groups, -1)
        result = mx.swapaxes(rows @ mx.contiguous(mx.swapaxes(matrices, 1, 2)), 0, 1)
    return mx.moveaxis(result.reshape(batch, *sizes, outputs), -1, 1)


def _by_groups(
    function: Function, input: mx.array, weight: mx.array, bias: Any, groups: int
) -> Any:
    """Return a convolution over three axes, whose groups MLX cannot convolve at once.

    Args:
        function: the convolution of one group.
    """
    channels = input.ndim - 4
    if input.shape[channels] % groups or weight.shape[0] % groups:
        raise ValueError(f"{groups} groups do not divide the channels")
    biases = [None] * groups if bias is None else mx.split(bias, groups)
    parts = zip(
        mx.split(input, groups, axis=channels), mx.split(weight, groups), biases, strict=True
    )
    return mx.concatenate([function(*part) for part in parts], axis=channels)


def _conv(count: int) -> Function:
    """Return a convolution over `count` axes."""

    def conv(
        input: mx.array,
        weight: mx.array,
        bias: mx.array | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Any:
        if weight.ndim == count + 2:
            sizes = (_sizes(numbers, count) for numbers in (stride, padding, dilation))
            found = _by_products(input, weight, *sizes, groups)
            if found is not None:
                along = [-1, *(1 for _ in range(count))]
                return found if bias is None else found + bias.reshape(along)

        def alone(*arrays: Any, groups: int = 1) -> Any:
            return _aten(f"conv{count}d")(*arrays, stride, padding, dilation, groups)

        if groups > 1 and count == 3:
            return _by_groups(alone, input, weight, bias, groups)
        return alone(input, weight, bias, groups=groups)

    return conv


def _conv_transpose3d(
    input: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Any:
    def alone(*arrays: Any) -> Any:
        options = (stride, padding, output_padding, 1, dilation)
        return _aten("conv_transpose3d")(*arrays, *options)

    if groups > 1:
        return _by_groups(alone, input, weight, bias, groups)
    return alone(input, weight, bias)


def _convolution(
    input: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    count = weight.ndim - 2
    if not transposed and count in _CONVS:
        return _CONVS[count](input, weight, bias, stride, padding, dilation, groups)
    if transposed and count == 3:
        options = (stride, padding, output_padding, groups, dilation)
        return _conv_transpose3d(input, weight, bias, *options)
    options = (stride, padding, dilation, transposed, output_padding, groups)
    return _aten("convolution")(input, weight, bias, *options)


def _padded_conv(count: int) -> Function:
    """Return a convolution whose padding is 'same' or 'valid'."""

    def conv(
        input: mx.array,
        weight: mx.array,
        bias: mx.array | None = None,
        stride: Sequence[int] = (1,),
        padding: str = "valid",
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Any:
        stride, dilation = (list(n) * (count // len(n)) for n in (stride, dilation))
        if padding == "same":
            spans = [d * (n - 1) for d, n in zip(dilation, weight.shape[2:], strict=True)]
            widths = [(span // 2, span - span // 2) for span in spans]
            input = mx.pad(input, [(0, 0)] * (input.ndim - count) + widths)
        return _CONVS[count](input, weight, bias, stride, [0] * count, dilation, groups)

    return conv


_CONVS = {count: _conv(count) for count in (1, 2, 3)}

# In place of mlx_aten's functions of these names.
FASTER = {"linear": linear, **{f"conv{n}d": conv for n, conv in _CONVS.items()}}


def faster(function: Function, node: Node, tensors: Mapping[str, Tensor]) -> Function:
    """Return the function to use for a node in place of mlx_aten's, by the node's sizes.

    Functions that depend on sizes decide again in each call, which takes some microseconds.
    """
    name = node.target.removeprefix("aten.").removesuffix(".default")
    if name not in FASTER or function is not _aten(name):
        return function
    if name == "conv3d":  # also for groups, which MLX lacks
        return FASTER[name]
    values = [i.value.name if isinstance(i.value, Ref) else "" for i in node.inputs[:2]]
    input, weight = (tensors.get(value) for value in values)
    result = tensors.get(next(node.outputs(), ""))
    if input is None or weight is None or result is None or not is_dtype(input, mx.float32):
        return function
    places = result.shape[:-1] if name == "linear" else (*result.shape[:1], *result.shape[2:])
    sizes = (*places, *weight.shape[:2])
    known = [n for n in sizes if isinstance(n, int)]
    varies = len(known) < len(sizes)
    return FASTER[name] if varies or math.prod(known) >= LEAST_WORK else function


FUNCTIONS: dict[str, Function] = {
    **{f"aten.conv{n}d.padding": _padded_conv(n) for n in _CONVS},
    "aten.conv_transpose3d.input": _conv_transpose3d,
    "aten.convolution.default": _convolution,
}
