"""Large arguments by integer formulas, of which the samples record how to make them; tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np

#: torch.testing's default tolerances: relative and absolute
TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
}
#: a formula gives integers, which are divided by this power of two: exact in 16 bit
SCALES = {"ones": 1, "threes": 1, "signs": 1, "steps": 64, "ties": 1, "places": 1}


def every(count: int) -> int:
    """Return the step between the elements that are recorded of a large result."""
    return count // 150 | 1


def generated(formula: str, shape: list[int], seed: int) -> np.ndarray[Any, Any]:
    """Return an array of float64 with at most 8 significant bits per element.

    Args:
        formula: ``ones``; ``threes``: 300; ``signs``: 1 or -1; ``steps``: multiples of 1/64 from
            -2 to 2, without a pattern; ``ties``: integers from 0 to 6; ``places``: integers from 0
            to ``seed`` - 1.
        shape: The shape.
        seed: Another seed gives other values.
    """
    i = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    mixed = (i * np.uint64(2654435761) + np.uint64(seed * 40503 + 12345)) % np.uint64(2**32)
    mixed = ((mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519)) % np.uint64(2**32)
    bits = (mixed >> np.uint64(13)).astype(np.int64)
    values = {
        "ones": lambda: np.ones_like(bits),
        "threes": lambda: np.full_like(bits, 300),
        "signs": lambda: bits % 2 * 2 - 1,
        "steps": lambda: bits % 257 - 128,
        "ties": lambda: bits % 7,
        "places": lambda: bits % max(seed, 1),
    }[formula]()
    return np.asarray(values / SCALES[formula]).reshape(shape)


def stored(dtype: str, shape: list[int], formula: str, seed: int) -> np.ndarray[Any, Any]:
    """Return an array of a dtype as the samples store it: bfloat16 as uint16.

    The imaginary parts are those of the next seed.
    """
    values = generated(formula, shape, seed)
    if dtype.startswith("complex"):
        return np.asarray(values + 1j * generated(formula, shape, seed + 1)).astype(dtype)
    if dtype == "bfloat16":
        return np.asarray(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values).astype(dtype)
