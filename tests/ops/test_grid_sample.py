"""grid_sample against a loop in NumPy, and against torch's results (data/grid_sample.py)."""

import itertools
import json
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

MODES = ("bilinear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
OPTIONS = [
    {"mode": mode, "padding_mode": padding, "align_corners": corners}
    for mode, padding, corners in itertools.product(MODES, PADDINGS, (False, True))
]
TORCH = json.loads(Path(__file__).with_name("data").joinpath("grid_sample.json").read_text())
EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}


def option_name(options):
    corners = "corners" if options["align_corners"] else "edges"
    return f"{options['mode']}-{options['padding_mode']}-{corners}"


every_option = pytest.mark.parametrize("options", OPTIONS, ids=option_name)
every_case = pytest.mark.parametrize("case", TORCH["cases"], ids=option_name)


def located(g, size, padding, corners):
    """Return the position of a grid coordinate in pixels."""
    p = (g + 1) * (size - 1) / 2 if corners else ((g + 1) * size - 1) / 2
    if padding == "reflection":
        low, high = (0, size - 1) if corners else (-0.5, size - 0.5)
        if high > low:
            p = abs(p - low) % (2 * (high - low))
            p = low + min(p, 2 * (high - low) - p)
        else:
            p = 0.0
    if padding != "zeros":
        p = min(max(p, 0.0), size - 1.0)
    return p


def reference(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    """A plain loop; test_reference compares it with torch."""
    height, width, channels = x.shape[1:]
    out = np.zeros((*grid.shape[:3], channels))

    def pixel(b, row, column):
        inside = 0 <= row < height and 0 <= column < width
        return x[b, int(row), int(column)] if inside else np.zeros(channels)

    for b, i, j in np.ndindex(grid.shape[:3]):
        column = located(grid[b, i, j, 0], width, padding_mode, align_corners)
        row = located(grid[b, i, j, 1], height, padding_mode, align_corners)
        if mode == "nearest":
            out[b, i, j] = pixel(b, np.rint(row), np.rint(column))
            continue
        top, left = np.floor(row), np.floor(column)
        for r, c in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            weight = (1 - abs(row - r)) * (1 - abs(column - c))
            out[b, i, j] += weight * pixel(b, r, c)
    return out


def stored(values, dtype=mx.float64):
    return mx.array(np.array(values, dtype=np.float64), dtype=dtype)


# Against torch


@every_case
def test_reference(case):
    options = {key: case[key] for key in OPTIONS[0]}
    got = reference(np.array(TORCH["x"]), np.array(TORCH["grid"]), **options)
    np.testing.assert_allclose(got, np.array(case["out"]), 1e-8, 1e-8)


@every_case
def test_forward_and_gradients_of_torch(case):
    options = {key: case[key] for key in OPTIONS[0]}
    with mx.stream(mx.cpu):
        x, grid, cotangent = (stored(TORCH[k]) for k in ("x", "grid", "cotangent"))
        (out,), gradients = mx.vjp(
            lambda x, grid: mlxops.grid_sample(x, grid, **options), [x, grid], [cotangent]
        )
        for got, key in zip((out, *gradients), ("out", "grad_x", "grad_grid"), strict=True):
            np.testing.assert_allclose(to_numpy(got), np.array(case[key]), 1e-7, 1e-7, err_msg=key)


@every_case
def test_special_coordinates_of_torch(case):
    """NaN, infinities, far away, and exactly on the edges."""
    options = {key: case[key] for key in OPTIONS[0]}
    with mx.stream(mx.cpu):
        x, grid = stored(TORCH["x"])[:1], stored(TORCH["special_grid"])
        got = mlxops.grid_sample(x, grid, **options)
        wanted = np.array(case["special"], dtype=np.float64)
        np.testing.assert_allclose(to_numpy(got), wanted, 1e-7, 1e-7)


@every_option
def test_special_coordinates_in_float32(options):
    """Compare with float64, which is compared with torch, because GPU kernels lack float64."""
    numbers = [np.nan, np.inf, -np.inf, -1e6, -1.3, -0.3, 0.8, 1e6]
    grid = np.array([(a, b) for a in numbers for b in numbers]).reshape(1, 8, 8, 2)
    if options["padding_mode"] == "reflection":  # far coordinates are too coarse for it
        grid = np.where(abs(grid) == 1e6, 40.3, grid)

    def results(dtype):
        x = stored(np.arange(1.0, 71).reshape(1, 7, 5, 2) ** 1.5, dtype)
        (out,), gradients = mx.vjp(
            lambda x, grid: mlxops.grid_sample(x, grid, **options),
            [x, stored(grid, dtype)],
            [mx.ones((1, 8, 8, 2), dtype)],
        )
        return [to_numpy(a) for a in (out, *gradients)]

    with mx.stream(mx.cpu):
        wanted = results(mx.float64)
    for got, w in zip(results(mx.float32), wanted, strict=True):
        scale = np.nanmax(abs(w), initial=1)
        np.testing.assert_allclose(got, w, 0, 1e-4 * scale)


# Against the loop


def inputs(dtype, x_shape=(2, 5, 7, 3), grid_shape=(2, 4, 6, 2)):
    a, x = draw(dtype, x_shape)
    b, grid = draw(dtype, grid_shape, -1.7, 1.7, seed=1)
    return (a, b), (x, grid)


@every_option
def test_values(options, dtype):
    arrays, values = inputs(dtype)
    if options["mode"] == "nearest" and dtype != mx.float64:
        # Halfway between two pixels rounding decides: stay away from there.
        size = np.array([7, 5])
        scale = size - 1 if options["align_corners"] else size
        pixel = (values[1] + 1) * scale / 2 - (0 if options["align_corners"] else 0.5)
        near = np.abs(pixel - np.floor(pixel) - 0.5) < 0.01
        grid = np.where(near, values[1] + 0.0625, values[1])
        arrays, values = (arrays[0], mx.array(grid, dtype=dtype)), (values[0], grid)
    out = mlxops.grid_sample(*arrays, **options)
    assert out.dtype == dtype
    # Coordinates are computed in float32; their error is multiplied by the slope of x.
    tolerance = 8 * EPSILON[dtype] + 50 * EPSILON[mx.float64 if dtype == mx.float64 else mx.float32]
    np.testing.assert_allclose(to_numpy(out), reference(*values, **options), 0, tolerance * 4)


@pytest.mark.parametrize(
    ("x_shape", "grid_shape"),
    [
        ((1, 1, 1, 1), (1, 2, 2, 2)),
        ((3, 1, 6, 2), (3, 1, 1, 2)),
        ((2, 6, 1, 5), (2, 3, 1, 2)),
        ((1, 4, 4, 64), (1, 5, 5, 2)),
    ],
)
@every_option
def test_shapes(x_shape, grid_shape, options):
    with mx.stream(mx.cpu):
        arrays, values = inputs(mx.float64, x_shape, grid_shape)
        out = mlxops.grid_sample(*arrays, **options)
        np.testing.assert_allclose(to_numpy(out), reference(*values, **options), 1e-9, 1e-9)


def test_gradients_of_many_channels():
    """They are those of single channels; the grid's is their sum."""
    (x, grid), _ = inputs(mx.float32, (1, 4, 4, 37), (1, 5, 5, 2))
    cotangent = draw(mx.float32, (1, 5, 5, 37), seed=2)[0]

    def gradients(channels):
        given = [x[..., channels], grid], [cotangent[..., channels]]
        return [to_numpy(g) for g in mx.vjp(mlxops.grid_sample, *given)[1]]

    of_x, of_grid = gradients(slice(None))
    alone = [gradients(slice(c, c + 1)) for c in range(37)]
    np.testing.assert_allclose(of_x, np.concatenate([g for g, _ in alone], -1), 1e-5, 1e-5)
    wanted = sum(g for _, g in alone)
    np.testing.assert_allclose(of_grid, wanted, 0, 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    (x, grid), _ = inputs(mx.float32)
    x, grid = LAYOUTS[layout](x), LAYOUTS[layout](grid)
    got = mlxops.grid_sample(x, grid)
    np.testing.assert_allclose(got, reference(to_numpy(x), to_numpy(grid)), 1e-5, 1e-4)


def test_identity():
    """The grid of pixel centers returns the image."""
    (x, _), _ = inputs(mx.float32)
    rows = (np.arange(5) * 2 + 1) / 5 - 1
    columns = (np.arange(7) * 2 + 1) / 7 - 1
    grid = np.stack(np.meshgrid(columns, rows), axis=-1)
    grid = mx.array(np.broadcast_to(grid, (2, 5, 7, 2)).copy(), dtype=mx.float32)
    for mode in MODES:
        np.testing.assert_allclose(mlxops.grid_sample(x, grid, mode=mode), x, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("x_shape", "grid_shape", "wanted"),
    [
        ((0, 3, 3, 2), (0, 2, 2, 2), (0, 2, 2, 2)),
        ((1, 3, 3, 0), (1, 2, 2, 2), (1, 2, 2, 0)),
        ((1, 3, 3, 2), (1, 0, 2, 2), (1, 0, 2, 2)),
    ],
)
def test_empty(x_shape, grid_shape, wanted):
    x, grid = mx.ones(x_shape), mx.zeros(grid_shape)
    assert mlxops.grid_sample(x, grid).shape == wanted
    gradients = mx.grad(lambda *a: mlxops.grid_sample(*a).sum(), argnums=(0, 1))(x, grid)
    assert [g.shape for g in gradients] == [x_shape, grid_shape]
    assert not any(np.array(g).any() for g in gradients)


# Gradients


@every_option
def test_gradients_in_low_precision(options):
    for dtype in (mx.float16, mx.bfloat16, mx.float32):
        (x, grid), _ = inputs(dtype)
        if dtype != mx.float32 and options["mode"] == "nearest":
            continue

        # The cotangent is not 0 outside of the image, where the samples are.
        def loss(x, grid):
            return ((1 + mlxops.grid_sample(x, grid, **options).astype(mx.float32)) ** 2).sum()

        got = mx.grad(loss, argnums=(0, 1))(x, grid)
        with mx.stream(mx.cpu):
            wide = [a.astype(mx.float64) for a in (x, grid)]
            wanted = mx.grad(
                lambda *a: ((1 + mlxops.grid_sample(*a, **options)) ** 2).sum(), argnums=(0, 1)
            )(*wide)
            for g, w in zip(got, wanted, strict=True):
                assert g.dtype == dtype
                scale = np.abs(to_numpy(w)).max()
                tolerance = 32 * EPSILON[dtype] * max(scale, 1)
                np.testing.assert_allclose(to_numpy(g), to_numpy(w), 0, tolerance)


def test_gradients_add_up_where_points_meet():
    x, grid = mx.ones((1, 3, 3, 1)), mx.zeros((1, 10, 10, 2))
    gradient = mx.grad(lambda x: mlxops.grid_sample(x, grid).sum())(x)
    assert gradient.reshape(-1).tolist() == [0, 0, 0, 0, 100, 0, 0, 0, 0]


def test_gradient_on_the_edge():
    """On the outer pixels' centers, where padding begins, it is 0, as in torch."""
    x = mx.arange(12, dtype=mx.float32).reshape(1, 3, 4, 1)
    for padding in ("border", "reflection"):

        def loss(grid, padding=padding):
            return mlxops.grid_sample(x, grid, padding_mode=padding, align_corners=True).sum()

        inside, edge = 0.999, 1.0
        for side in (-1, 1):
            grid = mx.array([[[[side * inside, 0.0], [side * edge, 0.0]]]])
            by_column = mx.grad(loss)(grid)[0, 0, :, 0]
            assert by_column.tolist() == [1.5, 0.0]
            grid = mx.array([[[[0.0, side * inside], [0.0, side * edge]]]])
            by_row = mx.grad(loss)(grid)[0, 0, :, 1]
            assert by_row.tolist() == [4.0, 0.0]


def test_jvp_in_the_image_is_linear():
    (x, grid), _ = inputs(mx.float32)
    _, (tangent,) = mx.jvp(lambda x: mlxops.grid_sample(x, grid), [x], [x])
    np.testing.assert_allclose(tangent, mlxops.grid_sample(x, grid), 1e-6)


def test_vmap():
    (x, grid), _ = inputs(mx.float32)
    grids = mx.stack([grid, -grid, grid * 0.5], axis=2)
    got = mx.vmap(mlxops.grid_sample, in_axes=(None, 2))(x, grids)
    for b in range(3):
        np.testing.assert_allclose(got[b], mlxops.grid_sample(x, grids[:, :, b]), 1e-6)


def test_shapeless_compile():
    compiled = mx.compile(lambda x, grid: mlxops.grid_sample(x, grid), shapeless=True)
    for x_shape, grid_shape in (
        ((1, 3, 3, 1), (1, 2, 2, 2)),
        ((2, 5, 4, 3), (2, 2, 6, 2)),
    ):
        (x, grid), _ = inputs(mx.float32, x_shape, grid_shape)
        np.testing.assert_array_equal(compiled(x, grid), mlxops.grid_sample(x, grid))


def test_common_subexpressions_look_at_the_options():
    (x, grid), _ = inputs(mx.float32)

    def both(x, grid):
        return mlxops.grid_sample(x, grid) - mlxops.grid_sample(x, grid, padding_mode="border")

    assert mx.abs(mx.compile(both)(x, grid)).max().item() > 0.1


# Errors


def test_errors():
    x, grid = mx.ones((1, 3, 3, 2)), mx.zeros((1, 2, 2, 2))
    with pytest.raises(
        ValueError,
        match=r"^\[grid_sample\] mode must be one of 'bilinear', 'nearest', got 'bicubic'\.$",
    ):
        mlxops.grid_sample(x, grid, mode="bicubic")
    with pytest.raises(ValueError, match=r"^\[grid_sample\] padding_mode must be one of"):
        mlxops.grid_sample(x, grid, padding_mode="wrap")
    with pytest.raises(
        ValueError, match=r"^\[grid_sample\] x must be \(N, H, W, C\).* \(3, 3, 2\)"
    ):
        mlxops.grid_sample(x[0], grid)
    fits = r"grid must be \(N, H_out, W_out, 2\), where x is \(N, H, W, C\)\."
    with pytest.raises(ValueError, match=rf"^\[grid_sample\] {fits}.*\(1, 2, 2, 3\)"):
        mlxops.grid_sample(x, mx.zeros((1, 2, 2, 3)))
    with pytest.raises(ValueError, match=rf"^\[grid_sample\] {fits}"):
        mlxops.grid_sample(x, mx.zeros((2, 2, 2, 2)))
    with pytest.raises(ValueError, match=r"^\[grid_sample\] the images of x must not be empty"):
        mlxops.grid_sample(mx.ones((1, 0, 3, 2)), grid)


def test_no_second_derivative():
    x, grid = mx.ones((1, 3, 3, 2)), mx.zeros((1, 2, 2, 2))
    first = mx.grad(lambda g: mlxops.grid_sample(x, g).sum())
    with pytest.raises(ValueError, match=r"^\[grid_sample\] Not differentiable twice.*'grid'"):
        mx.grad(lambda g: first(g).sum())(grid)
    with pytest.raises(ValueError, match=r"^\[grid_sample\] Not differentiable.*'grid'"):
        mx.jvp(lambda g: mlxops.grid_sample(x, g), [grid], [grid])
