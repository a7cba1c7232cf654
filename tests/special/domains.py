"""Where the functions of one argument and their derivatives are defined, and points to scan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from special.reference import Format

# Default: everywhere.
DOMAINS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "logit": lambda x: (x >= 0) & (x <= 1),
    "ndtri": lambda x: (x >= 0) & (x <= 1),
    "erfinv": lambda x: abs(x) <= 1,
    "erfcinv": lambda x: (x >= 0) & (x <= 2),
    "log1p": lambda x: x >= -1,
    "log1mexp": lambda x: x <= 0,
    **dict.fromkeys(["k0", "k0e", "k1", "k1e", "y0", "y1", "entr"], lambda x: x >= 0),
    **dict.fromkeys(["gamma", "gammasgn", "digamma"], lambda x: (x > 0) | (x != np.rint(x))),
    **{f"airy[{i}]": lambda x: x > -1e12 for i in range(4)},
}
POLES = {"lgamma", "polygamma", "gamma", "digamma"}  # their derivatives may be NaN at integers


def exponents(format: Format) -> np.ndarray:
    """Return numbers of both signs with every exponent, halves of integers, and both zeros."""
    low, high = format.emin - format.digits + 1, format.emax
    sizes = np.ldexp(1 + np.random.default_rng(3).random(high - low + 1), np.arange(low, high + 1))
    positive = np.concatenate([format.round(sizes), np.arange(16) / 2])
    return np.concatenate([positive, -positive])


def defined(name: str, order: int, x: np.ndarray) -> np.ndarray:
    """Return which of the numbers have a value of the function or of its derivative."""
    inside = DOMAINS.get(name, np.isfinite)(x)
    return inside & ((x > 0) | (x != np.rint(x))) if order and name in POLES else inside
