"""The functions behind the operators of a program: a fixed table.

A file names operators, and its names select entries of the table; nothing else is looked up by
them. Functions get arrays, numbers, strings, dtypes, None and lists of these.

Most are mlx_aten's. Others are in `arrays.py`, `layers.py`, `recurrent.py` and `draws.py`. Here are
those without a counterpart among functions over arrays: copies and conversions, sizes and the
arithmetic with them, and the fused operators that `rewrites.py` puts into programs.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

import mlx.core as mx

from . import arrays, control, convolutions, draws, fused, layers, masked, quantized, recurrent
from .operands import inside

Function = Callable[..., Any]
Find = Callable[[str, str], Function | None]

# Overloads that mlx_aten lacks, of operators that it has: shapes of results depend on values.
LACKING = {("narrow", "Tensor"), ("where", "default")}
# Operators that are others of mlx_aten.
SAME = {
    **{f"__{sign}__": f"bitwise_{sign}" for sign in ("and", "or", "xor")},
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    "_prelu_kernel": "prelu",
    "_unsafe_index": "index",
    "_unsafe_index_put": "index_put",
    "concat": "cat",
    "det": "linalg_det",
    "unsafe_chunk": "chunk",
    "unsafe_split": "split",
    "unsafe_split_with_sizes": "split_with_sizes",
}
LARGEST = 2**31 - 1  # of the sizes of MLX's arrays
# Arguments of ATen that have no meaning in MLX.
DROPPED = {"device", "layout", "memory_format", "non_blocking", "pin_memory"}
# Arguments that mlx_aten's functions have in addition to torch's: `out` would change an array.
OWN_ARGUMENTS = {"key", "out", "stream"}


def find(name: str, overload: str) -> Function | None:
    """Return mlx_aten's function of an operator, such as ("add", "Tensor"), or None.

    The overloads of an operator are one Python function, which chooses by the arguments' kinds.
    """
    if (name, overload) in LACKING:
        return None
    return _operators().get(SAME.get(name, name))


@cache
def _operators() -> Mapping[str, Function]:
    """Return the operators of mlx_aten by name, without those that change an array."""
    extension = importlib.import_module("mlx_aten._ext")
    names = (name for name in extension.__all__ if not name.endswith("_"))
    return {name: getattr(extension, name) for name in names if name != "dispatch_table"}


def lookup(target: str, find: Find, own: Mapping[str, Function]) -> Function | None:
    """Return the function of a node's target, or None; the caller's own come first."""
    if target in own or target in FUNCTIONS:
        return own.get(target) or FUNCTIONS[target]
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.rpartition(".")
    return find(name, overload) if namespace == "aten" else None


def chosen_operators(
    operators: Mapping[str, Function], targets: Iterable[str]
) -> dict[str, Function]:
    """Return the caller's functions by the targets of a program.

    Raises:
        TypeError: the operators are not functions by name.
        ValueError: a name is not that of an operator of torch.
    """
    if not isinstance(operators, Mapping):
        raise TypeError(f"operators must be a dict of functions, not {_kind(operators)}")
    own = {}
    for name, function in operators.items():
        if not isinstance(name, str) or not callable(function):
            raise TypeError(f"operators must be functions by name, found {name!r}: {function!r}")
        own[name.replace("::", ".")] = function
        namespace, _, rest = name.replace("::", ".").partition(".")
        if not namespace or not rest or namespace == "mlx":
            raise ValueError(f"'{name}' is not the name of an operator, such as 'aten.relu'")
    found = {}
    for target in targets:
        chosen = own.get(target) or own.get(target.rpartition(".")[0])
        if chosen is not None:
            found[target] = chosen
    return found


# What to write instead of operators without a counterpart.
INSTEAD = {
    **dict.fromkeys(
        ("nonzero", "masked_select", "unique", "_unique2", "unique_consecutive", "unique_dim"),
        "the shape of its result depends on values; use torch.where or a fixed number of elements",
    ),
    **dict.fromkeys(
        ("_add_batch_dim", "_remove_batch_dim"), "exported.run_decompositions() replaces it"
    ),
    **dict.fromkeys(
        ("unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "resize_", "as_strided_"),
        "use the operator without the underscore",
    ),
    "resize_as_": "only a new array without views can be resized",
}


def advice(target: str) -> str:
    """Return what to do about a missing operator, or the name of the nearest one."""
    name = target.split(".")[-1 if target.startswith("torch.") else 1].partition(" ")[0]
    if " " in target:
        return "x[mask] has as many elements as the mask has true ones; use torch.where"
    if name in INSTEAD:
        return INSTEAD[name]
    known = {
        *_operators(),
        *SAME,
        *(known.split(".")[1] for known in FUNCTIONS if "aten." in known),
    }
    near = get_close_matches(name, known - {name}, 1, 0.7)
    return f"the nearest operator is aten.{near[0]}" if near else ""


def _same(self: mx.array) -> mx.array:
    return self


def _convert(
    self: mx.array, dtype: mx.Dtype | None = None, copy: bool = False, **_: None
) -> mx.array:
    return self if dtype is None else self.astype(dtype)


def _convert_like(self: mx.array, other: mx.array, copy: bool = False, **_: None) -> mx.array:
    return self.astype(other.dtype)


def _copy(self: mx.array, src: mx.array | float) -> mx.array:
    source = src.astype(self.dtype) if isinstance(src, mx.array) else mx.array(src, self.dtype)
    return mx.broadcast_to(source, self.shape)


def _resize_as(self: mx.array, the_template: mx.array) -> mx.array:
    """Return an array of another shape; its new elements, which torch leaves undefined, are 0."""
    flat = self.reshape(-1)[: the_template.size]
    return mx.pad(flat, (0, the_template.size - flat.size)).reshape(the_template.shape)


def _size(self: mx.array, dim: int) -> int:
    return self.shape[dim]


def _bounded(name: str) -> Function:
    """Return an operator over a slice; torch writes the largest int64 for its open end."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _named(name)(*map(_bound, args), **{k: _bound(v) for k, v in kwargs.items()})

    return call


def _bound(value: Any) -> Any:
    return max(min(value, LARGEST), -LARGEST) if type(value) is int else value


def _named(name: str) -> Function:
    function: Function = getattr(importlib.import_module("mlx_aten"), name)
    return function


def _renamed(name: str) -> Function:
    return lambda *args, **kwargs: _named(name)(*args, **kwargs)


def _of_numbers(function: Function) -> Function:
    """Return a function of numbers; integers stay sizes, whose arithmetic takes little time."""

    def call(*numbers: Any) -> float:
        if not all(type(number) in (int, float, bool) for number in numbers):
            raise TypeError(f"expected numbers, found {', '.join(map(_kind, numbers))}")
        result: float = function(*numbers)
        if type(result) not in (int, float, bool) or (type(result) is int and abs(result) > 2**63):
            raise ValueError("the result is not a number of 64 bits")
        return result

    return call


def _kind(value: Any) -> str:
    return type(value).__name__


def _power(base: float, exponent: float) -> float:
    if type(base) is type(exponent) is int and abs(base) > 1 and exponent > 63:
        raise OverflowError("the result is not a number of 64 bits")
    result: float = base**exponent
    return result


def _item(values: Any, index: Any) -> Any:
    if type(values) not in (list, tuple) or type(index) is not int:
        raise TypeError(f"expected a list and an index, found {_kind(values)} and {_kind(index)}")
    return values[index]


def _write_view(
    source: mx.array, elements: mx.array, position: int | None, view: Function
) -> mx.array:
    """Return the source with new elements where the view has its elements.

    The view of the numbers of all elements tells their positions, whatever the view is. `WRITES`
    has faster functions for frequent views.
    """
    positions = view(mx.arange(source.size).reshape(source.shape))
    if position is not None:
        positions = positions[position]
    flat = source.reshape(-1)
    flat[positions.reshape(-1)] = elements.reshape(-1)
    return flat.reshape(source.shape)


def _as_strided_scatter(
    self: mx.array,
    src: mx.array,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> mx.array:
    return _write_view(
        self, src, None, lambda x: arrays.as_strided(x, size, stride, storage_offset)
    )


def _reshaped_back(source: mx.array, elements: mx.array, *_: Any, **__: Any) -> mx.array:
    return elements.reshape(source.shape)


def _matrix_exp(self: mx.array) -> mx.array:
    result: mx.array = importlib.import_module("mlxops.linalg").matrix_exp(self)
    return result


# Returns the source with new elements, by the view: (source, elements, *the view's arguments).
WRITES: dict[str, Function] = {
    "aten.slice.Tensor": _bounded("slice_scatter"),
    "aten.select.int": _renamed("select_scatter"),
    "aten.transpose.int": lambda source, elements, dim0, dim1: mx.swapaxes(elements, dim0, dim1),
    "aten.detach.default": quantized.straight_through,
    **{
        f"aten.{name}": _reshaped_back
        for name in (
            *("alias.default", "view.default", "view_as.default", "reshape.default"),
            *("unsqueeze.default", "flatten.using_ints", "unflatten.int"),
            *("squeeze.default", "squeeze.dim", "squeeze.dims"),
        )
    },
}

FUNCTIONS: dict[str, Function] = {
    **{
        f"aten.{name}.default": _same
        for name in ("alias", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy")
    },
    **{f"aten.{name}": _convert for name in ("to.device", "to.dtype", "to.dtype_layout")},
    "aten._to_copy.default": _convert,
    "aten.to.other": _convert_like,
    "aten.type_as.default": _convert_like,
    "aten.copy.default": _copy,
    "aten.resize_as.default": _resize_as,
    "aten.detach.default": mx.stop_gradient,
    "aten.broadcast_tensors.default": lambda tensors: mx.broadcast_arrays(*tensors),
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": lambda self: self.size,
    "aten.slice.Tensor": _bounded("slice"),
    "aten.slice_scatter.default": _bounded("slice_scatter"),
    # Under mx.compile, MLX raises an error: the number would be a constant.
    "aten.item.default": lambda self: self.item(),
    "aten._local_scalar_dense.default": lambda self: self.item(),
    "aten.matrix_exp.default": _matrix_exp,
    "aten.linalg_matrix_exp.default": _matrix_exp,
    "aten.lstm.input": recurrent.lstm,
    "aten.gru.input": recurrent.gru,
    "aten.rnn_tanh.input": recurrent.rnn_tanh,
    "aten.rnn_relu.input": recurrent.rnn_relu,
    "aten.lstm_cell.default": recurrent.lstm_cell,
    "aten.gru_cell.default": recurrent.gru_cell,
    "aten.rnn_tanh_cell.default": recurrent.rnn_tanh_cell,
    "aten.rnn_relu_cell.default": recurrent.rnn_relu_cell,
    "mlx.write_view": _write_view,
    "mlx.as_strided_scatter": _as_strided_scatter,
    "mlx.straight_through": quantized.straight_through,
    "mlx.inside": inside,
    **arrays.FUNCTIONS,
    **control.FUNCTIONS,
    **convolutions.FUNCTIONS,
    **draws.FUNCTIONS,
    **layers.FUNCTIONS,
    **masked.FUNCTIONS,
    **quantized.FUNCTIONS,
    **{f"mlx.{name}": function for name, function in fused.FUNCTIONS.items()},
    # Arithmetic with sizes.
    **{
        f"_operator.{name}": _of_numbers(getattr(operator, name))
        for name in (
            *("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "abs"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"),
        )
    },
    "_operator.pow": _of_numbers(_power),
    "_operator.getitem": _item,
    **{
        f"math.{name}": _of_numbers(getattr(math, name))
        for name in ("ceil", "floor", "trunc", "sqrt")
    },
    "torch.sym_float": _of_numbers(float),
    "torch.sym_int": _of_numbers(int),
    "torch.sym_ite": _of_numbers(lambda condition, a, b: a if condition else b),
    "torch.sym_max": _of_numbers(max),
    "torch.sym_min": _of_numbers(min),
    "torch.sym_not": _of_numbers(operator.not_),
    "torch.sym_sum": lambda args: _of_numbers(lambda *numbers: sum(numbers))(*args),
    "torch._sym_sqrt": _of_numbers(math.sqrt),
}
