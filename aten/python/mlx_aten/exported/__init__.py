"""Whole models: programs of torch.export as models of MLX, without torch.

    model = mlx_aten.from_exported("net.pt2")
    logits = model(x)

The steps, each in a module of its own: `archive` reads the file into the types of `program`,
`functional` replaces operators that change arrays, `masked` those of masks, `rewrites` uses fused
operators, `packing` those of quantized weights, `operands` converts operands, and `model` looks up
all operators and makes an mlx.nn.Module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import IO, Any

from .archive import read
from .functional import make_functional
from .masked import select_masked
from .model import ExportedModel
from .operands import prepare
from .operators import Find, Function, chosen_operators, find
from .packing import pack
from .program import ExportError
from .rewrites import PACKED, chosen_rules, rewrite

__all__ = ["ExportError", "ExportedModel", "from_exported"]


def from_exported(
    source: str | PathLike[str] | IO[bytes] | Any,
    *,
    rewrites: bool | Iterable[str] = True,
    operators: Mapping[str, Function] | None = None,
    find: Find = find,
) -> ExportedModel:
    """Return a program of torch.export as a model of MLX.

    Args:
        source: a `.pt2` file of `torch.export.save`, or an `ExportedProgram`; only the latter
            needs torch.
        rewrites: whether patterns of the program become fused operators, or the names of the
            rewrites to use. `model.rewrites` lists what was done.
        operators: functions for operators by name, such as `{"aten.relu": mx.abs}` or
            `{"mylib::scale": f}`, with or without the overload. They get the arguments of torch's
            operator, as arrays of MLX, and come before mlx_aten's and the rewrites.
        find: returns the function of an operator by name and overload, or None; by default,
            mlx_aten's.

    Raises:
        ExportError: the file cannot be read, or the program needs operators that are missing; the
            message lists them with their places in the model.
    """
    rules = chosen_rules(rewrites)
    archive = read(source)
    make_functional(archive.program)
    graph = archive.program.graph
    graphs = [graph, *graph.inner()]
    targets = (node.target for each in graphs for node in each.nodes)
    own = chosen_operators(operators or {}, targets)
    for each in graphs:
        select_masked(each, own)
    done = rewrite(archive.program, rules, own)
    if PACKED in rules and (packed := pack(archive, own)):
        done[PACKED] = packed
    for each in [graph, *graph.inner()]:
        prepare(each, archive.program.file)
    return ExportedModel(archive, done, find, own)
