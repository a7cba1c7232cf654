"""Arrays as indices in composites and gradients: transforms, layouts and messages."""

from __future__ import annotations

import mlx.core as mx
import pytest

import mlxgen

ENTRIES = """
- signature: "pick(x: array, b: array, iy: array, ix: array) -> array"
  composite: x[b, iy, ix]
  grad: {x: "zeros_like(x).at[b, iy, ix].add(grad)"}
  dtypes: {x: floating, "b, iy, ix": int32}
  samples:
    x: {shape: [2, 3, 4, 5]}
    b: {shape: [2, 1], dtype: int32, low: 0, high: 1}
    iy: {values: [[0, 2, -1]], dtype: int32, low: -3, high: 2}
    ix: {shape: [1, 3], dtype: int32, low: 0, high: 3}
- signature: "put(x: array, i: array, values: array) -> array"
  composite: x.at[i, 0].add(values)
  dtypes: {"x, values": floating, i: int32}
  samples:
    x: {shape: [3, 4, 2]}
    i: {values: [0, 2], dtype: int32, low: 0, high: 2}
    values: {shape: [2, 2]}
"""


@pytest.mark.extended
def test_array_indices() -> None:
    ops = mlxgen.load(ENTRIES)
    report = ops.check()
    # MLX has no jvp of scatter.
    assert [(f.operator, f.check) for f in report.failures] == [("put", "jvp")], report
    x, i = mx.zeros((3, 4)), mx.array([1])
    with pytest.raises(ValueError, match="Too many index arrays"):
        ops.pick(x, i, i, i)
    assert ops.put(mx.zeros((3, 4)), i, mx.ones((1,)))[1, 0].item() == 1
