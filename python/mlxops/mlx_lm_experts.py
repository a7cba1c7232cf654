"""The experts of mlx-lm's models in training: ``mlxops.mlx_lm`` replaces ``SwitchGLU`` with this.

``nn.expert_mlp`` computes most layers. Layers with biases, dropout, other activations, as GPT-OSS,
or matrices of several kinds, as in mixed quantization, are three calls of ``nn.expert_matmul`` for
tokens that are sorted by expert. ``unfit`` returns why mlx-lm computes a layer: a global scale or
trained scales.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxops import nn

PLACE = ("mlx_lm.models.switch_layers", "SwitchGLU.__call__")
_ACTIVATIONS = {
    ("mlx_lm.models.switch_layers", "SwiGLU"): "swiglu",
    ("mlx_lm.models.gemma4_text", "GeGLU"): "geglu_tanh",
}
_NAMES = ("gate", "up", "down")


def switch_glu(layer: Any, x: mx.array, indices: mx.array) -> mx.array:
    """Return the results of each token's experts."""
    if not fused(layer):
        return _products(layer, x, indices)
    activation = _ACTIVATIONS[_name(layer.activation)]
    options: dict[str, Any] = {"activation": activation}
    matrices = []
    for name in _NAMES:
        product = layer[f"{name}_proj"]
        if "lora_a" in product:
            options[f"{name}_a"] = product["lora_a"]
            options[f"{name}_b"] = product.scale * product["lora_b"]
            product = product["linear"]
        matrices.append(product["weight"])
        if "scales" in product:
            matrices.append(product["scales"])
            options[f"{name}_biases"] = product.get("biases")
            options |= {key: getattr(product, key) for key in ("group_size", "bits", "mode")}
    compute = nn.quantized_expert_mlp if "mode" in options else nn.expert_mlp
    return compute(x, indices, *matrices, **options)


def _products(layer: Any, x: mx.array, indices: mx.array) -> mx.array:
    """Compute each product by itself, for rows that are sorted by expert."""
    flat = mx.stop_gradient(indices).flatten()
    order = mx.argsort(flat)
    rows, experts = x.reshape(-1, x.shape[-1])[order // indices.shape[-1]], flat[order]
    up, gate = (_product(layer[f"{name}_proj"], rows, experts) for name in ("up", "gate"))
    y = _product(layer.down_proj, layer.activation(up, gate), experts)
    return y[mx.argsort(order)].reshape(*indices.shape, -1)


def _product(product: Any, x: mx.array, experts: mx.array) -> mx.array:
    """Compute one product of sorted rows, with its bias and its adapter."""
    linear = product["linear"] if "lora_a" in product else product
    if "scales" in linear:
        options = {key: getattr(linear, key) for key in ("group_size", "bits", "mode")}
        biases = linear.get("biases")
        y = nn.quantized_expert_matmul(
            *(x, linear["weight"], linear["scales"], experts, biases, True, True), **options
        )
    else:
        y = nn.expert_matmul(x, linear["weight"], experts, True, True)
    if "bias" in linear:
        y = y + linear["bias"][experts]
    if "lora_a" in product:
        z = nn.expert_matmul(product.dropout(x), product["lora_a"], experts, True, True)
        z = nn.expert_matmul(z, product["lora_b"], experts, True, True)
        y = y + (product.scale * z).astype(x.dtype)
    return y


def fused(layer: Any) -> bool:
    """Return true if ``nn.expert_mlp`` can compute a layer."""
    kinds = set()
    for name in _NAMES:
        product = layer[f"{name}_proj"]
        if "lora_a" in product:
            if product.dropout._p_1 != 1:
                return False
            product = product["linear"]
        if "bias" in product:
            return False
        quantization = ("group_size", "bits", "mode") if "scales" in product else ()
        kinds.add(tuple(getattr(product, key) for key in quantization))
    return len(kinds) == 1 and _name(layer.activation) in _ACTIVATIONS


def operator(layer: Any) -> str:
    """Return the name of the operator that computes a layer."""
    return "nn.expert_mlp" if fused(layer) else "nn.expert_matmul"


def unfit(layer: Any) -> str:
    """Return why a layer cannot be replaced, or nothing."""
    for name in _NAMES:
        product = layer[f"{name}_proj"]
        if "lora_a" in product:
            product = product["linear"]
        if product.get("global_scale") is not None:
            return "a global scale"
        if "weight" not in product or product["weight"].ndim != 3:
            return f"products of a {type(product).__name__}"
        if "scales" in product and "scales" in product.trainable_parameters():
            return "trained scales"
    return ""


def _name(activation: Any) -> tuple[str, str]:
    return type(activation).__module__, type(activation).__name__
