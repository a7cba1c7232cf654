"""Derivatives of MLX's GPU kernels, as docs/train-comparison.md describes them."""

from __future__ import annotations

import sys
from importlib.metadata import version

import mlx.core as mx
import mlxops
import pytest

from tools import mlx_kernels

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or version("mlx") != "0.32.4",
    reason="the page describes MLX 0.32.4, and the program reads Linux's library",
)
RIGHT = {"vmap", "gradient of vmap"}
ALL = {*RIGHT, "jvp", "gradient of gradient", "jvp of gradient", "vmap of gradient"}


def test_derivatives() -> None:
    table = mlx_kernels.results()
    right = {
        "scaled_dot_product_attention": ALL - {"gradient of gradient"},
        "cross_entropy": {*RIGHT, "vmap of gradient"},
        "gated_delta_update": {*RIGHT, "jvp"},
    }
    assert all(set(row) == ALL for row in table.values())
    found = {f: {name for name, text in row.items() if text == "right"} for f, row in table.items()}
    assert found == right
    wrong = {(f, name) for f, row in table.items() for name, text in row.items() if text == "wrong"}
    assert wrong == {("gated_delta_update", f"{name} of gradient") for name in ("jvp", "vmap")}


def test_another_library(tmp_path, monkeypatch) -> None:
    """A library without the five functions is an error, not a copy that composes everything."""
    monkeypatch.setattr(mlx_kernels, "KERNELS", ("CrossEntropy",))
    with pytest.raises(SystemExit, match=r"expected 5 functions .* found 1"):
        mlx_kernels.changed_copy(tmp_path)


def test_decays_of_16_bits() -> None:
    """MLX rounds decays to the dtype of q: 0.9981 becomes 1."""
    mx.random.seed(0)
    q, k, v = (mx.random.normal((1, 4, 1, 8)).astype(mx.bfloat16) for _ in range(3))
    beta = mx.full((1, 4, 1), 0.5, mx.bfloat16)
    state = mx.random.normal((1, 1, 8, 8))

    def last(decay: float) -> mx.array:
        g = mx.full((1, 4, 1), decay)
        return mx.fast.gated_delta_update(q, k, v, g, beta, state)[1]

    assert mx.array_equal(last(0.9981), last(1.0))
    ours = [
        mlxops.nn.gated_delta(q, k, v, mx.full((1, 4, 1), g), beta, state)[1] for g in (0.9981, 1.0)
    ]
    assert not mx.allclose(*ours, rtol=1e-3)
