"""The runnable form of a program: an mlx.nn.Module whose parameters are the program's.

The tree of modules has torch's paths (`layers.0.weight`), so that MLX's optimizers, `freeze` and
`save_weights` work as with other models. Buffers, such as the statistics of batch norm, are frozen
arrays of that tree; constants of the program and buffers that a state dict lacks are not in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from . import control
from .archive import Archive
from .convolutions import faster
from .operands import LISTS
from .operators import (
    DROPPED,
    FUNCTIONS,
    LARGEST,
    OWN_ARGUMENTS,
    WRITES,
    Find,
    Function,
    advice,
    lookup,
)
from .program import (
    ExportError,
    Graph,
    Input,
    Leaf,
    Node,
    Output,
    Program,
    Ref,
    refs_of,
    replace_refs,
)
from .tree import TreeSpec

Tree = dict[str, Any]
Run = Callable[[dict[str, Any]], list[Any]]


class Part(nn.Module):
    """A module of the tree; its buffers stay frozen."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: set[str] = set()  # not a list, which nn.Module would take for parameters

    def add_buffer(self, name: str, value: mx.array) -> None:
        """Add an array that is not trained."""
        self[name] = value
        self._buffers.add(name)
        self.freeze(keys=sorted(self._buffers), recurse=False)

    def unfreeze(self, *args: Any, **kwargs: Any) -> Part:
        """Unfreeze the parameters, but not the buffers."""
        super().unfreeze(*args, **kwargs)
        for part in self.modules():
            part.freeze(keys=sorted(part._buffers), recurse=False)
        return self


class ExportedModel(Part):
    """A program of torch.export over MLX's arrays.

    `model(*args, **kwargs)` takes what the exported module takes, and returns the same structure.
    Buffers that the program changes get their new values in the model, as in MLX's own layers.
    `functional` does the same without changing the model.

    Attributes:
        rewrites: names of fused operators, with the nodes of the program that they replaced.
        tied: paths of parameters that are other parameters, with the paths of those.
    """

    def __init__(
        self,
        archive: Archive,
        rewrites: dict[str, list[str]],
        find: Find,
        operators: Mapping[str, Function],
    ) -> None:
        super().__init__()
        program, weights = archive.program, archive.weights
        signature = program.signature
        own = self._exported = _Exported(program, rewrites)
        changed = set(signature.changed.values())
        records: dict[str, str] = {}
        entries: Entries = {}
        for name, path in (signature.parameters | signature.buffers).items():
            weight, buffer = weights[path], name in signature.buffers
            if buffer and path in signature.temporary - changed:
                own.fixed[name] = weight.array
            elif not buffer and weight.record in records:
                own.tied[path] = records[weight.record]
                own.where[name] = _keys(records[weight.record])
            else:
                own.where[name] = _keys(path)
                if _keys(path) in entries:
                    raise ExportError(f"{program.file}: two arrays have the name '{path}'")
                entries[_keys(path)] = (weight.array, buffer)
                if not buffer:
                    records[weight.record] = path
        for name, path in signature.constants.items():
            own.fixed[name] = weights[path].array
        _check_paths(entries, program.file)
        _fill(self, entries)
        for path in (p for p in signature.parameters.values() if not weights[p].trained):
            self._freeze(_keys(own.tied.get(path, path)))
        own.run = _runner(
            program.graph, lambda target: lookup(target, find, operators), operators, program.file
        )

    @property
    def input_tree(self) -> TreeSpec:
        """The structure of the arguments: a tuple, and a dictionary of those given by name."""
        tree: TreeSpec = self._exported.program.inputs
        return tree

    @property
    def rewrites(self) -> dict[str, list[str]]:
        return self._exported.rewrites

    @property
    def tied(self) -> dict[str, str]:
        return self._exported.tied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program with the model's parameters; changed buffers are stored."""
        result, changes = self._call(self, args, kwargs)
        if changes:
            self.update(changes)
        return result

    def functional(self, parameters: Tree, *args: Any, **kwargs: Any) -> tuple[Any, Tree]:
        """Return the result, and a tree of the buffers that the program changed.

        Args:
            parameters: a tree such as `model.parameters()` or `model.trainable_parameters()`;
                arrays that it lacks are the model's.
        """
        return self._call(parameters, args, kwargs)

    def _freeze(self, keys: tuple[str, ...]) -> None:
        """Freeze a parameter that torch does not train either."""
        part: Any = self
        for key in keys[:-1]:
            part = part[int(key)] if isinstance(part, list) else part[key]
        if isinstance(part, Part):
            part.freeze(keys=[keys[-1]], recurse=False)

    def _call(self, tree: Mapping[str, Any], args: Any, kwargs: Any) -> tuple[Any, Tree]:
        own = self._exported
        program, signature = own.program, own.program.signature
        if not isinstance(tree, Mapping):
            raise TypeError(
                f"parameters must be a tree such as model.parameters(), not {type(tree).__name__}"
            )
        values: dict[str, Any] = dict(own.fixed)
        for name, keys in own.where.items():
            value = _get(tree, keys)
            value = _get(self, keys) if value is None else value
            shape = program.graph.tensors[name].shape
            if not isinstance(value, mx.array) or value.shape != shape:
                found = value.shape if isinstance(value, mx.array) else type(value).__name__
                raise ValueError(
                    f"'{'.'.join(keys)}' must be an array of shape {shape}, not {found}"
                )
            values[name] = value
        values |= _bind(program, args, kwargs)
        outputs = own.run(values)
        result = program.outputs.build(outputs[i] for i in signature.results)
        changes = {}
        for position, path in signature.changed.items():
            value, keys = outputs[position], _keys(path)
            if not isinstance(value, mx.array) or value.shape != _get(self, keys).shape:
                raise ExportError(f"{program.file}: '{path}' changes to what is not its shape")
            changes[keys] = value
        return result, _nested(self, changes) if changes else {}


@dataclass
class _Exported:
    """The state of a model outside of its tree, to which nn.Module adds dictionaries."""

    program: Program
    rewrites: dict[str, list[str]]
    tied: dict[str, str] = field(default_factory=dict)
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of the graph's inputs
    fixed: dict[str, mx.array] = field(default_factory=dict)  # constants by the graph's input
    run: Run = None  # type: ignore[assignment]  # set last: the operators are looked up then

    def __deepcopy__(self, memo: Any) -> _Exported:
        """Return the same object: nothing changes it after the model is made."""
        return self


MAX_GAPS = 10_000  # of the numbers in paths, each of which becomes an empty module
# The arrays of a part of the tree by their paths, and whether they are buffers.
Entries = dict[tuple[str, ...], tuple[mx.array, bool]]


def _keys(path: str) -> tuple[str, ...]:
    """Return the place of torch's path in the tree.

    nn.Module ignores names with a leading underscore, so that they lose it. The layers of a
    sequential model are in `layers`, as those of mlx.nn.Sequential.
    """
    keys = tuple(key.lstrip("_") or "_" for key in path.split("."))
    return ("layers", *keys) if _is_index(keys[0]) else keys


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdigit() and (key[0] != "0" or key == "0")


def _check_paths(entries: Entries, file: str) -> None:
    """Check that arrays are not inside of arrays, and that lists have few gaps."""
    lengths: dict[tuple[str, ...], int] = {}
    for keys in entries:
        for i, key in enumerate(keys):
            if keys[:i] in entries:
                raise ExportError(
                    f"{file}: the array '{'.'.join(keys)}' is inside of '{'.'.join(keys[:i])}', "
                    "which is an array, too; rename one of them in the model"
                )
            if _is_index(key):
                length = int(key) + 1 if len(key) < 10 else 10**9
                lengths[keys[:i]] = max(lengths.get(keys[:i], 0), length)
    if sum(lengths.values()) >= MAX_GAPS + 100 * len(entries):
        raise ExportError(
            f"{file}: the numbers of modules leave too many gaps; number them from 0 in the model"
        )


def _fill(part: Part, entries: Entries) -> None:
    """Add arrays and modules to a part of the tree."""
    for key, inside in _groups(entries).items():
        if () not in inside:
            part[key] = _container(inside)
        elif inside[()][1]:
            part.add_buffer(key, inside[()][0])
        else:
            part[key] = inside[()][0]


def _nested(part: Any, entries: dict[tuple[str, ...], mx.array]) -> Any:
    """Return arrays as a tree of dictionaries and lists like those of a part of the model."""
    if () in entries:
        return entries[()]
    groups: dict[str, dict[tuple[str, ...], mx.array]] = {}
    for (first, *rest), array in entries.items():
        groups.setdefault(first, {})[tuple(rest)] = array
    if isinstance(part, list):
        inside = [groups.get(str(i), {}) for i in range(max(map(int, groups)) + 1)]
        return [
            _nested(item, group) if group else {} for item, group in zip(part, inside, strict=False)
        ]
    return {key: _nested(part[key], group) for key, group in groups.items()}


def _groups(entries: Entries) -> dict[str, Entries]:
    groups: dict[str, Entries] = {}
    for (first, *rest), entry in entries.items():
        groups.setdefault(first, {})[tuple(rest)] = entry
    return groups


def _container(entries: Entries) -> Part | list[Any]:
    """Return a module, or a list if all names are numbers, as MLX's own modules have them."""
    groups = _groups(entries)
    is_list = all(map(_is_index, groups))
    if not is_list or any(inside.get((), (None, False))[1] for inside in groups.values()):
        part = Part()
        _fill(part, entries)
        return part
    items: list[Any] = [Part() for _ in range(max(map(int, groups)) + 1)]
    for key, inside in groups.items():
        items[int(key)] = inside[()][0] if () in inside else _container(inside)
    return items


def _get(tree: Any, keys: tuple[str, ...]) -> Any:
    """Return the array at a place of a tree, or None."""
    for key in keys:
        if isinstance(tree, dict):  # also modules; to ask for Mapping takes far longer
            tree = tree.get(key)
        elif isinstance(tree, list):
            tree = tree[int(key)] if int(key) < len(tree) else None
        elif tree is None or not isinstance(tree, Mapping):
            return None
        else:
            tree = tree.get(key)
    return tree


# Arguments.


def _bind(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the graph's inputs that the user gives, checked."""
    leaves = program.signature.leaves
    given = list(_leaves(program, args, kwargs))
    sizes: dict[str, tuple[int, str]] = {}
    values = {}
    for leaf, value in zip(leaves, given, strict=True):
        if leaf.constant:
            if value is not MISSING and value is not leaf.value and value != leaf.value:
                raise ValueError(
                    f"argument '{leaf.name}' must be {leaf.value!r}, with which the program was "
                    f"exported, not {value!r}"
                )
        elif not leaf.tensor:
            if not isinstance(value, int | float):
                raise TypeError(
                    f"argument '{leaf.name}' must be a number, not {type(value).__name__}"
                )
            values[leaf.name] = value
        else:
            values[leaf.name] = _array(program, leaf, value, sizes)
    return values


MISSING: Any = object()


def _leaves(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments' leaves, whether they were given by position or by name."""
    positional, keyword = program.inputs.children
    names = program.names
    keys = keyword.keys or ()
    count = len(positional.children)
    if len(names) != count + len(keys):  # a function of *args
        names = [*(f"argument {i}" for i in range(count)), *keys]
    if len(args) > len(names):
        raise TypeError(f"the program takes {len(names)} arguments, not {len(args)}")
    named = dict(zip(names, args, strict=False))
    for key, value in kwargs.items():
        if key in named:
            raise TypeError(f"argument '{key}' is given twice")
        if key not in names:
            raise TypeError(f"the program has no argument '{key}': {', '.join(names)}")
        named[key] = value
    at = 0
    specs = chain(positional.children, keyword.children)
    order = [*names[:count], *keys]
    for name, spec in zip(order, specs, strict=True):
        own = program.signature.leaves[at : at + spec.leaves]
        at += spec.leaves
        if name in named:
            yield from spec.flatten(named[name], f"argument '{name}'")
        elif all(leaf.constant for leaf in own):
            yield from (MISSING for _ in own)
        else:
            raise TypeError(f"the program needs the argument '{name}'")


KINDS = {
    "floating": mx.floating,
    "complex": mx.complexfloating,
    "integer": mx.integer,
}


def _kind(dtype: mx.Dtype) -> str:
    return next((name for name, kind in KINDS.items() if mx.issubdtype(dtype, kind)), "bool")


def _array(program: Program, leaf: Leaf, value: Any, sizes: dict[str, tuple[int, str]]) -> mx.array:
    """Return an input as an array of the program's dtype and of a shape that it accepts."""
    expected = program.graph.tensors[leaf.name]
    if not isinstance(value, mx.array):
        raise TypeError(f"argument '{leaf.name}' must be an mx.array, not {type(value).__name__}")
    if expected.dtype is None:
        raise ExportError(f"{program.file}: input '{leaf.name}' has a dtype that MLX lacks")
    same = value.dtype == expected.dtype
    if not same and _kind(value.dtype) != _kind(expected.dtype):
        raise TypeError(f"argument '{leaf.name}' must be {expected.dtype}, not {value.dtype}")
    shape = tuple(value.shape)
    if len(shape) != len(expected.shape):
        raise ValueError(
            f"argument '{leaf.name}' must have {len(expected.shape)} axes, not the shape {shape}"
        )
    for axis, (size, wanted) in enumerate(zip(shape, expected.shape, strict=True)):
        if isinstance(wanted, int):
            if size != wanted:
                raise ValueError(
                    f"argument '{leaf.name}' has the shape {shape}, but the program was exported "
                    f"for {wanted} at axis {axis}; export it with dynamic_shapes"
                )
            continue
        low, high = program.ranges.get(wanted, (None, None))
        if (low is not None and size < low) or (high is not None and size > high):
            raise ValueError(
                f"argument '{leaf.name}' has {size} at axis {axis}, but the program was exported "
                f"for {low or 0} to {'any' if high is None else high}"
            )
        first, other = sizes.setdefault(wanted, (size, leaf.name))
        if first != size:
            raise ValueError(
                f"argument '{leaf.name}' has {size} at axis {axis}, but '{other}' has {first}; the "
                "program was exported for equal sizes"
            )
    return value if same else value.astype(expected.dtype)


# Running.


def _runner(
    graph: Graph,
    lookup: Callable[[str], Function | None],
    operators: Container[str],
    file: str,
) -> Run:
    """Return a function from the graph's inputs to its outputs.

    Args:
        operators: the targets that have functions of the caller.

    Raises an ExportError that lists all operators without a function.
    """
    missing: dict[str, list[Node]] = {}
    run = _run_of(graph, lookup, operators, file, missing)
    if missing:
        raise ExportError(_missing_message(missing, file))
    return run


def _run_of(
    graph: Graph,
    lookup: Callable[[str], Function | None],
    operators: Container[str],
    file: str,
    missing: dict[str, list[Node]],
) -> Run:
    """Return a function from the graph's inputs to its outputs; add the missing operators."""
    steps = []
    dtypes = {
        name: (tensor.dtype, mx.issubdtype(tensor.dtype, mx.inexact))
        for name, tensor in graph.tensors.items()
        if tensor.dtype is not None
    }
    for node in graph.nodes:
        function = lookup(node.target)
        if node.target in control.FUNCTIONS and node.target not in operators:
            node = _with_functions(
                node, lambda inner: _run_of(inner, lookup, operators, file, missing)
            )
        if function is not None:
            _check_arguments(node, file, node.target in operators)
        if node.target not in operators and _depends_on_values(node, graph):
            missing.setdefault(f"{node.target} with an index of bools", []).append(node)
            continue
        if node.target == "mlx.write_view":
            view = lookup(node.get("view"))
            if view is None or function is None:
                missing.setdefault(node.get("view"), []).append(node)
                continue
            steps.append(_write_step(node, view, function, dtypes, file))
        elif function is None:
            missing.setdefault(node.target, []).append(node)
        else:
            steps.append(_step(node, faster(function, node, graph.tensors), dtypes, file))
    if missing:
        return lambda values: []
    last: list[list[str]] = [[] for _ in steps]  # the values that no later step reads
    alive = set(refs_of(graph.outputs))
    for i in reversed(range(len(steps))):
        for name in dict.fromkeys([*graph.nodes[i].reads(), *graph.nodes[i].outputs()]):
            if name not in alive:
                alive.add(name)
                last[i].append(name)

    def run(values: dict[str, Any]) -> list[Any]:
        for step, done in zip(steps, last, strict=True):
            step(values)
            for name in done:
                values.pop(name, None)
        return [replace_refs(output, values.__getitem__) for output in graph.outputs]

    return run


def _with_functions(node: Node, run_of: Callable[[Graph], Run]) -> Node:
    """Return a node with functions of arrays in place of programs."""

    def function_of(value: Any) -> Any:
        if not isinstance(value, Graph):
            return value
        names, run = value.inputs, run_of(value)
        return lambda *given: run(dict(zip(names, given, strict=True)))

    inputs = tuple(replace(i, value=function_of(i.value)) for i in node.inputs)
    output = (node.output,) if isinstance(node.output, str) else node.output
    return replace(node, inputs=inputs, output=output)


def _check_arguments(node: Node, file: str, own: bool) -> None:
    """Check that an operator gets values only, by names that it has in torch or is the caller's."""
    for argument in node.inputs:
        if isinstance(argument.value, Graph | Mapping):
            what = f"the argument '{argument.name}', which is not a value"
        elif argument.keyword and not own and not _has(node.target, argument.name):
            what = f"the argument '{argument.name}', which the operator lacks"
        elif not _are_sizes(argument.value):
            what = f"the argument '{argument.name}', a list with an integer beyond 32 bits"
        else:
            continue
        raise ExportError(f"{file}: {node.target} in node '{node.name}' has {what}{_where(node)}")


def _are_sizes(value: Any) -> bool:
    """Return whether the integers in a list have 32 bits; functions of MLX abort for others."""
    return not isinstance(value, list) or all(
        abs(item) <= LARGEST if type(item) is int else _are_sizes(item) for item in value
    )


@lru_cache(4096)
def _has(target: str, name: str) -> bool:
    """Return whether an operator has an argument of this name, as far as Python knows.

    The others are functions of mlx_aten, which themselves raise an error for unknown names.
    """
    if name in DROPPED:
        return True
    if name in OWN_ARGUMENTS:
        return False
    function = FUNCTIONS.get(target)
    if function is None:
        return True
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of MLX
        return True
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _depends_on_values(node: Node, graph: Graph) -> bool:
    """Return whether the shape of a result depends on values, which MLX's arrays cannot have."""
    if node.target.rpartition(".")[0] not in LISTS:
        return False
    indices = [graph.tensors.get(name) for name in refs_of(node.get("indices"))]
    # uint8 is a mask, too.
    masks = (mx.bool_, mx.uint8)
    if not any(index and index.dtype is not None and index.dtype in masks for index in indices):
        return False
    return "index_put" not in node.target or len(indices) > 1


Values = dict[str, Any]
Step = Callable[[Values], None]
Dtypes = Mapping[str, tuple[mx.Dtype, bool]]  # and whether these are floating or complex numbers


def _arguments(inputs: Iterable[Input]) -> Callable[[Values], tuple[list[Any], dict[str, Any]]]:
    """Return a function from the program's values to the arguments of a function.

    A call takes longer than the function's own work if it looks for references in all of them:
    where they are is determined once.
    """
    used = [i for i in inputs if i.name not in DROPPED]
    ordered = [i for i in used if not i.keyword] + [i for i in used if i.keyword]
    count = sum(not i.keyword for i in used)
    keys = [i.name for i in ordered[count:]]
    given = [replace_refs(i.value, Ref) for i in ordered]
    refs = [(at, value.name) for at, value in enumerate(given) if isinstance(value, Ref)]
    nested = [
        (at, value)
        for at, value in enumerate(given)
        if not isinstance(value, Ref) and any(refs_of(value))
    ]

    def arguments(values: Values) -> tuple[list[Any], dict[str, Any]]:
        filled = given.copy()
        for at, name in refs:
            filled[at] = values[name]
        for at, value in nested:
            filled[at] = replace_refs(value, values.__getitem__)
            if not _are_sizes(filled[at]):
                raise ValueError("an argument is a list with an integer beyond 32 bits")
        return filled[:count], dict(zip(keys, filled[count:], strict=True))

    return arguments


def _step(node: Node, function: Function, dtypes: Dtypes, file: str) -> Step:
    arguments, store = _arguments(node.inputs), _storing(node.output, dtypes)

    def step(values: Values) -> None:
        try:
            positional, named = arguments(values)
            store(values, function(*positional, **named))
        except Exception as error:
            raise _failure(node, error, file) from error

    return step


def _failure(node: Node, error: Exception, file: str) -> ExportError:
    at = f"from {node.target} in node '{node.name}'{_where(node)}"
    text = str(error)
    if isinstance(error, TypeError) and "incompatible function arguments" in text:
        given = text.partition("Invoked with types:")[2].strip()
        text = f"mlx_aten has no form of the operator for the arguments ({given})"
    return ExportError(f"{file}: {text}, {at}")


def _write_step(node: Node, view: Function, write: Function, dtypes: Dtypes, file: str) -> Step:
    source, elements, kind, position, *others = node.inputs
    arguments = _arguments(others)
    direct, store = WRITES.get(kind.value), _storing(node.output, dtypes)

    def step(values: Values) -> None:
        array, new, at = (
            replace_refs(i.value, values.__getitem__) for i in (source, elements, position)
        )
        try:
            positional, named = arguments(values)
            if direct is not None:
                result = direct(array, new, *positional, **named)
            else:
                result = write(array, new, at, lambda x: view(x, *positional, **named))
            store(values, result)
        except Exception as error:
            raise _failure(node, error, file) from error

    return step


def _storing(output: Output, dtypes: Dtypes) -> Callable[[Values, Any], None]:
    """Return a function that stores results of an operator, with the dtypes of torch."""
    if output is None:
        return lambda values, result: None
    if isinstance(output, str):
        name, Array = output, mx.array
        dtype, inexact = dtypes.get(output, (None, True))

        def store(values: Values, result: Any) -> None:
            if isinstance(result, Array):
                found = result.dtype
                if dtype is None:
                    if not mx.issubdtype(found, mx.inexact):
                        result = mx.stop_gradient(result)
                else:
                    if found != dtype and (dtype != mx.float64 or _has_float64()):
                        result = result.astype(dtype)
                    if not inexact:
                        # Integers have no gradients in torch; in MLX, those of scatters raise.
                        result = mx.stop_gradient(result)
            values[name] = result

        return store
    inner = [_storing(item, dtypes) for item in output]

    def store_all(values: Values, result: Any) -> None:
        if not isinstance(result, list | tuple) or len(result) < len(inner):
            raise ValueError(f"the operator does not return {len(inner)} results")
        for store, item in zip(inner, result, strict=False):
            store(values, item)

    return store_all


def _has_float64() -> bool:
    return mx.default_device().type == mx.cpu


def _where(node: Node) -> str:
    """Return the module of a node, and its line in the model on a line of its own."""
    place = node.place
    module = f", in {place.module}" if place.module else ""
    return module + (f"\n    {place.frame}" if place.frame else "")


def _base(target: str) -> str:
    """Return the name of an operator without its overload."""
    return target.partition(" ")[0].rpartition(".")[0]


def _missing_message(missing: dict[str, list[Node]], file: str) -> str:
    count = "1 operator" if len(missing) == 1 else f"{len(missing)} operators"
    lines = [f"{file}: the program needs {count} that mlx_aten lacks:"]
    for target, nodes in sorted(missing.items()):
        times = "once" if len(nodes) == 1 else f"{len(nodes)} times, first"
        lines.append(f"  {target}, {times} in node '{nodes[0].name}'{_where(nodes[0])}")
        if hint := advice(target):
            lines.append(f"    {hint}")
    lines.append("exported.run_decompositions() in torch replaces many operators by simpler ones.")
    # Those of torch itself, such as cond, have programs or no arrays as arguments.
    if own := [target for target in missing if not target.startswith(("higher_order.", "torch."))]:
        lines.append(
            "Or give a function over MLX's arrays: "
            f"from_exported(.., operators={{'{_base(min(own))}': f}})"
        )
    return "\n".join(lines)
