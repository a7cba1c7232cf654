"""The experts of mlx-lm's models in training: ``mlxops.mlx_lm`` replaces ``SwitchGLU`` with this.

``unfit`` returns why mlx-lm computes a layer: products with biases, a global scale or trained
scales, dropout, other activations, and matrices of several kinds, as in mixed quantization.
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


def unfit(layer: Any) -> str:
    """Return why a layer cannot be replaced, or nothing."""
    if _name(layer.activation) not in _ACTIVATIONS:
        return "the activation is not a gated linear unit of mlxops"
    kinds = set()
    for name in _NAMES:
        product = layer[f"{name}_proj"]
        if "lora_a" in product:
            if product.dropout._p_1 != 1:
                return "LoRA with dropout"
            product = product["linear"]
        if "bias" in product:
            return "products with biases"
        if product.get("global_scale") is not None:
            return "a global scale"
        if "weight" not in product or product["weight"].ndim != 3:
            return f"products of a {type(product).__name__}"
        if "scales" in product and "scales" in product.trainable_parameters():
            return "trained scales"
        quantization = ("group_size", "bits", "mode") if "scales" in product else ()
        kinds.add(tuple(getattr(product, key) for key in quantization))
    return "matrices of several kinds" if len(kinds) > 1 else ""


def _name(activation: Any) -> tuple[str, str]:
    return type(activation).__module__, type(activation).__name__
