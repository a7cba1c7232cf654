"""Experts of mlx-lm's and mlx-vlm's models in training: gradients against the packages' own."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn
import pytest
from mlx.utils import tree_flatten

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: make integrations")

from mlxops import _experts

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# The modules of each package: experts, GeGLU and GPT-OSS's activation, and adapters.
MODULES = {
    "mlx_lm": ("gemma4_text", "gpt_oss", "SwigluOAI", "mlx_lm.tuner.lora"),
    "mlx_vlm": (
        *("gemma4_text.language", "gpt_oss.language", "SwiGLU"),
        "mlx_vlm.trainer.peft.lora_layers",
    ),
}


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield
    for package in ("mlxops.mlx_lm", "mlxops.mlx_vlm"):
        if package in sys.modules:
            sys.modules[package].install()


@pytest.fixture(params=MODULES)
def of(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Return the parts of a package, and mlxops' module for it."""
    pytest.importorskip(request.param)
    geglu, oai, name, lora = MODULES[request.param]
    models = f"{request.param}.models."
    return SimpleNamespace(
        name=request.param,
        ours=importlib.import_module(f"mlxops.{request.param}"),
        switch=importlib.import_module(models + "switch_layers"),
        geglu=importlib.import_module(models + geglu).GeGLU,
        oai=getattr(importlib.import_module(models + oai), name),
        lora=importlib.import_module(lora).LoRASwitchLinear,
    )


def layer(of: Any, mode: str | None, lora: bool, **keys: Any) -> Any:
    """Return experts of width 64, also quantized, and with adapters of different scales."""
    mx.random.seed(3)
    return adapted(of, of.switch.SwitchGLU(64, 96, 6, **keys), PROJECTIONS, mode, lora)


def adapted(of: Any, experts: Any, names: tuple[str, ...], mode: str | None, lora: bool) -> Any:
    for i, name in enumerate(names):
        product = experts[name]
        if mode is not None:
            product = product.to_quantized(16 if mode == "nvfp4" else 32, 4, mode)
        if lora:
            product = of.lora.from_base(product, r=3, scale=1.0 + i)
            product.lora_b = mx.random.normal(product.lora_b.shape) / 8
        experts[name] = product
    return experts.train()


def gradients(experts: Any, x: mx.array, *given: mx.array, **more: Any) -> dict[str, mx.array]:
    """Return the result and the gradients of the weights and of x."""
    found = {}
    if tree_flatten(experts.trainable_parameters()):  # not quantized, or with an adapter
        step = mlx.nn.value_and_grad(experts, lambda x: (experts(x, *given, **more) ** 2).sum())
        found = dict(tree_flatten(step(x)[1]))
    found["x"] = mx.grad(lambda x: (experts(x, *given, **more) ** 2).sum())(x)
    found["result"] = experts(x, *given, **more)
    return found


def choices(*shape: int) -> mx.array:
    return mx.argsort(mx.random.normal((*shape, 6)), axis=-1)[..., :2]


def same(of: Any, experts: Any, found: dict[str, mx.array], *given: mx.array, **more: Any) -> None:
    """Compare with the package's own results, also those of evaluation, which are equal."""
    experts.eval()
    results = experts(*given, **more)
    of.ours.uninstall()
    assert mx.array_equal(results, experts(*given, **more))
    expected = gradients(experts.train(), *given, **more)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        scale = mx.abs(value).max().item()
        assert mx.abs(found[name] - value).max().item() <= 2e-5 * scale, name


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("mode", [None, "affine", "mxfp4", "nvfp4"])
def test_gradients(of: Any, mode: str | None, lora: bool, activation: str) -> None:
    keys = {"activation": of.geglu()} if activation == "geglu" else {}
    experts = layer(of, mode, lora, **keys)
    assert _experts.unfit(experts) == ""
    assert of.ours.report(experts)[0].replacement == "nn.expert_mlp"
    x, indices = mx.random.normal((3, 25, 64)), choices(3, 25)
    calls: list[Any] = []
    own = _experts.switch_glu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_experts, "switch_glu", lambda *a: calls.append(a) or own(*a))
        found = gradients(experts, x, indices)
    assert calls
    same(of, experts, found, x, indices)


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("kind", ["bias", "mxfp4", "lora", "dropout", "mixed", "activation"])
def test_products(of: Any, kind: str, tokens: int) -> None:
    """Layers that nn.expert_mlp cannot compute: biases, as in GPT-OSS, and others."""
    oai = {"activation": of.oai(), "bias": True}
    keys: dict[str, Any] = {
        **{"dropout": {}, "mixed": {}, "activation": {"activation": of.oai()}}
    }.get(kind, oai)
    experts = layer(of, "mxfp4" if kind in ("mxfp4", "lora") else None, kind == "lora", **keys)
    for name in PROJECTIONS:
        product = experts[name].linear if kind == "lora" else experts[name]
        if "bias" in product:
            product.bias = mx.random.normal(product.bias.shape)
            product.unfreeze(keys=["bias"])
    if kind == "dropout":
        experts.up_proj = of.lora.from_base(experts.up_proj, dropout=0.5)
        experts.up_proj.lora_b = mx.random.normal(experts.up_proj.lora_b.shape) / 8
        experts.up_proj.dropout.__class__ = Halved
    if kind == "mixed":
        experts.down_proj = experts.down_proj.to_quantized(32, 8).freeze()
    assert not _experts.fused(experts) and not _experts.unfit(experts)
    rows = [row for row in of.ours.report(experts) if row.function == "__call__"]
    assert [row.replacement for row in rows] == ["nn.expert_matmul"]
    x, indices = mx.random.normal((1, tokens, 64)), choices(1, tokens)
    found = gradients(experts, x, indices)
    assert kind != "bias" or found["down_proj.bias"].any()
    same(of, experts, found, x, indices)


def vlm() -> SimpleNamespace:
    pytest.importorskip("mlx_vlm")
    return SimpleNamespace(ours=importlib.import_module("mlxops.mlx_vlm"))


class Halved(mlx.nn.Dropout):
    """A dropout without random numbers."""

    def __call__(self, x: mx.array) -> mx.array:
        return x / 2


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("mode, lora", [(None, False), ("mxfp4", False), ("affine", True)])
def test_experts_without_gates(of: Any, mode: str | None, lora: bool, tokens: int) -> None:
    """SwitchMLP, with the activation of Nemotron-H."""
    mx.random.seed(4)
    activation = mlx.nn.ReLU2()
    experts = of.switch.SwitchMLP(64, 96, 6, activation, bias=True)
    adapted(of, experts, ("fc1", "fc2"), mode, lora)
    rows = [row for row in of.ours.report(experts) if row.function == "__call__"]
    assert sorted((row.path, row.replacement) for row in rows) == [
        ("fc1", "nn.expert_matmul"), ("fc2", "nn.expert_matmul")
    ]  # fmt: skip
    x, indices = mx.random.normal((1, tokens, 64)), choices(1, tokens)
    same(of, experts, gradients(experts, x, indices), x, indices)


@pytest.mark.parametrize("shape", [(2, 1, 64), (1, 5, 3, 64), (5, 1, 1, 64)])
def test_broadcast_products(of: Any, shape: tuple[int, ...]) -> None:
    """Products of several rows by one matrix, and of rows by several, as those of gather_mm."""
    mx.random.seed(4)
    product = of.switch.SwitchLinear(64, 8, 6, bias=shape[0] == 2).train()
    x, indices = mx.random.normal(shape), mx.array([[4, 0, 4, 5, 1]])
    indices = mx.array([4, 4]) if shape[0] == 2 else indices
    same(of, product, gradients(product, x, indices), x, indices)


def test_no_rows(of: Any) -> None:
    """The gradient of MLX's product raises an error for no rows."""
    product = of.switch.SwitchLinear(64, 8, 6).train()
    found = gradients(product, mx.zeros((0, 1, 64)), mx.zeros((0,), mx.int32))
    assert found["result"].shape == (0, 1, 8) and found["x"].shape == (0, 1, 64)
    assert found["weight"].shape == (6, 8, 64) and not found["weight"].any()


@pytest.mark.parametrize("scales", ["none", "weights", "residual"])
def test_combined(scales: str) -> None:
    """The further arguments of mlx-vlm's SwitchGLU."""
    of = vlm()
    of.switch = importlib.import_module("mlx_vlm.models.switch_layers")
    experts = layer(of, None, False)
    x, indices = mx.random.normal((1, 5, 64)), choices(1, 5)
    given: dict[str, Any] = {}
    if scales != "none":
        given = {"weights": mx.random.normal((1, 5, 2)), "shared": x}
    if scales == "residual":
        streams = mx.random.normal((1, 5, 4, 64))
        given["residual"] = (
            streams, mx.random.normal((1, 5, 4)), mx.random.normal((1, 5, 4, 4))
        )  # fmt: skip
    found = gradients(experts, x, indices, **given)
    same(of, experts, found, x, indices, **given)


def test_global_scale() -> None:
    """NVFP4 matrices of mlx-lm with a scale for each expert, for which MLX needs a GPU."""
    ours = importlib.import_module("mlxops.mlx_lm")
    switch = importlib.import_module("mlx_lm.models.switch_layers")
    mx.random.seed(3)
    product = switch.SwitchLinear(64, 8, 4)
    product.bias = mx.random.normal(product.bias.shape)
    quantized = product.to_quantized(16, 4, "nvfp4", global_scale=True).train()
    weights = [
        mx.dequantize(w, s, group_size=16, bits=4, mode="nvfp4", global_scale=g)
        for w, s, g in zip(quantized.weight, quantized.scales, quantized.global_scale, strict=True)
    ]
    product.weight = mx.stack(weights)
    x, indices = mx.random.normal((5, 1, 64)), mx.array([3, 0, 0, 1, 2])
    found = gradients(quantized, x, indices)
    assert ours.report(quantized)[0].replacement == "nn.expert_matmul"
    expected = gradients(product, x, indices)
    for name in ("x", "result"):
        assert mx.allclose(found[name], expected[name], 1e-4, 1e-4)
    glu = switch.SwitchGLU(64, 64, 4)
    glu.down_proj = glu.down_proj.to_quantized(16, 4, "nvfp4", global_scale=True)
    assert not _experts.fused(glu.train()) and not _experts.unfit(glu)


@pytest.mark.parametrize("scale", ["weight_scale_2", "weight_global_scale"])
@pytest.mark.parametrize("size", [1, 4, 32])
def test_scaled(scale: str, size: int) -> None:
    """NVFP4 matrices of mlx-vlm with a scale of all, of each expert, or of each row."""
    of = vlm()
    switch = importlib.import_module("mlx_vlm.models.switch_layers")
    nvfp4 = importlib.import_module("mlx_vlm.quantization.nvfp4")
    mx.random.seed(3)
    product = switch.SwitchLinear(64, 8, 4).to_quantized(16, 4, "nvfp4")
    product.bias = mx.random.normal(product.bias.shape)
    factor = mx.random.uniform(0.5, 2, (size,))
    layer = nvfp4.ScaledQuantizedSwitchLinear(product, factor, scale).train()
    x, indices = mx.random.normal((6, 1, 64)), mx.array([3, 0, 0, 1, 2, 2])
    same(of, layer, gradients(layer, x, indices), x, indices)


# Experts of mlx-vlm's models with matrices of their own, their arguments, and their products.
OWN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "laguna.language.LagunaPackedSwitchGLU": ("gate_up_proj down_proj", (64, 32, 6)),
    "hy_v4.fused_switch_glu.FusedSwitchGLU": ("gate_up_proj down_proj", (64, 32, 6)),
    "minimax_m3_vl.language.MiniMaxPackedSwitchGLU": ("gate_up_proj down_proj", (64, 32, 6)),
    "inkling.language.InklingSwitchGLU": ("gate_proj up_proj down_proj", (64, 32, 6)),
    "diffusion_gemma.language.Experts": (
        "gate_up_proj down_proj",
        (SimpleNamespace(hidden_size=64, moe_intermediate_size=32, num_experts=6),),
    ),
    "openai_privacy_filter.openai_privacy_filter.Experts": (
        "gate_proj up_proj down_proj",
        (
            SimpleNamespace(
                **{"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 6},
                **{"swiglu_alpha": 1.7, "swiglu_limit": 7.0},
            ),
        ),
    ),
    "zaya1_vl.language.ZayaSwitchMLP": (
        "linear_fc1 linear_fc2",
        (
            SimpleNamespace(
                **{"hidden_size": 64, "ffn_hidden_size": 32, "num_experts": 6},
                **{"gated_linear_unit": True, "add_bias_linear": True, "vision_lora": False},
                zaya_use_mod=False,
            ),
        ),
    ),
    "moondream3.language.MoEMLP": (
        "fc1 fc2",
        (
            SimpleNamespace(
                **{"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 6},
                num_experts_per_tok=2,
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_experts(name: str) -> None:
    of = vlm()
    module, _, kind = name.rpartition(".")
    products, arguments = OWN[name]
    mx.random.seed(3)
    found = importlib.import_module(f"mlx_vlm.models.{module}")
    if kind == "MiniMaxPackedSwitchGLU":
        arguments = (*arguments, found.MiniMaxSwiGLUOAI(1.7, 7.0, 1.0))
    experts = getattr(found, kind)(*arguments).train()
    if kind == "InklingSwitchGLU":
        experts.gate_scale = mx.random.uniform(0.5, 2, (6,))
    rows = [row for row in of.ours.report(experts) if row.function == "__call__"]
    assert sorted(row.path for row in rows) == sorted(products.split())
    assert {row.replacement for row in rows} == {"nn.expert_matmul"}
    x, indices = mx.random.normal((1, 40, 64)), choices(1, 40)
    given = {
        "MoEMLP": (x,),
        "ZayaSwitchMLP": (x, indices, mx.random.uniform(shape=indices.shape)),
    }.get(kind, (x, indices))
    mx.disable_compile()
    try:
        same(of, experts, gradients(experts, *given), *given)
    finally:
        mx.enable_compile()


def test_all_experts() -> None:
    """Every module of the packages with experts' products is known here or in SwitchGLU."""
    known = {
        *("SwitchLinear", "QuantizedSwitchLinear", "ScaledQuantizedSwitchLinear"),
        *("LoRASwitchLinear", "SwitchGLU", "SwitchMLP", "OffloadedSwitchGLU"),
        *("DeepseekV41SwitchGLU", *(name.rpartition(".")[2] for name in OWN)),
    }
    for package in MODULES:
        pytest.importorskip(package)
        root = Path(importlib.import_module(package).__path__[0])
        text = "".join(path.read_text() for path in root.rglob("*.py"))
        found = set(re.findall(r"class (\w*Switch\w*)\(", text))
        assert found <= known, found - known


def test_left_to_the_package(of: Any) -> None:
    """Matrices with trained scales, and all layers outside of training."""
    experts = layer(of, None, False)
    experts.up_proj = experts.up_proj.to_quantized(32, 8).unfreeze()
    rows = {row.path: (row.replacement, row.reason) for row in of.ours.report(experts)
            if row.function == "__call__"}  # fmt: skip
    assert rows == {
        "": (None, "trained scales"),
        "up_proj": (None, "trained scales"),
        "gate_proj": ("nn.expert_matmul", ""),
        "down_proj": ("nn.expert_matmul", ""),
    }
    x, indices = mx.ones((2, 64)), mx.array([[0, 1], [2, 5]])
    experts.up_proj.freeze(keys=["weight"])
    same(of, experts, gradients(experts, x, indices), x, indices)
