"""Operators over shapes, parts, complex numbers and spectra that mlx_aten has no entry for.

torch composes most of them of others, but programs of torch.export call them as one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, product
from typing import Any

import mlx.core as mx

Function = Callable[..., Any]

MOST_PARTS = 2**16  # Parts may be empty, so that the size of the array does not bound them.


# Parts and shapes.


def diagonal(self: mx.array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> mx.array:
    """Return the diagonal of two axes as the last axis."""
    return mx.diagonal(self, offset, dim1, dim2)


def _placed(x: mx.array, dim1: int, dim2: int) -> mx.array:
    """Move the last two axes to other places."""
    order = list(range(x.ndim - 2))
    for place, axis in sorted([(dim1 % x.ndim, x.ndim - 2), (dim2 % x.ndim, x.ndim - 1)]):
        order.insert(place, axis)
    return x.transpose(order)


def diag_embed(self: mx.array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> mx.array:
    """Return matrices with the elements of the last axis on a diagonal, and 0 elsewhere."""
    widths = (max(-offset, 0), max(offset, 0))
    by_row = mx.pad(self, [(0, 0)] * (self.ndim - 1) + [widths])[..., None]
    places = mx.arange(by_row.shape[-2])
    return _placed(mx.where(places - places[:, None] == offset, by_row, 0), dim1, dim2)


def diagonal_scatter(
    self: mx.array, src: mx.array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> mx.array:
    """Return the array with other elements on a diagonal.

    Raises:
        ValueError: `src` has another shape than the diagonal.
    """
    shape = mx.diagonal(self, offset, dim1, dim2).shape
    if src.shape != shape:
        raise ValueError(f"src must have the shape of the diagonal, {shape}, not {src.shape}")
    dim1, dim2 = dim1 % self.ndim, dim2 % self.ndim
    rest = [axis for axis in range(self.ndim) if axis not in (dim1, dim2)]
    x = self.transpose(*rest, dim1, dim2)
    places = mx.arange(src.shape[-1])
    flat = (places + max(-offset, 0)) * x.shape[-1] + places + max(offset, 0)
    new = mx.put_along_axis(
        x.reshape(*x.shape[:-2], -1),
        mx.broadcast_to(flat, src.shape),
        src.astype(x.dtype),
        axis=-1,
    )
    return _placed(new.reshape(x.shape), dim1, dim2)


def unfold(self: mx.array, dimension: int, size: int, step: int) -> mx.array:
    """Return windows of an axis; the new last axis has the elements of a window.

    Raises:
        ValueError: a window is larger than the axis, or the step is not positive.
    """
    if self.ndim == 0:
        return self.reshape(1)
    axis = dimension % self.ndim
    if not 0 <= size <= self.shape[axis] or step < 1:
        raise ValueError(f"size {size} and step {step} leave an axis of size {self.shape[axis]}")
    count = (self.shape[axis] - size) // step + 1
    places = mx.arange(count)[:, None] * step + mx.arange(size)
    windows = mx.take(self, places, axis=axis)
    return mx.moveaxis(windows, axis + 1, -1)


def tensor_split(self: mx.array, at: int | Sequence[int], dim: int = 0) -> list[mx.array]:
    """Split into a number of parts, or at indices.

    Raises:
        ValueError: the number is not from 1 to `MOST_PARTS`.
    """
    if isinstance(at, int):
        if not 0 < at <= MOST_PARTS:
            raise ValueError(f"the number of parts must be from 1 to {MOST_PARTS}, not {at}")
        n, more = divmod(self.shape[dim], at)
        at = [i * n + min(i, more) for i in range(1, at)]
    return _parts(self, at, dim)


def _parts(self: mx.array, at: Iterable[int], dim: int) -> list[mx.array]:
    return list(mx.split(self, list(at), axis=dim))


def split_sizes(self: mx.array, sizes: Sequence[int], dim: int = 0) -> list[mx.array]:
    """Split into parts of these sizes."""
    return _parts(self, list(accumulate(sizes))[:-1], dim)


def _split_along(axis: int) -> Function:
    return lambda self, at: tensor_split(self, at, axis if self.ndim > axis else 0)


def moveaxis(self: mx.array, source: Sequence[int], destination: Sequence[int]) -> mx.array:
    """Move several axes to new places."""
    places = {d % self.ndim: s % self.ndim for s, d in zip(source, destination, strict=True)}
    rest = iter([axis for axis in range(self.ndim) if axis not in places.values()])
    return self.transpose([places[i] if i in places else next(rest) for i in range(self.ndim)])


def _repeated(repeats: mx.array, output_size: int | None = None) -> mx.array:
    """Return each index as often as an array tells."""
    if output_size is None:
        raise ValueError("repeat_interleave by an array needs output_size")
    ends = mx.cumsum(repeats)
    return mx.sum(mx.arange(output_size)[:, None] >= ends, axis=1).astype(repeats.dtype)


def repeat_interleave(
    self: mx.array, repeats: mx.array, dim: int | None = None, output_size: int | None = None
) -> mx.array:
    """Repeat each element as often as an array tells."""
    self = self.reshape(-1) if dim is None else self
    count = self.shape[dim or 0]
    repeats = mx.broadcast_to(repeats, (count,))
    # An output_size above the sum of the repeats must not read behind the array.
    places = mx.minimum(_repeated(repeats, output_size), count - 1)
    return mx.take(self, places, axis=dim or 0)


def trapezoid(y: mx.array, step: float | mx.array = 1, dim: int = -1) -> mx.array:
    """Integrate over an axis by the rule of trapezoids; `step` is a distance, or all places."""
    y = mx.moveaxis(y, dim, -1)
    if isinstance(step, mx.array):
        x = mx.moveaxis(step, dim, -1) if step.ndim == y.ndim else step
        step = x[..., 1:] - x[..., :-1]
    return mx.sum((y[..., 1:] + y[..., :-1]) * (step / 2), axis=-1)


def rot90(self: mx.array, k: int = 1, dims: Sequence[int] = (0, 1)) -> mx.array:
    """Rotate by k quarter turns in a plane."""
    first, second = dims
    for _ in range(k % 4):
        self = _flipped(mx.swapaxes(self, first, second), first)
    return self


def _flipped(x: mx.array, axis: int) -> mx.array:
    return mx.take(x, mx.arange(x.shape[axis] - 1, -1, -1), axis=axis)


def _each(function: Function) -> Function:
    """Return a function of an array or of a list of arrays."""
    return lambda given: (
        [function(x) for x in given] if isinstance(given, list) else function(given)
    )


def meshgrid(tensors: list[mx.array], indexing: str = "ij") -> list[mx.array]:
    """Return grids of coordinates."""
    return list(mx.meshgrid(*tensors, indexing=indexing))


def cartesian_prod(tensors: list[mx.array]) -> mx.array:
    """Return all combinations of elements."""
    if len(tensors) == 1:
        return tensors[0]
    return mx.stack([x.reshape(-1) for x in meshgrid(tensors)], axis=1)


def block_diag(tensors: list[mx.array]) -> mx.array:
    """Return a matrix with these matrices on its diagonal."""
    blocks: list[Any] = [mx.atleast_2d(x) for x in tensors]
    width = sum(block.shape[1] for block in blocks)
    rows, before = [], 0
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(mx.pad(block, [(0, 0), (before, after)]))
        before += block.shape[1]
    return mx.concatenate(rows)


def pixel_unshuffle(self: mx.array, downscale_factor: int) -> mx.array:
    """Move blocks of pixels into channels."""
    r = downscale_factor
    *outer, channels, height, width = self.shape
    blocks = self.reshape(*outer, channels, height // r, r, width // r, r)
    n = len(outer)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return blocks.transpose(order).reshape(*outer, channels * r * r, height // r, width // r)


def channel_shuffle(self: mx.array, groups: int) -> mx.array:
    """Interleave groups of channels."""
    batch, channels, *rest = self.shape
    return mx.swapaxes(self.reshape(batch, groups, channels // groups, *rest), 1, 2).reshape(
        self.shape
    )


def _filled(self: mx.array, mask: mx.array, value: float | mx.array) -> mx.array:
    """Return the array with a number where a mask is true, which also stops gradients."""
    import mlx_aten

    result: mx.array = mlx_aten.masked_fill(self, mask, mx.array(value, self.dtype))
    return result


def index_fill(self: mx.array, dim: int, index: mx.array, value: float | mx.array) -> mx.array:
    """Return the array with a number at indices of an axis."""
    if self.ndim == 0:
        return mx.broadcast_to(mx.array(value, self.dtype), self.shape)
    n = self.shape[dim]
    index = mx.where(index < 0, index + n, index).reshape(-1)
    chosen = mx.any(mx.arange(n)[:, None] == index, axis=1)
    along = [1] * self.ndim
    along[dim] = n
    return _filled(self, chosen.reshape(along), value)


def fill_diagonal(self: mx.array, fill_value: float, wrap: bool = False) -> mx.array:
    """Return the array with a number where all indices are equal.

    Args:
        wrap: whether the diagonal of a tall matrix begins again below its end.

    Raises:
        ValueError: the array has less than two axes, or more than two of different sizes.
    """
    if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
        raise ValueError(f"an array of shape {self.shape} has no diagonal")
    rows = mx.arange(self.shape[0]).reshape(-1, *(1,) * (self.ndim - 1))
    chosen = mx.array(True)
    for axis, n in enumerate(self.shape[1:], 1):
        other = mx.arange(n).reshape(-1, *(1,) * (self.ndim - 1 - axis))
        chosen = chosen & ((rows % (n + 1) if wrap and self.ndim == 2 else rows) == other)
    return _filled(self, chosen, fill_value)


def bincount(self: mx.array, weights: mx.array | None = None, minlength: int = 0) -> mx.array:
    """Return how often each number occurs, or the sum of its weights.

    The size of the result depends on the largest number, which is computed in each call.

    Raises:
        ValueError: a number or `minlength` is negative.
    """
    size = minlength
    if self.size:
        low, high = int(mx.min(self).item()), int(mx.max(self).item())
        if low < 0:
            raise ValueError(f"bincount of negative numbers, such as {low}")
        size = max(minlength, high + 1)
    if minlength < 0:
        raise ValueError(f"minlength must not be negative, found {minlength}")
    if weights is None:
        return mx.zeros(size, mx.int64).at[self].add(mx.ones(self.shape, mx.int64))
    return mx.zeros(size, weights.dtype).at[self].add(weights)


def masked_scatter(self: mx.array, mask: mx.array, source: mx.array) -> mx.array:
    """Return the array with the elements of the source, in order, where the mask is true."""
    mask, self = mx.broadcast_arrays(mask, self)
    places = mx.cumsum(mask.reshape(-1).astype(mx.int32)) - 1
    taken = mx.take(source.reshape(-1), mx.clip(places, 0, max(source.size - 1, 0)))
    return mx.where(mask, taken.reshape(self.shape).astype(self.dtype), self)


def put(self: mx.array, index: mx.array, source: mx.array, accumulate: bool = False) -> mx.array:
    """Return the array with elements at flat indices."""
    flat, index, source = self.reshape(-1), index.reshape(-1), source.reshape(-1)
    index = mx.where(index < 0, index + flat.size, index)
    if accumulate:
        return flat.at[index].add(source).reshape(self.shape)
    flat = mx.put_along_axis(flat, index, source, axis=0)
    return flat.reshape(self.shape)


def as_strided(
    self: mx.array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> mx.array:
    """Return elements of an array in row order.

    Raises:
        ValueError: a size, a stride or the offset is negative, or an element is not in the array.
    """
    offset = storage_offset or 0
    if min([offset, *size, *stride]) < 0 or len(size) != len(stride):
        raise ValueError(f"size {size}, stride {stride} and offset {offset} are not valid")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if last >= self.size and 0 not in size:
        raise ValueError(f"size {size} and stride {stride} leave an array of {self.size} elements")
    return mx.as_strided(self, size, stride, offset)


def sum_to_size(self: mx.array, size: Sequence[int]) -> mx.array:
    """Sum over the axes along which an array of this size would be repeated."""
    more = self.ndim - len(size)
    axes = [i + more for i, n in enumerate(size) if n == 1]
    return mx.sum(self, axis=[*range(more), *axes]).reshape(size)


def count_nonzero(self: mx.array, dim: int | Sequence[int] | None = None) -> mx.array:
    """Return how many elements are not 0."""
    axes = dim if dim is None or isinstance(dim, int) else tuple(dim)
    return mx.sum(self != 0, axis=axes).astype(mx.int64)


# Making arrays. Without a dtype, it is that of the numbers.


def _dtype_of(*numbers: float) -> mx.Dtype:
    if all(isinstance(number, bool) for number in numbers):
        return mx.bool_
    return mx.int64 if all(isinstance(number, int) for number in numbers) else mx.float32


def arange(*bounds: float, dtype: mx.Dtype | None = None) -> mx.array:
    """Return the numbers of a range: its end, or its start, end and step."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return mx.arange(start, end, step, dtype or _dtype_of(*bounds))


def where(condition: mx.array, self: float, other: float) -> mx.array:
    """Return one of two numbers for each element."""
    dtype = _dtype_of(self, other)
    return mx.where(condition, mx.array(self, dtype), mx.array(other, dtype))


def full(size: Sequence[int], fill_value: float, dtype: mx.Dtype | None = None) -> mx.array:
    """Return an array of equal numbers."""
    return mx.full(size, fill_value, dtype or _dtype_of(fill_value))


def _indices(lower: bool) -> Function:
    """Return torch's tril_indices or triu_indices."""

    def indices(row: int, col: int, offset: int = 0, dtype: mx.Dtype | None = mx.int64) -> mx.array:
        found = [
            (i, j)
            for i, j in product(range(row), range(col))
            if (j - i <= offset if lower else j - i >= offset)
        ]
        return mx.array(found, dtype or mx.int64).reshape(-1, 2).T

    return indices


def vander(x: mx.array, N: int | None = None, increasing: bool = False) -> mx.array:
    """Return powers of the elements."""
    powers = mx.arange(x.shape[-1] if N is None else N)
    return x[..., None] ** (powers if increasing else powers[::-1])


def range_(start: float, end: float, step: float = 1, dtype: mx.Dtype | None = None) -> mx.array:
    """Return numbers from start to end, both included."""
    count = math.floor((end - start) / step) + 1
    return (start + mx.arange(count) * step).astype(dtype or mx.float32)


def _cosines(*weights: float) -> Function:
    """Return a window that is a sum of cosines."""

    def window(
        window_length: int,
        periodic: bool = True,
        *given: float,
        dtype: mx.Dtype | None = None,
    ) -> mx.array:
        terms = (given[0], *(-beta for beta in given[1:] or (0.46,))) if given else weights
        angles = _places(window_length, periodic)[:, None] * (2 * math.pi) * mx.arange(len(terms))
        return mx.sum(mx.array(terms) * mx.cos(angles), axis=1).astype(dtype or mx.float32)

    return window


def _places(length: int, periodic: bool) -> mx.array:
    """Return the places of a window, from 0 to 1."""
    last = length if periodic else length - 1
    return mx.arange(length) / max(last, 1) if length > 1 else mx.array([0.5] * length)


def bartlett_window(
    window_length: int, periodic: bool = True, dtype: mx.Dtype | None = None
) -> mx.array:
    """Return a triangle."""
    return (1 - mx.abs(2 * _places(window_length, periodic) - 1)).astype(dtype or mx.float32)


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    dtype: mx.Dtype | None = None,
) -> mx.array:
    """Return the window of Kaiser."""
    import mlx_aten

    inside = 1 - (2 * _places(window_length, periodic) - 1) ** 2
    scale = mlx_aten.i0(mx.array(float(beta)))
    return (mlx_aten.i0(beta * mx.sqrt(mx.maximum(inside, 0))) / scale).astype(dtype or mx.float32)


# Complex numbers and spectra.


def view_as_real(self: mx.array) -> mx.array:
    """Return real and imaginary parts as a new last axis."""
    return mx.stack([mx.real(self), mx.imag(self)], axis=-1)


def view_as_complex(self: mx.array) -> mx.array:
    """Return complex numbers of a last axis of two."""
    return self[..., 0] + self[..., 1] * mx.array(1j)


def _real(self: mx.array) -> mx.array:
    return mx.real(self) if mx.issubdtype(self.dtype, mx.complexfloating) else self


def _conj(self: mx.array) -> mx.array:
    return mx.conj(self) if mx.issubdtype(self.dtype, mx.complexfloating) else self


def _shifted(back: bool) -> Function:
    def shift(self: mx.array, dim: Iterable[int] | None = None) -> mx.array:
        for axis in range(self.ndim) if dim is None else dim:
            n = self.shape[axis]
            self = mx.roll(self, (n + 1) // 2 if back else n // 2, axis)
        return self

    return shift


def _window_of(window: mx.array | None, n_fft: int, win_length: int | None) -> mx.array:
    """Return a window in the middle of a frame."""
    length = n_fft if win_length is None else win_length
    window = mx.ones(length) if window is None else window
    before = (n_fft - length) // 2
    return mx.pad(window, (before, n_fft - length - before))


def stft(
    self: mx.array,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: mx.array | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> mx.array:
    """Return the spectra of overlapping frames, (..., frequency, frame)."""
    hop = n_fft // 4 if hop_length is None else hop_length
    frames = unfold(self, -1, n_fft, hop) * _window_of(window, n_fft, win_length)
    real = not mx.issubdtype(self.dtype, mx.complexfloating)
    half = real if onesided is None else onesided
    spectra = mx.fft.rfft(frames) if half else mx.fft.fft(frames)
    spectra = mx.swapaxes(spectra, -1, -2) * (n_fft**-0.5 if normalized else 1)
    return spectra if return_complex else view_as_real(spectra)


def istft(
    self: mx.array,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: mx.array | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> mx.array:
    """Return the signal of overlapping spectra, by least squares."""
    hop = n_fft // 4 if hop_length is None else hop_length
    envelope = _window_of(window, n_fft, win_length)
    spectra = mx.swapaxes(self, -1, -2) * (n_fft**0.5 if normalized else 1)
    half = self.shape[-2] != n_fft if onesided is None else onesided
    if half and not return_complex:
        frames = mx.fft.irfft(spectra, n_fft)
    else:
        frames = mx.fft.ifft(spectra)
        frames = frames if return_complex else mx.real(frames)
    count = frames.shape[-2]
    total = n_fft + hop * (count - 1)
    places = (mx.arange(count)[:, None] * hop + mx.arange(n_fft)).reshape(-1)
    signal = mx.zeros((*frames.shape[:-2], total), frames.dtype)
    flat = (frames * envelope).reshape(*frames.shape[:-2], -1)
    signal = signal.at[..., places].add(flat)
    weights = mx.zeros(total).at[places].add(mx.tile(envelope**2, count))
    start = n_fft // 2 if center else 0
    stop = (total - start if center else total) if length is None else start + length
    result = (signal / mx.where(weights > 1e-11, weights, 1))[..., start:stop]
    missing = 0 if length is None else length - result.shape[-1]
    return mx.pad(result, [(0, 0)] * (result.ndim - 1) + [(0, missing)]) if missing else result


FUNCTIONS: dict[str, Function] = {
    "aten.diagonal.default": diagonal,
    "aten.linalg_diagonal.default": lambda A, offset=0, dim1=-2, dim2=-1: diagonal(
        A, offset, dim1, dim2
    ),
    "aten.diag_embed.default": diag_embed,
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.unfold.default": unfold,
    "mlx.as_strided": as_strided,
    "aten.tensor_split.sections": tensor_split,
    "aten.tensor_split.indices": tensor_split,
    **{f"aten.hsplit.{kind}": _split_along(1) for kind in ("int", "array")},
    **{f"aten.vsplit.{kind}": _split_along(0) for kind in ("int", "array")},
    **{f"aten.dsplit.{kind}": _split_along(2) for kind in ("int", "array")},
    "aten.split.sizes": split_sizes,
    "aten.moveaxis.intlist": moveaxis,
    "aten.movedim.intlist": moveaxis,
    "aten.repeat_interleave.self_Tensor": repeat_interleave,
    "aten.repeat_interleave.Tensor": _repeated,
    **{f"aten.{n}.{k}": trapezoid for n, k in product(("trapezoid", "trapz"), ("x", "dx"))},
    "aten.view.dtype": lambda self, dtype: self.view(dtype),
    "aten.swapdims.default": mx.swapaxes,
    "aten.adjoint.default": lambda self: _conj(mx.swapaxes(self, -1, -2)),
    "aten.matrix_H.default": lambda self: _conj(mx.swapaxes(self, -1, -2)),
    "aten.mH.default": lambda self: _conj(mx.swapaxes(self, -1, -2)),
    "aten.rot90.default": rot90,
    "aten.fliplr.default": lambda self: _flipped(self, 1),
    "aten.flipud.default": lambda self: _flipped(self, 0),
    **{
        f"aten.atleast_{n}d.{kind}": _each(function)
        for n, function in ((1, mx.atleast_1d), (2, mx.atleast_2d), (3, mx.atleast_3d))
        for kind in ("default", "Sequence")
    },
    "aten.broadcast_to.default": lambda self, size: mx.broadcast_to(self, size),
    "aten.reshape_as.default": lambda self, other: self.reshape(other.shape),
    "aten.meshgrid.default": meshgrid,
    "aten.meshgrid.indexing": meshgrid,
    "aten.cartesian_prod.default": cartesian_prod,
    "aten.block_diag.default": block_diag,
    "aten.pixel_unshuffle.default": pixel_unshuffle,
    "aten.channel_shuffle.default": channel_shuffle,
    "aten.native_channel_shuffle.default": channel_shuffle,
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.fill_diagonal.default": fill_diagonal,
    "aten.bincount.default": bincount,
    "aten.masked_scatter.default": masked_scatter,
    "aten.put.default": put,
    "aten.einsum.default": lambda equation, tensors, path=None: mx.einsum(equation, *tensors),
    "aten.isfinite.default": mx.isfinite,
    "aten.isclose.default": mx.isclose,
    "aten.diagflat.default": lambda self, offset=0: diag_embed(self.reshape(-1), offset),
    "aten.sum_to_size.default": sum_to_size,
    **{f"aten.count_nonzero.{kind}": count_nonzero for kind in ("default", "dim_IntList")},
    "aten.positive.default": lambda self: self,
    **{f"aten.arange.{kind}": arange for kind in ("default", "start", "start_step")},
    "aten.full.default": full,
    "aten.where.Scalar": where,
    "aten.tril_indices.default": _indices(True),
    "aten.triu_indices.default": _indices(False),
    "aten.vander.default": vander,
    "aten.linalg_vander.default": lambda x, N=None: vander(x, N, True),
    "aten.range.default": range_,
    "aten.range.step": range_,
    "aten.empty_permuted.default": lambda size, physical_layout, dtype=None: mx.zeros(
        size, dtype or mx.float32
    ),
    **{f"aten.hann_window.{k}": _cosines(0.5, -0.5) for k in ("default", "periodic")},
    **{
        f"aten.hamming_window.{kind}": _cosines(0.54, -0.46)
        for kind in ("default", "periodic", "periodic_alpha", "periodic_alpha_beta")
    },
    **{f"aten.blackman_window.{k}": _cosines(0.42, -0.5, 0.08) for k in ("default", "periodic")},
    **{f"aten.bartlett_window.{k}": bartlett_window for k in ("default", "periodic")},
    **{f"aten.kaiser_window.{k}": kaiser_window for k in ("default", "periodic", "beta")},
    "aten.view_as_real.default": view_as_real,
    "aten.view_as_complex.default": view_as_complex,
    "aten.real.default": _real,
    "aten.imag.default": mx.imag,
    **{f"aten.{name}.default": _conj for name in ("conj", "_conj", "_conj_physical")},
    **{f"aten.{name}.default": lambda self: self for name in ("resolve_conj", "resolve_neg")},
    "aten.fft_fftshift.default": _shifted(False),
    "aten.fft_ifftshift.default": _shifted(True),
    "aten.stft.default": stft,
    "aten.istft.default": istft,
}
