"""Quantized programs of `mlx_aten.from_exported`: memory and time against the float program.

The program is a stack of linear layers, as torchao's weight-only quantization exports them: one
scale for each row of 8 bits, and for each group of 32 columns of 4 bits. Without the rewrite, each
call converts the integers to numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_aten.exported import archive, packing, program
from mlx_aten.exported.model import ExportedModel
from mlx_aten.exported.operands import prepare
from mlx_aten.exported.operators import find
from mlx_aten.exported.tree import TreeSpec

from .measure import Options, Result, alternate, duration

WIDTH, LAYERS, GROUP = 1024, 4, 32
ROWS = (1, 8, 64)
ROUNDS, BUDGET = 100, 20.0
KINDS = ("float32", "8 bits", "4 bits", "4 bits, not packed")
LIMITS = {8: (-128, 127), 4: (-8, 7)}


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    mx.set_default_device(mx.cpu)
    width = WIDTH // 4 if options.quick else WIDTH
    made = {kind: model(kind, width) for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for rows in ROWS:
        options.progress(f"time {rows} rows")
        x = mx.random.normal((rows, width), key=mx.random.key(0))
        calls = {kind: (lambda kind=kind, x=x: mx.eval(made[kind](x))) for kind in KINDS}
        rounds = 10 if options.quick else ROUNDS
        # CPU time, since other processes lengthen the wall time of one core.
        times = alternate(calls, rounds=rounds, budget=BUDGET, clock=time.process_time)
        for kind in KINDS:
            seconds[kind].append(times.least(kind))
    for kind in KINDS:
        size = sum(array.nbytes for _, array in tree_flatten(made[kind].parameters()))
        cells = {"memory": f"{size / 1e6:.1f} MB"}
        for rows, each in zip(ROWS, seconds[kind], strict=True):
            cells["1 row" if rows == 1 else f"{rows} rows"] = duration(each)
        data = {"bytes": float(size), **dict(zip(map(str, ROWS), seconds[kind], strict=True))}
        yield Result("aten_quantized", kind, "", "", None, data, cells)


def model(kind: str, width: int) -> Any:
    """Return the program of a kind as a model."""
    graph = program.Graph(["x"], [], [])
    signature = program.Signature({}, {}, set(), {}, [program.Leaf("x")], [0], {})
    weights: dict[str, archive.Weight] = {}

    def add(name: str, array: mx.array) -> program.Ref:
        signature.buffers[name] = name
        weights[name] = archive.Weight(array, name, False)
        graph.tensors[name] = program.Tensor(array.dtype, array.shape, array.shape)
        return program.Ref(name)

    def call(target: str, name: str, **arguments: program.Value) -> program.Ref:
        inputs = tuple(program.Input(key, value) for key, value in arguments.items())
        graph.nodes.append(program.Node(name, target, inputs, name))
        return program.Ref(name)

    x = program.Ref("x")
    graph.tensors["x"] = program.Tensor(mx.float32, ("rows", width), (width, 1))
    for i in range(LAYERS):
        matrix = mx.random.normal((width, width), key=mx.random.key(i)) * width**-0.5
        if kind == "float32":
            weight = add(f"w{i}", matrix)
        else:
            bits = int(kind[0])
            low, high = LIMITS[bits]
            size = width if bits == 8 else GROUP
            groups = matrix.reshape(width, -1, size)
            scale = mx.max(mx.abs(groups), axis=-1) / high
            integers = mx.clip(mx.round(groups / scale[..., None]), low, high).astype(mx.int8)
            weight = call(
                "torchao.dequantize_affine.default",
                f"d{i}",
                input=add(f"q{i}", integers.reshape(width, width)),
                block_size=[1, size],
                scale=add(f"s{i}", scale),
                zero_point=None,
                input_dtype=mx.int8,
                quant_min=low,
                quant_max=high,
            )
        x = call("aten.linear.default", f"y{i}", input=x, weight=weight)
    graph.outputs = [x]
    one = TreeSpec("builtins.tuple", (TreeSpec(None),))
    arguments = TreeSpec("builtins.tuple", (one, TreeSpec("builtins.dict", (), ())))
    read = program.Program("stack", graph, signature, arguments, one, ["x"], {})
    made = archive.Archive(read, weights)
    if "not packed" not in kind:
        packing.pack(made, {})
    prepare(graph, "stack")
    return ExportedModel(made, {}, find, {})
