"""Packs quantized weights of a program for `mx.quantized_matmul`.

A weight that is only the matrix of linear layers and embeddings, behind an operator that converts
integers to numbers, gets MLX's form once, when the program is read: integers of 2 to 8 bits in
words of 32 bits, with a scale and a bias for each group of 32, 64 or 128 columns. Other weights
stay integers, and each call converts them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace

import mlx.core as mx

from .archive import Archive, Weight
from .program import Input, Node, Ref, Tensor, Value, reads, refs_of, without_unused

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (128, 64, 32)
CHUNK = 2**20  # elements that are packed at once, which take 32 times as many bytes
TRANSPOSES = {"aten.t.default", "aten.permute.default", "aten.transpose.int", "aten.mT.default"}


@dataclass(frozen=True)
class Quantized:
    """A matrix of integers: where they are, and their scales for blocks of rows and columns."""

    integers: str  # inputs of the graph
    scale: Value
    zero_point: Value
    block: tuple[int, int]
    low: int
    high: int


@dataclass(frozen=True)
class Product:
    """A product x @ w.T with a quantized matrix, plus a bias, or rows of the matrix."""

    node: Node
    inside: tuple[Node, ...]  # the nodes from the integers to the product
    x: Value
    weight: Quantized
    bias: Value = None
    target: str = "mlx.quantized_linear"

    def inner(self) -> list[str]:
        """Return the integers, and the values between them and the product."""
        return [self.weight.integers, *(name for node in self.inside for name in node.outputs())]


def pack(archive: Archive, own: Container[str]) -> list[str]:
    """Use `mx.quantized_matmul`, and return the names of the replaced nodes.

    Args:
        own: the targets for which the caller has functions; they stay.
    """
    packing = _Packing(archive, own)
    found = []
    for node in archive.program.graph.nodes:
        with reads(archive.program.file, node):
            product = packing.product(node)
        if product is not None:
            found.append(product)
    return packing.replace(found)


class _Packing:
    def __init__(self, archive: Archive, own: Container[str]) -> None:
        self.archive = archive
        self.own = own
        program = archive.program
        self.graph, self.signature = program.graph, program.signature
        self.producers = {name: node for node in self.graph.nodes for name in node.outputs()}
        paths = self.signature.parameters | self.signature.buffers | self.signature.constants
        changed = set(self.signature.changed.values())
        self.paths = {name: path for name, path in paths.items() if path not in changed}
        self.numbers: set[str] = set()  # the scales and zero points of packed weights

    def producer(self, value: Value) -> Node | None:
        node = self.producers.get(value.name) if isinstance(value, Ref) else None
        return None if node is None or node.target in self.own else node

    def array(self, value: Value) -> mx.array | None:
        """Return an array of the file that the program does not change."""
        path = self.paths.get(value.name) if isinstance(value, Ref) else None
        return None if path is None else self.archive.weights[path].array

    # Products.

    def product(self, node: Node) -> Product | None:
        """Return the product that a node computes, if its matrix is quantized."""
        if node.target in self.own:
            return None
        values = [i.value for i in node.inputs]
        if node.target == "aten.linear.default":
            return self.with_matrix(node, (), values[0], values[1], *values[2:3])
        if node.target == "aten.embedding.default":
            rows = self.with_matrix(node, (), values[1], values[0])
            return rows and replace(rows, target="mlx.quantized_embedding")
        if node.target == "aten.mm.default" or node.target == "aten.addmm.default":
            if len(values) > 3:  # with factors
                return None
            *bias, x, matrix = values
            transposed = self.producer(matrix)
            if transposed is None or transposed.target not in TRANSPOSES:
                return None
            return self.with_matrix(node, (transposed,), x, transposed.inputs[0].value, *bias)
        if node.target == "aten.mul.Tensor":
            return self.scaled(node, *values[:2]) or self.scaled(node, *values[1::-1])
        return None

    def with_matrix(
        self, node: Node, inside: tuple[Node, ...], x: Value, matrix: Value, bias: Value = None
    ) -> Product | None:
        found = self.producer(matrix)
        weight = None if found is None else self.weight(found)
        if found is None or weight is None:
            return None
        return Product(node, (*inside, found), x, weight, bias)

    def scaled(self, node: Node, product: Value, scale: Value) -> Product | None:
        """Return a product with integers that is multiplied by scales, as torchao has for int8."""
        mm = self.producer(product)
        if mm is None or mm.target != "aten.mm.default":
            return None
        x, matrix = (i.value for i in mm.inputs)
        converted, flat = self.producer(matrix), self.producer(scale)
        if converted is None or converted.target not in ("aten.to.dtype", "aten._to_copy.default"):
            return None
        transposed = self.producer(converted.inputs[0].value)
        if transposed is None or transposed.target not in TRANSPOSES:
            return None
        if flat is not None and flat.target in ("aten.flatten.using_ints", "aten.view.default"):
            scale = flat.inputs[0].value
        integers = self.array(transposed.inputs[0].value)
        scales = self.array(scale)
        if integers is None or scales is None or integers.ndim != 2:
            return None
        if integers.dtype != mx.int8 or scales.size != integers.shape[0]:
            return None
        name = transposed.inputs[0].value.name
        weight = Quantized(name, scale, None, (1, integers.shape[1]), -128, 127)
        return Product(node, (transposed, converted, mm), x, weight)

    def weight(self, node: Node) -> Quantized | None:
        """Return the matrix whose numbers a node computes."""
        kind = node.target.removesuffix(".default")
        integers = self.array(node.inputs[0].value)
        if integers is None or integers.ndim != 2 or integers.dtype not in (mx.int8, mx.uint8):
            return None
        rows, columns = integers.shape
        low, high = node.get("quant_min"), node.get("quant_max")
        zero_point = node.get("zero_point", node.get("zero_points"))
        scale = node.get("scale", node.get("scales"))
        if kind == "torchao.dequantize_affine":
            block = tuple(node.get("block_size"))
        elif kind == "quantized_decomposed.dequantize_per_channel":
            block = (1, columns) if node.get("axis") % 2 == 0 else (rows, 1)
        elif kind == "quantized_decomposed.dequantize_per_channel_group":
            block = (1, node.get("group_size", 128))
        elif node.target.startswith("quantized_decomposed.dequantize_per_tensor."):
            block = (rows, columns)
        else:
            return None
        for value in (scale, zero_point):
            known = self.array(value) is not None if isinstance(value, Ref) else True
            if not known or not isinstance(value, Ref | int | float | None):
                return None
        if len(block) != 2 or not all(type(n) is int and n > 0 for n in (*block, high - low)):
            return None
        name = node.inputs[0].value.name
        return Quantized(name, scale, zero_point, block, low, high)

    # Replacing them.

    def replace(self, found: list[Product]) -> list[str]:
        """Replace the products whose weights nothing else reads, and that fit MLX's form."""
        reads = Counter(name for node in self.graph.nodes for name in node.reads())
        reads.update(refs_of(self.graph.outputs))
        within = Counter(
            name
            for node in {node.name: node for p in found for node in (*p.inside, p.node)}.values()
            for name in node.reads()
        )
        matrices = Counter({p.weight: p.weight.integers for p in found}.values())
        inner = {name for product in found for name in product.inner()}
        packed: dict[Quantized, tuple[Value, ...] | None] = {}
        done = {}
        for product in found:
            weight, names = product.weight, product.inner()
            if (
                any(reads[name] != within[name] for name in names)
                or any(name in inner for name in refs_of([product.x, product.bias]))
                or matrices[weight.integers] > 1
            ):
                continue
            if weight not in packed:
                packed[weight] = self.packed(weight)
            arguments = packed[weight]
            if arguments is not None:
                values = (product.x, *arguments[:3], product.bias, *arguments[3:])
                inputs = tuple(Input(str(at), value) for at, value in enumerate(values))
                new = replace(product.node, target=product.target, inputs=inputs)
                done[product.node.name] = new
        if done:
            self.graph.nodes = [done.get(node.name, node) for node in self.graph.nodes]
            without_unused(self.graph)
            self.drop_unread()
        return list(done)

    def packed(self, weight: Quantized) -> tuple[Value, ...] | None:
        """Add the arrays of a matrix in MLX's form, unless it has none."""
        integers = self.array(Ref(weight.integers))
        assert integers is not None
        rows, columns = integers.shape
        height, width = weight.block
        bits = next((n for n in BITS if weight.high - weight.low < 2**n), None)
        group = next((n for n in GROUPS if width % n == 0), None)
        if bits is None or group is None or columns % width or rows % height or not integers.size:
            return None
        if int(mx.min(integers).item()) < weight.low or int(mx.max(integers).item()) > weight.high:
            return None

        def spread(value: Value, otherwise: int) -> mx.array | None:
            """Return a number for each group."""
            array = self.array(value) if isinstance(value, Ref) else None
            if array is None:
                array = mx.full((1, 1), otherwise if value is None else value)
            shape = (rows // height, columns // width)
            if array.size not in (1, math.prod(shape)):
                return None
            array = mx.broadcast_to(array.reshape(shape if array.size > 1 else (1, 1)), shape)
            return mx.repeat(mx.repeat(array, height, axis=0), width // group, axis=1)

        scales, zeros = spread(weight.scale, 1), spread(weight.zero_point, 0)
        if scales is None or zeros is None:
            return None
        if scales.dtype == mx.float64 or not mx.issubdtype(scales.dtype, mx.floating):
            scales = scales.astype(mx.float32, stream=mx.cpu)
        biases = scales.astype(mx.float32) * (weight.low - zeros.astype(mx.float32))
        if mx.array_equal(biases.astype(scales.dtype), biases):
            biases = biases.astype(scales.dtype)
        else:  # both would be rounded to 16 bits
            scales = scales.astype(mx.float32)
        words = pack_bits(integers.astype(mx.int32) - weight.low, bits)
        path = self.paths[weight.integers]
        self.numbers.update(refs_of([weight.scale, weight.zero_point]))
        names = [
            self.add(weight.integers, path, words),
            self.add(f"{weight.integers}.scales", f"{path}_scales", scales),
            self.add(f"{weight.integers}.biases", f"{path}_biases", biases),
        ]
        return (*names, group, bits)

    def add(self, name: str, path: str, array: mx.array) -> Ref:
        """Add a frozen array to the program, in place of one of the same name."""
        mx.eval(array)
        for paths in (self.signature.parameters, self.signature.constants):
            paths.pop(name, None)
        self.signature.buffers[name] = path
        self.archive.weights[path] = Weight(array, path, False)
        self.graph.tensors[name] = Tensor(array.dtype, array.shape, array.shape)
        return Ref(name)

    def drop_unread(self) -> None:
        """Remove scales and zero points that are now in the packed form, and float weights.

        torch keeps the parameters that were quantized, though nothing reads them.
        """
        read = {name for node in self.graph.nodes for name in node.reads()}
        read.update(refs_of(self.graph.outputs))
        for name in (self.numbers | self.signature.parameters.keys()) - read:
            for paths in (
                *(self.signature.parameters, self.signature.buffers),
                self.signature.constants,
            ):
                paths.pop(name, None)


def pack_bits(numbers: mx.array, bits: int) -> mx.array:
    """Return rows of numbers as words of 32 bits, the first number in the lowest bits."""
    rows, columns = numbers.shape
    step = max(CHUNK // columns, 1)
    chunks = []
    for start in range(0, rows, step):
        chunk = numbers[start : start + step].astype(mx.uint32)[..., None]
        single = mx.right_shift(chunk, mx.arange(bits, dtype=mx.uint32)) & 1
        words = single.reshape(chunk.shape[0], -1, 32)
        chunks.append(mx.sum(mx.left_shift(words, mx.arange(32, dtype=mx.uint32)), axis=-1))
        mx.eval(chunks[-1])
    return mx.concatenate(chunks).astype(mx.uint32)
