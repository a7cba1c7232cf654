"""Models of torch.export: `mlx_aten.from_exported` against a wrapper and against torch.

The wrapper maps a program operator by operator at run time, as such converters usually do: it looks
up each node's function in each call, and rewrites nothing. All run the recorded programs of
aten/tests/programs on one core, with their recorded arguments, and with more rows where the program
allows it. torch runs if it is installed, and transformers for the programs that return its types.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_aten import from_exported
from mlx_aten.exported import archive, functional, operators, program

from .measure import Options, Result, alternate, duration

FOLDER = Path(__file__).resolve().parents[1] / "aten" / "tests" / "programs"
# The recorded programs that are models; the others collect single operators.
MODELS = (
    *("bert", "clip", "convnext", "gpt2", "gru", "llama", "lstm", "mixtral", "mlp", "resnet"),
    *("resnet_train", "unet", "vit"),
)
ROWS = {"mlp": 64, "gpt2": 16}  # of programs whose batch may be larger
ROUNDS = 400
BUDGET = 15.0  # seconds of rounds for a model
COLUMNS = ("compiled", "not compiled", "without rewrites", "wrapper", "torch")
AS_FAST = 0.95  # times the wrapper's speed: not slower, within the precision of a measurement


@dataclass(frozen=True)
class Model:
    """A program and the leaves of its arguments as NumPy arrays."""

    name: str
    path: Path
    leaves: tuple[Any, ...]


def models() -> Iterator[Model]:
    """Yield the recorded programs, and again with more rows."""
    for path in (FOLDER / f"{name}.pt2" for name in MODELS):
        with np.load(path.with_suffix(".npz")) as data:
            count = sum(key.startswith("in.") for key in data.files)
            leaves = tuple(data.get(f"in.{i}") for i in range(count))
        yield Model(f"`{path.stem}`", path, leaves)
        if rows := ROWS.get(path.stem):
            times = -(-rows // len(leaves[0]))
            more = tuple(np.concatenate([leaf] * times)[:rows] for leaf in leaves)
            yield Model(f"`{path.stem}`, {rows} rows", path, more)


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    mx.set_default_device(mx.cpu)
    torch = _torch()
    for model in models():
        options.progress(f"time {model.name}")
        timed = {name: _evaluated(call) for name, call in calls(model).items()}
        if torch is not None and (call := _with_torch(torch, model)):
            timed["torch"] = call
        for function in timed.values():  # also compiles
            function()
        gc.freeze()  # else each collection between the calls looks at all of torch
        times = alternate(timed, rounds=30 if options.quick else ROUNDS, budget=BUDGET)
        # The minimum, because other processes only add to such short times.
        seconds = {name: times.least(name) for name in timed}
        cells = {name: duration(seconds[name]) if name in seconds else "" for name in COLUMNS}
        ours = min(seconds["compiled"], seconds["not compiled"])
        ratio = seconds["wrapper"] / seconds["not compiled"]
        cells["wrapper / not compiled"] = f"{ratio:.2f}x"
        cells["torch / ours"] = f"{seconds['torch'] / ours:.2f}x" if "torch" in seconds else ""
        yield Result(
            "aten_models", model.name, "", "", ratio >= AS_FAST, {**seconds, "ratio": ratio}, cells
        )


def calls(model: Model) -> dict[str, Callable[[], list[mx.array]]]:
    """Return calls of a model: their results, and the buffers that training changes."""
    fused = from_exported(model.path)
    plain = from_exported(model.path, rewrites=False)
    args, kwargs = fused.input_tree.build(iter(map(_to_mlx, model.leaves)))
    given = [leaf for leaf in map(_to_mlx, model.leaves) if isinstance(leaf, mx.array)]
    functions = _results(fused), _results(plain), wrapper(model.path)
    # With the parameters as arguments, because MLX cannot compile equal results of constants.
    compiled, parameters = mx.compile(functions[0]), fused.parameters()
    return {
        "compiled": lambda: compiled(parameters, *args, **kwargs),
        "not compiled": lambda: functions[0]({}, *args, **kwargs),
        "without rewrites": lambda: functions[1]({}, *args, **kwargs),
        "wrapper": lambda: functions[2](given),
    }


def _results(model: Any) -> Callable[..., list[mx.array]]:
    return lambda tree, *args, **kwargs: _arrays(model.functional(tree, *args, **kwargs))


def _evaluated(function: Callable[[], list[mx.array]]) -> Callable[[], object]:
    return lambda: mx.eval(function())


def wrapper(path: Path) -> Callable[[list[mx.array]], list[mx.array]]:
    """Return a function that runs a program by looking up each operator when it is called."""
    read = archive.read(path)
    functional.make_functional(read.program)
    graph, signature = read.program.graph, read.program.signature
    paths = signature.parameters | signature.buffers | signature.constants
    fixed = {name: read.weights[path].array for name, path in paths.items()}
    names = [leaf.name for leaf in signature.leaves if leaf.tensor and not leaf.constant]

    def run(leaves: list[mx.array]) -> list[mx.array]:
        values: dict[str, Any] = {**fixed, **dict(zip(names, leaves, strict=True))}
        for node in graph.nodes:
            function = operators.lookup(node.target, operators.find, {})
            positional, named = [], {}
            for argument in node.inputs:
                value = program.replace_refs(argument.value, values.__getitem__)
                if argument.name in operators.DROPPED:
                    continue
                if argument.keyword:
                    named[argument.name] = value
                else:
                    positional.append(value)
            _store(values, node.output, function(*positional, **named))
        outputs = program.replace_refs(graph.outputs, values.__getitem__)
        return _arrays([outputs[at] for at in (*signature.results, *signature.changed)])

    return run


def _store(values: dict[str, Any], output: Any, result: Any) -> None:
    """Store the results of a node under their names."""
    if isinstance(output, str):
        values[output] = result
    elif output is not None:
        for name, item in zip(output, result, strict=False):
            _store(values, name, item)


def _arrays(tree: Any) -> list[mx.array]:
    """Return the arrays in nested results."""
    return [leaf for _, leaf in tree_flatten(tree) if isinstance(leaf, mx.array)]


def _to_mlx(leaf: Any) -> Any:
    """Return a recorded argument: an array, or a number or bool as recorded."""
    if leaf is None:
        return None
    is_number = leaf.ndim == 0 and leaf.dtype in (np.int64, np.bool_)
    return leaf.item() if is_number else mx.array(leaf)


def _torch() -> Any:
    """Return torch, on one core; without it, say so and return None."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: the column for it is empty.", file=sys.stderr)
        return None
    torch.set_num_threads(1)
    with suppress(ImportError):  # they register the types that programs return
        import transformers.modeling_outputs
        import transformers.models.clip.modeling_clip  # noqa: F401
    return torch


def _with_torch(torch: Any, model: Model) -> Callable[[], object] | None:
    """Return a call of the program by torch, or None if it needs types of transformers."""
    try:
        module = torch.export.load(model.path).module()
    except RuntimeError:
        return None
    tree = from_exported(model.path).input_tree

    def tensor(leaf: Any) -> Any:
        value = _to_mlx(leaf)
        return torch.from_numpy(leaf) if isinstance(value, mx.array) else value

    args, kwargs = tree.build(iter(map(tensor, model.leaves)))

    def call() -> object:
        with torch.no_grad():
            return module(*args, **kwargs)

    return call
