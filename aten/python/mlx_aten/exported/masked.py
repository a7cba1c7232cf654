"""Computes `x[mask] *= 2` over all elements: MLX cannot have as many as a mask selects.

Elementwise operators between `x[mask]` and `y[mask] = ..` of the same mask do not depend on the
number of elements. Unselected ones are 1, and their results are dropped, with their gradients.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import mlx.core as mx

from .program import Graph, Input, Node, Ref, refs_of

#: the mask, its first axis, and the number of axes behind it
Selection = tuple[str, int, int]

ELEMENTWISE = {
    f"aten.{name}"
    for name in (
        *("abs", "neg", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt"),
        *("sin", "cos", "tan", "tanh", "asin", "acos", "atan", "sinh", "cosh", "sigmoid", "erf"),
        *("relu", "gelu", "silu", "softplus", "leaky_relu", "elu", "square", "reciprocal", "sign"),
        *("floor", "ceil", "round", "trunc", "clamp", "clamp_min", "clamp_max", "clip", "clone"),
        *("add", "sub", "mul", "div", "rsub", "pow", "fmod", "remainder", "maximum", "minimum"),
        *("atan2", "bitwise_not", "logical_not", "to", "_to_copy", "alias", "detach"),
    )
}
READS = {"aten.index.Tensor", "aten._unsafe_index.Tensor"}
WRITES = {"aten.index_put.default", "aten._unsafe_index_put.default"}


def select_masked(graph: Graph, own: Container[str]) -> None:
    """Replace the reads and writes of a mask where only elementwise operators are between them."""
    selected: dict[str, Selection] = {}
    failed: set[Selection] = set()
    changed: dict[int, tuple[Selection, Node]] = {}
    for at, node in enumerate(graph.nodes):
        found = {selected[name] for name in node.reads() if name in selected}
        chosen = None if node.target in own else _selection(graph, node)
        if node.target in READS and chosen is not None and not found:
            selected[next(node.outputs())] = chosen
            changed[at] = (chosen, _call(node, "mlx.selected", chosen, ()))
        elif not found:
            continue
        elif len(found) == 1 and _is_elementwise(graph, node, selected, *found):
            selected.update(dict.fromkeys(node.outputs(), *found))
        elif node.target in WRITES and found == {chosen} and _only_values(node, selected):
            (same,) = found
            rest = tuple(i for i in node.inputs if i.name in ("values", "accumulate"))
            changed[at] = (same, _call(node, "mlx.put_selected", same, rest))
        else:
            failed |= found
    failed |= {selected[name] for name in refs_of(graph.outputs) if name in selected}
    for at, (key, node) in changed.items():
        if key not in failed:
            graph.nodes[at] = node


def _call(node: Node, target: str, key: Selection, rest: tuple[Input, ...]) -> Node:
    mask, first, _ = key
    inputs = (node.inputs[0], Input("mask", Ref(mask)), Input("first", first))
    return replace(node, target=target, inputs=(*inputs, *rest))


def _selection(graph: Graph, node: Node) -> Selection | None:
    """Return what a node's indices select, if these are one mask."""
    indices, source = node.get("indices"), node.get("self")
    if node.target not in READS | WRITES or not isinstance(source, Ref):
        return None
    given = [(at, index) for at, index in enumerate(indices) if isinstance(index, Ref)]
    types = graph.tensors
    if len(given) != 1 or given[0][1].name not in types or source.name not in types:
        return None
    first, mask = given[0][0], given[0][1].name
    if types[mask].dtype is None or types[mask].dtype != mx.bool_:
        return None
    behind = len(types[source.name].shape) - first - len(types[mask].shape)
    return mask, first, behind


def _is_elementwise(
    graph: Graph, node: Node, selected: dict[str, Selection], key: Selection
) -> bool:
    """Return whether a node does the same to each of the elements."""
    if node.target.rpartition(".")[0] not in ELEMENTWISE:
        return False
    others = [name for name in node.reads() if name not in selected]
    ranks = [len(graph.tensors[name].shape) for name in others if name in graph.tensors]
    return len(ranks) == len(others) and max(ranks, default=0) <= key[2]


def _only_values(node: Node, selected: dict[str, Selection]) -> bool:
    return not any(name in selected for i in node.inputs[:2] for name in refs_of(i.value))


# The operators.


def selected(self: mx.array, mask: mx.array, first: int) -> mx.array:
    """Return all elements in the shape of those that a mask selects, and 1 for the others.

    The others get no gradient, also where that of a function at 1 is infinite.
    """
    import mlx_aten

    behind = (1,) * (self.ndim - first - mask.ndim)
    chosen = mask.reshape(*mask.shape, *behind)
    elements = mlx_aten.where(chosen, self, mx.array(1, self.dtype))
    return elements.reshape(*self.shape[:first], mask.size, *self.shape[first + mask.ndim :])


def put_selected(
    self: mx.array, mask: mx.array, first: int, values: mx.array, accumulate: bool = False
) -> mx.array:
    """Return the array with the values of all elements where a mask is true."""
    import mlx_aten

    behind = (1,) * (self.ndim - first - mask.ndim)
    values = values.reshape(self.shape).astype(self.dtype)
    chosen = mask.reshape(*mask.shape, *behind)
    result: mx.array = mlx_aten.where(chosen, self + values if accumulate else values, self)
    return result


FUNCTIONS: dict[str, Any] = {"mlx.selected": selected, "mlx.put_selected": put_selected}
