"""Replaces patterns of a program by fused operators.

A pattern is a tree of operators with named holes (`Op`, `Hole`, `Number`). A rule has one or more
patterns, and a function that returns the fused operator's arguments for a match, or None if its
shapes or options exclude the fused operator. The nodes inside of a match stay as long as something
else reads them, so that a rewrite never changes what the program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from . import fused
from .program import (
    Graph,
    Input,
    Node,
    Program,
    Ref,
    Tensor,
    Value,
    is_dtype,
    reads,
    refs_of,
    replace_refs,
    without_unused,
)


@dataclass(frozen=True)
class Hole:
    """Matches any value; equal names must be the same value."""

    name: str


@dataclass(frozen=True)
class Number:
    """Matches a constant number."""

    name: str


@dataclass(frozen=True)
class Op:
    """Matches a result of one of the operators, with the first arguments as given."""

    targets: str  # separated by spaces, without "aten."
    args: tuple[Any, ...] = ()
    name: str = ""  # a hole for the node
    commutes: bool = False
    options: bool = False  # the rule reads further arguments; otherwise they have their defaults


Match = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """Patterns with the fused operator that replaces them."""

    name: str
    patterns: tuple[Op, ...]
    arguments: Callable[[Match, Types], tuple[Value, ...] | None]
    needs_mlxops: bool = False
    first_result: bool = False  # the operator has others, which must be unused


PACKED = "quantized_matmul"  # see packing.py
UNKNOWN = Tensor(None, (), ())


class Types:
    """The types of a graph's values; what has no known type resembles a number."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors

    def __call__(self, value: Value) -> Tensor:
        return self.tensors.get(value.name, UNKNOWN) if isinstance(value, Ref) else UNKNOWN

    def of_result(self, node: Node) -> Tensor:
        return self.tensors.get(next(node.outputs()), UNKNOWN)

    def rank(self, value: Value) -> int:
        return len(self(value).shape)


DEFAULTS = {"alpha": 1, "half_to_float": False, "rounding_mode": None, "dtype": None}


class _Matcher:
    def __init__(self, graph: Graph, own: Container[str]) -> None:
        self.own = own
        self.producers = {name: node for node in graph.nodes for name in node.outputs()}
        self.tensors = graph.tensors

    def match(self, pattern: Any, value: Value, found: Match) -> Match | None:
        """Return the holes of a match, in addition to those found before."""
        if isinstance(pattern, Hole):
            if pattern.name in found:
                return found if found[pattern.name] == value else None
            return found | {pattern.name: value}
        if isinstance(pattern, Number):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return found | {pattern.name: value} if is_number else None
        if not isinstance(pattern, Op):
            return found if pattern == value else None
        node = self.producers.get(value.name) if isinstance(value, Ref) else None
        # Of several results, only the first one.
        if node is None or next(node.outputs()) != value.name:
            return None
        return self.match_node(pattern, node, found)

    def match_node(self, pattern: Op, node: Node, found: Match) -> Match | None:
        """Return the holes of a match of the node."""
        if (
            node.target in self.own
            or node.target.removeprefix("aten.") not in pattern.targets.split()
        ):
            return None
        values = [argument.value for argument in node.inputs]
        if len(values) < len(pattern.args):
            return None
        if not pattern.options and not self.is_default(node, node.inputs[len(pattern.args) :]):
            return None
        if pattern.name:
            found = found | {pattern.name: node}
        for order in self.orders(pattern):
            holes: Match | None = found
            for inner, value in zip(order, values, strict=False):
                holes = None if holes is None else self.match(inner, value, holes)
            if holes is not None:
                return holes
        return None

    def is_default(self, node: Node, inputs: tuple[Input, ...]) -> bool:
        """Return whether arguments are as if they were not given, such as the input's dtype."""
        dtypes = {
            self.tensors[name].dtype if name in self.tensors else None
            for name in (*refs_of(node.inputs[0].value), *node.outputs())
        }
        return all(
            (i.name == "dtype" and {i.value} == dtypes)
            or (i.name in DEFAULTS and i.value == DEFAULTS[i.name])
            for i in inputs
        )

    def orders(self, pattern: Op) -> Iterator[tuple[Any, ...]]:
        yield pattern.args
        if pattern.commutes:
            yield pattern.args[::-1]


def simplify(graph: Graph, own: Container[str]) -> None:
    """Remove operators that return their argument: copies, and conversions to the same dtype."""
    same: dict[str, Ref] = {}
    nodes = []
    for node in graph.nodes:
        node = replace(
            node,
            inputs=tuple(
                replace(i, value=replace_refs(i.value, lambda name: same.get(name, Ref(name))))
                for i in node.inputs
            ),
        )
        returns_argument = node.target not in own and _returns_argument(node, graph)
        if returns_argument and isinstance(node.output, str):
            same[node.output] = node.inputs[0].value
        else:
            nodes.append(node)
    graph.nodes = nodes
    graph.outputs = [
        replace_refs(output, lambda name: same.get(name, Ref(name))) for output in graph.outputs
    ]


COPIES = {
    f"aten.{name}.default"
    for name in ("alias", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy")
}
CONVERSIONS = {"aten.to.device", "aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default"}
LIKE = {"aten.to.other", "aten.type_as.default"}
EXPANSIONS = {"aten.expand.default", "aten.expand_as.default"}


def _returns_argument(node: Node, graph: Graph) -> bool:
    if not node.inputs or not isinstance(node.inputs[0].value, Ref):
        return False
    before = graph.tensors.get(node.inputs[0].value.name)
    after = graph.tensors.get(next(node.outputs(), ""))
    if node.target in COPIES:
        return True
    if node.target == "aten.dropout.default":
        return not node.get("train") or node.get("p") == 0
    if before is None or after is None or before.dtype is None:
        return False
    if node.target in CONVERSIONS | LIKE:
        return is_dtype(before, after.dtype)
    return node.target in EXPANSIONS and before.shape == after.shape


def chosen_rules(chosen: bool | Iterable[str]) -> set[str]:
    """Return the names of the rules that `from_exported` should use."""
    names = {PACKED, *(rule.name for rule in RULES)}
    if isinstance(chosen, bool):
        return names if chosen else set()
    if not isinstance(chosen, Iterable):
        raise TypeError(f"rewrites must be a bool or names, not {type(chosen).__name__}")
    wanted = {chosen} if isinstance(chosen, str) else set(chosen)
    if unknown := sorted(wanted - names):
        raise ValueError(f"unknown rewrite '{unknown[0]}', expected: {', '.join(sorted(names))}")
    return wanted


def rewrite(program: Program, wanted: set[str], own: Container[str]) -> dict[str, list[str]]:
    """Use fused operators, and return the names of the replaced nodes by rule.

    Args:
        own: the targets for which the caller has functions; they stay.
    """
    graph = program.graph
    simplify(graph, own)
    matcher, types = _Matcher(graph, own), Types(graph)
    done: dict[str, list[str]] = {}
    for rule in RULES:
        if rule.name not in wanted or (rule.needs_mlxops and fused.mlxops is None):
            continue
        read = {name for node in graph.nodes for name in node.reads()} | set(refs_of(graph.outputs))
        for i, node in enumerate(graph.nodes):
            if rule.first_result and any(name in read for name in list(node.outputs())[1:]):
                continue
            with reads(program.file, node):
                arguments = _arguments(rule, node, matcher, types)
            if arguments is not None:
                inputs = tuple(Input(str(at), value) for at, value in enumerate(arguments))
                new = replace(node, target=f"mlx.{rule.name}", inputs=inputs)
                if rule.first_result:
                    new = replace(new, output=next(node.outputs()))
                graph.nodes[i] = new
                matcher.producers.update(dict.fromkeys(new.outputs(), new))
                done.setdefault(rule.name, []).append(node.name)
    without_unused(graph)
    left = {node.name for node in graph.nodes}
    return {rule: kept for rule, nodes in done.items() if (kept := [n for n in nodes if n in left])}


def _arguments(rule: Rule, node: Node, matcher: _Matcher, types: Types) -> tuple[Value, ...] | None:
    for pattern in rule.patterns:
        found = matcher.match_node(pattern, node, {})
        if found is not None:
            arguments = rule.arguments(found | {"node": node}, types)
            if arguments is not None:
                return arguments
    return None


# The rules.


def _attention_call(found: Match, types: Types) -> tuple[Value, ...] | None:
    node: Node = found["node"]
    q, k, v = (node.inputs[i].value for i in range(3))
    mask = node.get("attn_mask")
    causal = bool(node.get("is_causal", False))
    if node.get("dropout_p", 0.0) != 0 or not _suits_attention(q, k, v, mask, types):
        return None
    if causal and types(q).shape[-2] != types(k).shape[-2]:
        return None  # torch aligns the first query with the first key, MLX the last ones
    return q, k, v, mask, causal, node.get("scale")


def _attention_steps(found: Match, types: Types) -> tuple[Value, ...] | None:
    q, k, v, mask = (found.get(name) for name in ("q", "k", "v", "mask"))
    axes = {found.get("dim0", 2) % 4, found.get("dim1", 3) % 4}
    if axes != {2, 3} or found["dim"] not in (-1, 3) or not _suits_attention(q, k, v, mask, types):
        return None
    if mask is not None and types(mask).dtype == mx.bool_:
        return None
    scale = 1 / found["divisor"] if "divisor" in found else found.get("scale", 1.0)
    return q, k, v, mask, False, scale


def _suits_attention(q: Value, k: Value, v: Value, mask: Value, types: Types) -> bool:
    shapes = [types(value).shape for value in (q, k, v)]
    if any(len(shape) != 4 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        return False
    heads = [shape[1] for shape in shapes]
    if heads[1] != heads[2]:
        return False
    if heads[0] != heads[1] and not (
        all(isinstance(n, int) for n in heads) and int(heads[0]) % int(heads[1]) == 0
    ):
        return False
    dtype = types(q).dtype
    if any(types(value).dtype != dtype for value in (k, v)):
        return False
    return mask is None or (len(types(mask).shape) <= 4 and types(mask).dtype in (mx.bool_, dtype))


def _last_axis(shape: Value, x: Value, types: Types) -> bool:
    return isinstance(shape, list) and len(shape) == 1 and bool(types.rank(x))


def _layer_norm(found: Match, types: Types) -> tuple[Value, ...] | None:
    node: Node = found["node"]
    if not _last_axis(node.get("normalized_shape"), node.inputs[0].value, types):
        return None
    return (
        node.inputs[0].value,
        node.get("weight"),
        node.get("bias"),
        node.get("eps", 1e-5),
    )


def _rms_norm_call(found: Match, types: Types) -> tuple[Value, ...] | None:
    node: Node = found["node"]
    if not _last_axis(node.get("normalized_shape"), node.inputs[0].value, types):
        return None
    return node.inputs[0].value, node.get("weight"), node.get("eps")


def _rms_norm_steps(found: Match, types: Types) -> tuple[Value, ...] | None:
    x, weight = found["x"], found.get("weight")
    if types.rank(x) == 0 or found["axes"] not in ([-1], [types.rank(x) - 1]):
        return None
    if weight is not None and types(weight).shape != types(x).shape[-1:]:
        return None
    if types.of_result(found["node"]).dtype != types(x).dtype:
        return None
    return x, weight, found["eps"]


def _gated(found: Match, types: Types) -> tuple[Value, ...] | None:
    x, gate = types(found["x"]), types(found["gate"])
    if x.dtype is None or (x.shape, x.dtype) != (gate.shape, gate.dtype):
        return None
    return found["x"], found["gate"]


def _geglu(found: Match, types: Types) -> tuple[Value, ...] | None:
    pair = _gated(found, types)
    return pair and (*pair, found["gelu"].get("approximate", "none"))


def _cross_entropy(found: Match, types: Types) -> tuple[Value, ...] | None:
    node: Node = found["node"]
    logits, target = found["logits"], node.get("target")
    rank = types.rank(logits)
    if rank < 2 or types.rank(target) != rank - 1:
        return None
    dtype = types(target).dtype
    if dtype is None or not mx.issubdtype(dtype, mx.integer):
        return None  # probabilities
    axis = 1
    if "dim" in found:  # of the log_softmax
        moved = found.get("moved")
        if moved is not None:
            axes = {found["dim0"] % rank, found["dim1"] % rank}
            if rank != 3 or axes != {1, 2}:
                return None  # the order of the other axes would differ from the target's
            axis = 2
        if found["dim"] % rank != axis:
            return None
    return (
        logits,
        target,
        node.get("weight"),
        node.get("reduction", 1),
        node.get("ignore_index", -100),
        node.get("label_smoothing", 0.0),
        axis,
    )


def _recurrent(found: Match, types: Types) -> tuple[Value, ...] | None:
    node: Node = found["node"]
    weight = types(node.get("params")[1])
    if len(weight.shape) != 2 or not isinstance(weight.shape[1], int) or weight.shape[1] > 1024:
        return None
    layers = node.get("num_layers") * (1 + node.get("bidirectional"))
    if len(node.get("params")) != layers * (4 if node.get("has_biases") else 2):
        return None  # projections
    return tuple(argument.value for argument in node.inputs)


def _mul(*args: Any) -> Op:
    return Op("mul.Tensor", args, commutes=True)


def _converted(x: Any) -> Op:
    return Op("to.dtype to.dtype_layout type_as.default _to_copy.default", (x,), options=True)


def _normalized(x: Any) -> tuple[Op, ...]:
    """Return the forms of x divided by its root mean square."""
    squares = (Op("pow.Tensor_Scalar", (x, 2)), _mul(x, x), Op("square.default", (x,)))
    sums = (
        Op("add.Tensor add.Scalar", (Op("mean.dim", (square, Hole("axes"), True)), Number("eps")))
        for square in squares
    )
    return tuple(
        form
        for inside in sums
        for form in (
            _mul(x, Op("rsqrt.default", (inside,))),
            Op("div.Tensor", (x, Op("sqrt.default", (inside,)))),
        )
    )


_X, _WEIGHT = Hole("x"), Hole("weight")
_NORMALIZED = _normalized(_X)
# In half precision, models compute the norm in float32 and round it before the weight.
_NORMALIZED_LOW = tuple(_converted(norm) for norm in _normalized(_converted(_X)))

_KEYS = (
    Op("transpose.int", (Hole("k"), Hole("dim0"), Hole("dim1"))),
    Op("permute.default", (Hole("k"), [0, 1, 3, 2])),
    Op("mT.default", (Hole("k"),)),
)
_SCALED = tuple(
    form
    for scores in (Op("matmul.default", (Hole("q"), keys)) for keys in _KEYS)
    for form in (
        Op("mul.Tensor mul.Scalar", (scores, Number("scale"))),
        Op("div.Tensor div.Scalar", (scores, Number("divisor"))),
        scores,
    )
)
_SOFTMAX = "softmax.int _softmax.default"

_LOGITS = Hole("logits")
_LOG_SOFTMAX = Op("log_softmax.int _log_softmax.default", (_LOGITS, Hole("dim")))
_MOVED_CLASSES = Op("transpose.int", (_LOG_SOFTMAX, Hole("dim0"), Hole("dim1")), name="moved")
_NLL = "nll_loss_nd.default nll_loss.default"

RULES = (
    Rule("attention", (Op("scaled_dot_product_attention.default", options=True),), _attention_call),
    Rule(
        "attention",
        tuple(
            Op("matmul.default", (weights, Hole("v")))
            for scaled in _SCALED
            for scores in (Op("add.Tensor", (scaled, Hole("mask")), commutes=True), scaled)
            for weights in (
                Op(_SOFTMAX, (scores, Hole("dim"))),
                _converted(Op(_SOFTMAX, (scores, Hole("dim")), options=True)),
            )
        ),
        _attention_steps,
    ),
    Rule("layer_norm", (Op("layer_norm.default", options=True),), _layer_norm),
    Rule(
        "layer_norm",
        (Op("native_layer_norm.default", options=True),),
        _layer_norm,
        first_result=True,
    ),
    Rule("rms_norm", (Op("rms_norm.default", options=True),), _rms_norm_call),
    Rule(
        "rms_norm",
        tuple(_mul(_WEIGHT, norm) for norm in (*_NORMALIZED, *_NORMALIZED_LOW)),
        _rms_norm_steps,
    ),
    Rule("rms_norm", _NORMALIZED, _rms_norm_steps),
    Rule("swiglu", (_mul(Op("silu.default", (Hole("gate"),)), _X),), _gated, needs_mlxops=True),
    Rule(
        "geglu",
        (_mul(Op("gelu.default", (Hole("gate"),), name="gelu", options=True), _X),),
        _geglu,
        needs_mlxops=True,
    ),
    Rule(
        "cross_entropy",
        (
            Op("cross_entropy_loss.default", (_LOGITS,), options=True),
            Op(_NLL, (_LOG_SOFTMAX,), options=True),
            Op(
                _NLL,
                (Op("transpose.int", (_LOG_SOFTMAX, Hole("dim0"), Hole("dim1")), name="moved"),),
                options=True,
            ),
        ),
        _cross_entropy,
        needs_mlxops=True,
    ),
    Rule("lstm", (Op("lstm.input", options=True),), _recurrent, needs_mlxops=True),
    Rule("gru", (Op("gru.input", options=True),), _recurrent, needs_mlxops=True),
)
