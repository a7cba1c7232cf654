"""Answers of MLX about devices and streams, as on a Mac."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

# Of an M2 Max.
_INFO = {
    "architecture": "applegpu_g14s",
    "device_name": "Apple M2 Max",
    "max_buffer_length": 22613000192,
    "max_recommended_working_set_size": 22906503168,
    "memory_size": 34359738368,
    "resource_limit": 499000,
}
_MODULES = ("", "fast", "random", "linalg", "fft")


def device_type(place: Any) -> Any:
    """Return `mx.cpu` or `mx.gpu` for a device or its type; None for others."""
    found = place.type if isinstance(place, mx.Device) else place
    return found if isinstance(found, mx.DeviceType) else None  # MLX compares no other objects


def is_gpu(place: Any) -> bool:
    """Return true for `mx.gpu` and its devices."""
    found = device_type(place)
    return found is not None and bool(found == mx.gpu)


class Pretend:
    """Replaces functions of MLX that ask for or choose a device.

    The default stream of the CPU stands for that of the GPU. Everything still runs on the CPU.
    """

    def __init__(self) -> None:
        self.default: Any = mx.gpu  # in all threads
        self.local = threading.local()  # within `mx.stream`
        self.saved: list[tuple[Any, str, Any]] = []
        self.cpu: list[Any] = []  # streams that were made for the CPU

    def start(self) -> None:
        """Replace the functions."""
        for name in ("new_stream", "new_thread_local_stream", "new_thread_unsafe_stream"):
            self._replace(mx, name, self._new(getattr(mx, name, None)))
        self._replace(mx, "stream", self._stream(mx.stream))
        default_stream = mx.default_stream
        self._replace(mx, "default_stream", lambda device: default_stream(mx.cpu))
        self._replace(mx, "default_device", self.default_device)
        self._replace(mx, "set_default_device", self.set_default_device)
        self._replace(mx, "is_available", lambda device: True)
        self._replace(mx, "device_count", lambda device: 1)
        for module in (mx, mx.metal):
            self._replace(module, "device_info", lambda device=None: dict(_INFO))
        self._replace(mx.metal, "is_available", lambda: True)
        for name in _MODULES:
            module = getattr(mx, name) if name else mx
            for function, value in [*vars(module).items()]:
                takes = "stream: " in (getattr(value, "__doc__", None) or "")
                if type(value).__name__ == "nb_func" and takes:
                    self._replace(module, function, _on_cpu(value))

    def stop(self) -> None:
        """Restore the functions."""
        while self.saved:
            setattr(*self.saved.pop())

    def _replace(self, module: Any, name: str, value: Any) -> None:
        if hasattr(module, name):  # older releases of MLX lack some
            self.saved.append((module, name, getattr(module, name)))
            setattr(module, name, value)

    def default_device(self) -> Any:
        """Return the device that was chosen, by default that of the GPU."""
        return mx.Device(getattr(self.local, "device", None) or self.default)

    def set_default_device(self, device: Any) -> None:
        """Choose the device of `default_device`."""
        self.default = mx.gpu if is_gpu(device) else mx.cpu

    def _new(self, original: Any) -> Callable[[Any], Any]:
        def new_stream(device: Any) -> Any:
            made = original(mx.cpu)
            if not is_gpu(device):
                self.cpu.append(made)
            return made

        return new_stream

    def _stream(self, original: Any) -> Callable[[Any], Any]:
        @contextmanager
        def stream(place: Any) -> Iterator[None]:
            before = getattr(self.local, "device", None)
            named = device_type(place) is not None
            same = (type(place) is type(made) and place == made for made in self.cpu)
            on_cpu = not is_gpu(place) if named else any(same)
            self.local.device = mx.cpu if on_cpu else mx.gpu
            try:
                with original(mx.cpu if named else place):
                    yield
            finally:
                self.local.device = before

        return stream


def _on_cpu(function: Any) -> Any:
    """Return a function of MLX that runs on the CPU if its stream is that of the GPU."""

    @functools.wraps(function)
    def on_cpu(*args: Any, **given: Any) -> Any:
        if is_gpu(given.get("stream")):
            given["stream"] = mx.cpu
        return function(*args, **given)

    return on_cpu
