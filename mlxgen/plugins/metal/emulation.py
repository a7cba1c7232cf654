"""`emulate`: kernels of `mx.fast.metal_kernel` on the CPU, with all checks of the emulation."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ContextDecorator, nullcontext
from types import TracebackType
from typing import Any, TypeVar, overload

import mlx.core as mx

from ...emulator import EmulationError
from . import build, kernel
from .pretend import Pretend
from .record import record as recording

F = TypeVar("F", bound=Callable[..., Any])
Folder = str | os.PathLike[str]

_stack: list[Emulation] = []


def _mode() -> bool | None:
    return _stack[-1].unwritten if _stack else None


class Emulation(ContextDecorator):
    """A part of a program in which kernels are emulated; `emulate` describes it.

    Attributes:
        launches: The number of launches of each kernel.
        errors: The errors of kernels, also those that the program has caught.
    """

    def __init__(
        self, *, pretend: bool = False, unwritten: bool = True, record: Folder | None = None
    ) -> None:
        self.pretend = Pretend() if pretend else None
        self.unwritten = unwritten
        self.record = record
        self.launches: Counter[str] = Counter()
        self.errors: list[str] = []

    def _recreate_cm(self) -> Emulation:
        """Return an emulation of its own for each call of a decorated function."""
        pretend = self.pretend is not None
        return Emulation(pretend=pretend, unwritten=self.unwritten, record=self.record)

    def __enter__(self) -> Emulation:
        self._original = mx.fast.metal_kernel
        self._recording = nullcontext() if self.record is None else recording(self.record)
        if _stack:
            _stack[-1].update()
        else:
            mx.fast.metal_kernel = kernel.metal_kernel(self._original, _mode)
        try:
            self._recording.__enter__()
        except BaseException:
            mx.fast.metal_kernel = self._original
            raise
        _stack.append(self)
        if self.pretend:
            self.pretend.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the emulation; raise an error that was not raised, as NumPy drops those of arrays."""
        try:
            if error is None:
                mx.synchronize()
            self.update()
            hidden = [message for message in self.errors if message not in build.raised]
            build.raised.update(hidden)
            if hidden and error is None:
                raise EmulationError(hidden[0])
        finally:
            if self.pretend:
                self.pretend.stop()
            _stack.pop()
            try:
                self._recording.__exit__(None, None, None)
            finally:
                mx.fast.metal_kernel = self._original

    def update(self) -> None:
        """Count the events since the last call, in this emulation and in those around it."""
        if build.extension.cache_info().currsize:  # a kernel was compiled
            launches, errors = build.extension().take()
            for emulation in _stack:
                emulation.launches.update(launches)
                emulation.errors += errors


@overload
def emulate(function: F, /) -> F: ...
@overload
def emulate(
    *, pretend: bool = False, unwritten: bool = True, record: Folder | None = None
) -> Emulation: ...
def emulate(
    function: Callable[..., Any] | None = None,
    /,
    *,
    pretend: bool = False,
    unwritten: bool = True,
    record: Folder | None = None,
) -> Any:
    """Run the kernels of `mx.fast.metal_kernel` on the CPU.

    A context manager and a decorator:

        with mlxgen.metal.emulate() as seen:
            kernel = mx.fast.metal_kernel(...)
            mx.eval(kernel(inputs=[x], ...))
        print(seen.launches)

    Only kernels that are made inside are emulated, so import packages that make kernels inside,
    too. A kernel that does something invalid raises an `EmulationError` where its outputs are
    evaluated: races between threads, accesses outside of a buffer, misaligned accesses, threads
    that wait in different places, and elements of outputs that no thread writes.

    Args:
        pretend: Answer as on a Mac: `mx.metal.is_available()` is true, the default device is
            `mx.gpu`, and streams and devices of the GPU are accepted.
        unwritten: Report elements of outputs that no thread writes. They are NaN in any case.
        record: A folder for the calls, as `mlxgen.metal.record`.

    Returns:
        The context manager, with the counts of `launches` and the `errors`; or the function.
    """
    made = Emulation(pretend=pretend, unwritten=unwritten, record=record)
    return made if function is None else made(function)
