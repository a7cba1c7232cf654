"""CPU kernels on 4M numbers of float32, against NumPy or SciPy, and against MLX without them.

All functions are written as users would write them; each call allocates its result. MLX's
composition is timed directly and through ``mx.compile``. The results include the fraction of the
speed at which the machine copies memory: an operator that reaches 1 cannot be faster, even if it
computes little. ``softcap`` is a composite without a kernel: it shows the effect of compilation
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlxops
import numpy as np
import scipy.ndimage
import scipy.special

from .measure import Options, Result, alternate, duration

Function = Callable[..., object]

AT_SPEED = 1.05  # times NumPy's time: not slower, within the precision of the measurement
AT_BANDWIDTH = 0.8  # times the speed of copying
EIGHTFOLD = ("swiglu",)  # operators with exp, tanh or erf, and with a kernel


@dataclass(frozen=True)
class Case:
    """One operator, its inputs as NumPy arrays, and its competitors."""

    name: str
    inputs: tuple[np.ndarray, ...]
    ours: Function
    reference: Function  # NumPy or SciPy
    composition: Function  # MLX
    outputs: int = 1  # number of written arrays of the first input's size
    # The used views of the inputs, in MLX and NumPy: strided or broadcast.
    views: Callable[..., tuple[Any, ...]] = lambda *inputs: inputs


def cases(size: int) -> list[Case]:
    """Return the cases, with ``size`` numbers each."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, size)).astype(np.float32)
    positive = random.uniform(0.1, 20, size).astype(np.float32)
    rows = x.reshape(-1, 1024)
    weight = random.normal(size=1024).astype(np.float32)
    table = x.reshape(-1, 64)
    ids = random.integers(0, 1000, len(table)).astype(np.int32)
    side = round((size // 16) ** 0.5)
    image = random.normal(size=(1, side, side, 16)).astype(np.float32)
    grid = random.uniform(-1, 1, (1, side, side, 2)).astype(np.float32)
    channels_first = image[0].transpose(2, 0, 1).copy()
    all_cases = [
        Case("add", (x, y), mlxops.examples.add, np.add, mx.add),
        Case(
            "axpby",
            (x, y),
            lambda x, y: mlxops.examples.axpby(x, y, 2.0, 3.0),
            lambda x, y: 2 * x + 3 * y,
            lambda x, y: 2 * x + 3 * y,
        ),
        Case(
            "swiglu",
            (x, y),
            mlxops.swiglu,
            lambda x, gate: x * gate / (1 + np.exp(-gate)),
            lambda x, gate: x * gate * mx.sigmoid(gate),
        ),
        Case(
            "sincos",
            (x,),
            mlxops.sincos,
            lambda x: (np.sin(x), np.cos(x)),
            lambda x: (mx.sin(x), mx.cos(x)),
            outputs=2,
        ),
        Case("lgamma", (positive,), mlxops.lgamma, scipy.special.gammaln, lgamma),
        Case("digamma", (positive,), mlxops.digamma, scipy.special.psi, digamma),
        Case(
            "rms_norm_residual",
            (rows, rows[::-1].copy(), weight),
            mlxops.rms_norm_residual,
            rms_norm_residual,
            lambda x, residual, weight: (
                mx.fast.rms_norm(x + residual, weight, 1e-5),
                x + residual,
            ),
            outputs=2,
        ),
        Case(
            "segment_sum",
            (table, ids),
            lambda x, ids: mlxops.segment_sum(x, ids, 1000),
            segment_sum,
            lambda x, ids: mx.zeros((1000, x.shape[1])).at[ids].add(x),
            outputs=0,
        ),
        Case("grid_sample", (image, grid), mlxops.grid_sample, map_coordinates, grid_sample),
        Case(
            "softcap",
            (x,),
            mlxops.softcap,
            lambda x: 50 * np.tanh(x / 50),
            lambda x: 50 * mx.tanh(x / 50),
        ),
    ]
    norm, sums, sample = all_cases[-4:-1]
    columns = np.concatenate([rows, rows], axis=1)

    def viewed(
        case: Case, what: str, inputs: tuple[np.ndarray, ...], views: Callable[..., Any]
    ) -> Case:
        return replace(case, name=f"{case.name}, {what}", inputs=inputs, views=views)

    return [
        *all_cases,
        viewed(
            norm,
            "x part of each row",
            (columns, *norm.inputs[1:]),
            lambda x, *others: (x[:, :1024], *others),
        ),
        viewed(
            norm,
            "x every second column",
            (columns, *norm.inputs[1:]),
            lambda x, *others: (x[:, ::2], *others),
        ),
        viewed(
            norm,
            "x transposed",
            (rows.T.copy(), *norm.inputs[1:]),
            lambda x, *others: (x.T, *others),
        ),
        viewed(
            norm,
            "residual one row for all",
            (rows, rows[:1], weight),
            lambda x, residual, weight: (x, broadcast_to(residual, x.shape), weight),
        ),
        viewed(sums, "x transposed", (table.T.copy(), ids), lambda x, ids: (x.T, ids)),
        viewed(
            sample,
            "channels first",
            (channels_first, grid),
            lambda x, grid: (x.transpose(1, 2, 0)[None], grid),
        ),
    ]


def broadcast_to(a: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast in NumPy or MLX."""
    return (np if isinstance(a, np.ndarray) else mx).broadcast_to(a, shape)


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    size = 2**18 if options.quick else 2**22
    with mx.stream(mx.cpu):
        for case in cases(size):
            options.progress(f"time {case.name}")
            yield _result(case, rounds=3 if options.quick else 9)


def _result(case: Case, rounds: int) -> Result:
    arrays = case.views(*map(mx.array, case.inputs))
    mx.eval(arrays)
    theirs = case.views(*case.inputs)
    compiled = mx.compile(case.composition)
    copied = np.empty_like(case.inputs[0])
    times = alternate(
        {
            "ours": lambda: mx.eval(case.ours(*arrays)),
            "reference": lambda: case.reference(*theirs),
            "composition": lambda: mx.eval(case.composition(*arrays)),
            "compiled": lambda: mx.eval(compiled(*arrays)),
            "copy": lambda: np.copyto(copied, case.inputs[0]),
        },
        rounds=rounds,
    )
    moved = sum(a.nbytes for a in theirs) + case.outputs * theirs[0].nbytes
    bandwidth = moved / (2 * copied.nbytes) / times.ratio("ours", "copy")
    faster = {name: times.ratio(name, "ours") for name in ("reference", "composition", "compiled")}
    met = faster["reference"] >= 1 / AT_SPEED or bandwidth >= AT_BANDWIDTH
    aim = "NumPy's speed, or memory's"
    if case.name in EIGHTFOLD:
        met = met and faster["compiled"] >= 8
        aim += "; 8x compiled"
    has_kernel = case.name.partition(",")[0] in mlxops.dispatch_table()
    return Result(
        "kernels",
        case.name,
        f"{duration(times.seconds('ours'))}: NumPy/SciPy takes {faster['reference']:.2g}x, MLX "
        f"{faster['composition']:.2g}x, compiled {faster['compiled']:.2g}x; "
        f"{bandwidth:.0%} of copying speed",
        aim if has_kernel else "",
        met if has_kernel else None,
        {**faster, "seconds": times.seconds("ours"), "bandwidth": bandwidth},
    )


def lgamma(x: mx.array) -> mx.array:
    """Lanczos' approximation for x > 0, a typical composition (Numerical Recipes, 6.1.5)."""
    coefficients = (
        76.18009173,
        -86.50532033,
        24.01409822,
        -1.231739516,
        0.120858003e-2,
        -0.536382e-5,
    )
    series = 1 + sum(c / (x + (i + 1)) for i, c in enumerate(coefficients))
    return (x + 0.5) * mx.log(x + 5.5) - (x + 5.5) + mx.log(2.50662827465 * series / x)


def digamma(x: mx.array) -> mx.array:
    """For x > 0: recurrence up to 6, then the asymptotic series (DLMF 5.5.2 and 5.11.2)."""
    shift = sum(1 / (x + i) for i in range(6))
    z = x + 6
    w = 1 / (z * z)
    return mx.log(z) - 0.5 / z - w * (1 / 12 - w * (1 / 120 - w / 252)) - shift


def rms_norm_residual(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """In NumPy."""
    h = x + residual
    return h / np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + 1e-5) * weight, h


def segment_sum(x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """In NumPy."""
    out = np.zeros((1000, x.shape[1]), x.dtype)
    np.add.at(out, ids, x)
    return out


def map_coordinates(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Bilinear sampling in SciPy, channel by channel; zeros outside, up to half a pixel."""
    _, height, width, channels = x.shape
    column = (grid[0, ..., 0] + 1) * width / 2 - 0.5
    row = (grid[0, ..., 1] + 1) * height / 2 - 0.5
    out = [
        scipy.ndimage.map_coordinates(x[0, ..., c], (row, column), order=1, mode="grid-constant")
        for c in range(channels)
    ]
    return np.stack(out, axis=-1)[None]


def grid_sample(x: mx.array, grid: mx.array) -> mx.array:
    """Bilinear sampling of one image, zeros outside, composed of MLX ops."""
    _, height, width, channels = x.shape
    pixels = x.reshape(-1, channels)
    column = (grid[0, ..., 0] + 1) * (width / 2) - 0.5
    row = (grid[0, ..., 1] + 1) * (height / 2) - 0.5
    left, top = mx.floor(column), mx.floor(row)
    out = mx.zeros((*column.shape, channels))
    for i in (0, 1):
        for j in (0, 1):
            r, c = top + i, left + j
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            weight = (1 - mx.abs(row - r)) * (1 - mx.abs(column - c)) * inside
            index = mx.clip(r, 0, height - 1) * width + mx.clip(c, 0, width - 1)
            out = out + pixels[index.astype(mx.int32)] * weight[..., None]
    return out[None]
