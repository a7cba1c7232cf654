"""Gradients of the Metal kernels of ``mlx_lm`` and ``mlx_vlm``, which MLX cannot differentiate.

These packages have operations for devices without Metal. ``Kernels`` makes replacements that call a
kernel with the gradient of the operations, or the operations instead of a kernel in training. It
finds them by copying a function with global names that do not know Metal or the kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import mlx.core as mx

from mlxops import _models, nn
from mlxops._models import Function, Place


class Kernels:
    """The replacements of a package's functions; ``own`` returns the function of the package."""

    def __init__(self, package: str, own: Callable[[Place], Function]) -> None:
        self._root = package + "."
        self._own = own
        self._composed: dict[Place, Function] = {}
        self._names: dict[str, dict[str, Any]] = {}

    def composed(self, place: Place) -> Function:
        """Return the package's function without its kernels: operations with gradients."""
        if place not in self._composed:
            self._composed[place] = self._without_metal(self._own(place))
        return self._composed[place]

    def _without_metal(self, function: Any) -> FunctionType:
        """Return a copy of a function that finds no Metal and no kernels."""
        module = function.__module__
        names = self._names.get(module)
        if names is None:
            names = self._names[module] = dict(vars(sys.modules[module]))
            for name, value in list(names.items()):
                inner = getattr(value, "__wrapped__", value)  # without a cache
                if name == "mx":
                    names[name] = _WithoutMetal()
                elif name == "_HAS_METAL":
                    names[name] = False
                elif name.lower().endswith("_kernel") and not isinstance(inner, FunctionType):
                    names[name] = None
                elif isinstance(inner, FunctionType) and inner.__module__.startswith(self._root):
                    names[name] = self._without_metal(inner)
        copy = FunctionType(
            *(function.__code__, names, function.__name__),
            *(function.__defaults__, function.__closure__),
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy

    def attention(self, place: Place) -> Function:
        """Return a replacement that computes sinks without a cache by ``nn.attention``.

        MLX's kernel for them has no gradient.
        """

        def call(
            queries: mx.array,
            keys: mx.array,
            values: mx.array,
            cache: Any,
            scale: float,
            mask: mx.array | None,
            sinks: mx.array | None = None,
        ) -> mx.array:
            if sinks is None or cache is not None:
                own = self._own(place)
                return own(queries, keys, values, cache, scale, mask, sinks)  # type: ignore[no-any-return]
            return nn.attention(queries, keys, values, mask, sinks, scale=scale)

        return call

    def with_gradient(self, place: Place) -> Function:
        """Return a replacement that calls the kernel with the gradient of the operations."""

        def call(*args: Any, **kwargs: Any) -> Any:
            own = self._own(place)
            args = tuple(_constant(value) for value in args)
            kwargs = {name: _constant(value) for name, value in kwargs.items()}
            if not _models.has_kernels():
                return own(*args, **kwargs)
            return _with_gradient(own, self.composed(place), *args, **kwargs)

        return call

    def composed_in_training(self, place: Place) -> Function:
        """Return a replacement of a method that uses the operations in training."""

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            function = self.composed(place) if layer.training else self._own(place)
            return function(layer, *args, **kwargs)

        return call

    def straight_through(self, place: Place) -> Function:
        """Return a replacement of a rounding, with the gradient of the identity.

        Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons" (2013). The
        derivative of the rounding itself is zero.
        """

        def call(x: mx.array, *args: Any, **kwargs: Any) -> Any:
            own = self._own(place)
            return _with_gradient(lambda x: own(x, *args, **kwargs), lambda x: x, x)

        return call

    def bit_linear(self, place: Place) -> Function:
        """Return a replacement of the product by BitNet's weights -1, 0 and 1, with a gradient.

        A byte of ``packed_weights``, of shape (outputs / 4, inputs), has the weights of four
        outputs, which are ``outputs / 4`` apart, in two bits each, from the lowest bits on,
        increased by one.
        """

        def bit_linear(layer: Any, x: mx.array, packed_weights: mx.array) -> Any:
            def composed(layer: Any, x: mx.array, scale: mx.array) -> mx.array:
                if x.dtype != scale.dtype:
                    raise ValueError(
                        f"[BitLinear] x has dtype {x.dtype}, and weight_scale {scale.dtype}: "
                        "cast one of them."
                    )
                parts = [(packed_weights >> shift) & 3 for shift in (0, 2, 4, 6)]
                y = x @ (mx.concatenate(parts).T.astype(x.dtype) - 1)
                return y / scale if layer.invert_weight_scales else y * scale

            def kernel(layer: Any, x: mx.array, _: mx.array) -> Any:
                return self._own(place)(layer, x, packed_weights)

            if not _models.has_kernels():
                return composed(layer, x, layer.weight_scale)
            return _with_gradient(kernel, composed, layer, x, layer.weight_scale)

        return bit_linear


class _WithoutMetal:
    """``mlx.core``, for functions that choose operations instead of a kernel without Metal.

    The chosen indices have no gradient. MLX raises an error for them in other functions.
    """

    metal = SimpleNamespace(is_available=lambda: False)

    def argpartition(self, *args: Any, **kwargs: Any) -> mx.array:
        return mx.stop_gradient(mx.argpartition(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)


def _with_gradient(function: Function, composed: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function with the gradient of another one, for all floating arrays in its arguments.

    The other function is computed for the gradient only.
    """
    given = [*args, *kwargs.values()]
    at = [
        n
        for n, value in enumerate(given)
        if isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
    ]

    def call(which: Function, arrays: Sequence[mx.array]) -> Any:
        values = list(given)
        for n, array in zip(at, arrays, strict=True):
            values[n] = array
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        return which(*values[: len(args)], **named)

    def all_of(arrays: Any) -> list[mx.array]:
        return [arrays] if isinstance(arrays, mx.array) else list(arrays)

    @mx.custom_function
    def run(*arrays: mx.array) -> Any:
        return call(function, arrays)

    @run.vjp
    def run_vjp(primals: Any, cotangents: Any, _: Any) -> Any:
        outer = all_of(cotangents)

        def results(*arrays: mx.array) -> list[mx.array]:
            found = all_of(call(composed, arrays))
            return [y.astype(c.dtype) for y, c in zip(found, outer, strict=True)]

        _, grads = mx.vjp(results, all_of(primals), outer)
        return grads[0] if isinstance(primals, mx.array) else tuple(grads)

    return run(*(given[n] for n in at)) if at else function(*args, **kwargs)


def _constant(value: Any) -> Any:
    """Stop the gradient of indices, for which MLX raises an error."""
    if isinstance(value, mx.array) and not mx.issubdtype(value.dtype, mx.inexact):
        return mx.stop_gradient(value)
    return value


def operator_of_attention(layer: Any) -> str | None:
    """Return the operator of an attention layer with sinks."""
    names = ("sink", "softmax_offset")
    sinks = (value for name, value in layer.items() if any(part in name for part in names))
    found = any(isinstance(value, mx.array) for value in sinks)
    return "nn.attention without a cache" if found else None
