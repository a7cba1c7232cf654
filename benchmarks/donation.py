"""A token in a cache of keys and values: donated, against MLX's slice update and a copy.

The operator is that of examples/ports, built by ``mlxgen.load``. Each side updates its own cache,
to which nothing else refers, except for `in use`, where a second reference requires a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx

import mlxgen

from .measure import Options, Result, alternate, duration, factor

PORTS = Path(__file__).resolve().parents[1] / "examples" / "ports" / "mlx_ops.yaml"
LENGTHS = (1024, 32_768)
AT_SPEED = 1.1  # times MLX's time

Step = Callable[[mx.array], mx.array]


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    ops = mlxgen.load(PORTS)
    update, place = mx.ones((1, 8, 1, 128)), mx.array([5])

    def ours(cache: mx.array) -> mx.array:
        result: mx.array = ops.kv_cache_update(cache, update, place)
        return result

    def theirs(cache: mx.array) -> mx.array:
        return mx.slice_update(cache, update, place, axes=[2])

    sides = {"donated": (ours, False), "slice update": (theirs, False), "in use": (ours, True)}
    for length in LENGTHS[:1] if options.quick else LENGTHS:
        options.progress(f"time updates of {length:,} tokens")
        calls = {name: _calls(length, *side) for name, side in sides.items()}
        times = alternate(calls, rounds=100, budget=5)
        ratio = times.ratio("donated", to="slice update")
        yield Result(
            "donation",
            f"a token in a cache of {length:,}, 8 heads of 128 channels",
            f"{duration(times.seconds('donated'))}, {factor(ratio)} of `mx.slice_update`; "
            f"{duration(times.seconds('in use'))} for a cache in use",
            f"at most {AT_SPEED}x",
            ratio <= AT_SPEED,
            {name: times.seconds(name) for name in sides},
        )


def _calls(length: int, step: Step, in_use: bool) -> Callable[[], object]:
    """Return a function that updates its own cache, or a cache that remains in use."""
    cache = [mx.zeros((1, 8, length, 128))]
    mx.eval(cache)

    def call() -> None:
        result = step(cache[0] if in_use else cache.pop())
        mx.eval(result)
        if not in_use:
            cache.append(result)

    return call
