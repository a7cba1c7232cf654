"""The cost of Metal kernels against MLX's own, in instructions, without a GPU.

`metal_ir` counts the instructions of one thread in the middle of the work, on the path that nearly
all threads take; work that a thread does once is divided by its number of elements. The dispatches
of MLX's nearest operators, composed to compute the same, are counted, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from mlxgen.emulator import spaces

from . import metal_nn
from .measure import Options, Result
from .metal_cost import (
    ADD,
    BINARY,
    INCLUDE,
    MLX,
    OURS,
    ROWS,
    THREAD,
    WIDTH,
    Cost,
    beside,
    mlx_add,
    mlx_kernels,
    operators,
    ours,
    rows,
)
from .metal_ir import Argument, Kernels


def in_row(threads: int) -> list[Argument]:
    """Return the positions for our row kernels."""
    return [(0, 0, 0), (THREAD, 0, 0), (threads, 1, 1), THREAD, 0, threads // 32]


def norm(dtype: type) -> Cost:
    """Return the cost of rms_norm_residual with four elements per thread."""
    name = np.dtype(dtype).name
    numbers = (np.bool_(True), np.float32(1e-5), np.uint32(WIDTH))
    arguments = [*rows(5, dtype), *numbers, *in_row(WIDTH // 4)]
    return Cost(ours("normalization.metal").run(f"rms_norm_residual_{name}", arguments), 4)


def norm_vjp(dtype: type) -> Cost:
    """Return the cost of its gradient for 16 rows."""
    name = np.dtype(dtype).name
    sums = np.zeros(WIDTH, np.float32)
    numbers = (np.bool_(True), np.float32(1e-5), np.uint32(WIDTH), np.uint32(ROWS))
    arguments = [*rows(5, dtype), sums, *numbers, *in_row(WIDTH // 4)]
    kernels = ours("normalization.metal")
    return Cost(kernels.run(f"rms_norm_residual_vjp_{name}", arguments), 4 * ROWS)


def mlx_norm(source: str, dtype: type) -> Cost:
    """Return the cost of MLX's rms_norm of a sum."""
    x, w, out = rows(3, dtype)
    numbers = (np.float32(1e-5), np.uint32(WIDTH), np.uint32(1))
    run = Kernels(source, [INCLUDE]).run(
        f"rms{np.dtype(dtype).name}", [x, w, out, *numbers, 0, THREAD, THREAD, 0]
    )
    return mlx_add(dtype) + Cost(run, 4)


def mlx_norm_vjp(source: str, dtype: type) -> Cost:
    """Return the cost of its gradient; the cotangent of the sum is added to the norm's."""
    numbers = (np.float32(1e-5), *map(np.uint32, (WIDTH, 1, ROWS, ROWS)))
    run = Kernels(source, [INCLUDE], {"has_w": "true"}).run(
        f"vjp_rms{np.dtype(dtype).name}", [*rows(5, dtype), *numbers, 0, THREAD, THREAD, 0]
    )
    return mlx_add(dtype) + Cost(run, 4 * ROWS)


def sample(kernel: str, channels: int) -> Cost:
    """Return the cost of grid_sample or its gradient, at a point inside of the image."""
    x = np.zeros((1, 20, 20, channels), np.float32)
    points = np.zeros((1, 5, 5, 2), np.float32)
    out = np.zeros((1, 5, 5, channels), np.float32)
    arrays = [x, points, out] if kernel == "grid_sample" else [x, points, out, x, points]
    numbers = (np.array(x.shape, np.int32), np.int32(0), np.int32(0), np.bool_(False))
    threads = min((channels + 3) // 4, 8)
    arguments: Sequence[Argument] = [*arrays, *numbers, (0, 3, 0), (threads, 25, 1)]
    run = ours("grid_sample.metal").run(f"{kernel}_float32", arguments)
    return Cost(run, -(-channels // threads))


@dataclass(frozen=True)
class Layout:
    """The memory layout of two arrays, and the kernels for it: ours, and MLX's for two numbers.

    Attributes:
        what: A description.
        kind: The end of our kernel's name, after the operator's name.
        arguments: The template arguments of our kernel after the element's type.
        theirs: MLX's kernel.
        same: The template arguments of MLX's kernel after the element's types and the operation.
        strides: The strides of each array, if any.
        scalar: True if the second array is one number.
    """

    what: str
    kind: str
    arguments: str
    theirs: str
    same: str
    strides: tuple[tuple[int, ...], ...] = ()
    scalar: bool = False

    @property
    def each(self) -> int:
        """The number of elements per thread of our kernel."""
        return int(self.arguments.rpartition(" ")[2])


SHAPE = (6, 5, 4, 3, 64)


def layouts(dtype: type) -> Iterator[Layout]:
    """Yield the layouts that the runtime (mlxgen/runtime/src/metal.cpp) and MLX distinguish."""
    n = 8 // np.dtype(dtype).itemsize
    for second, scalar in ((" arrays", False), (" array and a number", True)):
        one = "binary_vs" if scalar else "binary_vv"
        who = f"{'an' if scalar else 'two'}{second}"
        yield Layout(f"{who}, small", "dense", "int, 1", one, "1", (), scalar)
        yield Layout(who, "dense_n", f"int, {n}", one, str(n), (), scalar)
        yield Layout(
            f"{who}, 64 bits", "dense_large", f"int64_t, {n}", f"{one}2", str(n), (), scalar
        )
    for axes in (1, 2, 3, 5):
        rows = tuple(2 * int(np.prod(SHAPE[len(SHAPE) - axes + i + 1 :])) for i in range(axes))
        for offsets, bits in (("int", ""), ("int64_t", ", 64 bits")):
            large = "_large" if bits else ""
            what = f"strides, {axes} {'axes' if axes > 1 else 'axis'}{bits}"
            if axes <= 3:
                ours, theirs = f"{axes}, 1", f"binary_g_nd{axes}"
                yield Layout(
                    what,
                    f"strided_{axes}{large}",
                    f"{offsets}, {ours}",
                    theirs,
                    offsets,
                    (rows,) * 2,
                )
            else:
                each = 4 if bits else 2
                yield Layout(
                    what,
                    f"strided_n{large}",
                    f"{offsets}, 0, {each}",
                    "binary_g",
                    f"{each}, {offsets}",
                    (rows,) * 2,
                )


def arrays_of(layout: Layout, dtype: type) -> tuple[list[np.ndarray], list[Argument]]:
    """Return memory for two inputs and an output, and the position of a thread in the middle."""
    size = 2 * int(np.prod(SHAPE))
    axes = len(layout.strides[0]) if layout.strides else 0
    if not axes:
        position: list[Argument] = [(THREAD, 0, 0), (size // layout.each, 1, 1)]
    else:
        lengths = SHAPE[len(SHAPE) - axes :]
        grid = [-(-lengths[-1] // layout.each), *(lengths[-2:-1] or (1,)), 1]
        grid[2] = int(np.prod(lengths)) // (lengths[-1] * grid[1])
        middle = tuple(n // 2 for n in grid)
        position = [(middle[0], middle[1], middle[2]), (grid[0], grid[1], grid[2])]
    return list(np.zeros((3, size), dtype)), position


TYPES = {np.float32: "float", np.float16: "half"}


def names(layout: Layout, dtype: type) -> str:
    """Return the end of a kernel's name, after the operator's name."""
    return f"{layout.kind}_{np.dtype(dtype).name}"


@cache
def generated_kernels(name: str, scalar: bool) -> Kernels:
    """Return the kernels around an operator's scalar function, for all layouts and dtypes."""
    op = next(op for op in operators() if op.name == name)
    kernel = op.forward.kernel("metal")
    assert kernel is not None
    variants = {
        f"{name}_{names(layout, dtype)}": f"{layout.kind.split('_')[0]}<{type}, {layout.arguments}>"
        for dtype, type in TYPES.items()
        for layout in layouts(dtype)
    }
    text = f'#include "{kernel.include}"\n{spaces.runtime_source("elementwise")}'
    text += spaces.kernels_around(op, kernel, variants)
    constants = {f"{op.arguments.arrays[1].cpp}_is_scalar": "true"} if scalar else {}
    return Kernels(text, [INCLUDE, OURS], constants)


def generated(name: str, layout: Layout, dtype: type) -> Cost:
    """Return the cost of a kernel that is generated around an operator's scalar function."""
    arrays, position = arrays_of(layout, dtype)
    index = np.int64 if "int64_t" in layout.arguments else np.int32
    numbers: list[Argument] = [index(arrays[0].size)]
    if layout.strides:
        lengths = np.array(SHAPE[len(SHAPE) - len(layout.strides[0]) :], np.int32)
        numbers = [lengths, np.array(layout.strides, index), np.int32(len(lengths))]
    if name == "axpby":
        numbers += [np.float32(2), np.float32(3)]
    kernels = generated_kernels(name, layout.scalar)
    run = kernels.run(f"{name}_{names(layout, dtype)}", [*arrays, *numbers, *position])
    return Cost(run, layout.each)


@cache
def mlx_binary_kernels() -> Kernels:
    """Return MLX's kernels of addition."""
    kernels = (INCLUDE / MLX / "binary.h").read_text(encoding="utf-8")
    # OpenCL has another syntax for this vector.
    kernels = re.sub(r"\{(N \* index\.x, index\.y, index\.z)\}", r"uint3(\1)", kernels)
    text = ADD.partition(BINARY)[0] + kernels
    for dtype, type in TYPES.items():
        for layout in layouts(dtype):
            name = f"{layout.scalar}_{names(layout, dtype)}"
            instance = f"{layout.theirs}, {type}, {type}, Add, {layout.same}"
            text += f'\ninstantiate_kernel("{name}", {instance})'
    return Kernels(text, [INCLUDE])


def mlx_binary(layout: Layout, dtype: type) -> Cost:
    """Return the cost of MLX's addition of such arrays."""
    arrays, position = arrays_of(layout, dtype)
    numbers: list[Argument]
    if not layout.strides:
        large = layout.theirs.endswith("2")
        numbers = [np.int64(arrays[0].size) if large else np.uint32(arrays[0].size)]
        position = position if large else [THREAD]
    else:
        axes = len(layout.strides[0])
        numbers = [np.array(own, np.int64) for own in layout.strides]
        if axes > 3:
            lengths = np.array(SHAPE[len(SHAPE) - axes :], np.int32)
            numbers = [lengths, *numbers, np.int32(axes)]
        elif axes == 1:
            position = position[:1]
    name = f"{layout.scalar}_{names(layout, dtype)}"
    return Cost(mlx_binary_kernels().run(name, [*arrays, *numbers, *position]), layout.each)


# alpha * x + beta * y as mlx/backend/metal/compiled.cpp writes it, with literal numbers.
COMPILED = """
template <typename T>
inline T computed(T x, T y) {
  T first = T(2) * x;
  T second = T(2) * y;
  return first + second;
}
template <typename T, typename I, int N>
[[kernel]] void contiguous(
    device const T* x, device const T* y, device T* out, constant const I& size,
    uint3 pos [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
  I index = N * pos.x;
  if (sizeof(I) > 4) {
    index = N * (pos.x + grid.x * int64_t(pos.y));
  }
  for (int i = 0; i < N && index < size; ++i) {
    out[index] = computed<T>(x[index], y[index]);
    index++;
  }
}
template <typename T, typename I, int NDIM, int N>
[[kernel]] void strided(
    device const T* x, device const T* y, constant const int64_t* in_strides, device T* out,
    constant const int* output_shape,
    uint3 pos [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
  int xshape = output_shape[NDIM - 1];
  I index = (N > 1 ? N * pos.x + xshape * (pos.y + I(grid.y) * pos.z)
                   : pos.x + grid.x * (pos.y + I(grid.y) * pos.z));
  I index_x = N * pos.x * I(in_strides[NDIM - 1]);
  I index_y = N * pos.x * I(in_strides[2 * NDIM - 1]);
  if (NDIM > 1) {
    index_x += pos.y * I(in_strides[NDIM - 2]);
    index_y += pos.y * I(in_strides[2 * NDIM - 2]);
  }
  if (NDIM == 3) {
    index_x += pos.z * I(in_strides[0]);
    index_y += pos.z * I(in_strides[3]);
  }
  uint zpos = pos.z;
  for (int d = NDIM - 3; NDIM > 3 && d >= 0; --d) {
    uint l = zpos % output_shape[d];
    index_x += l * I(in_strides[d]);
    index_y += l * I(in_strides[NDIM + d]);
    zpos /= output_shape[d];
  }
  for (int i = 0; i < N && (N == 1 || (int(N * pos.x) + i) < xshape); ++i) {
    out[index] = computed<T>(x[index_x], y[index_y]);
    index_x += in_strides[NDIM - 1];
    index_y += in_strides[2 * NDIM - 1];
    index++;
  }
}
"""


@cache
def mlx_compiled_kernels() -> Kernels:
    """Return the kernels that mx.compile generates, for all layouts and dtypes."""
    text = ADD.partition("struct Add")[0] + COMPILED
    for dtype, type in TYPES.items():
        for layout in layouts(dtype):
            large = layout.kind.endswith("_large")
            offsets = "int64_t" if large else "uint"
            axes = len(layout.strides[0]) if layout.strides else 0
            arguments = f"{axes}, {layout.each}" if axes else str(layout.each)
            instance = f"{'strided' if axes else 'contiguous'}, {type}, {offsets}, {arguments}"
            if not layout.scalar:  # a number is a literal in the source
                text += f'instantiate_kernel("{names(layout, dtype)}", {instance})\n'
    return Kernels(text, [INCLUDE])


def mlx_compiled(layout: Layout, dtype: type) -> Cost:
    """Return the cost of mx.compile's kernel for the same."""
    (x, y, out), position = arrays_of(layout, dtype)
    if layout.strides:
        lengths = np.array(SHAPE[len(SHAPE) - len(layout.strides[0]) :], np.int32)
        arguments: list[Argument] = [x, y, np.array(layout.strides, np.int64), out, lengths]
    else:
        large = layout.kind.endswith("_large")
        arguments = [x, y, out, np.int64(x.size) if large else np.uint32(x.size)]
    run = mlx_compiled_kernels().run(names(layout, dtype), [*arguments, *position])
    return Cost(run, layout.each)


def elementwise() -> Iterator[Result]:
    """Compare kernels around scalar functions with MLX's, for every kind of arrays."""
    for name, peer in (("add", mlx_binary), ("axpby", mlx_compiled)):
        for dtype in TYPES:
            for layout in layouts(dtype):
                if layout.scalar and peer is mlx_compiled:
                    continue
                what = f"{name}, {np.dtype(dtype).name}, {layout.what} ({layout.each} a thread)"
                yield beside(what, generated(name, layout, dtype), peer(layout, dtype))


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    options.progress("instructions of Metal kernels")
    yield from elementwise()
    source = mlx_kernels("rms_norm.metal")
    for dtype in (np.float32, np.float16):
        for what, mine, theirs in (
            ("rms_norm_residual", norm, mlx_norm),
            ("its gradient", norm_vjp, mlx_norm_vjp),
        ):
            other = theirs(source, dtype) if source else None
            yield beside(f"{what}, {np.dtype(dtype).name}, rows of {WIDTH}", mine(dtype), other)
    for channels in (3, 64):
        yield beside(f"grid_sample, float32, {channels} channels", sample("grid_sample", channels))
        yield beside("its gradient", sample("grid_sample_vjp", channels))
    total = ours("segment.metal").instructions("segment_sum_sorted_float32")
    yield beside("segment_sum, float32, the whole kernel once", Cost(total, 1))
    yield from metal_nn.beside_others()
