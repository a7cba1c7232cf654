"""A result does not depend on the memory layout of the operands, bitwise.

Layouts are random: axes in any order, every second element, reversed, broadcast. Sizes are close to
the units of the CPU's loops: vectors, rows, blocks, tiles of transposed inputs, and chunks of long
rows.
"""

import mlx.core as mx
import mlxops
import numpy as np
import pytest

LENGTHS = (1, 1, 2, 3, 7, 8, 16, 17, 64, 65, 130, 520)
WITH_TWO = ("add", "axpby", "swiglu")
LIMIT = 40_000  # elements
# Two arguments, so that their layouts can differ; lgamma has a loop for positive numbers.
OPS = {
    "add": mlxops.examples.add,
    "axpby": lambda x, y: mlxops.examples.axpby(x, y, 1.5, -0.3),
    "swiglu": mlxops.swiglu,
    "sincos": lambda x, y: mx.stack(mlxops.sincos(x)),
    "lgamma": lambda x, y: mlxops.special.lgamma(x),
}


def laid_out(rng, values, shape):
    """Return an array of this shape with a random layout, and its values in row-major order."""
    axes = rng.permutation(len(shape))
    steps = [int(rng.choice([1, 1, 1, 2, -1, -2])) for _ in shape]
    lengths = [1 if rng.random() < 0.25 else n for n in shape]
    stored = [lengths[axis] * abs(steps[axis]) for axis in axes]
    whole = mx.array(rng.choice(values, stored)).transpose(*(int(i) for i in np.argsort(axes)))
    part = whole[tuple(slice(None, None, step) for step in steps)]
    return mx.broadcast_to(part, shape) if rng.random() < 0.5 else part


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op", OPS)
def test_every_layout(op, seed, dtype):
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.choice(LENGTHS, rng.integers(1, 5))]
    while np.prod(shape) > LIMIT:
        shape.remove(max(shape))
    values = rng.uniform(-3 if seed % 3 else 0.1, 6, 1000).astype(np.float32)
    x, y = (laid_out(rng, values, shape).astype(dtype) for _ in range(2))
    found = OPS[op](x, y)
    if op in WITH_TWO:
        x, y = mx.broadcast_arrays(x, y)
    straight = (mx.contiguous(a) for a in (x, y))
    wanted = OPS[op](*straight)
    assert mx.array_equal(found, wanted, equal_nan=True)


ROWS = [(5, 64), (70, 128), (3, 40, 200), (2, 3, 5, 130), (3, 8192), (2, 20_000), (4, 17)]


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_rows(op, shape, dtype):
    """Rows, columns, parts and both axes between them, in all pairs."""
    rng = np.random.default_rng(0)
    whole = rng.uniform(-3 if op != "lgamma" else 0.1, 6, (*shape[:-1], 2 * shape[-1]))
    x = mx.array(whole.astype(np.float32)).astype(dtype)[..., : shape[-1]]
    views = (x, x[..., :1], x[:1], x[-1:, ..., ::1], x.reshape(-1)[:1], x.reshape(-1)[3:4])
    for a in views:
        for b in views:
            whole = mx.broadcast_arrays(a, b)
            given = (a, b) if op in WITH_TWO else whole
            assert mx.array_equal(OPS[op](*given), OPS[op](*map(mx.contiguous, whole)))


@pytest.mark.parametrize("shape", [(600, 70), (70, 600), (3, 40, 200), (2, 16, 64)], ids=str)
def test_transposed(shape, dtype):
    rng = np.random.default_rng(0)
    x = mx.array(rng.normal(size=shape).astype(np.float32)).astype(dtype)
    back = mx.contiguous(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    for other in (x, x[..., :1], x[..., :1, :], x.reshape(-1)[3]):
        assert mx.array_equal(
            mlxops.examples.axpby(back, other, 2.0), mlxops.examples.axpby(x, other, 2.0)
        )
        assert mx.array_equal(
            mlxops.examples.axpby(other, back, 2.0), mlxops.examples.axpby(other, x, 2.0)
        )


@pytest.mark.parametrize("wide", (False, True), ids=("square", "wide"))
def test_operands_that_are_given_away(wide, dtype):
    """The output reuses only complete donated buffers, and only if no other operand needs them."""
    x = mx.random.normal((130, 70) if not wide else (3, 1001)).astype(dtype)
    for y in (mx.array(2.0).astype(dtype), x[:, :1], x[:1], x.reshape(x.shape[::-1]).T, x[::-1]):
        mx.eval(x, y)
        assert mx.array_equal(
            mlxops.examples.axpby(x + 0, mx.negative(-y), 2.0), mlxops.examples.axpby(x, y, 2.0)
        )
        assert mx.array_equal(
            mlxops.examples.axpby(mx.negative(-y), x + 0, 2.0), mlxops.examples.axpby(y, x, 2.0)
        )
        assert mx.array_equal(
            mlxops.examples.axpby(mx.negative(-y), x, 2.0), mlxops.examples.axpby(y, x, 2.0)
        )


VIEWS = {
    "transposed": lambda a: a.T,
    "backwards": lambda a: a[::-1],
    "every second": lambda a: a[:, ::2],
    "part of each row": lambda a: a[:, :100],
    "one column": lambda a: mx.broadcast_to(a[:, :1], a.shape),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_not_given_away(view, dtype):
    """They are not donated: the results have another layout, or are larger."""
    x = mx.random.normal((40, 130)).astype(dtype)
    y = mx.ones(VIEWS[view](x).shape, dtype)
    mx.eval(x, y)
    wanted = mlxops.examples.axpby(VIEWS[view](x), y)
    for found in (
        mlxops.examples.axpby(VIEWS[view](x + 0), y),
        mlxops.examples.axpby(y, VIEWS[view](x + 0)),
    ):
        assert mx.array_equal(found, wanted)


def peak(call):
    """Return the bytes that a call allocates in addition to its result."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    out = call()
    mx.eval(out)
    return mx.get_peak_memory() - before - sum(a.nbytes for a in out)


def test_buffers_are_reused(dtype):
    x = mx.random.normal((512, 512)).astype(dtype)
    for y in (x, mx.array(2.0).astype(dtype), x[:1], x[:, :1], x[::-1]):
        mx.eval(x, y)
        assert peak(lambda y=y: [mlxops.examples.add(x + 0, y)]) < x.nbytes / 2
        assert peak(lambda y=y: [mlxops.examples.add(y, x + 0)]) < x.nbytes / 2


def test_a_small_output_does_not_keep_a_large_buffer(dtype):
    out = mlxops.examples.add(mx.zeros(2**20, dtype)[:8], mx.ones(8, dtype))
    mx.eval(out)
    before = mx.get_active_memory()
    del out
    assert before - mx.get_active_memory() < 2**16


PARTS = {"all": slice(None), "the first": slice(1000), "some": slice(500, 1500)}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("lazy", (False, True), ids=("evaluated", "lazy"))
def test_row_contiguous_inputs_are_not_copied(part, lazy, dtype, device):
    if device == mx.gpu:
        pytest.skip("MLX copies parts of larger arrays")
    whole = mx.random.normal((2000, 256)).astype(dtype)
    x = whole[PARTS[part]]
    mx.eval(whole if lazy else x)
    assert peak(lambda: mlxops.rms_norm_residual(x, x)) < 2**17


LAID_OUT = {
    "transposed": lambda x: mx.contiguous(x.T).T,
    "part": lambda x: mx.concatenate([x, x], axis=1)[:, : x.shape[1]],
    "every second": lambda x: mx.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: mx.contiguous(x[::-1, ::-1])[::-1, ::-1],
    "one row": lambda x: mx.broadcast_to(x[:1], x.shape),
    "one number": lambda x: mx.broadcast_to(x[:1, :1], x.shape),
    "a column": lambda x: mx.broadcast_to(x[:, :1], x.shape),
    "nothing": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("shape", [(70, 600), (600, 70), (5, 3), (1, 1)], ids=str)
def test_other_inputs_are_copied_as_they_are(layout, shape, dtype):
    x = LAID_OUT[layout](mx.random.normal(shape).astype(dtype))
    straight = mx.array(np.array(x.astype(mx.float32))).astype(dtype)
    wanted = mlxops.rms_norm_residual(straight, straight)
    assert all(map(mx.array_equal, mlxops.rms_norm_residual(x, x), wanted))
    ids = mx.arange(2 * x.shape[0])[::2] // 4
    found = mlxops.segment_sum(x, ids, 300)
    assert mx.array_equal(found, mlxops.segment_sum(straight, mx.contiguous(ids), 300))
