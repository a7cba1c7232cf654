"""Tests of the comparison with samples of torch: accepted results, and rejected ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from comparing import Mismatch, compare
from samples import Array, Sample

NAN, INF = float("nan"), float("inf")


def array(values: Sequence[Any], dtype: str = "float32") -> Array:
    """Return a recorded array."""
    return Array(dtype, (len(values),), np.array(values, dtype))


def sample(given: Array, out: Array, **more: Any) -> Sample:
    """Return a call of a function of one array."""
    return Sample("f", "a test", [given], {}, [out], ["self"], **more)


def accepts(recorded: Sample, values: Sequence[Any]) -> bool:
    """Return whether the values are right for a sample."""
    dtype = mx.complex64 if recorded.out[0].dtype == "complex64" else mx.float32
    try:
        compare(recorded, lambda x: mx.array(values, dtype) + 0 * mx.nan_to_num(mx.real(x)))
    except Mismatch:
        return False
    return True


@pytest.mark.parametrize("kind", ["double", "scalar", "decomposed"])
def test_each_result_of_torch_is_right(kind: str) -> None:
    recorded = sample(array([1, 2]), array([3, NAN]), **{kind: {"0": array([3, 5])}})
    assert accepts(recorded, [3, 5])
    assert accepts(recorded, [3, NAN])
    assert not accepts(recorded, [3, 4])
    assert not accepts(sample(array([1, 2]), array([3, NAN])), [3, 5])


def test_complex_nan_is_free_unless_it_is_given() -> None:
    out = array([complex(NAN, NAN)] * 2, "complex64")
    assert accepts(sample(array([INF, 1e30], "complex64"), out), [0, 1])
    assert not accepts(sample(array([INF, complex(0, NAN)], "complex64"), out), [0, 1])
    assert accepts(sample(array([INF, complex(0, NAN)], "complex64"), out), [0, complex(NAN, NAN)])


def test_infinite_elements_of_solutions_may_be_nan() -> None:
    given, out = array([1, 2]), array([INF, 3])
    solution = Sample("lu_solve", "a test", [given], {}, [out], ["self"])
    assert accepts(solution, [NAN, 3])
    assert accepts(solution, [-INF, 3])
    assert not accepts(solution, [4, 3])
    assert not accepts(solution, [INF, NAN])
    assert not accepts(sample(given, out), [NAN, 3])


def test_slopes_at_nan_are_free() -> None:
    ones = array([1, 1])
    recorded = sample(array([NAN, 2]), array([NAN, 2]), gradients={"self": ones}, cotangents=[ones])
    compare(recorded, lambda x: mx.where(mx.isnan(x), mx.stop_gradient(x), x))
    with pytest.raises(Mismatch, match=r"gradient of self: 3\.0 instead of 1\.0"):
        compare(recorded, lambda x: mx.where(mx.isnan(x), x, 3 * x - 4))
