"""Importing this module makes PyTensor's MLX backend, and thus PyMC, compute with mlxops.

    >>> import mlxops.pytensor
    >>> pytensor.function([a, x], pt.gammaincinv(a, x), mode="MLX")

PyTensor's scalar operations are classes, on which ``mlx_funcify`` dispatches. A class that names a
SciPy function gets the function of that name in ``mlxops.special``. This adds functions that the
backend lacks (``polygamma``, ``kve``, ``betaincinv``, ...), and replaces compositions of many MLX
operations. A table below lists the few operations with other names.

Derivatives are graphs of further operations. The derivatives of ``gammainc``, ``gammaincc`` and
``betainc`` by their parameters are loops, which this backend lacks, and that of ``j1`` uses a
Bessel function of order 2. They become ``switch(True, PyTensor's own, Derivative(...))``. The
rewrites of all backends select the first alternative, as before. Those for MLX have already
selected the second one, mlxops' gradient.

Requires PyTensor 3.3 or newer and therefore Python 3.12 (the extra ``pytensor``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytensor.scalar.basic as scalar_basic
import pytensor.scalar.math as scalar_math
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.mlx.dispatch.basic import mlx_funcify
from pytensor.scalar.basic import ScalarOp, Switch, get_scalar_type, switch
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.special import LogSoftmax, Softmax

import mlxops
from mlxops import special

Function = Callable[..., mx.array]


def _ndtri_exp(y: mx.array) -> mx.array:
    """Compute ``ndtri(exp(y))`` in the dtype of y, also if exp(y) is 0 or 1; NaN for positive y.

    Below -50, use Newton's method on log_ndtr, whose slope is 1 / Mills' ratio. It starts from the
    first terms of the expansion (DLMF 7.12.1), from which two steps suffice.
    """
    wide = y if y.dtype == mx.float64 else y.astype(mx.float32)
    body = special.ndtri(_exp(wide))
    near_one = -special.ndtri(-special.expm1(wide))
    square = mx.maximum(-2 * wide, 100)
    x = -mx.sqrt(square - mx.log(2 * math.pi * square))
    for _ in range(2):
        mills = math.sqrt(math.pi / 2) * special.erfcx(-math.sqrt(0.5) * x)
        x = x - (special.log_ndtr(x) + square / 2) * mills
    tail = mx.where(mx.isinf(wide), wide, x)
    result = mx.where(wide > -1, near_one, mx.where(wide < -50, tail, body))
    return result.astype(y.dtype)


def _polygamma(n: mx.array, x: mx.array) -> mx.array:
    """Compute polygamma for orders known only at run time, by the zeta function as SciPy does."""
    signed = mx.where(n % 2 == 0, -1, 1).astype(x.dtype) * special.gamma(n + 1)
    return mx.where(n == 0, special.digamma(x), signed * special.zeta(n + 1, x))


def _exp(x: mx.array) -> mx.array:
    return special.inv_boxcox(x, mx.array(0, x.dtype))


def _exact(single: Function, double: Function) -> Function:
    """Return MLX's own function, except for float64, where only seven of its digits are right."""
    return lambda x: (double if x.dtype == mx.float64 else single)(x)


def _nan(x: mx.array) -> mx.array:
    """Return a computed NaN: for a constant, mx.compile emits a name unknown to its compiler."""
    return (x - x) / (x - x)


def _without_limit(function: Function) -> Function:
    """Return NaN at infinities of the last argument, as SciPy does; mlxops returns the limits."""

    def at(*inputs: mx.array) -> mx.array:
        x = inputs[-1]
        return mx.where(mx.isinf(x), x - x, function(*inputs))

    return at


def _ive(order: mx.array, x: mx.array) -> mx.array:
    """Return NaN at 0 for orders with a pole there; mlxops returns infinity."""
    result = special.ive(order, x)
    return mx.where((x == 0) & mx.isinf(result), _nan(x), result)


def _betaincinv(a: mx.array, b: mx.array, p: mx.array) -> mx.array:
    """Return NaN for infinite parameters, except for inverse powers and for the ends of p."""
    infinite = (mx.isinf(a) | mx.isinf(b)) & (a > 0) & (b > 0) & (a != 1) & (b != 1)
    limit = mx.where((p == 0) | (p == 1), p, _nan(p))
    return mx.where(infinite, limit, special.betaincinv(a, b, p))


def _modified(function: Function, scaled: Function) -> Function:
    """Compute i0 or i1; in float64, infinite where SciPy's exp(x) is infinite, and then NaN."""
    double = lambda x: scaled(x) * _exp(mx.abs(x))  # noqa: E731
    return _exact(_without_limit(function), double)


# Operations that name no SciPy function, or that have other arguments.
_FUNCTIONS: dict[type[ScalarOp], Function] = {
    scalar_basic.Cos: _exact(mx.cos, lambda x: mlxops.sincos(x)[1]),
    scalar_basic.Exp: _exact(mx.exp, _exp),
    scalar_basic.Sin: _exact(mx.sin, lambda x: mlxops.sincos(x)[0]),
    scalar_math.BetaIncInv: _betaincinv,
    scalar_math.I0: _modified(special.i0, special.i0e),
    scalar_math.I1: _modified(special.i1, special.i1e),
    scalar_math.Ive: _without_limit(_ive),
    scalar_math.J0: _without_limit(special.j0),
    scalar_math.J1: _without_limit(special.j1),
    scalar_math.Kve: _without_limit(special.kve),
    scalar_math.NdtriExp: _ndtri_exp,
    scalar_math.PolyGamma: _polygamma,
    scalar_math.TriGamma: lambda x: special.polygamma(1, x),
    scalar_math.Softplus: special.softplus,
    scalar_math.Log1mexp: special.log1mexp,
}
_DERIVED = (scalar_math.GammaInc, scalar_math.GammaIncC, scalar_math.BetaInc, scalar_math.J1)


class Derivative(ScalarOp):
    """The gradient of an operation by one input, computed from its inputs and the cotangent."""

    __props__ = ("of", "index", "dtype")

    def __init__(self, of: ScalarOp, index: int, dtype: str):
        self.of, self.index, self.dtype, self.nin = of, index, dtype, of.nin + 1
        super().__init__()

    def output_types(self, types: Sequence[Any]) -> list[Any]:
        return [get_scalar_type(self.dtype)]

    def mlx(self, *inputs: mx.array) -> mx.array:
        *primals, cotangent = mx.broadcast_arrays(*inputs)
        return mx.vjp(_function(self.of), primals, [cotangent])[1][self.index]

    def impl(self, *inputs: Any) -> Any:
        """Evaluate in Python, without rewrites."""
        with mx.stream(mx.cpu):
            return self.mlx(*(mx.array(float(value), mx.float64) for value in inputs)).item()

    def c_code(self, *args: Any) -> str:
        raise NotImplementedError

    def pullback(self, inputs: Sequence[Any], outputs: Any, grads: Any) -> list[Any]:
        """Return nothing: PyTensor differentiates its own alternative of the switch."""
        return [variable.zeros_like(dtype=self.dtype) for variable in inputs]


def _pullback(op: ScalarOp, inputs: Sequence[Any], outputs: Any, grads: Sequence[Any]) -> list[Any]:
    own = _PULLBACKS[type(op)](op, inputs, outputs, grads)
    return [
        switch(True, term, Derivative(op, index, term.type.dtype)(*inputs, *grads))
        for index, term in enumerate(own)
    ]


@node_rewriter([Elemwise])
def _take_derivative(fgraph: Any, node: Any) -> Any:
    """Select the last input of ``switch(True, PyTensor's own, Derivative(...))``."""
    if isinstance(node.op.scalar_op, Switch):
        last = node.inputs[2].owner
        if last and isinstance(last.op, Elemwise) and isinstance(last.op.scalar_op, Derivative):
            return last.outputs
    return None


def _call(function: Function, node: Any) -> Function:
    """Return the function in the dtype of PyTensor's result; float64 runs on the CPU only."""
    name = node.outputs[0].type.dtype if node else ""

    def call(*inputs: mx.array) -> mx.array:
        narrow = name == "float64" and mx.default_device() != mx.cpu
        dtype = mx.float32 if narrow else getattr(mx, name)
        # PyTensor may omit a constant order, because its own ive does not need one.
        known = (
            variable.eval() if value is None else value
            for value, variable in zip(inputs, node.inputs, strict=True)
        )
        return function(*(mx.array(value, dtype) for value in known))

    return call if name.startswith("float") else function


def _function(op: Any) -> Function | None:
    """Return the function for an operation or a class of them; ``None`` if mlxops lacks it."""
    spec = getattr(op, "nfunc_spec", None) or ("",)
    name = spec[0].partition("scipy.special.")[2]
    return _FUNCTIONS.get(op if isinstance(op, type) else type(op), getattr(special, name, None))


def _funcify(op: ScalarOp, node: Any = None, **kwargs: Any) -> Function:
    if isinstance(op, Derivative):
        return _call(op.mlx, node)
    if isinstance(op, scalar_math.PolyGamma) and node:
        try:  # the function of a single order is more exact
            order = int(get_underlying_scalar_constant_value(node.inputs[0]))
            return _call(lambda n, x: special.polygamma(order, x), node)
        except NotScalarConstantError:
            pass
    if function := _function(op):
        return _call(function, node)
    return _inherited(op, node=node, **kwargs)


# The handler of all scalar operations, PyMC's included, for operations without their own handler.
_inherited = mlx_funcify.dispatch(ScalarOp)
mlx_funcify.register(ScalarOp, _funcify)
for _op in tuple(mlx_funcify.registry):
    if issubclass(_op, ScalarOp) and _function(_op):
        mlx_funcify.register(_op, _funcify)


def _exact_softmax(kind: type, double: Callable[[mx.array, mx.array, Any], mx.array]) -> None:
    """Make softmax or its logarithm accurate in float64."""
    inherited = mlx_funcify.dispatch(kind)

    def funcify(op: Any, **kwargs: Any) -> Function:
        single = inherited(op, **kwargs)

        def call(x: mx.array) -> mx.array:
            if x.dtype != mx.float64:
                return single(x)
            shifted = x - mx.max(x, axis=op.axis, keepdims=True)
            powers = _exp(shifted)
            return double(shifted, powers, mx.sum(powers, axis=op.axis, keepdims=True))

        return call

    mlx_funcify.register(kind, funcify)


_exact_softmax(Softmax, lambda shifted, powers, total: powers / total)
_exact_softmax(LogSoftmax, lambda shifted, powers, total: shifted - mx.log(total))

_PULLBACKS = {op: op.pullback for op in _DERIVED}
for _op in _DERIVED:
    _op.pullback = _pullback
# Before the canonicalization, whose position is 1.
optdb.register("mlxops", dfs_rewriter(_take_derivative), "mlx", position=0.5)
