"""Variants of recorded calls: the edges of values, shapes, axes and dtypes.

Each function of ``VARIANTS`` gets the positional and keyword arguments of a call, and returns the
changed ones, or None if the change does not concern the call. torch decides whether the result is
a call: what it rejects is recorded only if the variant is one of ``ERRORS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Variant = Callable[[tuple[Any, ...], dict[str, Any]], Arguments | None]

INF, NAN = float("inf"), float("nan")
#: values at the edges, of floats and of integers
EDGES = [0.5, NAN, 0.0, INF, 1.0, -0.0, -INF, -1.0, 2.0, NAN]
FINITE = [0.0, 1.0, -0.0, -1.0, 1.0, 0.0, 2.0]
#: names of arguments that are axes
AXES = ("dim", "dims", "axis", "dim0", "dim1", "dims_self", "dims_other", "start_dim", "end_dim")
#: operators that call LAPACK, which may never return for NaN
LAPACK = ("linalg", "svd", "qr", "cholesky", "inverse", "lu_", "slogdet", "geqrf", "ormqr", "norm")
LAPACK += ("triangular_solve", "nuclear")


#: operators of which torch does not check the sizes of the arrays
UNCHECKED = ("batch_norm", "_backward")


def arrays(arguments: Arguments) -> list[torch.Tensor]:
    """Return the tensors of the arguments, also in lists."""
    found: list[torch.Tensor] = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None, arguments)
    return found


def is_float(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has floating-point or complex numbers."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def replaced(
    arguments: Arguments,
    new: Callable[[torch.Tensor], torch.Tensor],
    chosen: Callable[[torch.Tensor], bool] = is_float,
    only: int | None = None,
) -> Arguments | None:
    """Return the arguments with new tensors for those that are chosen, or for one of them."""
    count, changed = -1, False

    def leaf(value: Any) -> Any:
        nonlocal count, changed
        if not isinstance(value, torch.Tensor) or not chosen(value):
            return value
        count += 1
        if only is not None and count != only:
            return value
        changed = True
        return new(value)

    result: Arguments = tree_map(leaf, arguments)
    return result if changed else None


def cycle(values: list[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that fills a tensor with values in turn."""

    def new(old: torch.Tensor) -> torch.Tensor:
        count = old.numel()
        repeated = (values * (count // len(values) + 1))[:count]
        return torch.tensor(repeated, dtype=old.dtype).reshape(old.shape)

    return new


def filled(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that fills a tensor with one number."""
    return lambda old: torch.full_like(plain(old), number)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without a mark."""
    return tensor.as_subclass(torch.Tensor)


def scaled(single: float, half: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that multiplies by a number: another one for 16 bit."""
    return lambda old: plain(old) * (half if old.dtype.itemsize == 2 else single)


def identities(old: torch.Tensor) -> torch.Tensor:
    """Return identity matrices of a tensor's shape."""
    return torch.eye(*old.shape[-2:]).expand(old.shape).contiguous().to(old.dtype)


def limits_of(old: torch.Tensor) -> torch.Tensor:
    """Return the least and the largest integers in turn with small ones."""
    info = torch.iinfo(old.dtype)
    return cycle([info.max, 0, info.min, 1, 2, info.max - 1, 3])(old)


def is_integer(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has integers."""
    return not is_float(tensor) and tensor.dtype != torch.bool


def is_matrix(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has floating-point matrices."""
    return is_float(tensor) and tensor.ndim > 1


def at_axis(axis: int, size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that cuts an axis to a size."""
    return lambda old: plain(old).narrow(axis, 0, min(size, old.shape[axis])).contiguous()


def resized(arguments: Arguments, old_size: int, size: int) -> Arguments | None:
    """Return the arguments with all axes of one size cut to another size."""

    def new(old: torch.Tensor) -> torch.Tensor:
        for axis, n in enumerate(old.shape):
            old = at_axis(axis, size)(old) if n == old_size else old
        return old

    return replaced(arguments, new, lambda t: old_size in t.shape)


def axes(
    names: list[str], arguments: Arguments, new: Callable[[int, int], int]
) -> Arguments | None:
    """Return the arguments with other axes: a function of an axis and of the rank."""
    tensors = arrays(arguments)
    if not tensors:
        return None
    rank = tensors[0].ndim
    args, kwargs = list(arguments[0]), dict(arguments[1])
    changed = False

    def other(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
            return [new(v, rank) for v in value]
        return new(value, rank) if type(value) is int else value

    for index, name in enumerate(names[: len(args)]):
        if name in AXES and args[index] not in (None, []):
            args[index], changed = other(args[index]), True
    for name in kwargs.keys() & set(AXES):
        if kwargs[name] not in (None, []):
            kwargs[name], changed = other(kwargs[name]), True
    return (tuple(args), kwargs) if changed else None


def values_of(name: str, arguments: Arguments) -> Iterator[tuple[str, Arguments | None]]:
    """Yield variants with other values, by name of the variant."""
    tensors = [t for t in arrays(arguments) if is_float(t)]
    several = range(min(len(tensors), 3)) if len(tensors) > 1 else range(0)
    if not any(part in name for part in LAPACK) or "vector_norm" in name:
        yield "NaN and infinities", replaced(arguments, cycle(EDGES))
        for k in several:
            yield f"NaN and infinities in {k}", replaced(arguments, cycle(EDGES), only=k)
    if not tensors:
        yield "the least and the largest", replaced(arguments, limits_of, is_integer)
    yield "0 and 1", replaced(arguments, cycle(FINITE))
    for number in (0.0, 1.0):
        yield f"all {number:.0f}", replaced(arguments, filled(number))
        for k in several:
            yield f"all {number:.0f} in {k}", replaced(arguments, filled(number), only=k)
    yield "ties", replaced(arguments, lambda old: (plain(old) * 1.5).round() if not
                           old.dtype.is_complex else filled(1.0)(old))  # fmt: skip
    yield "identities", replaced(arguments, identities, is_matrix)
    yield "large", replaced(arguments, scaled(1e25, 300.0))
    yield "tiny", replaced(arguments, scaled(1e-25, 1e-3))


def shapes_of(
    name: str, names: list[str], arguments: Arguments
) -> Iterator[tuple[str, Arguments | None]]:
    """Yield variants with other shapes, layouts and axes, by name of the variant."""
    tensors = arrays(arguments)
    sizes = sorted({n for t in tensors for n in t.shape if n > 1})
    for size in sizes[:3]:
        yield f"0 for {size}", resized(arguments, size, 0)
        yield f"1 for {size}", resized(arguments, size, 1)
    several = len(tensors) > 1 and not any(part in name for part in UNCHECKED)
    for k in range(min(len(tensors), 3) if several else 0):
        for axis in range(min(tensors[k].ndim, 3)):
            if tensors[k].shape[axis] > 1:
                cut = at_axis(axis, 1)
                yield f"axis {axis} of {k} is 1", replaced(arguments, cut, lambda t: True, k)
    yield (
        "no axes",
        replaced(arguments, lambda old: plain(old).flatten()[0], lambda t: t.numel() > 0),
    )
    yield "negative axes", axes(names, arguments, lambda a, rank: a - rank if 0 <= a < rank else a)


def errors_of(names: list[str], arguments: Arguments) -> Iterator[tuple[str, Arguments | None]]:
    """Yield variants that torch may reject."""
    yield "an axis outside", axes(names, arguments, lambda a, rank: rank + 1)
    yield "a negative axis outside", axes(names, arguments, lambda a, rank: -rank - 2)
    tensors = arrays(arguments)
    for k in range(min(len(tensors), 3) if len(tensors) > 1 else 0):
        for axis in range(min(tensors[k].ndim, 2)):
            n = tensors[k].shape[axis]
            if n > 2:
                cut = at_axis(axis, n - 1)
                yield f"axis {axis} of {k} is shorter", replaced(arguments, cut, lambda t: True, k)
