"""Tests in which MLX's evaluation raises.

MLX 0.32.4 counts the tasks of its streams. An error that reaches the main thread while this thread
adds a task leaves the task in the count for good. From the second such task on, a later evaluation
may wait forever. After each test, such tasks are removed from the count. A test with many errors
runs in another thread, which receives errors only when it waits for a result.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
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


@cache
def active_tasks() -> ctypes.c_int:
    """Return MLX's count of unfinished tasks, the first member of its scheduler."""
    import mlx.core as mx

    library = next((Path(mx.__file__).parent / "lib").glob("libmlx.*"))
    scheduler = ctypes.CDLL(str(library))._ZN3mlx4core9scheduler9schedulerEv
    scheduler.restype = ctypes.c_void_p
    return ctypes.c_int.from_address(scheduler())


def forget_lost_tasks() -> None:
    """Set the count of tasks to 0, if any remain at the end of a test."""
    mx = sys.modules.get("mlx.core")
    if mx is not None and active_tasks().value != 0:
        with suppress(RuntimeError):  # the error of an evaluation without a wait for it
            mx.synchronize(mx.default_stream(mx.cpu))
        active_tasks().value = 0
