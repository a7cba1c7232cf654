"""Makes a program functional: MLX's arrays do not change, torch's do.

torch.export records in-place operators (`relu_`, `copy_`, the statistics of batch norm) as they
were called. Here each becomes the operator that returns a new value, and later reads of the
changed array read that value. If the changed array is a view, its source gets the new elements,
too, and other views of the source are taken again when they are read: what a program observes is
the same. Submodules that only switch torch's gradients off are inlined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import mlx.core as mx

from .program import (
    ExportError,
    Graph,
    Input,
    Node,
    Output,
    Program,
    Ref,
    Tensor,
    Value,
    is_dtype,
    names_of,
    reads,
    replace_refs,
    without_unused,
)

# Operators whose results share memory with their first argument.
VIEWS = {
    *("aten.T.default", "aten.adjoint.default", "aten.alias.default", "aten.chunk.default"),
    *("aten.detach.default", "aten.diagonal.default", "aten.expand.default"),
    *("aten.expand_as.default", "aten.lift.default", "aten.mH.default", "aten.mT.default"),
    *("aten.moveaxis.int", "aten.movedim.int", "aten.movedim.intlist", "aten.narrow.default"),
    *("aten.numpy_T.default", "aten.permute.default", "aten.select.int", "aten.slice.Tensor"),
    *("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default"),
    *("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.swapaxes.default"),
    *("aten.t.default", "aten.tensor_split.indices"),
    *("aten.tensor_split.sections", "aten.transpose.int", "aten.unbind.int"),
    *("aten.unflatten.int", "aten.unfold.default", "aten.unsqueeze.default"),
    *("aten.view.default", "aten.view_as.default", "aten.swapdims.default", "mlx.as_strided"),
}
# Operators whose strides are those of MLX's array if torch's has all elements in row order.
STRIDED = {f"aten.{name}.default": f"mlx.{name}" for name in ("as_strided", "as_strided_scatter")}
# Operators that return their argument, or a copy if something has to be computed.
DROPOUT = {"aten.dropout.default", "aten.feature_dropout.default"}
RESHAPES = {
    *("aten.flatten.using_ints", "aten.ravel.default"),
    *("aten.reshape.default", "aten.reshape_as.default"),
}
CONVERSIONS = {
    *("aten.contiguous.default", "aten.to.device", "aten.to.dtype", "aten.to.dtype_layout"),
    *("aten.to.other", "aten.type_as.default"),
}
LOW = {mx.float16, mx.bfloat16}
# Operators that change some of their arguments: the operator that returns the new ones after its
# other results, the number of these, and the changed arguments.
_STATISTICS = ("running_mean", "running_var")
_BATCH_NORM = ("aten._native_batch_norm_legit_functional.default", 3, _STATISTICS)
CHANGES = {
    "aten.batch_norm.default": _BATCH_NORM,
    "aten.native_batch_norm.default": _BATCH_NORM,
    "aten._native_batch_norm_legit.default": _BATCH_NORM,
    "aten.instance_norm.default": ("mlx.instance_norm", 1, _STATISTICS),
    "aten.fused_moving_avg_obs_fake_quant.default": (
        "mlx.moving_average_fake_quantize",
        1,
        ("running_min", "running_max", "scale", "zero_point"),
    ),
}
# Operators that change the shape of an array in place, for which nothing is implemented.
RESHAPED = {
    f"aten.{name}"
    for name in (
        "as_strided",
        "resize",
        "set",
        "squeeze",
        "swapaxes",
        "t",
        "transpose",
        "unsqueeze",
    )
}


def make_functional(program: Program) -> None:
    """Replace in-place operators, and add the new buffers to the graph's outputs."""
    graph = program.graph
    result = _functional(program, graph)
    signature = program.signature
    known = {signature.changed[i] for i in signature.changed}
    for name, path in (signature.parameters | signature.buffers).items():
        if result.current.get(name, name) != name and path not in known:
            signature.changed[len(graph.outputs)] = path
            graph.outputs.append(result.read(name))
    without_unused(graph)
    for inner in graph.inner():
        _functional(program, inner)
        without_unused(inner)


def _functional(program: Program, graph: Graph) -> _Functional:
    """Replace the in-place operators of one graph."""
    result = _Functional(program, graph)
    result.run(graph.nodes)
    graph.nodes = result.nodes
    graph.outputs = [replace_refs(output, result.read) for output in graph.outputs]
    return result


class _Functional:
    def __init__(self, program: Program, graph: Graph) -> None:
        self.program = program
        self.tensors = graph.tensors
        self.nodes: list[Node] = []
        self.current: dict[str, str] = {}  # the name of a value's present content
        self.views: dict[str, tuple[str, Node]] = {}  # of a view: the source, and the operator
        self.roots: dict[str, str] = {}  # of a view: the source that is not a view
        self.version: dict[str, int] = {}  # changes of a source, and those that its views know
        self.unsure: dict[str, str] = {}  # results that perhaps share memory: the operator
        self.names = (f"functional.{i}" for i in count())  # no name in a file has a dot
        self.same: dict[str, str] = {}  # of the result of an in-place operator: the changed array
        self.records = True  # whether torch records gradients
        self.autocast = False  # whether torch converts operands

    def run(self, nodes: list[Node]) -> None:
        for node in nodes:
            with reads(self.program.file, node):
                self.add(node)

    def add(self, node: Node) -> None:
        kind, _, overload = node.target.rpartition(".")
        if node.target == "higher_order.wrap_with_set_grad_enabled":
            self.inline(node, node.inputs[1].value, node.inputs[2:], bool(node.inputs[0].value))
        elif node.target == "higher_order.wrap_with_autocast":
            outside, self.autocast = self.autocast, bool(node.inputs[2].value)
            self.inline(node, node.inputs[4].value, node.inputs[5:], self.records)
            self.autocast = outside
        elif node.target in STRIDED and self.is_whole(node.inputs[0].value):
            node = replace(node, target=STRIDED[node.target], inputs=self.inputs(node))
            self.emit(node)
            self.note_view(node)
        elif node.target in CHANGES and self.changes_arguments(node):
            self.with_changes(node)
        elif isinstance(node.get("out"), Ref):
            self.into(node, node.get("out").name)
        elif kind.startswith("aten.") and kind.endswith("_") and not kind.endswith("__"):
            self.in_place(node, kind.removesuffix("_"), overload)
        else:
            self.emit(replace(node, inputs=self.inputs(node)))
            self.note_view(node)

    def emit(self, node: Node) -> None:
        self.nodes.append(node)

    def inputs(self, node: Node) -> tuple[Input, ...]:
        return tuple(replace(i, value=replace_refs(i.value, self.read)) for i in node.inputs)

    def is_whole(self, value: Value) -> bool:
        """Return whether an array has all elements of its memory, in row order."""
        name = value.name if isinstance(value, Ref) else ""
        return name not in self.views and name in self.tensors and self.tensors[name].contiguous

    # Views and changes.

    def note_view(self, node: Node) -> None:
        if node.target not in VIEWS | DROPOUT | RESHAPES | CONVERSIONS:
            return
        if not node.inputs or not isinstance(node.inputs[0].value, Ref):
            return
        source = node.inputs[0].value.name
        shares = True if node.target in VIEWS else self.shares(node, source)
        if node.target in DROPOUT | CONVERSIONS:  # if it shares memory, then all of it
            node = replace(node, target="aten.alias.default", inputs=node.inputs[:1])
        for name in node.outputs():
            if shares is None:
                self.unsure[name] = node.target
            elif shares:
                self.note(name, source, node)
                self.version[name] = self.version.get(self.root(name), 0)

    def shares(self, node: Node, source: str) -> bool | None:
        """Return whether the result shares memory with the source; None if that is not known."""
        before, after = self.tensors.get(source), self.tensors.get(next(node.outputs()))
        if before is None or after is None:
            return None
        if "dropout" in node.target:
            return not node.get("train") or node.get("p") == 0
        if node.target in RESHAPES:
            return _is_view(before, after)
        if not is_dtype(before, after.dtype) or node.get("copy"):
            return False
        return True if before.strides == after.strides else (False if after.contiguous else None)

    def note(self, name: str, source: str, node: Node) -> None:
        self.views[name], self.roots[name] = (source, node), self.root(source)

    def root(self, name: str) -> str:
        return self.roots.get(name, name)

    def read(self, name: str) -> Ref:
        """Return the present content of a value."""
        if name in self.views:
            root = self.root(name)
            if self.version[name] != self.version.get(root, 0):
                source, node = self.views[name]
                self.retake(node, self.read(source))
        return Ref(self.current.get(name, name))

    def retake(self, node: Node, source: Ref) -> None:
        """Apply a view's operator to the present content of its source."""
        renamed = {name: next(self.names) for name in node.outputs()}
        inputs = self.inputs(replace(node, inputs=node.inputs[1:]))
        first = replace(node.inputs[0], value=source)
        output = _renamed(node.output, renamed)
        self.emit(replace(node, name=next(self.names), inputs=(first, *inputs), output=output))
        for name, new in renamed.items():
            self.current[name] = new
            self.copy_type(name, new)
            self.version[name] = self.version.get(self.root(name), 0)

    def write(self, name: str, new: str, node: Node) -> None:
        """Make `new` the content of a value, and of the source that it is a view of."""
        if name in self.unsure:
            raise ExportError(
                f"{self.program.file}: {node.target} in node '{node.name}' changes '{name}', which "
                f"may share memory with another array ({self.unsure[name]}); call clone() before it"
            )
        if name in self.views:
            source, view = self.views[name]
            position = list(view.outputs()).index(name)
            written = next(self.names)
            arguments = replace(view, inputs=view.inputs[1:])
            self.emit(
                Node(
                    written,
                    "mlx.write_view",
                    (
                        Input("source", self.read(source)),
                        Input("elements", Ref(new)),
                        Input("view", view.target),
                        Input("position", position if isinstance(view.output, tuple) else None),
                        *self.inputs(arguments),
                    ),
                    written,
                    node.place,
                )
            )
            self.copy_type(source, written)
            self.write(source, written, node)
        else:
            self.version[name] = self.version.get(name, 0) + 1
        self.current[name] = new
        if name in self.views:
            self.version[name] = self.version[self.root(name)]

    def copy_type(self, name: str, new: str) -> None:
        if name in self.tensors:
            self.tensors[new] = self.tensors[name]

    # Operators that change an argument.

    def in_place(self, node: Node, kind: str, overload: str) -> None:
        if kind in RESHAPED:
            self.emit(replace(node, inputs=self.inputs(node)))  # reported as missing
            return
        if kind == "aten.detach":
            self.emit(replace(node, target="aten.detach.default", inputs=self.inputs(node)))
            self.note_view(node)
            return
        target = node.inputs[0].value.name
        if kind == "aten.resize_as":
            self.resize(node, target)
            return
        inputs = self.inputs(node)
        new = next(self.names)
        if kind in ("aten.zero", "aten.fill", "aten.copy"):
            elements = inputs[1] if len(inputs) > 1 else Input("src", 0)
            inputs = (inputs[0], replace(elements, name="src"))
            self.emit(Node(node.name, "aten.copy.default", inputs, new, node.place))
        else:
            self.emit(Node(node.name, f"{kind}.{overload}", inputs, new, node.place))
        self.change(node, target, new)

    def resize(self, node: Node, target: str) -> None:
        """Make the result of resize_as_ an array of its own, which the old name is a view of."""
        known = self.is_whole(Ref(target)) and target not in self.roots.values() and self.records
        if not known:
            self.emit(replace(node, inputs=self.inputs(node)))  # reported as missing
            return
        (name,) = node.outputs()
        self.emit(replace(node, target="aten.resize_as.default", inputs=self.inputs(node)))
        self.note(target, name, Node("", "aten.alias.default", (Input("self", Ref(name)),), target))
        self.current[target], self.version[target] = name, self.version.get(name, 0)

    def into(self, node: Node, target: str) -> None:
        """Compute the new content of the argument `out`."""
        new = next(self.names)
        inputs = tuple(i for i in self.inputs(node) if i.name != "out")
        self.emit(replace(node, inputs=inputs, output=new))
        self.change(node, target, new)

    def change(self, node: Node, target: str, new: str) -> None:
        """Make `new` the content of the array that a node changes and returns."""
        self.copy_type(target, new)
        if not self.records:
            value, new = new, next(self.names)
            self.copy_type(target, new)
            inputs = (Input("old", self.read(target)), Input("new", Ref(value)))
            self.emit(Node(node.name, "mlx.straight_through", inputs, new, node.place))
        self.write(target, new, node)
        for name in node.outputs():  # the result is the changed array itself
            alias = Node("", "aten.alias.default", (Input("self", Ref(target)),), name)
            self.note(name, target, alias)
            self.version[name] = self.version[self.root(name)]
            self.current[name] = new
            self.copy_type(target, name)
            self.same[name] = target

    def changes_arguments(self, node: Node) -> bool:
        training = node.get("training", node.get("use_input_stats", True))
        return bool(training) and isinstance(node.get(CHANGES[node.target][2][0]), Ref)

    def with_changes(self, node: Node) -> None:
        """Replace an operator by one that also returns the new content of some arguments."""
        target, results, arguments = CHANGES[node.target]
        names = [*node.outputs(), *(next(self.names) for _ in range(results))][:results]
        changed = [next(self.names) for _ in arguments]
        inputs = tuple(i for i in self.inputs(node) if i.name != "cudnn_enabled")
        self.emit(Node(node.name, target, inputs, (*names, *changed), node.place))
        for argument, new in zip(arguments, changed, strict=True):
            self.copy_type(node.get(argument).name, new)
            self.write(node.get(argument).name, new, node)

    def inline(
        self, node: Node, graph: Graph, given: tuple[Input, ...], differentiable: bool
    ) -> None:
        """Add the nodes of a submodule; without gradients, its own results are constants.

        An array from outside that it changes keeps its gradient: that of its new content is that of
        the array.
        """
        renamed = {
            name: self.read(i.value.name).name for name, i in zip(graph.inputs, given, strict=True)
        }
        own = set()
        for inner in graph.nodes:
            for name in inner.outputs():
                renamed[name] = next(self.names)
                own.add(renamed[name])
        for name, tensor in graph.tensors.items():
            self.tensors.setdefault(renamed.get(name, name), tensor)
        outside, self.records = self.records, differentiable
        for inner in graph.nodes:
            inputs = tuple(
                replace(i, value=replace_refs(i.value, lambda name: Ref(renamed.get(name, name))))
                for i in inner.inputs
            )
            inner = replace(inner, inputs=inputs, output=_renamed(inner.output, renamed))
            self.add(self.autocasted(inner) if self.autocast else inner)
        self.records = outside
        for name, value in zip(names_of(node.output), _flat(graph.outputs), strict=True):
            value = replace_refs(value, lambda inner: Ref(renamed.get(inner, inner)))
            constant = not differentiable and self.array_of(value) in own
            target = "aten.detach.default" if constant else "aten.alias.default"
            self.add(Node(name, target, (Input("self", value),), name, node.place))

    def autocasted(self, node: Node) -> Node:
        """Return a node with the operands that autocast makes: those of the result's precision.

        In-place operators, and norms with weights in 32 bits, take both precisions.
        """
        base = node.target.rpartition(".")[0]
        dtypes = {found.dtype for name in node.outputs() if (found := self.tensors.get(name))}
        kept = node.target in CONVERSIONS or base.endswith("_") or "norm" in base
        if kept or base == "higher_order" or len(dtypes) != 1 or not dtypes <= LOW | {mx.float32}:
            return node
        (dtype,) = dtypes
        others = {mx.float32} if dtype in LOW else LOW

        def convert(name: str) -> Ref:
            found = self.tensors.get(name)
            if found is None or found.dtype not in others or not found.shape:
                return Ref(name)
            new = next(self.names)
            inputs = (Input("self", Ref(name)), Input("dtype", dtype))
            self.add(Node(node.name, "aten.to.dtype", inputs, new, node.place))
            self.tensors[new] = replace(found, dtype=dtype)
            return Ref(new)

        inputs = tuple(replace(i, value=replace_refs(i.value, convert)) for i in node.inputs)
        return replace(node, inputs=inputs)

    def array_of(self, value: Value) -> str:
        """Return the array that in-place operators changed and returned as this value."""
        name: str = value.name
        while name in self.same:
            name = self.same[name]
        return name


def _is_view(before: Tensor, after: Tensor) -> bool | None:
    """Return whether a reshaped array shares memory; None if that is not known.

    It does if each group of axes that are joined or divided has its elements at equal distances.
    """
    if before.contiguous or before.shape == after.shape:
        return True
    axes = [*zip(before.shape, before.strides, strict=True)]
    if not all(isinstance(n, int) for n in (*before.shape, *before.strides, *after.shape)):
        return None
    sizes = [int(n) for n in after.shape if n != 1]
    left = [(int(n), int(stride)) for n, stride in axes if n != 1]
    while left and sizes:
        n, stride = left.pop()
        m = sizes.pop()
        while n != m:
            if n < m:
                if not left or left[-1][1] != n * stride:
                    return False  # torch copies
                n *= left.pop()[0]
            else:
                if not sizes:
                    return None
                m *= sizes.pop()
    return True


def _flat(values: list[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _renamed(output: Output, names: dict[str, str]) -> Output:
    if isinstance(output, str):
        return names.get(output, output)
    return None if output is None else tuple(_renamed(item, names) for item in output)
