"""Makes the operands of a program what torch's operators make of them.

Three rules of torch are not MLX's. In a promotion of dtypes, an array without axes counts only if
it is of a higher kind than those with axes: bfloat16 with a 0-d float32 is bfloat16. A product of
float16 and a number has the number's float32 value: 0 * -1e9 is 0. And an index that is not in an
array is an error, where MLX reads other memory; here it becomes the nearest index.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import mlx.core as mx

from .program import Graph, Input, Node, Ref, Tensor, Value, is_dtype, reads

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
# The numbers that these put into an array: torch writes -1 into bytes as 255.
FILLS = {
    "aten.masked_fill.Scalar": "value",
    "aten.scatter.value": "value",
    "aten.where.ScalarSelf": "self",
    **{f"aten.{name}.default": "fill_value" for name in ("full", "full_like", "new_full")},
}
# These compute in float32 with a float16 array and a number, which MLX makes float16.
SCALINGS = {
    f"aten.{name}"
    for name in (
        *("mul", "multiply", "div", "divide", "true_divide"),
        *("floor_divide", "remainder", "fmod"),
    )
}
CLAMPS = {f"aten.{n}" for n in ("clamp", "clip", "clamp_min", "clamp_max")}
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
# Operators that keep the values of their argument, and do not change which axis they are for.
KEPT = {
    *("aten.unsqueeze.default", "aten.view.default", "aten.reshape.default", "aten.alias.default"),
    *("aten.expand.default", "aten.to.dtype", "aten.to.device", "aten.slice.Tensor"),
}
COUNTED = {"aten.arange.default", "aten.arange.start"}


def prepare(graph: Graph, file: str) -> None:
    """Convert the operands of the graph's nodes where torch's rules are not MLX's."""
    preparation = _Preparation(graph)
    for node in graph.nodes:
        with reads(file, node):
            preparation.add(node)
    graph.nodes = preparation.nodes


class _Preparation:
    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors
        self.producers = {name: node for node in graph.nodes for name in node.outputs()}
        self.names = (f"operands.{i}" for i in count())  # no name in a file has a dot
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Add a node, after the nodes that convert its operands."""
        base = node.target.rpartition(".")[0]
        values = {i.name: i.value for i in node.inputs}
        if base in INDICES:
            of, axis, name = INDICES[base]
            dim = node.get(axis) if isinstance(axis, str) else axis
            ignored = node.get("ignore_index", -100) if name == "target" else None
            values[name] = self.inside(node, values.get(name), node.get(of), dim, ignored)
        elif base in LISTS and isinstance(values.get("indices"), list):
            values["indices"] = [
                self.inside(node, index, node.inputs[0].value, axis)
                for axis, index in enumerate(values["indices"])
            ]
        elif node.target in COMPARISONS and type(values["other"]) is int:
            values["other"] = _wrapped(values["other"], self.type_of(values["self"]))
        elif base in PROMOTED:
            self.promote(node, base, values)
        number = values.get(FILLS.get(node.target, ""))
        if type(number) is int:
            result = self.tensors.get(next(node.outputs(), ""))
            values[FILLS[node.target]] = _wrapped(number, result)
        after = None
        if base in SCALINGS and self.exceeds(node, values.get("other")):
            values["self"] = self.made(node, "aten.to.dtype", values["self"], mx.float32)
            wide = next(self.names)
            back = (Input("self", Ref(wide)), Input("dtype", mx.float16))
            after = Node(node.name, "aten.to.dtype", back, node.output, node.place)
            node = replace(node, output=wide)
        inputs = tuple(replace(i, value=values[i.name]) for i in node.inputs)
        self.nodes.append(replace(node, inputs=inputs))
        if after is not None:
            self.nodes.append(after)

    def exceeds(self, node: Node, number: Value) -> bool:
        """Return whether a number next to float16 is too large or too small for it."""
        if type(number) not in (int, float) or number == 0 or 2**-14 <= abs(number) <= 65504:
            return False
        types = self.type_of(node.inputs[0].value), self.tensors.get(next(node.outputs(), ""))
        return math.isfinite(number) and all(is_dtype(found, mx.float16) for found in types)

    def type_of(self, value: Value) -> Tensor | None:
        return self.tensors.get(value.name) if isinstance(value, Ref) else None

    def made(self, node: Node, target: str, *values: Value) -> Ref:
        """Add a node for an operand."""
        name = next(self.names)
        inputs = tuple(Input(str(at), value) for at, value in enumerate(values))
        self.nodes.append(Node(node.name, target, inputs, name, node.place))
        return Ref(name)

    def inside(
        self, node: Node, index: Value, array: Value, axis: int | None, ignored: int | None = None
    ) -> Value:
        """Return an index that is inside of an axis."""
        found, of = self.type_of(index), self.type_of(array)
        if not isinstance(index, Ref) or is_dtype(found, mx.bool_):
            return index
        if of is not None and axis in range(len(of.shape)) and self.counts(index, of.shape[axis]):
            return index
        return self.made(node, "mlx.inside", index, array, axis, ignored)

    def counts(self, index: Value, size: int | str) -> bool:
        """Return whether an index is known to count from 0 to less than a size."""
        node = self.producers.get(index.name) if isinstance(index, Ref) else None
        if node is None:
            return False
        values = [i.value for i in node.inputs]
        is_sum = node.target == "aten.add.Tensor" and len(values) == 2 and values[1] == 0
        if node.target in KEPT or is_sum:
            return self.counts(values[0], size)
        if node.target not in COUNTED or node.get("start", 0) != 0:
            return False
        end = node.get("end")
        if isinstance(end, int) and isinstance(size, int):
            return end <= size
        source = self.producers.get(end.name) if isinstance(end, Ref) else None
        if source is None or source.target != "aten.sym_size.int":
            return False
        of = self.type_of(source.inputs[0].value)
        dim = source.inputs[1].value
        return of is not None and type(dim) is int and of.shape[dim] == size

    def promote(self, node: Node, base: str, values: dict[str, Value]) -> None:
        """Convert numbers and arrays without axes to the dtype of those with axes."""
        types = {name: found for name, value in values.items() if (found := self.type_of(value))}
        result, first = self.tensors.get(next(node.outputs(), "")), types.get("self")
        if type(values.get("other")) is int and first is not None and result is not None:
            if is_dtype(first, result.dtype):
                values["other"] = _wrapped(values["other"], first)
            elif _kind(result.dtype) == KINDS.index(mx.floating):
                values["other"] = float(values["other"])
        for bound in ("min", "max") if base in CLAMPS else ():
            values[bound] = _limited(values.get(bound), first)
        if base == "aten.where":
            types.pop("condition", None)
        with_axes = [found.dtype for found in types.values() if found.shape]
        common = max(with_axes, key=_kind, default=None)
        if common is None:
            return
        if base in ARITHMETIC and common in LOW:
            common = mx.float32
        for name, found in types.items():
            if not found.shape and _kind(found.dtype) <= _kind(common):
                values[name] = self.made(node, "aten.to.dtype", values[name], common)


def _kind(dtype: mx.Dtype | None) -> int:
    if dtype is None:
        return len(KINDS)
    return next(at for at, kind in enumerate(KINDS) if mx.issubdtype(dtype, kind))


def _limited(number: Value, array: Tensor | None) -> Value:
    """Return a bound of an array of integers that is one of its dtype."""
    if type(number) is not int or array is None or array.dtype is None:
        return number
    if not mx.issubdtype(array.dtype, mx.integer):
        return number
    limits = mx.iinfo(array.dtype)
    return min(max(number, limits.min), limits.max)


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
    if not mx.issubdtype(index.dtype, mx.integer):
        return index
    size = array.size
    if axis is not None:
        size = array.shape[min(axis, array.ndim - 1)] if array.ndim else 1
    if size == 0 and index.size:
        raise ValueError("there are indices into an axis of size 0")
    low, high = -size, size - 1
    if index.dtype not in (mx.int32, mx.int64):
        limits = mx.iinfo(index.dtype)
        low, high = max(low, limits.min), min(high, limits.max)
    bounded = mx.clip(index, low, high)
    return bounded if ignored is None else mx.where(index == ignored, index, bounded)
