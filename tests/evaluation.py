"""Tests in which MLX's evaluation raises.

MLX 0.32.4 counts the tasks of its streams. An error that reaches the main thread while this thread
adds a task leaves the task in the count for good. From the second such task on, a later evaluation
of another test may wait forever. Other threads receive errors only when they wait for a result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# One for all: MLX keeps the streams of a thread after its end.
THREAD = ThreadPoolExecutor(1)


def in_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function, such as a test, in another thread."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return THREAD.submit(function, *args, **kwargs).result()

    return run
