"""Whole models: the recorded programs of torch.export against torch.

`aten/tools/record_programs.py` wrote the programs, with torch's results and gradients.
"""

from __future__ import annotations

import copy
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")
mlx_aten = pytest.importorskip("mlx_aten", reason="mlx_aten is not built")

from archives import FOLDER, MODEL, edited  # noqa: E402
from mlx import nn, optimizers, utils  # noqa: E402

from_exported, ExportError = mlx_aten.from_exported, mlx_aten.ExportError

PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.pt2"))
# The rewrites of each program, if mlxops is installed, as mlx_aten requires.
REWRITES = {
    "autocast": {"layer_norm": 1},
    "bert": {"attention": 2, "layer_norm": 5},
    "blocks": {},
    "changes": {},
    "clip": {"attention": 4, "layer_norm": 11, "cross_entropy": 2},
    "control": {},
    "convnext": {"layer_norm": 10},
    "dtypes": {},
    "encoder": {},
    "fake": {},
    "frozen": {},
    "gpt2": {"attention": 2, "layer_norm": 5, "cross_entropy": 1},
    "gru": {"cross_entropy": 1, "gru": 1},
    "layers": {},
    "llama": {"attention": 2, "rms_norm": 5, "swiglu": 2, "cross_entropy": 1},
    "lstm": {"cross_entropy": 1, "lstm": 1},
    "mixtral": {"attention": 1, "rms_norm": 3, "swiglu": 1},
    "mlp": {"layer_norm": 1, "cross_entropy": 1},
    "mlp_core": {"layer_norm": 1},
    "parts": {"attention": 1, "rms_norm": 1},
    "places": {"cross_entropy": 1},
    "pt2e": {"quantized_matmul": 2},
    "pt2e_dynamic": {"quantized_matmul": 2},
    "pt2e_training": {},
    "resnet": {},
    "resnet_train": {},
    "resnet_train_core": {},
    "torchao_dynamic": {"quantized_matmul": 2},
    "torchao_embedding": {"quantized_matmul": 2},
    "torchao_weights": {"quantized_matmul": 4},
    "unet": {},
    "vit": {"attention": 2, "layer_norm": 5},
}


# On the CPU, MLX calls the C++ compiler for each kernel, which takes long. True: gradients, too.
COMPILED = {"gru": True, "llama": False, "mlp": True, "parts": False, "resnet_train": False}


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested results."""
    return [leaf for _, leaf in utils.tree_flatten(tree)]


class Recorded:
    """The arguments and results of a program, computed by torch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.data = dict(np.load(FOLDER / f"{name}.npz"))

    def arguments(self, model: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the recorded arguments in the structure of the program."""
        tree = model.input_tree
        given = (self.data.get(f"in.{i}") for i in range(tree.leaves))
        return tree.build(map(from_numpy, given))

    def dtype(self, i: str) -> mx.Dtype:
        """Return the dtype of a result in torch."""
        name = str(self.data.get(f"dtype.{i}", self.data[f"out.{i}"].dtype))
        return mx.bool_ if name == "bool" else getattr(mx, name)

    def named(self, kind: str) -> dict[str, mx.array]:
        return {
            key.removeprefix(kind): mx.array(value)
            for key, value in self.data.items()
            if key.startswith(kind)
        }


def from_numpy(value: Any) -> Any:
    """Return a recorded argument: an array, or a number or bool of a 0-d object."""
    if value is None:
        return None
    is_number = value.ndim == 0 and value.dtype in (np.int64, np.bool_)
    return value.item() if is_number else mx.array(value)


def loss_of(results: Any) -> mx.array:
    """Return the number whose gradients were recorded."""
    loss = mx.zeros(())
    for result in leaves(results):
        is_float = isinstance(result, mx.array) and mx.issubdtype(result.dtype, mx.floating)
        if is_float and result.size:
            weights = mx.cos(mx.arange(result.size, dtype=mx.float32)).reshape(result.shape)
            loss = loss + (result * weights).mean()
    return loss


def assert_close(got: mx.array, expected: mx.array, tolerance: float) -> None:
    """Compare with a tolerance relative to the largest number, at least 1."""
    assert got.shape == expected.shape
    size = max(1.0, float(mx.abs(expected).max())) if expected.size else 1.0
    difference = mx.abs(got.astype(mx.float32) - expected.astype(mx.float32))
    assert not difference.size or float(difference.max()) <= tolerance * size


@pytest.mark.parametrize("rewrites", [False, True], ids=["operators", "fused"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_torchs(name: str, rewrites: bool) -> None:
    model = compare(Recorded(name), rewrites)
    done = {rule: len(nodes) for rule, nodes in model.rewrites.items()}
    assert done == (REWRITES[name] if rewrites else {})


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_programs(name: str) -> None:
    compare(Recorded(name), compiled=True, compile_gradients=COMPILED[name])


def compare(
    recorded: Recorded,
    rewrites: bool = True,
    compiled: bool = False,
    compile_gradients: bool = False,
) -> Any:
    """Return the model of a program whose results and gradients are torch's."""
    model = from_exported(FOLDER / f"{recorded.name}.pt2", rewrites=rewrites)

    def run(parameters: Any, buffers: Any, arguments: Any) -> Any:
        everything = utils.tree_merge(buffers, parameters, lambda _, trained: trained)
        args, kwargs = arguments
        results, changes = model.functional(everything, *args, **kwargs)
        return [leaf for leaf in leaves(results) if isinstance(leaf, mx.array)], changes

    def loss(*given: Any) -> mx.array:
        return loss_of(run(*given)[0])

    # Two functions, since MLX cannot compile gradients together with two equal results.
    compute, differentiate = run, mx.value_and_grad(loss)
    if compiled:
        compute = mx.compile(compute)
    if compile_gradients:
        differentiate = mx.compile(differentiate)
    given = (model.trainable_parameters(), model.parameters(), recorded.arguments(model))
    results, changes = compute(*given)
    value, gradients = differentiate(*given)
    assert_close(value, mx.array(recorded.data["loss"]), 1e-4)
    for got, (i, wanted) in zip(results, recorded.named("out.").items(), strict=True):
        assert_close(got, wanted, 1e-4)
        assert got.dtype == recorded.dtype(i)
    by_path = dict(utils.tree_flatten(gradients))
    for path, wanted in recorded.named("grad.").items():
        assert_close(by_path.pop(path), wanted, 1e-3)
    assert not any(mx.any(rest) for rest in by_path.values())  # torch has none
    new = dict(utils.tree_flatten(changes))
    for path, wanted in recorded.named("new.").items():
        path = ".".join(key.lstrip("_") for key in path.split("."))
        assert_close(new.pop(path), wanted, 1e-4)
    before = dict(utils.tree_flatten(model.parameters()))
    model.update(changes)
    for path, same in new.items():
        assert_close(same, before[path], 1e-4)
    return model


def test_the_structure_of_arguments_and_results() -> None:
    model = from_exported(FOLDER / "changes.pt2")
    args, kwargs = Recorded("changes").arguments(model)
    assert args[1]._fields == ("first", "second") and args[1].second is None
    pair, named, low, flags = model(*args, **kwargs)
    assert pair._fields == ("first", "second")
    assert set(named) == {"left", "count", "rows"} and named["rows"] == 2
    assert (low.dtype, flags.dtype, named["count"].dtype) == (mx.bfloat16, mx.bool_, mx.int64)
    by_name, *_ = model(x=args[0], pair=args[1], **kwargs)
    assert mx.array_equal(by_name.first, pair.first)
    assert int(model.calls) == 2  # each call changes the buffer
    seven, *_ = model(mx.zeros((7, 4)), *args[1:], **kwargs)
    assert seven.first.shape == (7, 4)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a, k: (a[:1], k), "needs the argument 'pair'"),
        (lambda a, k: ((*a, 1, 2, 3), k), "takes 4 arguments, not 5"),
        (lambda a, k: (a, k | {"x": a[0]}), "'x' is given twice"),
        (lambda a, k: (a, k | {"y": 1}), "has no argument 'y': x, pair, extra, times"),
        (lambda a, k: (a, k | {"times": 4}), "'times' must be 3"),
        (lambda a, k: (a, k | {"extra": {"bia": []}}), "has the keys 'bia', not 'bias'"),
        (lambda a, k: (a, k | {"extra": {"bias": [1]}}), "must be a list or tuple of 2 items"),
        (lambda a, k: ((a[0].tolist(), a[1]), k), "'x' must be an mx.array, not list"),
        (lambda a, k: ((a[0] > 0, a[1]), k), "'x' must be mlx.core.float32, not mlx.core.bool"),
        (lambda a, k: ((a[0][0], a[1]), k), "'x' must have 2 axes, not the shape (4,)"),
        (lambda a, k: ((a[0][:2], a[1]), k), "'x' has 2 at axis 0, .* for 3 to 20"),
        (lambda a, k: ((a[0][:, :3], a[1]), k), "'x' has the shape (5, 3), .* dynamic_shapes"),
    ],
)
def test_wrong_arguments(change: Callable[[Any, Any], Any], message: str) -> None:
    model = from_exported(FOLDER / "changes.pt2")
    args, kwargs = change(*Recorded("changes").arguments(model))
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises((TypeError, ValueError), match=pattern):
        model(*args, **kwargs)


def test_another_batch_size() -> None:
    model = from_exported(FOLDER / "mlp.pt2")
    x, label, target = Recorded("mlp").arguments(model)[0]
    once = model(x, label, target)["logits"]
    twice = model(*(mx.concatenate([part, part]) for part in (x, label, target)))["logits"]
    assert_close(twice, mx.concatenate([once, once]), 1e-5)
    with pytest.raises(ValueError, match=r"has 5 at axis 0, but 'x' has 6; .* equal sizes"):
        model(x, label[:5], target)


def test_vmap() -> None:
    model = from_exported(FOLDER / "vit.pt2")
    _, kwargs = Recorded("vit").arguments(model)
    images = mx.stack([kwargs["pixel_values"], kwargs["pixel_values"] * 2])
    mapped = mx.vmap(lambda image: model(pixel_values=image)["logits"])(images)
    for i in range(2):
        assert_close(mapped[i], model(pixel_values=images[i])["logits"], 1e-5)


def test_the_tree_of_parameters(tmp_path: Path) -> None:
    model = from_exported(FOLDER / "resnet_train.pt2")
    paths = {path for path, _ in utils.tree_flatten(model.parameters())}
    trained = {path for path, _ in utils.tree_flatten(model.trainable_parameters())}
    assert {"stem.1.running_mean", "stem.1.num_batches_tracked"} <= paths - trained
    assert {"stem.0.weight", "layers.1.conv1.weight", "fc.bias"} <= trained
    model.unfreeze()
    assert {path for path, _ in utils.tree_flatten(model.trainable_parameters())} == trained
    model.layers[0].freeze()
    left = utils.tree_flatten(model.trainable_parameters())
    assert not any(path.startswith("layers.0") for path, _ in left)
    file = str(tmp_path / "weights.safetensors")
    model.save_weights(file)
    again = from_exported(FOLDER / "resnet_train.pt2")
    again.update(utils.tree_map(mx.zeros_like, again.parameters()))
    again.load_weights(file)
    assert mx.array_equal(again.fc.weight, model.fc.weight)


def test_parameters_that_torch_does_not_train_are_frozen() -> None:
    model = from_exported(FOLDER / "layers.pt2")
    trained = dict(utils.tree_flatten(model.trainable_parameters()))
    assert "frozen" not in trained and "cell.weight_hh" in trained
    model.unfreeze()
    assert "frozen" in dict(utils.tree_flatten(model.trainable_parameters()))


def test_tied_parameters_are_one() -> None:
    model = from_exported(FOLDER / "gpt2.pt2")
    assert model.tied == {"lm_head.weight": "transformer.wte.weight"}
    paths = {path for path, _ in utils.tree_flatten(model.parameters())}
    assert "transformer.wte.weight" in paths and "lm_head.weight" not in paths


def test_training_with_mlx_nn() -> None:
    model = from_exported(FOLDER / "resnet_train.pt2")
    (x,), _ = Recorded("resnet_train").arguments(model)
    label = mx.array([1, 2, 3, 4])
    optimizer = optimizers.Adam(1e-2)

    def loss(x: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(x), label, reduction="mean")

    def step(x: mx.array) -> mx.array:
        value, gradients = nn.value_and_grad(model, loss)(x)
        optimizer.update(model, gradients)
        return value

    norm = model.stem[1]
    before = mx.array(norm.running_mean)
    losses = [float(step(x)) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert int(norm.num_batches_tracked) == 4
    assert not mx.allclose(before, norm.running_mean)


def test_chosen_rewrites() -> None:
    model = from_exported(FOLDER / "llama.pt2", rewrites=["rms_norm"])
    assert set(model.rewrites) == {"rms_norm"}
    with pytest.raises(ValueError, match="unknown rewrite 'rmsnorm', expected: attention, "):
        from_exported(FOLDER / "llama.pt2", rewrites=["rmsnorm"])
    assert set(from_exported(FOLDER / "llama.pt2", rewrites="swiglu").rewrites) == {"swiglu"}
    with pytest.raises(TypeError, match="rewrites must be a bool or names, not NoneType"):
        from_exported(FOLDER / "llama.pt2", rewrites=None)


def test_wrong_parameters() -> None:
    model = from_exported(FOLDER / "mlp.pt2")
    args, _ = Recorded("mlp").arguments(model)
    for given in ({"classes": {"weight": mx.zeros((3, 3))}}, {"classes": {"weight": 3}}):
        with pytest.raises(ValueError, match=r"'classes.weight' must be an array of shape \(5, 32"):
            model.functional(given, *args)
    with pytest.raises(TypeError, match=r"parameters must be a tree such as .*, not list"):
        model.functional([], *args)


def test_indices_and_places_stay_inside() -> None:
    """Whatever numbers the indices and the places of a grid are computed with."""
    model = from_exported(FOLDER / "places.pt2")
    image, grid, places = Recorded("places").arguments(model)[0]
    expected = model(image, grid, mx.array([-1e6, 1e6, 0.3]))
    for number in (math.nan, math.inf, -math.inf, 1e30):
        found, written = model(image, mx.full(grid.shape, number), mx.full(places.shape, number))
        assert all(
            x.shape == y.shape for x, y in zip(leaves(found), leaves(expected[0]), strict=True)
        )
        assert all(mx.all(mx.isfinite(x)) for x in leaves((found, written)))
    # The nearest indices are those of the first and of the last row.
    assert_close(expected[1][0], model(image, grid, mx.array([-1.25, 1.0, 0.3]))[1][0], 1e-6)


def test_indices_of_an_empty_axis() -> None:
    from mlx_aten.exported.operands import inside

    assert inside(mx.array([-9, -1, 2, 9]), mx.zeros((3, 2)), 0, None).tolist() == [-3, -1, 2, 2]
    assert inside(mx.array([-100, 9]), mx.zeros((2, 3)), 1, -100).tolist() == [-100, 2]
    assert inside(mx.zeros(0, mx.int32), mx.zeros((0, 2)), 0, None).size == 0
    with pytest.raises(ValueError, match="indices into an axis of size 0"):
        inside(mx.array([0]), mx.zeros((0, 2)), 0, None)


def test_numbers_that_float16_lacks() -> None:
    from mlx_aten.exported.operands import prepare
    from mlx_aten.exported.program import Graph, Input, Node, Ref, Tensor

    def targets(number: float, dtype: mx.Dtype = mx.float16) -> list[str]:
        tensor = Tensor(dtype, (2,), (1,))
        inputs = (Input("self", Ref("x")), Input("other", number))
        node = Node("mul", "aten.mul.Tensor", inputs, "y")
        graph = Graph(["x"], [Ref("y")], [node], {"x": tensor, "y": tensor})
        prepare(graph, "test.pt2")
        assert graph.nodes[-1].output == "y"
        return [node.target for node in graph.nodes]

    for number in (-1e9, 70000, 1e-8):
        assert targets(number) == ["aten.to.dtype", "aten.mul.Tensor", "aten.to.dtype"]
        assert targets(number, mx.bfloat16) == ["aten.mul.Tensor"]
    for number in (0, -2.5, 65504, math.inf):
        assert targets(number) == ["aten.mul.Tensor"]


def test_straight_through() -> None:
    """New content with the gradient of the old one, in all transformations."""
    from mlx_aten.exported.quantized import straight_through

    x, old = mx.array([1.0, 2.0, 3.0]), mx.array([math.inf, -2.0, 0.5])

    def loss(old: mx.array) -> mx.array:
        return (straight_through(old, mx.clip(old, -1, 1)) ** 2 * x).sum()

    assert loss(old).item() == 1 + 2 + 0.75
    assert mx.grad(loss)(old).tolist() == mx.compile(mx.grad(loss))(old).tolist() == [2, -4, 3]
    assert mx.jvp(loss, (old,), (x,))[1][0].item() == 2 - 8 + 9
    assert mx.vmap(mx.grad(loss))(mx.stack([old, old])).tolist() == [[2, -4, 3]] * 2
    assert mx.grad(lambda old: mx.grad(loss)(old).sum())(old).tolist() == [2, 4, 6]


@pytest.mark.parametrize("weight", [None, mx.array([0.0, 1.0])], ids=["counts", "weights"])
def test_the_mean_loss_of_nothing_is_nan(weight: mx.array | None) -> None:
    from mlx_aten.exported.fused import cross_entropy

    logits, target = (
        mx.array([[0.1, 2.0], [0.5, 0.1]]),
        mx.array([-100, -100 if weight is None else 0]),
    )

    def loss(x: mx.array, target: mx.array, reduction: int = 1) -> mx.array:
        return cross_entropy(x, target, weight, reduction, -100, 0.0, 1)

    assert math.isnan(loss(logits, target).item())
    assert mx.grad(loss)(logits, target).tolist() == [[0, 0], [0, 0]]
    assert loss(logits, target, reduction=2).item() == 0
    assert loss(logits, mx.array([-100, 1])).item() == pytest.approx(math.log(1 + math.exp(0.4)))


def test_new_arrays_are_resized(tmp_path: Path) -> None:
    from mlx_aten.exported.operators import FUNCTIONS

    resize = FUNCTIONS["aten.resize_as.default"]
    assert resize(mx.array([1, 2, 3]), mx.zeros((1, 2))).tolist() == [[1, 2]]
    assert resize(mx.array([1, 2, 3]), mx.zeros((2, 2))).tolist() == [[1, 2], [3, 0]]

    def change(described: Any) -> None:
        graph = described["graph_module"]["graph"]
        (node,) = (n for n in graph["nodes"] if n["target"].endswith("aten.gelu.default"))
        x = node["inputs"][0]["arg"]
        node["target"] = "torch.ops.aten.resize_as_.default"
        node["inputs"] = [{"name": n, "arg": x, "kind": 1} for n in ("self", "the_template")]

    resized = from_exported(edited(tmp_path / "resized.pt2", {MODEL: change}, source="mlp"))
    same = from_exported(FOLDER / "mlp.pt2", operators={"aten.gelu": lambda x, **_: x})
    args, _ = Recorded("mlp").arguments(same)
    assert mx.array_equal(resized(*args)["logits"], same(*args)["logits"])


@pytest.mark.parametrize("seed", range(3))
def test_convolutions_by_products(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products that are faster on the CPU compute what mlx_aten's operators do."""
    from mlx_aten.exported import convolutions
    from mlx_aten.exported.convolutions import FASTER, _by_products, _sizes

    monkeypatch.setattr(convolutions, "LEAST_WORK", 0)
    draw = random.Random(seed)
    counted = 0
    for _ in range(12):
        n, groups = draw.choice([1, 2, 3]), draw.choice([1, 1, 2, 3])
        groups = 1 if n == 3 else groups  # MLX has no groups over three axes
        channels = draw.choice([1, 2, 8, 9])
        weight = mx.random.normal(
            (groups * draw.choice([1, 2]), channels, *draw.choices([1, 2, 3], k=n))
        )
        x = mx.random.normal((2, channels * groups, *draw.choices([5, 6, 8], k=n)))
        bias = draw.choice([None, mx.random.normal(weight.shape[:1])])
        options = [draw.choices(numbers, k=n) for numbers in ([1, 2], [0, 1, 2], [1, 2])]
        options = [draw.choice([numbers, numbers[:1]]) for numbers in options]
        counted += _by_products(x, weight, *(_sizes(o, n) for o in options), groups) is not None

        def loss(function: Any, x: mx.array, weight: mx.array) -> mx.array:
            return (function(x, weight, bias, *options, groups) ** 2).sum()  # noqa: B023

        both = FASTER[f"conv{n}d"], getattr(mlx_aten, f"conv{n}d")
        got, wanted = (function(x, weight, bias, *options, groups) for function in both)
        assert_close(got, wanted, 1e-5)
        got, wanted = (mx.grad(loss, (1, 2))(function, x, weight) for function in both)
        for ours, theirs in zip(got, wanted, strict=True):
            assert_close(ours, theirs, 1e-4)
    assert counted > 4 or sys.platform == "darwin"
    x, weight, bias = (mx.random.normal(shape) for shape in ((3, 8, 5), (4, 5), (4,)))
    assert_close(FASTER["linear"](x, weight, bias), mlx_aten.linear(x, weight, bias), 1e-5)


@pytest.mark.parametrize(
    "wrong", [{"stride": [0]}, {"padding": [-1]}, {"groups": 2}, {"groups": 0}]
)
def test_wrong_convolutions(wrong: dict[str, Any]) -> None:
    from mlx_aten.exported.convolutions import FASTER

    with pytest.raises(ValueError, match="conv2d"):
        FASTER["conv2d"](mx.zeros((1, 3, 5, 5)), mx.zeros((2, 3, 2, 2)), **wrong)


def test_dropout_in_attention() -> None:
    from mlx_aten.exported.draws import attention

    q, k, v = (mx.random.normal((2, heads, 5, 8), key=mx.random.key(heads)) for heads in (4, 2, 2))
    mask = mx.random.uniform(shape=(5, 5), key=mx.random.key(0)) > 0.3
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mx.log(mask)}):
        wanted = attention(q, k, v, **options, enable_gqa=True)
        got = attention(q, k, v, **options, enable_gqa=True, dropout_p=1e-9)
        assert_close(mx.nan_to_num(got), mx.nan_to_num(wanted), 1e-5)
    mx.random.seed(0)
    ones = attention(mx.zeros((1, 1, 2000, 8)), k[:1, :1], mx.ones((1, 1, 5, 1)), dropout_p=0.4)
    assert abs(ones.mean().item() - 1) < 0.05 and ones.min().item() < 0.7


def test_a_copy_is_independent() -> None:
    model = from_exported(FOLDER / "changes.pt2")
    args, kwargs = Recorded("changes").arguments(model)
    other = copy.deepcopy(model)
    other.scale = other.scale * 0
    model(*args, **kwargs)
    assert (int(model.calls), int(other.calls)) == (1, 0)
    other(*args, **kwargs)
    assert (int(model.calls), int(other.calls)) == (1, 1) and float(model.scale.max()) == 2
    assert other.rewrites == model.rewrites and other.tied == model.tied


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packed_bits_are_those_of_mlx(bits: int) -> None:
    from mlx_aten.exported.packing import pack_bits

    numbers = mx.random.randint(0, 2**bits, (3, 64))
    scales, biases = mx.ones((3, 2)), mx.full((3, 2), 7.0)
    unpacked = mx.dequantize(pack_bits(numbers, bits), scales, biases, group_size=32, bits=bits)
    assert mx.array_equal(unpacked, numbers + 7)


def test_quantized_weights_are_packed() -> None:
    def size(model: Any) -> int:
        return sum(x.nbytes for _, x in utils.tree_flatten(model.parameters()))

    packed, integers = (
        from_exported(FOLDER / "torchao_weights.pt2", rewrites=rewrites)
        for rewrites in (True, False)
    )
    assert size(packed) < size(integers)
    words = dict(utils.tree_flatten(packed.parameters()))
    path = "linear.1.parametrizations.weight.original0"
    assert words[path].dtype == mx.uint32 and words[path].shape == (64, 8)
    assert words[f"{path}_scales"].shape == words[f"{path}_biases"].shape == (64, 2)
    assert f"{path[:-1]}1" not in words
    assert not any(
        "original" in path for path, _ in utils.tree_flatten(packed.trainable_parameters())
    )


def test_own_operators() -> None:
    """The caller's functions come before all others, and before the rewrites."""
    path, calls = FOLDER / "mlp.pt2", []
    args, _ = Recorded("mlp").arguments(from_exported(path))

    def linear(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        calls.append(weight.shape)
        return x @ weight.T + bias

    operators = {
        "aten.linear": linear,
        "aten.layer_norm.default": lambda x, *_: mx.zeros_like(x),
        "aten::gelu": lambda x, **_: x + 1,
    }
    model = from_exported(path, operators=operators)
    assert "layer_norm" not in model.rewrites
    logits = model(*args)["logits"]
    hidden = model.body[4].bias + 1
    wanted = hidden @ model.classes.weight.T + model.classes.bias
    assert_close(logits, mx.broadcast_to(wanted, logits.shape), 1e-5)
    assert calls == [(32, 8), (32, 32), (5, 32), (1, 32)]


@pytest.mark.parametrize(
    "operators, message",
    [
        ([1], "operators must be a dict of functions, not list"),
        ({"aten.relu": 3}, "operators must be functions by name, found 'aten.relu': 3"),
        ({3: sum}, "operators must be functions by name, found 3"),
        ({"relu": sum}, "'relu' is not the name of an operator, such as 'aten.relu'"),
        ({"mlx.inside": sum}, "'mlx.inside' is not the name of an operator"),
    ],
)
def test_wrong_own_operators(operators: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        from_exported(FOLDER / "mlp.pt2", operators=operators)


@pytest.mark.parametrize(
    "target, advice",
    [
        ("aten.nonzero.default", "depends on values; use torch.where"),
        ("aten.hardswissh.default", "the nearest operator is aten.hardswish"),
        (
            "torch._functorch.predispatch._add_batch_dim",
            "exported.run_decompositions() replaces it",
        ),
        ("aten.squeeze_.dim", "use the operator without the underscore"),
        ("mylib.scale.default", "or give a function"),
    ],
)
def test_advice_about_missing_operators(tmp_path: Path, target: str, advice: str) -> None:
    def rename(described: Any) -> None:
        graph = described["graph_module"]["graph"]
        (node,) = (n for n in graph["nodes"] if n["target"].endswith("aten.gelu.default"))
        node["target"] = f"torch.ops.{target}"

    path = edited(tmp_path / "missing.pt2", {MODEL: rename}, source="mlp")
    with pytest.raises(ExportError) as caught:
        from_exported(path)
    message = str(caught.value)
    assert f"\n  {target}, once in node 'gelu', in body.5" in message
    assert advice.lower() in message.lower() and "run_decompositions()" in message
    name = target.rpartition(".")[0]
    if target.startswith(("torch.", "higher_order.")):
        assert "operators=" not in message
        return
    assert message.endswith(f"operators={{'{name}': f}})")
    if target != "aten.squeeze_.dim":
        model = from_exported(path, operators={name: lambda x, **_: x})
        model(*Recorded("mlp").arguments(model)[0])


def test_operators_inside_of_control_flow_may_be_missing_or_replaced() -> None:
    path = FOLDER / "control.pt2"
    with pytest.raises(ExportError, match=r"1 operator .*:\n  aten.sin.default, once in node"):
        from_exported(path, find=lambda name, _: None if name == "sin" else getattr(mlx_aten, name))
    model = from_exported(path, operators={"aten.sin": mx.cos})
    args, _ = Recorded("control").arguments(model)
    assert mx.allclose(leaves(model(*args))[-1], 2 * mx.cos(args[0]))


def test_missing_operators_are_named_with_their_places() -> None:
    with pytest.raises(ExportError) as caught:
        from_exported(FOLDER / "vit.pt2", find=lambda name, overload: None, rewrites=False)
    lines = str(caught.value).splitlines()
    assert "vit.pt2: the program needs" in lines[0]
    (at,) = (i for i, line in enumerate(lines) if "aten.gelu.default" in line)
    assert lines[at].startswith("  aten.gelu.default, 2 times, first in node 'gelu', in vit.")
    assert lines[at + 1].startswith("    File ") and ", in forward: " in lines[at + 1]
    with pytest.raises(ExportError, match=r"sum.*, from aten.linear.default in node 'linear'"):
        from_exported(FOLDER / "mlp.pt2", find=lambda name, overload: sum, rewrites=False)(
            *Recorded("mlp").arguments(from_exported(FOLDER / "mlp.pt2"))[0]
        )


def test_tokens_of_effects(tmp_path: Path) -> None:
    """Checks of decomposed programs, as that of cholesky, get and return a token."""

    def order(described: Any) -> None:
        module = described["graph_module"]
        graph, signature = module["graph"], module["signature"]
        before, after = ({"as_tensor": {"name": name}} for name in ("token", "token_1"))
        graph["inputs"].insert(0, before)
        signature["input_specs"].insert(0, {"token": {"arg": before["as_tensor"]}})
        graph["outputs"].insert(0, after)
        signature["output_specs"].insert(0, {"token": {"arg": after["as_tensor"]}})
        (node,) = (n for n in graph["nodes"] if n["target"].endswith("aten.gelu.default"))
        for argument in (node["target"], before):
            kind = {"as_operator": argument} if isinstance(argument, str) else argument
            node["inputs"].insert(0, {"name": "", "arg": kind, "kind": 1})
        node["target"] = "torch.ops.higher_order.with_effects"
        node["outputs"].insert(0, after)
        node["is_hop_single_tensor_return"] = False

    model = from_exported(edited(tmp_path / "token.pt2", {MODEL: order}, source="mlp"))
    recorded = Recorded("mlp")
    args, _ = recorded.arguments(model)
    for got, wanted in zip(leaves(model(*args)), recorded.named("out.").values(), strict=True):
        assert_close(got, wanted, 1e-4)


def test_results_whose_shapes_depend_on_values_are_missing(tmp_path: Path) -> None:
    """An index of bools is named before anything runs."""

    def index_by_mask(described: Any) -> None:
        graph = described["graph_module"]["graph"]
        (node,) = (n for n in graph["nodes"] if n["target"].endswith("aten.where.Scalar"))
        (mask,) = (i for i in node["inputs"] if i["name"] == "condition")
        (x,) = (i for i in graph["inputs"] if i["as_tensor"]["name"] == "x")
        indices = {"as_optional_tensors": [mask["arg"]]}
        node["target"] = "torch.ops.aten.index.Tensor"
        node["inputs"] = [
            {"name": "self", "arg": x, "kind": 1},
            {"name": "indices", "arg": indices, "kind": 1},
        ]

    path = edited(tmp_path / "mask.pt2", {MODEL: index_by_mask}, source="parts")
    with pytest.raises(ExportError, match=r"aten.index.Tensor with an index of bools, once in"):
        from_exported(path)


def test_a_program_of_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    exported = torch.export.load(FOLDER / "mlp.pt2")
    args, _ = Recorded("mlp").arguments(from_exported(FOLDER / "mlp.pt2"))
    from_file, live = (from_exported(source) for source in (FOLDER / "mlp.pt2", exported))
    assert mx.array_equal(from_file(*args)["logits"], live(*args)["logits"])
