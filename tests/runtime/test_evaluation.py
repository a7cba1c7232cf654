"""MLX's count of tasks after errors (tests/evaluation.py)."""

from __future__ import annotations

import mlx.core as mx
import pytest
from evaluation import active_tasks, forget_lost_tasks


def test_lost_tasks_are_forgotten():
    # It takes about 50 errors. If MLX loses no task any more, evaluation.py is needless.
    for count in range(5000):
        x = mx.zeros((3, 3))
        for _ in range(count % 60):
            x = x * 2
        with pytest.raises(RuntimeError, match="factorization"):
            mx.eval(mx.linalg.inv(x, stream=mx.cpu))
        if active_tasks().value > 0:
            break
    else:
        pytest.fail("no task is lost")
    forget_lost_tasks()
    assert active_tasks().value == 0
