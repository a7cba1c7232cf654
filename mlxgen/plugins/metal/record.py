"""`record`: writes the calls of kernels of `mx.fast.metal_kernel` to a folder (records.py).

The kernels run as before: those of MLX on a Mac, or emulated ones inside of `emulate`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator, suppress
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from . import records
from .kernel import as_array
from .records import Array, Call, Constant, Kernel, Number, TypeName

_inside = threading.local()  # the depth of functions of `mx.custom_function`


class Recording(ContextDecorator):
    """A part of a program whose calls of kernels are recorded; `record` describes it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.calls: dict[Kernel, dict[Call, Call]] = {}  # by the calls without elements
        self.active = False

    def _recreate_cm(self) -> Recording:
        """Return a recording of its own for each call of a decorated function."""
        return Recording(self.folder)

    def __enter__(self) -> Recording:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._saved = mx.fast.metal_kernel, mx.custom_function
        mx.fast.metal_kernel = self._metal_kernel(mx.fast.metal_kernel)
        mx.custom_function = _custom_function(mx.custom_function)  # type: ignore[misc,assignment]
        self.active = True
        return self

    def __exit__(self, *error: object) -> None:
        self.active = False
        mx.fast.metal_kernel, mx.custom_function = self._saved  # type: ignore[misc]
        self.write()

    def write(self) -> None:
        """Add the calls so far to the files."""
        for kernel, calls in self.calls.items():
            records.add(self.folder, kernel, calls.values())
        self.calls.clear()

    def _metal_kernel(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def metal_kernel(
            name: str,
            input_names: Sequence[str],
            output_names: Sequence[str],
            source: str,
            header: str = "",
            ensure_row_contiguous: bool = True,
            atomic_outputs: bool = False,
            *arguments: Any,
            **more: Any,
        ) -> Callable[..., Any]:
            given = (name, input_names, output_names, source, header)
            made = original(*given, ensure_row_contiguous, atomic_outputs, *arguments, **more)
            kernel = Kernel(
                name=name,
                input_names=tuple(input_names),
                output_names=tuple(output_names),
                source=source,
                header=header,
                ensure_row_contiguous=ensure_row_contiguous,
                atomic_outputs=atomic_outputs,
            )
            return self._recorded(kernel, made)

        return metal_kernel

    def _recorded(self, kernel: Kernel, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **given: Any) -> Any:
            outputs = function(*arguments, **given)  # raises if an argument is wrong
            if self.active:
                self.note(kernel, given, outputs)
            return outputs

        return call

    def note(self, kernel: Kernel, given: dict[str, Any], outputs: Sequence[mx.array]) -> Call:
        """Add a call with its arguments and outputs; return its record without elements."""
        return records.join(self.calls.setdefault(kernel, {}), _call(given))


def _custom_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `mx.custom_function`, which marks calls of kernels in its functions."""

    def custom_function(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def marked(*arguments: Any, **given: Any) -> Any:
            _inside.depth = getattr(_inside, "depth", 0) + 1
            try:
                return function(*arguments, **given)
            finally:
                _inside.depth -= 1

        return original(marked)

    return custom_function


def _call(given: dict[str, Any]) -> Call:
    pairs = zip(given["output_shapes"], given["output_dtypes"], strict=True)
    init = given.get("init_value")
    return Call(
        inputs=tuple(map(_input, given["inputs"])),
        outputs=tuple(Array(shape=tuple(shape), dtype=_dtype(dtype)) for shape, dtype in pairs),
        template=tuple(
            TypeName(name=name, dtype=_dtype(value))
            if isinstance(value, mx.Dtype)
            else Constant(name=name, value=value)
            for name, value in given.get("template") or ()
        ),
        grid=tuple(given["grid"]),
        threadgroup=tuple(given["threadgroup"]),
        init_value=None if init is None else float(init),
        with_gradient=getattr(_inside, "depth", 0) > 0,
    )


def _dtype(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _input(value: Any) -> Array | Number:
    if isinstance(value, bool | int | float):
        return Number(value=value)
    value = as_array(value)
    low = high = None
    if value.size and mx.issubdtype(value.dtype, mx.integer):
        with suppress(ValueError):  # within `mx.compile`, arrays have no elements
            low, high = cast(int, value.min().item()), cast(int, value.max().item())
    return Array(shape=tuple(value.shape), dtype=_dtype(value.dtype), low=low, high=high)


def record(folder: str | os.PathLike[str]) -> Recording:
    """Record the calls of kernels of `mx.fast.metal_kernel`, for `mlxgen import metal_kernel`.

    A context manager and a decorator. The kernels run as without it, on a Mac those of MLX. Only
    calls inside of kernels that are made inside are recorded, so import packages inside, too.
    Inputs of integers are evaluated, because their smallest and largest elements are recorded.

    Args:
        folder: The folder of the records, to which further runs add their calls.

    Returns:
        The context manager. It writes the records at its end.

    Raises:
        RecordError: If the folder has a file of another content in place of a record.
        OSError: If the folder cannot be written.
    """
    return Recording(folder)
