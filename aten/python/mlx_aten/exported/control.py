"""Control flow: operators whose arguments are programs, as `torch.cond` and `torch.while_loop`.

The programs become functions from arrays to lists of arrays. `cond` and `while_loop` compute their
condition in each call, so that they run what torch runs, with its gradients; `mx.compile` cannot
compile that. `scan` and `map` have as many steps as an axis has elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

Branch = Callable[..., list[Any]]


def _is_true(condition: Any) -> bool:
    return bool(condition.item() if isinstance(condition, mx.array) else condition)


def cond(pred: Any, true: Branch, false: Branch, operands: Sequence[Any] = ()) -> list[Any]:
    """Return the results of one of two programs."""
    return (true if _is_true(pred) else false)(*operands)


def while_loop(
    condition: Branch, body: Branch, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> list[Any]:
    """Return what a program makes of the carried values, as often as the condition is true."""
    values = list(carried)
    while _is_true(condition(*values, *additional)[0]):
        values = body(*values, *additional)
    return values


def _steps(xs: Sequence[mx.array]) -> int:
    count: int = xs[0].shape[0]
    if count == 0:
        raise ValueError("a scan or map over an axis of size 0 has no results")
    return count


def _stacked(results: Sequence[Sequence[mx.array]]) -> list[mx.array]:
    """Return the results of all steps along a new first axis."""
    return [mx.stack(list(same)) for same in zip(*results, strict=True)]


def scan(
    step: Branch, init: Sequence[Any], xs: Sequence[mx.array], additional: Sequence[Any] = ()
) -> list[Any]:
    """Return the last carried values, and the results of all steps along their first axis."""
    carried, results = list(init), []
    for i in range(_steps(xs)):
        found = step(*carried, *(x[i] for x in xs), *additional)
        carried = found[: len(init)]
        results.append(found[len(init) :])
    return [*carried, *_stacked(results)]


def map_over(
    body: Branch, xs: Sequence[mx.array], additional: Sequence[Any] = ()
) -> list[mx.array]:
    """Return a program's results for each element of the first axis."""
    return _stacked([body(*(x[i] for x in xs), *additional) for i in range(_steps(xs))])


FUNCTIONS: dict[str, Callable[..., list[Any]]] = {
    "higher_order.cond": cond,
    "higher_order.while_loop": while_loop,
    "higher_order.scan": scan,
    "higher_order.map_impl": map_over,
}
