"""Makes the operands of a program what torch's operators make of them.

Two rules of torch are not MLX's. In a promotion of dtypes, an array without axes counts only if it
is of a higher kind than those with axes: bfloat16 with a 0-d float32 is bfloat16. And an index that
is not in an array is an error, where MLX reads other memory; here it becomes the nearest index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import mlx.core as mx

from .program import Graph, Input, Node, Ref, Tensor, Value, reads

# Elementwise operators of several arrays, whose dtypes torch promotes.
PROMOTED = {
    f"aten.{name}"
    for name in (
        *("add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide"),
        *("floor_divide", "remainder", "fmod", "pow", "atan2", "arctan2", "hypot", "copysign"),
        *("maximum", "minimum", "fmax", "fmin", "max", "min", "clamp", "clip", "clamp_min"),
        *("clamp_max", "lerp", "addcmul", "addcdiv", "where", "logaddexp", "logaddexp2"),
        *("heaviside", "nextafter", "ldexp", "gcd", "lcm", "isclose", "xlogy", "special_xlogy"),
        *("special_xlog1py", "special_zeta", "eq", "ne", "lt", "le", "gt", "ge", "not_equal"),
        *("less", "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or"),
        *("bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "__and__", "__or__"),
        *("__xor__", "__lshift__", "__rshift__", "mse_loss", "l1_loss", "smooth_l1_loss"),
        "huber_loss",
    )
}
# These compute in float32 with a 16-bit array and a 0-d float32 array, as MLX does.
ARITHMETIC = {f"aten.{n}" for n in ("add", "sub", "rsub", "mul", "div", "true_divide")}
COMPARISONS = {f"aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
KINDS = (mx.bool_, mx.integer, mx.floating, mx.complexfloating)  # in the order of promotion

# Indices into an axis: the names of the array, of the axis (or its number; None: all elements), and
# of the indices.
INDICES: dict[str, tuple[str, str | int | None, str]] = {
    **{
        f"aten.{name}": ("weight", 0, "indices")
        for name in ("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
    },
    **{
        f"aten.{name}": ("self", "dim", "index")
        for name in (
            *("gather", "scatter", "scatter_add", "scatter_reduce"),
            *("index_select", "index_add", "index_copy", "index_reduce"),
        )
    },
    "aten.take": ("self", None, "index"),
    "aten.put": ("self", None, "index"),
    "aten.take_along_dim": ("self", "dim", "indices"),
    # The classes of losses; `inside` keeps the target that is to be ignored.
    **{
        f"aten.{name}": ("self", 1, "target")
        for name in (
            *("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"),
            *("nll_loss_forward", "nll_loss2d_forward"),
        )
    },
}
# Operators with a list of indices, one for each axis.
LISTS = {f"aten.{name}" for name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put")}
LOW = (mx.float16, mx.bfloat16)
INTEGERS = (mx.int32, mx.int64)  # the dtypes of indices in torch


def prepare(graph: Graph, file: str) -> None:
    """Convert the operands of the graph's nodes where torch's rules are not MLX's."""
    names = (f"operands.{i}" for i in count())  # no name in a file has a dot
    nodes: list[Node] = []
    for node in graph.nodes:

        def made(target: str, *values: Value, node: Node = node) -> Ref:
            name = next(names)
            inputs = tuple(Input(str(at), value) for at, value in enumerate(values))
            nodes.append(Node(node.name, target, inputs, name, node.place))
            return Ref(name)

        with reads(file, node):
            nodes.append(replace(node, inputs=_operands(node, graph.tensors, made)))
    graph.nodes = nodes


def _operands(
    node: Node, tensors: dict[str, Tensor], made: Callable[..., Ref]
) -> tuple[Input, ...]:
    """Return the inputs of a node, with nodes that `made` adds for those that are converted."""

    def type_of(value: Value) -> Tensor | None:
        return tensors.get(value.name) if isinstance(value, Ref) else None

    def is_index(value: Value) -> bool:
        found = type_of(value)
        return found is not None and found.dtype is not None and found.dtype in INTEGERS

    base = node.target.rpartition(".")[0]
    values = {i.name: i.value for i in node.inputs}
    if base in INDICES:
        of, axis, name = INDICES[base]
        if is_index(values.get(name)):
            dim = node.get(axis) if isinstance(axis, str) else axis
            ignored = node.get("ignore_index", -100) if name == "target" else None
            values[name] = made("mlx.inside", values[name], node.get(of), dim, ignored)
    elif base in LISTS and isinstance(values.get("indices"), list):
        values["indices"] = [
            made("mlx.inside", item, node.inputs[0].value, axis, None) if is_index(item) else item
            for axis, item in enumerate(values["indices"])
        ]
    elif node.target in COMPARISONS and type(values["other"]) is int:
        values["other"] = _wrapped(values["other"], type_of(values["self"]))
    elif base in PROMOTED:
        types = {name: found for name, value in values.items() if (found := type_of(value))}
        result, first = tensors.get(next(node.outputs(), "")), types.get("self")
        if type(values.get("other")) is int and first is not None and result is not None:
            if first.dtype == result.dtype:
                values["other"] = _wrapped(values["other"], first)
            elif _kind(result.dtype) == KINDS.index(mx.floating):
                values["other"] = float(values["other"])
        if base == "aten.where":
            types.pop("condition", None)
        common = max(
            (found.dtype for found in types.values() if found.shape), key=_kind, default=None
        )
        if base in ARITHMETIC and common is not None and common in LOW:
            common = mx.float32
        for name, found in types.items():
            if common is not None and not found.shape and _kind(found.dtype) <= _kind(common):
                values[name] = made("aten.to.dtype", values[name], common)
    return tuple(replace(i, value=values[i.name]) for i in node.inputs)


def _kind(dtype: mx.Dtype | None) -> int:
    if dtype is None:
        return len(KINDS)
    return next(at for at, kind in enumerate(KINDS) if mx.issubdtype(dtype, kind))


def _wrapped(number: int, array: Tensor | None) -> int:
    """Return the integer of an array's dtype that torch computes with."""
    if array is None or array.dtype is None or not mx.issubdtype(array.dtype, mx.integer):
        return number
    limits = mx.iinfo(array.dtype)
    return (number - limits.min) % (limits.max - limits.min + 1) + limits.min


def inside(index: mx.array, array: mx.array, axis: int | None, ignored: int | None) -> mx.array:
    """Return indices of an axis, or of all elements; the nearest ones for those outside of it.

    Args:
        ignored: a number that stays as it is.

    Raises:
        ValueError: the axis is empty, but there are indices.
    """
    size = array.size
    if axis is not None:
        size = array.shape[min(axis, array.ndim - 1)] if array.ndim else 1
    if size == 0 and index.size:
        raise ValueError("there are indices into an axis of size 0")
    bounded = mx.clip(index, -size, size - 1)
    return bounded if ignored is None else mx.where(index == ignored, index, bounded)
