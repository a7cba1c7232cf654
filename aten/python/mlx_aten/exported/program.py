"""The typed form of a program of torch.export: values, nodes and the signature.

`archive.py` makes it from a file, and the other modules read and rewrite it. A value of the graph
is referred to by its name; everything else among the inputs of a node is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

AGAIN = "load it with torch.export.load and save it with torch 2.13 or newer"


class ExportError(ValueError):
    """A program that cannot be read or run; the message names the file and the place."""


@dataclass(frozen=True)
class Ref:
    """A value of the graph, by name."""

    name: str


@contextmanager
def reads(file: str, node: Node) -> Iterator[None]:
    """Report a node without the arguments and results that torch writes."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(
            f"{file}: {node.target} in node '{node.name}' has other arguments or results than "
            f"torch writes ({type(error).__name__}: {error}); {AGAIN}"
        ) from error


# A constant, a Ref, a Graph, or a list of them.
Value = Any

# The names of a node's results: one value, nothing, or several results.
Output = str | None | tuple["Output", ...]


@dataclass(frozen=True)
class Input:
    """An argument of a node, with its name in the operator's schema."""

    name: str
    value: Value
    keyword: bool = False


@dataclass(frozen=True)
class Place:
    """The origin of a node in the model."""

    module: str = ""  # the path of the module, with its class
    frame: str = ""  # the last frame of the Python stack


@dataclass(frozen=True)
class Node:
    """A call of an operator, such as `aten.add.Tensor`."""

    name: str
    target: str
    inputs: tuple[Input, ...]
    output: Output
    place: Place = Place()

    def get(self, name: str, default: Value = None) -> Value:
        """Return the argument of this name, or the default."""
        return next((i.value for i in self.inputs if i.name == name), default)

    def outputs(self) -> Iterator[str]:
        """Yield the names of all results."""
        return names_of(self.output)

    def reads(self) -> Iterator[str]:
        """Yield the names of the values that the node needs."""
        for argument in self.inputs:
            yield from refs_of(argument.value)


@dataclass(frozen=True)
class Tensor:
    """The type of an array; a size that varies is the text of its expression."""

    dtype: mx.Dtype | None  # None: MLX lacks it
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]

    @property
    def contiguous(self) -> bool:
        """True if the elements are known to be in row order without gaps."""
        step: int | None = 1  # None: behind an axis of a varying size
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step = step * size if step is not None and isinstance(size, int) else None
        return True


def is_dtype(tensor: Tensor | None, dtype: mx.Dtype | None) -> bool:
    """Return whether an array has a dtype; MLX's cannot be compared with None."""
    known = tensor is not None and tensor.dtype is not None and dtype is not None
    return known and tensor.dtype == dtype


@dataclass
class Graph:
    """The nodes in the order in which they run."""

    inputs: list[str]
    outputs: list[Value]
    nodes: list[Node]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def inner(self) -> Iterator[Graph]:
        """Yield the programs among the arguments of the nodes, and those inside of these."""
        for node in self.nodes:
            for argument in node.inputs:
                if isinstance(argument.value, Graph):
                    yield argument.value
                    yield from argument.value.inner()


@dataclass(frozen=True)
class Leaf:
    """A user input: an array, a symbolic number, or a constant of the exported program."""

    name: str
    tensor: bool = True
    constant: bool = False
    value: Value = None


@dataclass
class Signature:
    """The meaning of the graph's inputs and outputs."""

    parameters: dict[str, str]  # input of the graph: path in the model
    buffers: dict[str, str]
    temporary: set[str]  # paths of buffers that a state dict lacks
    constants: dict[str, str]
    leaves: list[Leaf]
    results: list[int]  # positions of the user's outputs
    changed: dict[
        int, str
    ]  # positions of outputs that are new buffers or parameters, with the path


@dataclass
class Program:
    """A program with the structure of its arguments and results."""

    file: str
    graph: Graph
    signature: Signature
    inputs: Any  # TreeSpec of (args, kwargs)
    outputs: Any
    names: list[str]  # of the arguments
    ranges: dict[str, tuple[int | None, int | None]]  # bounds of symbolic sizes


def names_of(output: Output) -> Iterator[str]:
    """Yield the names in a node's output."""
    if isinstance(output, str):
        yield output
    elif output is not None:
        for item in output:
            yield from names_of(item)


def refs_of(value: Value) -> Iterator[str]:
    """Yield the names that a value refers to, also those of nested lists."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from refs_of(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from refs_of(item)


def replace_refs(value: Value, get: Callable[[str], Value]) -> Value:
    """Return the value with `get(name)` in place of each reference."""
    if isinstance(value, Ref):
        return get(value.name)
    if isinstance(value, list | tuple):
        return [replace_refs(item, get) for item in value]
    if isinstance(value, Mapping):
        return {key: replace_refs(item, get) for key, item in value.items()}
    return value


def without_unused(graph: Graph) -> None:
    """Remove the nodes whose results nothing reads."""
    needed = set(refs_of(graph.outputs))
    kept = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs()):
            needed.update(node.reads())
            kept.append(node)
    graph.nodes = kept[::-1]
