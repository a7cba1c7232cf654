"""Experts of mlx-lm's models in training: gradients with mlxops against mlx-lm's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn
import pytest
from mlx.utils import tree_flatten

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: make integrations")

import mlxops.mlx_lm as ours
from mlx_lm.models import gemma4_text, gpt_oss, switch_layers
from mlx_lm.tuner.lora import LoRASwitchLinear
from mlxops import mlx_lm_experts

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield
    ours.install()


def layer(mode: str | None, lora: bool, **keys: Any) -> switch_layers.SwitchGLU:
    """Return experts of width 64, also quantized, and with adapters of different scales."""
    mx.random.seed(3)
    experts = switch_layers.SwitchGLU(64, 96, 6, **keys)
    for i, name in enumerate(PROJECTIONS):
        product = experts[name]
        if mode is not None:
            product = product.to_quantized(16 if mode == "nvfp4" else 32, 4, mode)
        if lora:
            product = LoRASwitchLinear.from_base(product, r=3, scale=1.0 + i)
            product.lora_b = mx.random.normal(product.lora_b.shape) / 8
        experts[name] = product
    return experts.train()


def gradients(experts: Any, x: mx.array, indices: mx.array) -> dict[str, mx.array]:
    """Return the result and the gradients of the weights and of x."""
    found = {}
    if experts.trainable_parameters()["gate_proj"]:  # not quantized, or with an adapter
        step = mlx.nn.value_and_grad(experts, lambda x: (experts(x, indices) ** 2).sum())
        found = dict(tree_flatten(step(x)[1]))
    found["x"] = mx.grad(lambda x: (experts(x, indices) ** 2).sum())(x)
    found["result"] = experts(x, indices)
    return found


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("mode", [None, "affine", "mxfp4", "nvfp4"])
def test_gradients(mode: str | None, lora: bool, activation: str) -> None:
    keys = {"activation": gemma4_text.GeGLU()} if activation == "geglu" else {}
    experts = layer(mode, lora, **keys)
    assert mlx_lm_experts.unfit(experts) == ""
    x = mx.random.normal((3, 25, 64))
    indices = mx.argsort(mx.random.normal((3, 25, 6)), axis=-1)[..., :2]
    calls: list[Any] = []
    own = mlx_lm_experts.switch_glu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlx_lm_experts, "switch_glu", lambda *a: calls.append(a) or own(*a))
        found = gradients(experts, x, indices)
    assert calls
    ours.uninstall()
    expected = gradients(experts, x, indices)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        scale = mx.abs(value).max().item()
        assert mx.abs(found[name] - value).max().item() <= 2e-5 * scale


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("kind", ["bias", "mxfp4", "lora", "dropout", "mixed", "activation"])
def test_products(kind: str, tokens: int) -> None:
    """Layers that nn.expert_mlp cannot compute: biases, as in GPT-OSS, and others."""
    oai = {"activation": gpt_oss.SwigluOAI(), "bias": True}
    keys: dict[str, Any] = {
        **{"dropout": {}, "mixed": {}, "activation": {"activation": gpt_oss.SwigluOAI()}}
    }.get(kind, oai)
    experts = layer("mxfp4" if kind in ("mxfp4", "lora") else None, kind == "lora", **keys)
    for name in PROJECTIONS:
        product = experts[name].linear if kind == "lora" else experts[name]
        if "bias" in product:
            product.bias = mx.random.normal(product.bias.shape)
            product.unfreeze(keys=["bias"])
    if kind == "dropout":
        experts.up_proj = LoRASwitchLinear.from_base(experts.up_proj, dropout=0.5)
        experts.up_proj.lora_b = mx.random.normal(experts.up_proj.lora_b.shape) / 8
        experts.up_proj.dropout.__class__ = Halved
    if kind == "mixed":
        experts.down_proj = experts.down_proj.to_quantized(32, 8).freeze()
    assert not mlx_lm_experts.fused(experts) and not mlx_lm_experts.unfit(experts)
    assert ours.report(experts)[0].replacement == "nn.expert_matmul"
    x = mx.random.normal((1, tokens, 64))
    indices = mx.argsort(mx.random.normal((1, tokens, 6)), axis=-1)[..., :2]
    found = gradients(experts, x, indices)
    ours.uninstall()
    expected = gradients(experts, x, indices)
    assert found.keys() == expected.keys()
    assert kind != "bias" or expected["down_proj.bias"].any()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        scale = mx.abs(value).max().item()
        assert mx.abs(found[name] - value).max().item() <= 2e-5 * scale


class Halved(mlx.nn.Dropout):
    """A dropout without random numbers."""

    def __call__(self, x: mx.array) -> mx.array:
        return x / 2


def test_left_to_mlx_lm() -> None:
    """Layers with trained scales, and all layers outside of training."""
    experts = layer(None, False)
    experts.up_proj = experts.up_proj.to_quantized(32, 8).unfreeze()
    assert mlx_lm_experts.unfit(experts) == ours.report(experts)[0].reason == "trained scales"
    experts = layer(None, False).eval()
    x, indices = mx.ones((2, 64)), mx.array([[0, 1], [2, 5]])
    found = experts(x, indices)
    ours.uninstall()
    assert mx.array_equal(found, experts(x, indices))
    experts.train()
    ours.install()
    assert mx.allclose(experts(x, indices), found, 1e-5, 1e-6)
