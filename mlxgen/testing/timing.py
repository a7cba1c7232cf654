"""Compares the time of an operator with that of its composite under ``mx.compile``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import mlx.core as mx

from .cases import Subject
from .compare import Arrays
from .shapeless import scaled

LARGE = 1 << 22
"""The maximum number of elements of all arguments."""
SECONDS = 0.3
"""The time for the calls of each of the two functions."""


class Timing(NamedTuple):
    """Medians in milliseconds, and the shapes of the arguments."""

    ours: float
    composite: float | None  # None if Python cannot evaluate it
    shapes: list[tuple[int, ...]]


def timed(subject: Subject) -> Timing | None:
    """Time a sample at the largest sizes that it describes; None if it cannot be called."""
    if subject.problem:
        return None
    args, reference = next(iter(_larger(subject))), subject.reference
    composite = _milliseconds(mx.compile(reference), args) if reference else None
    return Timing(_milliseconds(subject.function, args), composite, [a.shape for a in args])


def _larger(subject: Subject) -> Iterable[Arrays]:
    """Yield valid arguments, the largest first."""
    args, names = subject.draw(mx.float32), [slot.arg for slot in subject.slots]
    for factor in (1 << 16, 1 << 12, 1 << 8, 64, 32, 16, 8, 4, 2):
        # An entry names few axes, or none if it is elementwise.
        if factor * sum(a.size for a in args) > LARGE:
            continue
        if subject.is_elementwise:
            found: Arrays | None = [_tiled(a, factor) for a in args]
        else:
            shaped = scaled(args, names, subject.op.get("axes", {}), factor)
            if sum(a.size for a in shaped) > LARGE:
                continue
            found = subject.resized(shaped, anew=True)
        if found and subject.accepts(found):
            with suppress(ValueError, RuntimeError):  # a size that the kernel does not support
                mx.eval(subject.function(*found))
                yield found
    yield args


def _tiled(a: mx.array, factor: int) -> mx.array:
    """Repeat an array along its last axis, unless the axis is broadcast."""
    return a if a.ndim == 0 or a.shape[-1] == 1 else mx.tile(a, [1] * (a.ndim - 1) + [factor])


def _milliseconds(function: Callable[..., Any], args: Arrays) -> float:
    """Return the median time of a call."""
    mx.eval(function(*args), args)  # compiles
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 3:
        begin = time.perf_counter()
        mx.eval(function(*args))
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3
