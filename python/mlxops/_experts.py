"""The experts of the models of ``mlx_lm`` and ``mlx_vlm`` in training.

``Experts`` makes replacements for a package. ``nn.expert_mlp`` computes most layers ``SwitchGLU``.
All other layers with experts consist of products by ``SwitchLinear`` and its variants, which
``nn.expert_matmul`` computes: layers with biases, dropout or other activations, as in GPT-OSS, with
matrices of several kinds, as in mixed quantization, without a gate, as in Nemotron-H, or with
packed gates. A product with trained scales is left to the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxops import nn
from mlxops._models import Function, Place

_ACTIVATIONS = {
    ("mlx_lm.models.switch_layers", "SwiGLU"): "swiglu",
    ("mlx_lm.models.gemma4_text", "GeGLU"): "geglu_tanh",
    ("mlx_vlm.models.switch_layers", "SwiGLU"): "swiglu",
    ("mlx_vlm.models.gemma4.language", "GeGLU"): "geglu_tanh",
    ("mlx_vlm.models.gemma4_text.language", "GeGLU"): "geglu_tanh",
}
_NAMES = ("gate", "up", "down")
_PRODUCTS = ("SwitchLinear", "QuantizedSwitchLinear")
_MATMUL = "nn.expert_matmul"


class Experts:
    """The replacements of a package's experts; ``own`` returns the function of the package.

    ``layers`` is the module of ``SwitchGLU``, ``lora`` that of ``LoRASwitchLinear``, and ``scaled``
    that of ``ScaledQuantizedSwitchLinear``, if there is one. The attributes are tables of
    ``_models.Patch``.
    """

    def __init__(
        self, own: Callable[[Place], Function], layers: str, lora: str, scaled: str | None = None
    ) -> None:
        self._own = own
        self.glu: Place = (layers, "SwitchGLU.__call__")
        products: dict[Place, Function] = {
            (layers, "SwitchLinear"): _linear,
            (layers, "QuantizedSwitchLinear"): _quantized,
            (lora, "LoRASwitchLinear"): _adapted,
        }
        if scaled is not None:
            products[scaled, "ScaledQuantizedSwitchLinear"] = _scaled
        calls = {
            place: self._product(place, compute)
            for (module, name), compute in products.items()
            for place in [(module, f"{name}.__call__")]
        }
        glu = self._glu()
        self.replaced: dict[Place, Function] = {self.glu: glu, **calls}
        self.operators: dict[Function, str | Callable[[Any], str]] = {
            **{glu: operator},
            **dict.fromkeys(calls.values(), _MATMUL),
        }
        self.unfit: dict[Place, Callable[[Any], str]] = {
            self.glu: unfit,
            **dict.fromkeys(calls, unfit_product),
        }

    def _glu(self) -> Function:
        def call(layer: Any, x: mx.array, indices: mx.array, *rest: Any, **more: Any) -> Any:
            if layer.training:
                indices = mx.stop_gradient(indices)  # mlx-vlm sorts by them
            if not (layer.training and fused(layer)):
                return self._own(self.glu)(layer, x, indices, *rest, **more)
            y = switch_glu(layer, x, indices)
            return layer._combine(y, *_combined(*rest, **more)) if rest or more else y

        return call

    def _product(self, place: Place, compute: Function) -> Function:
        def call(
            layer: Any, x: mx.array, indices: mx.array, sorted_indices: bool = False
        ) -> mx.array:
            if not layer.training or unfit_product(layer):
                return self._own(place)(layer, x, indices, sorted_indices)  # type: ignore[no-any-return]
            return _by_expert(lambda *rows: compute(layer, *rows), x, indices, sorted_indices)

        return call


def _combined(weights: Any = None, shared: Any = None, residual: Any = None) -> tuple[Any, ...]:
    """Return the arguments of mlx-vlm's ``SwitchGLU`` in their order."""
    return weights, shared, residual


def switch_glu(layer: Any, x: mx.array, indices: mx.array) -> mx.array:
    """Return the results of each token's experts, by ``nn.expert_mlp``."""
    options: dict[str, Any] = {"activation": _ACTIVATIONS[_name(layer.activation)]}
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
            options |= _quantization(product)
    compute = nn.quantized_expert_mlp if "mode" in options else nn.expert_mlp
    return compute(x, indices, *matrices, **options)


def _by_expert(
    compute: Callable[[mx.array, mx.array], mx.array],
    x: mx.array,
    indices: mx.array,
    sorted_indices: bool,
) -> mx.array:
    """Compute products of rows sorted by expert.

    Shapes are those of ``mx.gather_mm``: ``x`` is (..., M, K), and the other axes are broadcast
    with those of ``indices``. ``compute`` has the arguments (N, K) and (N,).
    """
    indices = mx.stop_gradient(indices).astype(mx.uint32)
    outer = mx.broadcast_shapes(x.shape[:-2], indices.shape)
    shape = (*outer, x.shape[-2])
    experts = mx.broadcast_to(indices[..., None], shape).flatten()
    rows = mx.broadcast_to(x, (*shape, x.shape[-1])).reshape(experts.size, x.shape[-1])
    if sorted_indices or experts.size < 2:
        y = compute(rows, experts)
    else:
        order = mx.argsort(experts)
        y = compute(rows[order], experts[order])[mx.argsort(order)]
    return y.reshape(*shape, y.shape[-1])


def _linear(layer: Any, x: mx.array, experts: mx.array) -> mx.array:
    return _with_bias(layer, nn.expert_matmul(x, layer["weight"], experts, True, True), experts)


def _quantized(layer: Any, x: mx.array, experts: mx.array) -> mx.array:
    scale = layer.get("global_scale")
    if scale is None:
        return _with_bias(layer, _quantized_products(layer, x, experts), experts)
    # The largest element that the scale stands for is the product of those of nvfp4 and float8.
    y = _quantized_products(layer, x.astype(mx.float32), experts)
    y = y * (scale / (6 * 448))[experts][:, None]
    return _with_bias(layer, y.astype(x.dtype), experts)


def _scaled(layer: Any, x: mx.array, experts: mx.array) -> mx.array:
    scale = layer.global_scale
    if scale.size != 1:
        scale = scale.reshape(layer.num_experts, -1)[experts]
    y = layer.apply_scale(_quantized_products(layer, x.astype(mx.float32), experts), scale)
    return _with_bias(layer, y.astype(x.dtype), experts)


def _adapted(layer: Any, x: mx.array, experts: mx.array) -> mx.array:
    y = layer["linear"](x[:, None], experts, sorted_indices=True)[:, 0]
    z = nn.expert_matmul(layer.dropout(x), layer["lora_a"], experts, True, True)
    z = nn.expert_matmul(z, layer["lora_b"], experts, True, True)
    return y + (layer.scale * z).astype(x.dtype)


def _quantized_products(layer: Any, x: mx.array, experts: mx.array) -> mx.array:
    arrays = (layer["weight"], layer["scales"], experts, layer.get("biases"), True, True)
    return nn.quantized_expert_matmul(x, *arrays, **_quantization(layer))


def _quantization(layer: Any) -> dict[str, Any]:
    return {key: getattr(layer, key) for key in ("group_size", "bits", "mode")}


def _with_bias(layer: Any, y: mx.array, experts: mx.array) -> mx.array:
    return y + layer["bias"][experts] if "bias" in layer else y


def fused(layer: Any) -> bool:
    """Return true if ``nn.expert_mlp`` can compute a layer ``SwitchGLU``."""
    kinds = set()
    for name in _NAMES:
        product = layer[f"{name}_proj"]
        if unfit_product(product):
            return False
        if "lora_a" in product:
            if product.dropout._p_1 != 1:
                return False
            product = product["linear"]
        if type(product).__name__ not in _PRODUCTS or "bias" in product:
            return False
        if product.get("global_scale") is not None:
            return False
        kinds.add(tuple(_quantization(product).values()) if "scales" in product else ())
    return len(kinds) == 1 and _name(layer.activation) in _ACTIVATIONS


def operator(layer: Any) -> str:
    """Return the name of the operator that computes a layer ``SwitchGLU``."""
    return "nn.expert_mlp" if fused(layer) else _MATMUL


def unfit(layer: Any) -> str:
    """Return why a layer ``SwitchGLU`` is left to the package, or nothing."""
    reasons = (unfit_product(layer[f"{name}_proj"]) for name in _NAMES)
    return next((reason for reason in reasons if reason), "")


def unfit_product(product: Any) -> str:
    """Return why a product is left to the package, or nothing."""
    if "lora_a" in product:
        product = product["linear"]
    if "weight" not in product or product["weight"].ndim != 3:
        return f"products of a {type(product).__name__}"
    if "scales" in product and "scales" in product.trainable_parameters():
        return "trained scales"
    return ""


def _name(activation: Any) -> tuple[str, str]:
    return type(activation).__module__, type(activation).__name__
