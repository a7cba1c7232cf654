"""Calls with bad arguments: an error or NaN, never a wrong number or the end of the process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import mlx.core as mx
import mlx_aten
import numpy as np
import pytest

X = mx.arange(6.0).reshape(2, 3)
SQUARE = mx.array([[2.0, 1.0], [1.0, 3.0]])
IMAGE, WEIGHT = mx.ones((1, 2, 4, 4)), mx.ones((3, 2, 2, 2))
NONE = mx.zeros((3, 2, 0, 2))


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "message"),
    [
        ("arange", (0, 5, 0), {}, "step must not be 0"),
        ("arange", (0, 5, -1), {}, "step must lead from start to end. Got start: 0, end: 5"),
        ("range", (5, 0, 1), {}, "step must lead from start to end"),
        ("_chunk_cat", ([X], 0, 0), {}, "num_chunks must be positive"),
        ("_chunk_cat", ([], 0, 2), {}, "tensors must be arrays with axes"),
        ("_slow_conv2d_forward", (IMAGE, NONE, [0, 2], None, [1, 1], [0, 0]), {},
         "kernel_size must be positive"),
        ("_slow_conv2d_forward", (IMAGE, WEIGHT, [2, 2], None, [0, 1], [0, 0]), {},
         "stride and dilation must be positive"),
        ("_slow_conv2d_forward", (X, WEIGHT, [2, 2], None, [1, 1], [0, 0]), {},
         "input must have the axes of weight"),
        ("_slow_conv2d_backward",
         (mx.ones((1, 3, 3, 3)), IMAGE, WEIGHT, [2, 2], [1, 1], [0, 0], [True]), {},
         "output_mask must have 3 bools"),
        ("_slow_conv2d_backward",
         (mx.ones((1, 3, 3, 3)), IMAGE, WEIGHT, [2, 3], [1, 1], [0, 0], [True] * 3), {},
         "kernel_size must be that of weight"),
        ("thnn_conv2d", (IMAGE, WEIGHT, [3, 2]), {}, "kernel_size must be that of weight"),
        ("slow_conv_transpose2d", (IMAGE, mx.ones((2, 3, 2, 2)), [3, 3]), {},
         "kernel_size must be that of weight"),
        ("slow_conv3d", (IMAGE[None], WEIGHT[None], [2, 1, 2]), {},
         "kernel_size must be that of weight"),
        ("cudnn_convolution", (IMAGE, WEIGHT, [0, 0], [1, 1], [1, 1], 0, False, False, False), {},
         "groups must be positive"),
        ("argmax", (mx.zeros((0, 3)), 0), {}, "an empty axis has no maximum"),
        ("max", (mx.zeros((0, 3)), 0), {}, "an empty axis has no maximum"),
        ("chain_matmul", ([X[None], X],), {}, "must be matrices"),
        ("div", (X, X), {"rounding_mode": "up"},
         "rounding_mode must be None, trunc or floor. Got rounding_mode: 'up'"),
        ("fft_hfft", (X,), {"norm": "best"}, "norm must be backward, ortho or forward"),
        ("gelu", (X,), {"approximate": "erf"}, "approximate must be none or tanh"),
        ("col2im", (mx.ones((1, 4, 9)), [4, 4], [2, 0], [1, 1], [0, 0], [1, 1]), {},
         "kernel_size must be positive"),
        ("mvlgamma", (X, 2**31 - 1), {}, "p must be from 1 to 10000"),
        ("reflection_pad2d", (X[None], [1000] * 4), {}, "less than the size of the axis"),
        ("reflection_pad1d_backward", (mx.ones((1, 9)), mx.ones((1, 3)), [3, 3]), {},
         "less than the size of the axis"),
        ("special_multigammaln", (X, 0), {}, "p must be from 1 to 10000"),
        ("topk", (mx.ones((1, 1, 5, 5)), 2, 1), {}, "k must be from 0 to the size of the axis"),
        ("topk", (X[0, 0], 2), {}, "k must be from 0 to the size of the axis"),
        ("unflatten", (X, 0, [0, -1]), {}, "sizes must not have both 0 and -1"),
        ("geqrf", (X[0],), {}, "self must have at least 2 axes"),
        ("histc", (X, 0), {}, "bins must be positive"),
        ("histc", (X, 4, 2, 1), {}, "max must not be less than min"),
        ("histogram", (X, 0), {}, "bins must be positive"),
        ("histogram", (X, 3), {"range": [1.0]}, "range must have 2 numbers"),
        ("histogram", (X, mx.array([1.0])), {}, "bins must be the edges of at least one bin"),
        ("kthvalue", (X, 4), {}, "k must be from 1 to the size of the axis"),
        ("kthvalue", (X, 0), {}, "k must be from 1 to the size of the axis"),
        ("leaky_relu_backward", (X, X, -0.5, True), {},
         "negative_slope of a result must not be negative"),
        ("linalg_cholesky_ex", (SQUARE,), {"check_errors": True}, "check_errors must be False"),
        ("linalg_inv_ex", (SQUARE,), {"check_errors": True}, "check_errors must be False"),
        ("linalg_solve_ex", (SQUARE, SQUARE), {"check_errors": True}, "check_errors must be False"),
        ("linalg_ldl_factor_ex", (SQUARE,), {"check_errors": True}, "check_errors must be False"),
        ("linalg_lu", (SQUARE,), {"pivot": False}, "pivot must be True"),
        ("linalg_lu_factor", (SQUARE,), {"pivot": False}, "pivot must be True"),
        ("linalg_lu_factor_ex", (SQUARE,), {"pivot": False}, "pivot must be True"),
        ("linalg_lu_factor_ex", (SQUARE,), {"check_errors": True}, "check_errors must be False"),
        ("linalg_eigh", (SQUARE,), {"UPLO": "X"}, "UPLO must be L or U"),
        ("linalg_lstsq", (SQUARE, SQUARE), {"driver": "gel"},
         "driver must be gels, gelsy, gelsd or gelss"),
        ("linalg_matrix_norm", (SQUARE, 3), {}, "the order of a matrix norm must be"),
        ("linalg_matrix_norm", (SQUARE, "f"), {}, "the norm must be fro or nuc"),
        ("linalg_norm", (mx.ones((2, 2, 2)), 1), {}, "self must have 1 or 2 axes"),
        ("linalg_matrix_power", (X, 2), {}, "self must be square matrices"),
        ("linalg_qr", (SQUARE, "full"), {}, "mode must be reduced, complete or r"),
        ("linspace", (0, 1, -1), {}, "steps must not be negative"),
        ("median", (mx.zeros((0,), mx.int32),), {}, "no integers have no median"),
        ("median", (mx.zeros((0, 3)), 0), {}, "an axis of size 0 has no median"),
        ("nanmedian", (mx.zeros((0, 3)), 0), {}, "an axis of size 0 has no median"),
        ("nonzero_static", (X,), {"size": -1}, "size must not be negative"),
        ("quantile", (X, 0.5), {"interpolation": "cubic"}, "interpolation must be linear"),
        ("repeat_interleave", (X, 2), {"dim": 1, "output_size": 5},
         "output_size must be the size of the repeated axis"),
        ("scaled_dot_product_attention", (IMAGE, IMAGE, IMAGE, None, 0.1), {},
         "dropout_p must be 0"),
        ("scatter", (X, 0, mx.array([[0]]), X), {"reduce": "max"},
         "reduce must be add or multiply"),
        ("searchsorted", (X, X), {"side": "up"}, "side must be left or right"),
    ],
)  # fmt: skip
def test_message(name: str, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        mx.eval(getattr(mlx_aten, name)(*args, **kwargs))
    assert message in str(error.value) and str(error.value).startswith(f"[{name}]")


# Each of these ended the process, or never ended.
DANGEROUS = """\
import mlx.core as mx
import mlx_aten as a
mx.set_default_device(mx.cpu)
bad = mx.ones((3, 3))
bad[0, 0], bad[1, 1], bad[1, 2] = float("inf"), float("nan"), float("nan")
found = [
    a.linalg_eig(bad)[0], a.linalg_eigvals(bad), a.linalg_svdvals(bad), a.linalg_svd(bad)[1],
    a.linalg_eigvalsh(bad), a.quantile(mx.arange(4.0), 1.5),
    a.quantile(mx.arange(4.0), mx.array([1e30, -1.0, float("nan")])),
]
for array in found:
    assert mx.all(mx.isnan(mx.real(array))).item(), array
samples = mx.full((1, 1, 2), float("nan"))
mx.eval(a.fractional_max_pool2d(mx.ones((1, 1, 9, 9)), [3, 3], [2, 2], samples))
images, weight = mx.ones((0, 2, 4, 4)), mx.ones((3, 2, 2, 2))
empty = a._slow_conv2d_forward(images, weight, [2, 2], None, [1, 1], [0, 0])
assert empty.shape == (0, 3, 3, 3)
nothing, most = mx.ones((0, 8, 8, 8, 8)), 2**31 - 1
assert a.adaptive_avg_pool3d(nothing, [most] * 3).shape == (0, 8, most, most, most)
mx.eval(a.adaptive_avg_pool3d(nothing, [5, 7, most]))
hollow, first = mx.ones((2, 0, 4)), mx.array([0])
for accumulate in (False, True):
    mx.eval(a.index_put(hollow, [first], mx.array(0.0), accumulate))
mx.eval(a.index_add(hollow, 0, first, hollow[:1]), a.index_copy(hollow, 0, first, hollow[:1]))
print("survived")
"""


def test_the_process_survives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DANGEROUS], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "survived\n", done.stderr[-500:]


def test_one_matrix_with_nan_leaves_the_others_alone() -> None:
    matrices = mx.stack([mx.full((2, 2), float("nan")), SQUARE])
    with mx.stream(mx.cpu):
        values = np.array(mlx_aten.linalg_eigvalsh(matrices))
    assert np.isnan(values[0]).all()
    np.testing.assert_allclose(values[1], np.linalg.eigvalsh(np.array(SQUARE)), rtol=1e-6)


def test_integers_divided_by_zero() -> None:
    """torch raises an error, and MLX cannot know the values: a number, and no signal."""
    x, zero = mx.array([7, -7, 0] * 40), mx.zeros((120,), mx.int64)
    for name in ("floor_divide", "remainder", "fmod", "gcd", "lcm"):
        mx.eval(getattr(mlx_aten, name)(x, zero))
    mx.eval(mlx_aten.div(x, zero, rounding_mode="trunc"))
