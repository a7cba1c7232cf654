"""Kernels of mlx-lm and mlx-vlm for `mx.fast.metal_kernel`, unchanged, in the emulation.

Each case calls a function of a package as the package's models do, on small arrays, and compares
the result with the package's own alternative for devices without Metal, or with a formula. The
calls are recorded and imported as operators, which must give the same numbers. The page
docs/run-metal-results.md lists the results.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from click.testing import CliRunner
from emulated import Keeping, built, converted, same

from mlxgen.__main__ import cli
from mlxgen.metal import Emulation, EmulationError, emulate
from mlxgen.plugins.metal.records import Kernel

Pairs = Sequence[tuple[mx.array, mx.array]]
Case = Callable[[str], Pairs]
CASES: dict[str, Case] = {}
LM, VLM = "mlx_lm", "mlx_vlm"
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, (LM, VLM))),
    reason="mlx-lm or mlx-vlm is not installed: make integrations",
)


def case(kernels: str, *packages: str) -> Callable[[Case], Case]:
    """Add a case, which launches these kernels of each package."""

    def add(case: Case) -> Case:
        CASES.update({f"{package} {kernels}": case for package in packages})
        return case

    return add


def module(name: str) -> Any:
    """Import a module of a package, whose kernels are emulated."""
    with emulate(pretend=True):
        return importlib.import_module(name)


def language(package: str, model: str) -> Any:
    """Import the module of a model."""
    return module(f"{package}.models.{model}" + (".language" if package == VLM else ""))


def normal(*shape: int, dtype: Any = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def on_metal(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Call a function that selects a kernel by the device."""
    with emulate(pretend=True):
        found = function(*arguments, **more)
        mx.eval(found)
    return found


def both(function: Callable[..., Any], *arguments: Any, **more: Any) -> Pairs:
    """Call a function that selects a kernel by the device, with the kernel and without it."""
    found = on_metal(function, *arguments, **more)
    expected = function(*arguments, **more)
    if isinstance(found, mx.array):
        return [(found, expected)]
    return list(zip(found, expected, strict=True))


def rms(x: mx.array, eps: float) -> mx.array:
    return mx.fast.rms_norm(x, None, eps)


# ------------------------------------------------------------------------- mlx-lm, mlx-vlm


@case("expert_routing", LM, VLM)
def routing(package: str) -> Pairs:
    logits, bias = normal(3, 40), normal(40)
    options = {"top_k": 4, "multiplier": 0.5, "score_eps": 1e-6, "route_scale": 2.5}
    found = module(f"{package}.kernels").expert_routing(logits, bias, **options)
    scores = mx.sigmoid(0.5 * logits)
    best = mx.argsort(-(scores + bias), axis=-1)[:, :4]
    weights = mx.take_along_axis(scores, best, axis=-1)
    weights = 2.5 * weights / (weights.sum(-1, keepdims=True) + 1e-6)
    return [(found[0], best), (found[1], weights)]


def gated_stream(package: str, post_weight: mx.array | None, norm: Any) -> Pairs:
    width, kernels = 520, module(f"{package}.kernels")
    branch, stream = normal(3, width), normal(3, width)
    alpha, beta = normal(width), normal(width)
    options = {"alpha": alpha, "beta": beta, "post_weight": post_weight, "post_eps": 1e-5}
    found, normed = kernels.norm_add_norm(branch, stream, **options, next_norm=norm)
    scaled = branch if post_weight is None else branch * post_weight
    expected = alpha * stream + beta * rms(scaled, 1e-5)
    if norm is None:
        return [(found, expected)]
    again = kernels.pre_norm(found, norm, dtype=mx.float32)
    return [(found, expected), (normed, norm(expected)), (again, norm(expected))]


@case("norm_add", LM, VLM)
def norm_add(package: str) -> Pairs:
    return gated_stream(package, None, None)


@case("norm_add_norm norm_add_norm_pre_norm", LM, VLM)
def norm_add_norm(package: str) -> Pairs:
    norm = nn.RMSNorm(520)
    norm.weight = normal(520)
    return gated_stream(package, normal(520), norm)


@case("post_expert_norm_combine", LM, VLM)
def combine(package: str) -> Pairs:
    experts, weights, weight = normal(3, 2, 200), normal(3, 2), normal(200)
    combined = module(f"{package}.kernels").post_expert_norm_combine
    found = combined(experts, weights, norm_weight=weight, eps=1e-5)
    return [(found, (rms(experts * weight, 1e-5) * weights[..., None]).sum(-2))]


def heads(qkvg: mx.array) -> tuple[mx.array, mx.array]:
    q, k, _ = mx.split(qkvg.reshape(2, 3, 12, 40), [4, 6], axis=2)
    return 0.5 * rms(q, 1e-5), rms(k, 1e-5)


HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 40, "eps": 1e-5, "query_scale": 0.5}


@case("qk_norm", LM, VLM)
def qk_norm(package: str) -> Pairs:
    qkvg = normal(2, 3, 12 * 40)
    found = module(f"{package}.kernels").qk_norm(qkvg, **HEADS)
    return list(zip(found, heads(qkvg), strict=True))


@case("qk_norm_rope", LM, VLM)
def qk_norm_rope(package: str) -> Pairs:
    qkvg = normal(2, 3, 12 * 40)
    found = module(f"{package}.kernels").qk_norm_rope(qkvg, **HEADS, rope_base=1e4, offset=7)
    options = {"traditional": True, "base": 1e4, "scale": 1.0, "offset": 7}
    rotated = [mx.fast.rope(x.swapaxes(1, 2), 40, **options).swapaxes(1, 2) for x in heads(qkvg)]
    return list(zip(found, rotated, strict=True))


@case("rms_norm_sigmoid_gate", LM, VLM)
def sigmoid_gate(package: str) -> Pairs:
    x = normal(2, 5, 3, 40).swapaxes(1, 2)  # strided
    gate = normal(2, 5, 240)[..., ::2]
    found = module(f"{package}.kernels").rms_norm_sigmoid_gate(x, gate, eps=1e-5)
    return [(found, rms(x, 1e-5).swapaxes(1, 2).reshape(2, 5, 120) * mx.sigmoid(gate))]


def delta(key: int, vector: bool = False, dtype: Any = mx.float32) -> list[mx.array]:
    """Return q, k, v, g, beta and the state for heads of a size."""
    q, k = (normal(2, 5, 2, key, dtype=dtype) / key**0.5 for _ in range(2))
    v, beta = normal(2, 5, 4, 16, dtype=dtype), mx.sigmoid(normal(2, 5, 4, dtype=dtype))
    g = mx.sigmoid(normal(2, 5, 4, *([key] if vector else [])))
    return [q, k, v, g, beta, normal(2, 4, 16, key)]


MASK = mx.arange(5) < mx.array([[5], [3]])


def gated_delta(package: str, arguments: list[mx.array], mask: mx.array | None = None) -> Pairs:
    models = module(f"{package}.models.gated_delta")
    y, state = models.gated_delta_kernel(*arguments, mask)
    expected, expected_state = models.gated_delta_ops(*arguments, mask)
    if mask is not None:  # where it is false, the kernel's output is 0
        expected = mx.where(mask[..., None, None], expected, 0)
    return [(y, expected), (state, expected_state)]


@case("gated_delta_step", LM, VLM)
def gated_delta_step(package: str) -> Pairs:
    return gated_delta(package, delta(64))


@case("gated_delta_step_mask", LM, VLM)
def gated_delta_mask(package: str) -> Pairs:
    return gated_delta(package, delta(64), MASK)


@case("gated_delta_step_vec", LM, VLM)
def gated_delta_vec(package: str) -> Pairs:
    return gated_delta(package, delta(64, vector=True))


@case("gated_delta_step_vec_mask", LM, VLM)
def gated_delta_vec_mask(package: str) -> Pairs:
    return gated_delta(package, delta(64, vector=True), MASK)


@case("gated_delta_step_packed_btree", LM)
def gated_delta_packed(package: str) -> Pairs:
    return gated_delta(package, delta(128))


@case("gated_delta_step_xtree", LM)
def gated_delta_xtree(package: str) -> Pairs:
    models, arguments = module(f"{package}.models.gated_delta"), delta(128)
    found = models.gated_delta_kernel_xtree(*arguments)
    packed = models.gated_delta_kernel(*arguments)
    return list(zip(found, packed, strict=True))


@case("ssm_kernel", LM, VLM)
def ssm(package: str) -> Pairs:
    x, a, (b, c) = normal(2, 1, 4, 16), normal(4), normal(2, 2, 1, 2, 32)
    more = [normal(4), normal(2, 1, 4), normal(4), normal(2, 4, 16, 32)]
    return both(module(f"{package}.models.ssm").ssm_update, x, a, b, c, *more)


@case("wkv7_kernel", LM, VLM)
def wkv7(package: str) -> Pairs:
    block = language(package, "rwkv7").Rwkv7TimeMixing
    holder = SimpleNamespace(num_heads=2, head_dim=64)
    r, w, k, v, a, b = 0.1 * normal(6, 2, 5, 2, 64)
    (y, expected), (state, expected_state) = both(
        *(block._wkv7, holder, r, mx.sigmoid(w), k, v, a, b, normal(2, 2, 64, 64))
    )
    return [(y, expected.squeeze(-1)), (state, expected_state)]


@case("attnres_mix", LM, VLM)
def attention_residual(package: str) -> Pairs:
    models = language(package, "kimi_k3")
    blocks = models.ResidualBlocks(1e-5)
    blocks.append(normal(2, 3, 700))
    blocks.append(normal(2, 3, 700))
    return both(models._attn_res_mix, blocks, normal(2, 3, 700), normal(700), 1e-5)


@case("deepseek_v41_sinkhorn", LM)
def sinkhorn(package: str) -> Pairs:
    comb, eps = mx.exp(normal(2, 150, 4, 4)), mx.array([1e-6])
    return both(module(f"{package}.models.deepseek_v41")._sinkhorn, comb, iters=5, eps=eps)


@case("bitlinear_matmul", LM, VLM)
def bitlinear(package: str) -> Pairs:
    layers = "bitlinear_layers" if package == LM else "bitnet.bitlinear"
    layer = module(f"{package}.models.{layers}").BitLinear(96, 20, bias=False)
    digits = mx.random.randint(0, 3, (4, 5, 96))
    layer.weight = (digits << mx.array([0, 2, 4, 6])[:, None, None]).sum(0).astype(mx.uint8)
    layer.weight_scale, x = mx.array([0.3]), normal(2, 3, 96)
    return [(layer(x), 0.3 * x @ (digits.reshape(20, 96) - 1.0).T)]


LOGITS = (2, 2500)


@case("kl_forward", LM)
def kl(package: str) -> Pairs:
    return both(module(f"{package}.tuner.losses").kl_div_loss, normal(*LOGITS), normal(*LOGITS))


@case("js_forward", LM)
def js(package: str) -> Pairs:
    return both(module(f"{package}.tuner.losses").js_div_loss, normal(*LOGITS), normal(*LOGITS))


@case("kl_backward", LM)
def kl_backward(package: str) -> Pairs:
    losses, p = module(f"{package}.tuner.losses"), normal(*LOGITS)
    return both(mx.grad(lambda q: losses.kl_div_loss(q, p).sum()), normal(*LOGITS))


@case("js_backward", LM)
def js_backward(package: str) -> Pairs:
    losses, p = module(f"{package}.tuner.losses"), normal(*LOGITS)
    return both(mx.grad(lambda q: losses.js_div_loss(q, p).sum()), normal(*LOGITS))


# ------------------------------------------------------------------------------- mlx-vlm


@case("nearest_interpolation", VLM)
def nearest(package: str) -> Pairs:
    kernels, x = module(f"{package}.models.kernels"), normal(2, 3, 5, 6)
    found = kernels.nearest_interpolate(x, size=(7, 9))
    return [(found, kernels._nearest_interpolate_mlx(x, 7, 9))]


@case("bicubic_interpolation_antialias", VLM)
def bicubic(package: str) -> Pairs:
    kernels, x = module(f"{package}.models.kernels"), normal(2, 3, 9, 8)
    return [
        (
            kernels.bicubic_interpolate(x, size=size, antialias=antialias),
            kernels._bicubic_interpolate_mlx(x, *size, antialias=antialias),
        )
        for size, antialias in (((4, 5), True), ((4, 5), False), ((12, 17), False))
    ]


@case("grid_sample", VLM)
def grid_sample(package: str) -> Pairs:
    kernels, x = module(f"{package}.models.kernels"), normal(2, 5, 6, 3)
    grid = mx.random.uniform(-1.2, 1.2, (2, 4, 7, 2))
    return [(kernels.grid_sample(x, grid), kernels._grid_sample_mlx(x, grid))]


@case("separable_interpolate", VLM)
def separable(package: str) -> Pairs:
    kernels, x = module(f"{package}.models.kernels"), normal(2, 5, 6, 3)
    iy, ix = mx.random.randint(0, 5, (7, 2)), mx.random.randint(0, 6, (8, 4))
    arguments = [x, iy.astype(mx.int32), normal(7, 2), ix.astype(mx.int32), normal(8, 4)]
    found = kernels.separable_interpolate(*arguments)
    return [(found, kernels._separable_interpolate_mlx(*arguments))]


@case("k3_short_conv_step", VLM)
def short_conv(package: str) -> Pairs:
    layer = language(package, "kimi_k3").ShortConv1d(40, 4)
    layer.eval()
    return both(layer, normal(2, 1, 40), normal(2, 3, 40), None, None)


@case("deepseek_v41_fp8_roundtrip", VLM)
def fp8(package: str) -> Pairs:
    x = normal(3, 64) * mx.exp(3 * normal(3, 1))
    return both(module(f"{package}.models.deepseek_v41.fakequant").fake_quant_fp8_ue8m0, x)


@case("hc_sinkhorn_split", VLM)
def sinkhorn_split(package: str) -> Pairs:
    connection = module(f"{package}.models.deepseek_v4.hyper_connection")
    arguments = [normal(2, 3, 24), normal(3), normal(24), 4, 5, 1e-6]
    return both(connection.hc_split_sinkhorn, *arguments)


@case("hc_sinkhorn_collapse", VLM)
def sinkhorn_collapse(package: str) -> Pairs:
    connection = module(f"{package}.models.deepseek_v4.hyper_connection")
    x = normal(2, 3, 4, 600)
    arguments = [x, x, normal(2, 3, 24), normal(3), normal(24), 4, 5, 1e-6]
    found, expected = connection._hc_kernel(*arguments), connection._hc_ops(*arguments)
    return list(zip(found, expected, strict=True))


@case("gated_delta_step_states", VLM)
def delta_states(package: str) -> Pairs:
    models, arguments = module(f"{package}.models.gated_delta"), delta(64)
    found = models.gated_delta_kernel(*arguments, None, 4)
    return list(zip(found, models.gated_delta_ops(*arguments, None, 4), strict=True))


def qwen(package: str, arguments: list[mx.array]) -> Pairs:
    models = module(f"{package}.models.qwen3_5.gated_delta")
    found, expected = models.gated_delta_kernel(*arguments), models.gated_delta_ops(*arguments)
    return list(zip(found, expected, strict=True))


@case("gated_delta_step", "mlx_vlm.models.qwen3_5")
def delta_qwen(package: str) -> Pairs:
    return qwen(VLM, delta(64))


@case("gated_delta_step_packed_btree", VLM)
def delta_qwen_packed(package: str) -> Pairs:
    return qwen(package, delta(128))


@case("qwen3_5_gated_delta_with_states", VLM)
def delta_qwen_states(package: str) -> Pairs:
    models = module(f"{package}.models.qwen3_5.gated_delta")
    q, k, v, _, _, state = delta(64)
    more = [normal(2, 5, 4), normal(2, 5, 4), normal(4), normal(4)]
    return both(models.gated_delta_update_with_states, q, k, v, *more, state)


@case("inkling_banded_mask", VLM)
def banded_mask(package: str) -> Pairs:
    mask = language(package, "inkling").banded_additive_mask
    return both(mask, normal(2, 5, 3, 8), normal(8, 6), 4, 9, 7, 6)


@case("inkling_banded_mask_v2", VLM)
def banded_mask_2(package: str) -> Pairs:
    mask = language(package, "inkling").banded_additive_mask
    arguments = [normal(2, 5, 3, 8), normal(8, 6), 4, 9, 7, 6, None, normal(2, 3, 9, 8)]
    return both(mask, *arguments)


@case("inkling_sconv_decode", VLM)
def inkling_conv(package: str) -> Pairs:
    layer = language(package, "inkling").InklingShortConvolution(40, 4, 0)
    x, state = normal(2, 3, 40), normal(2, 3, 40)

    def call() -> tuple[mx.array, mx.array]:
        cache = [state]
        return layer(x, cache, residual=x), cache[0]

    return both(call)


@case("inkling_moe_route", VLM)
def inkling_route(package: str) -> Pairs:
    moe = language(package, "inkling").InklingSparseMoE
    sizes = {"n_routed": 40, "n_shared": 2, "top_k": 4, "intermediate_size": 48}
    more = {"route_scale": 2.5, "global_scale": mx.array([1.5]), "_wscale": None}
    holder = SimpleNamespace(**sizes, **more, e_score_correction_bias=normal(40))
    (found, weights, gamma), (expected, known, same) = zip(
        *both(moe._route, holder, normal(3, 42)), strict=True
    )
    order, other = mx.argsort(found, axis=-1), mx.argsort(expected, axis=-1)
    take = mx.take_along_axis
    return [
        (take(found, order, -1), take(expected, other, -1)),
        (take(weights, order, -1), take(known, other, -1)),
        (gamma, same),
    ]


def inkling_layer(package: str, chosen: int) -> Pairs:
    sizes = {"n_routed_experts": 12, "n_shared_experts": 1, "num_experts_per_tok": chosen}
    widths = {"hidden_size": 64, "intermediate_size": 2048, "route_scale": 2.5}
    layer = language(package, "inkling").InklingSparseMoE(SimpleNamespace(**sizes, **widths))
    layer.gate_weight = normal(13, 64) / 64
    layer.set_dtype(mx.float16)
    nn.quantize(layer.switch_mlp, 64, 4)
    return both(layer, 2 * normal(1, 3, 64, dtype=mx.float16))


@case("inkling_moe_down_combine", VLM)
def inkling_down(package: str) -> Pairs:
    return inkling_layer(package, 6)


@case("inkling_moe_route inkling_moe_down_combine", VLM)
def inkling_down_more(package: str) -> Pairs:
    return inkling_layer(package, 9)


# The shapes of a block's weights by parts of their names, else (128, 128).
FLUX = {
    **{"norm": (64,), "modulation_": (768, 128), "modulation": (384, 128)},
    **{"qkv_mlp": (640, 128), "linear_in": (256, 128), "out_proj": (128, 256)},
}


def flux(package: str, kind: str, *tokens: int) -> Pairs:
    """Call a block for tokens of an image, and of a prompt, and return what its kernel returns."""
    blocks = module(f"{package}.models.bonsai.klein_fast.blocks")
    spec = blocks.Flux2KleinBlockSpec(dim=128, num_heads=2, head_dim=64, mlp_ratio=1.0)
    made = {}
    for name in getattr(blocks, f"{kind}BlockWeights").__annotations__:
        shape = next((shape for part, shape in FLUX.items() if part in name), (128, 128))
        made[name] = normal(*shape) / (shape[1] ** 0.5 if shape[1:] else 1)
    weights = getattr(blocks, f"{kind}BlockWeights")(**made)
    block = getattr(blocks, f"{kind}Flux2Block")(
        spec=spec, weights=weights, precision="bf16", group_size=128
    )

    def expected(*inputs: mx.array) -> list[mx.array]:
        projected, norms = inputs[: len(tokens)], inputs[len(tokens) : -2]
        parts = []
        for i, x in enumerate(projected):
            x = x[..., :384].astype(mx.float32).reshape(*x.shape[:2], 3, 2, 64)
            q, k, v = x.transpose(2, 0, 3, 1, 4)
            q = blocks._rms_norm_with_weight(q, norms[2 * i], spec.rms_norm_eps)
            k = blocks._rms_norm_with_weight(k, norms[2 * i + 1], spec.rms_norm_eps)
            parts.insert(0, (q, k, v))  # the prompt is before the image
        q, k, v = (mx.concatenate(x, axis=2) for x in zip(*parts, strict=True))
        return [*(blocks._apply_rope_bshd(x, *inputs[-2:]) for x in (q, k)), v]

    name, pairs = f"_get_fused_{kind.lower()}_norm_rope_kernel", []
    get = getattr(blocks, name)

    def compared(*key: Any) -> Callable[..., list[mx.array]]:
        def call(inputs: Sequence[mx.array], **options: Any) -> list[mx.array]:
            found: list[mx.array] = get(*key)(inputs=inputs, **options)
            pairs.extend(zip(found, expected(*inputs), strict=True))
            return found

        return call

    states = (normal(2, n, 128, dtype=mx.bfloat16) for n in tokens)
    angles = normal(2, sum(tokens), 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, name, compared)
        on_metal(block.forward, *states, normal(128, dtype=mx.bfloat16), *angles)
    return pairs


@case("flux2_fused_single_norm_rope", VLM)
def flux_single(package: str) -> Pairs:
    return flux(package, "Single", 5)


@case("flux2_fused_double_norm_rope", VLM)
def flux_double(package: str) -> Pairs:
    return flux(package, "Double", 5, 3)


@case("mlx_vlm_llguidance_mask", VLM)
def allowed(package: str) -> Pairs:
    logits, mask = normal(2, 70), mx.random.randint(-(2**31), 2**31 - 1, (2, 2)).astype(mx.int32)
    found = module(f"{package}.structured")._apply_llguidance_mask(logits, mask)
    bits = (mask[..., None] >> mx.arange(32)) & 1
    bits = mx.pad(bits.reshape(2, 64), [(0, 0), (0, 6)])
    return [(found, mx.where(bits == 1, logits, -mx.inf))]


@case("indexer_epilogue_h4", VLM)
def indexer(package: str) -> Pairs:
    scores = module(f"{package}.models.longcat_flash_sparse.indexer_kernel").indexer_dense_scores
    q, pooled, weights = normal(2, 4, 3, 16), normal(2, 300, 16), normal(2, 3, 4)
    products = mx.maximum(mx.einsum("bhld,bsd->blhs", q, pooled), 0)
    expected = 0.5 * (weights[..., None] * products).sum(2)
    return [(scores(q, pooled, weights, 0.5), expected)]


def one_bit(package: str, rows: int) -> Pairs:
    layers = module(f"{package}.quantization.one_bit")
    weight = mx.random.randint(0, 2**31 - 1, (40, 16)).astype(mx.uint32)
    x, scales, biases = normal(rows, 512), normal(40, 8), normal(40, 8)
    found = on_metal(layers.one_bit_quantized_matmul, x, weight, scales, biases, group_size=64)
    return [(found, x @ layers.dequantize_one_bit(weight, scales, biases, 64).T)]


@case("mlx_vlm_affine_1bit_qmv_gs_64_rows_4_aligned_1", VLM)
def one_bit_vector(package: str) -> Pairs:
    return one_bit(package, 3)


@case("mlx_vlm_affine_1bit_qmm_gs_64", VLM)
def one_bit_matrix(package: str) -> Pairs:
    return one_bit(package, 20)


def rotated(package: str, pairing: str, positions: mx.array) -> Pairs:
    rope = module(f"{package}.models.rope_utils")
    q, k, frequencies = normal(2, 4, 5, 40), normal(2, 2, 5, 40), mx.exp(-mx.arange(16) / 4)
    selector = mx.arange(16).astype(mx.int32) % 3
    arguments = [q, k, positions, frequencies, selector]
    rotate = rope._mrope_apply_kernel(32, positions.ndim, pairing)
    found = rope._fast_mrope_apply(rotate, *arguments, pairing)
    return list(zip(found, rope._mrope_apply(*arguments, pairing), strict=True))


POSITIONS = mx.arange(30).reshape(3, 2, 5).astype(mx.int32)


@case("mrope_apply_half_split_32_2d", VLM)
def rope_half(package: str) -> Pairs:
    return rotated(package, module(f"{package}.models.rope_utils")._HALF_SPLIT, POSITIONS[0])


@case("mrope_apply_even_odd_32_3d", VLM)
def rope_even_odd(package: str) -> Pairs:
    return rotated(package, module(f"{package}.models.rope_utils")._EVEN_ODD, POSITIONS)


def attention(q: mx.array, k: mx.array, v: mx.array, allowed: mx.array) -> mx.array:
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    mask = allowed[:, None]
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.2, mask=mask).astype(mx.float16)


@case("", "mlx_vlm.models.sparse_attention")
def sparse(package: str) -> Pairs:
    q, k, v = (normal(2, h, n, 32, dtype=mx.float16) for h, n in ((4, 3), (2, 40), (2, 40)))
    indices = mx.argsort(mx.random.uniform(shape=(2, 3, 40)), axis=-1)[..., :8].astype(mx.int32)
    indices = mx.where(mx.arange(8) < 6, indices, -1)
    found = on_metal(module(package).indexed_sparse_attention, q, k, v, indices, 0.2)
    allowed = (indices[..., None] == mx.arange(40)).any(-2)
    return [(found, attention(q, k, v, allowed))]


def blocks(attend: Callable[..., Any]) -> Pairs:
    """Call ``attend(q, k, v, blocks, ends)``: queries attend to blocks of 8 keys before an end."""
    q, k, v = (normal(2, h, n, 32, dtype=mx.float16) for h, n in ((4, 3), (2, 128), (2, 128)))
    chosen = mx.argsort(mx.random.uniform(shape=(2, 3, 16)), axis=-1)[..., :2].astype(mx.int32)
    chosen[..., 0] = 0
    ends = mx.array([[64, 96, 128]] * 2, dtype=mx.int32)
    found = on_metal(attend, q, k, v, chosen, ends)
    keys = mx.arange(128)
    allowed = (chosen[..., None] == keys // 8).any(-2) & (keys < ends[..., None])
    return [(found, attention(q, k, v, allowed))]


@case("", "mlx_vlm.models.minimax_m3_vl.language")
def minimax(package: str) -> Pairs:
    attend = module(package)._minimax_m3_sparse_prefill_attention
    return blocks(lambda q, k, v, chosen, ends: attend(q, k, v, chosen, ends - 1, 0.2, 8))


@case("", "mlx_vlm.models.qwen4_exp.qsa_kernel")
def qsa(package: str) -> Pairs:
    kernels = module(package)
    plan = kernels.QSAExecutionPlan.INDEXED_SPARSE_PREFILL
    options = {"scale": 0.2, "block_size": 8, "_plan": plan}
    return blocks(lambda *arguments: kernels.qsa_sparse_attention(*arguments, **options))


@case("exact_speculative_verify_gemv", VLM)
def verify(package: str) -> Pairs:
    product = module(f"{package}.models.exact_speculative_verify")
    weight, x = normal(24, 70, dtype=mx.float16), normal(2, 3, 70, dtype=mx.float16)
    return [(product.exact_speculative_verify_weight(weight, x), x @ weight.T)]


@case("exact_speculative_verify_switch_gemv", VLM)
def verify_switch(package: str) -> Pairs:
    product = module(f"{package}.models.exact_speculative_verify")
    weight, x = normal(5, 24, 70, dtype=mx.float16), normal(2, 3, 70, dtype=mx.float16)
    experts = mx.random.randint(0, 5, (2, 3, 2))
    found = product.exact_speculative_verify_switch_weight(weight, x, experts)
    return [(found, (weight[experts] @ x[:, :, None, :, None]).squeeze(-1))]


@case("embedding_gemma2_yuv_to_rgb", VLM)
def video(package: str) -> Pairs:
    convert = module(f"{package}.models.embedding_gemma2._video_kernel").yuv_to_rgb
    y, u, v = (np.full(n, x, np.uint8) for n, x in (((8, 10), 128), ((4, 5), 128), ((4, 5), 128)))
    sizes = {"log2_chroma_w": 1, "log2_chroma_h": 1, "depth": 8}
    found = convert([y, u, v], {"colorspace": 1, "format": "yuvj420p", **sizes})
    return [(found, mx.full((8, 10, 3), 128, dtype=mx.uint8))]


def codec(
    package: str, kind: str, repeats: int, size: int = 64
) -> tuple[Any, Any, mx.array, mx.array]:
    """Return a codec of TurboQuant, the state of 40 vectors, these vectors, and queries."""
    made = getattr(module(f"{package}.turboquant"), kind)(size, 4 if "Polar" in kind else 3, 0)
    state = on_metal(made.quantize, normal(1, 2, 40, size))
    vectors = on_metal(made.dequantize, state).astype(mx.float32)
    return made, state, vectors, normal(1, 2, repeats, 1, size)


def scores(package: str, kind: str, repeats: int, size: int = 64) -> Pairs:
    made, state, vectors, queries = codec(package, kind, repeats, size)
    found = on_metal(made.score, queries, state)
    return [(found, queries @ vectors[:, :, None].swapaxes(-1, -2))]


@case("turboquant_norot_quantize_3 turboquant_unpack_lowbit turboquant_mse_score_tiled_1", VLM)
def mse_scores(package: str) -> Pairs:
    return scores(package, "_TurboQuantMSECodec", 1)


@case("turboquant_pack_lowbit turboquant_prod_score", VLM)
def prod_scores(package: str) -> Pairs:
    return scores(package, "_TurboQuantProdCodec", 1)


@case("turboquant_prod_score_repeat_4", VLM)
def prod_scores_repeated(package: str) -> Pairs:
    return scores(package, "_TurboQuantProdCodec", 4)


@contextmanager
def without(package: str, kernel: str) -> Iterator[None]:
    """Let TurboQuant select another kernel, as where it can't make this one."""
    models = module(f"{package}.turboquant")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, f"_{kernel}_kernel", lambda *_, **__: None)
        yield


@case("turboquant_mse_score", VLM)
def mse_scores_plain(package: str) -> Pairs:
    with without(package, "mse_score_tiled"):
        return scores(package, "_TurboQuantMSECodec", 2)


def weighted(package: str, repeats: int) -> Pairs:
    made, state, vectors, _ = codec(package, "_TurboQuantMSECodec", repeats)
    logits = normal(1, 2, repeats, 1, 40)
    weights = mx.softmax(logits, axis=-1)
    expected = weights @ vectors[:, :, None]
    found = on_metal(made.weighted_sum, weights, state)
    return [(found, expected), (on_metal(made.weighted_sum_from_scores, logits, state), expected)]


@case("turboquant_mse_weighted_rot", VLM)
def weighted_once(package: str) -> Pairs:
    return weighted(package, 1)


@case("turboquant_mse_weighted_rot_repeat_4 turboquant_mse_scores_weighted_rot_repeat_4", VLM)
def weighted_repeated(package: str) -> Pairs:
    return weighted(package, 4)


def cached(package: str, tokens: int, queries: int, *, product: bool = False) -> Pairs:
    """Attend to keys and values in a cache of TurboQuant."""
    models = module(f"{package}.turboquant")
    cache = models.TurboQuantKVCache(bits=3)
    if product:
        cache.key_codec = models._TurboQuantProdCodec(64, 3, 0)
        cache.value_codec = models._TurboQuantMSECodec(64, 3, 1)
    keys, values, q = normal(1, 1, tokens, 64), normal(1, 1, tokens, 64), normal(1, queries, 1, 64)

    def attend() -> tuple[mx.array, ...]:
        states = cache.update_and_fetch(keys, values)
        k = cache.key_codec.dequantize(cache._unwrap(states[0]))
        v = cache.value_codec.dequantize(cache._unwrap(states[1]))
        return cache.decode_attention(q, *states, scale=0.125), k, v

    found, k, v = on_metal(attend)
    k, v = k.astype(mx.float32), v.astype(mx.float32)
    return [(found, mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125))]


@case("turboquant_fused_mse_sdpa_k3_v3_d64", VLM)
def cached_short(package: str) -> Pairs:
    return cached(package, 40, 4)


@case("turboquant_mse_sdpa_2pass1_k3_v3_d64 turboquant_mse_sdpa_2pass2", VLM)
def cached_long(package: str) -> Pairs:
    return cached(package, 2060, 2)


@case("turboquant_single_tile_value_3_r4", VLM)
def cached_product(package: str) -> Pairs:
    return cached(package, 40, 4, product=True)


@case("turboquant_fused_prod_quantize_2_rht", VLM)
def cached_token(package: str) -> Pairs:
    return cached(package, 1, 4, product=True)


@case("turboquant_fused_kv_quantize_k3_v3", VLM)
def cached_together(package: str) -> Pairs:
    models = module(f"{package}.turboquant")
    cache = models.TurboQuantKVCache(bits=3)
    cache.key_codec = cache.value_codec = models._TurboQuantMSECodec(96, 3, 0)
    keys = normal(1, 2, 1, 96)
    state, _ = on_metal(cache._try_fused_kv_quantize, keys, keys)
    return [(state.norms, mx.linalg.norm(keys, axis=-1).astype(mx.float16))]


@case("turboquant_fused_mse_quantize_v2_3", VLM)
def quantized_token(package: str) -> Pairs:
    made = module(f"{package}.turboquant")._TurboQuantMSECodec(96, 3, 0)
    with without(package, "fused_norot_quantize"):
        return both(lambda x: made.dequantize(made.quantize(x)), normal(1, 2, 1, 96))


def dense(package: str, queries: int, size: int = 96, heads: int = 2) -> Pairs:
    """Attend with the rotation by a matrix, which codecs use unless the size is a power of two."""
    models = module(f"{package}.turboquant")
    cache = models.TurboQuantKVCache(bits=3)
    cache.key_codec = models._TurboQuantProdCodec(size, 3, 0)
    cache.value_codec = models._TurboQuantMSECodec(size, 3, 1)
    made = normal(2, 1, heads, 40, size)
    keys, values = on_metal(cache.update_and_fetch, *made)
    keys, values = cache._unwrap(keys), cache._unwrap(values)
    q = normal(1, 4 * heads, queries, size)
    if queries == 1:
        grouped = 0.125 * q.reshape(1, heads, 4, 1, size)
        found = on_metal(cache._compiled_integer_decode_attention, grouped, keys, values)
    else:
        found = on_metal(cache.prefill_attention, q, keys, values, scale=0.125)
    k = on_metal(cache.key_codec.dequantize, keys).astype(mx.float32)
    v = on_metal(cache.value_codec.dequantize, values).astype(mx.float32)
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125)
    return [(found.reshape(q.shape), expected)]


@case("turboquant_fully_fused_3_r4", VLM)
def dense_decode(package: str) -> Pairs:
    return dense(package, 1)


@case("turboquant_fused_integer_decode_3_r4", VLM)
def dense_tiled(package: str) -> Pairs:
    with without(package, "fully_fused_decode"):
        return dense(package, 1)


@case("turboquant_fused_integer_single_tile_3_r4", VLM)
def dense_single_tile(package: str) -> Pairs:
    with without(package, "fully_fused_decode"):
        return dense(package, 1, 240, 64)


@case("turboquant_fused_split_decode_3_4_r4", VLM)
def split_decode(package: str) -> Pairs:
    models, (keys, values) = module(f"{package}.turboquant"), normal(2, 1, 2, 40, 96)
    cache, q = models.TurboQuantKVCache(bits=3.5), normal(1, 8, 1, 96)
    cache.key_codec = models._SplitCodec(keys, 3.5, "prod", 0)
    cache.value_codec = models._SplitCodec(values, 3.5, "mse", 1)
    states = on_metal(cache.update_and_fetch, keys, values)
    found = on_metal(cache.decode_attention, q, *states, scale=0.125)
    k = on_metal(cache.key_codec.dequantize, cache._unwrap(states[0]))
    v = on_metal(cache.value_codec.dequantize, cache._unwrap(states[1]))
    return [(found, mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125))]


@case("mq_prod_score_2_r4_l3", VLM)
def dense_prefill(package: str) -> Pairs:
    return dense(package, 3)


@case("turboquant_polar_turbo_score_4_2_2_2_repeat_3", VLM)
def polar_scores(package: str) -> Pairs:
    return scores(package, "_TurboQuantPolarProdCodec", 3)


@case("turboquant_polar_prod_score_4_2_2 turboquant_qjl_score", VLM)
def polar_scores_apart(package: str) -> Pairs:
    return scores(package, "_TurboQuantPolarProdCodec", 3, 8)


@case("turboquant_mse_scores_weighted_rot_sum_repeat_4", VLM)
def weighted_chunk(package: str) -> Pairs:
    made, state, vectors, _ = codec(package, "_TurboQuantMSECodec", 4)
    logits = normal(1, 2, 4, 1, 40)
    output, total, top = on_metal(made.weighted_sum_stats_from_scores, logits, state)
    weights = mx.exp(logits - logits.max(-1, keepdims=True))
    expected = weights @ vectors[:, :, None]
    return [(output, expected), (total, weights.sum(-1)), (top, logits.max(-1))]


def ragged(package: str, keys: int) -> Pairs:
    attend = language(package, "qwen3_5")._qwen3_5_ragged_decode_attention
    q, k, v = (normal(2, h, n, 64, dtype=mx.float16) for h, n in ((4, 1), (2, keys), (2, keys)))
    found = on_metal(attend, q, k, v, [0, 3], 0.125)
    mask = (mx.arange(keys) >= mx.array([[0], [3]]))[:, None, None]
    return [(found, mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask=mask))]


@case("qwen3_5_ragged_sdpa_1p", VLM)
def ragged_short(package: str) -> Pairs:
    return ragged(package, 20)


@case("qwen3_5_ragged_sdpa_2p1 qwen3_5_ragged_sdpa_2p2", VLM)
def ragged_long(package: str) -> Pairs:
    return ragged(package, 1100)


@case("rotary_apply_even_odd", VLM)
def rotary(package: str) -> Pairs:
    rope = module(f"{package}.models.rope_utils")
    q, k, cos, sin = normal(2, 4, 5, 40), normal(2, 2, 5, 40), normal(2, 5, 32), normal(2, 5, 32)
    options = {"cos_layout": rope._HALF_COS, "sectioned": False, "mrope_section": None}
    found = rope.apply_rotary_pos_emb_even_odd(q, k, cos, sin)
    mx.disable_compile()  # arrays within `mx.compile` can't be compared with those of an operator
    try:
        again = rope.apply_rotary_pos_emb_even_odd(q, k, cos, sin)
    finally:
        mx.enable_compile()
    expected = rope._precomputed_rotary(q, k, cos, sin, pairing=rope._EVEN_ODD, **options)
    return [*zip(found, expected, strict=True), *zip(again, expected, strict=True)]


@case("short_block_hc_normalized_norm", VLM)
def connection_normalized(package: str) -> Pairs:
    ops, x = module(f"{package}.models.fast_ops"), normal(1, 1, 4, 4096, dtype=mx.float16)
    connection = module(f"{package}.models.deepseek_v4.hyper_connection")
    weight = (0.01 * normal(24, 4 * 4096)).astype(mx.float16)
    parts = {"scale": normal(3), "base": normal(24), "sinkhorn_iters": 5, "hc_eps": 1e-6}
    norm = nn.RMSNorm(4096)
    norm.set_dtype(mx.float16)
    found = on_metal(ops.exact_hc_normalized_norm, SimpleNamespace(fn=weight, **parts), norm, x)
    flat = rms(x.reshape(1, 1, -1).astype(mx.float32), norm.eps)
    mixes = flat @ weight.astype(mx.float32).T
    y, *more = connection._hc_ops(x, x, mixes, parts["scale"], parts["base"], 4, 5, 1e-6)
    return list(zip(found, [norm(y), *more], strict=True))


def quantized(rows: int, mode: str = "affine", columns: int = 512) -> nn.QuantizedLinear:
    linear = nn.Linear(columns, rows, bias=False)
    linear.set_dtype(mx.float16)
    group = 64 if mode == "affine" else 16
    made: nn.QuantizedLinear = nn.QuantizedLinear.from_linear(linear, group, 4, mode)
    return made


def verified(package: str, tokens: int, masked: bool | None = None) -> Pairs:
    """Call a product with a 4-bit matrix, or its largest element, for tokens."""
    verifier = module(f"{package}.models.quantized_verifier")
    linear, x = quantized(40), normal(2, tokens, 512, dtype=mx.float16)
    if masked is None:
        return [(on_metal(verifier.optimized_affine_linear, linear, x), linear(x))]
    logits, bits = linear(x), None
    if masked:
        bits = mx.random.randint(0, 2**31 - 1, (2 * tokens, 2)).astype(mx.int32)
        allowed = (bits[..., None] >> mx.arange(32)) & 1
        logits = mx.where(allowed.reshape(2, tokens, 64)[..., :40] == 1, logits, -mx.inf)
    best = on_metal(verifier.optimized_affine_argmax, linear, x, bits)
    top = mx.take_along_axis(logits, best[..., None], axis=-1).squeeze(-1)
    return [(top, logits.max(-1))]


for tokens, way in ((3, ""), (6, "_streamed"), (9, "_token_tiled")):
    for masked, what in ((None, "qmv"), (False, "qargmax"), (True, "masked_qargmax")):
        case(f"quantized_verify_affine_{what}{way}", VLM)(
            lambda package, tokens=tokens, masked=masked: verified(package, tokens, masked)
        )


def verified_together(package: str, tokens: int) -> Pairs:
    verifier = module(f"{package}.models.quantized_verifier")
    linears, x = [quantized(40), quantized(16)], normal(2, tokens, 512, dtype=mx.float16)
    found = on_metal(verifier.optimized_affine_linears, linears, x)
    return list(zip(found, (linear(x) for linear in linears), strict=True))


@case("quantized_verify_affine_fused_qmv", VLM)
def verified_fused(package: str) -> Pairs:
    return verified_together(package, 3)


@case("quantized_verify_affine_fused_qmv_streamed", VLM)
def verified_fused_streamed(package: str) -> Pairs:
    return verified_together(package, 6)


@case("quantized_verify_nvfp4_argmax", VLM)
def nvfp4(package: str) -> Pairs:
    verifier = module(f"{package}.models.quantized_verifier")
    linear, x = quantized(40, "nvfp4"), normal(2, 3, 512, dtype=mx.float16)
    best, logits = on_metal(verifier.optimized_nvfp4_argmax, linear, x), linear(x)
    return [(mx.take_along_axis(logits, best[..., None], axis=-1)[..., 0], logits.max(-1))]


@case("nemotron_small_row_gemv", VLM)
def small_rows(package: str) -> Pairs:
    models, linear, x = (
        language(package, "nemotron_labs_diffusion"),
        nn.Linear(70, 24),
        normal(2, 3, 70),
    )
    return [(models._small_row_linear(linear, x, 8), linear(x))]


@case("nemotron_small_row_swiglu", VLM)
def small_rows_gated(package: str) -> Pairs:
    models, x = language(package, "nemotron_labs_diffusion"), normal(2, 3, 70)
    gate, up = nn.Linear(70, 24, bias=False), nn.Linear(70, 24, bias=False)
    return [(models._small_row_swiglu(gate, up, x, 8), nn.silu(gate(x)) * up(x))]


@case("nemotron_bm32_steel_linear_nt", VLM)
def steel(package: str) -> Pairs:
    models, linear = language(package, "nemotron_labs_diffusion"), nn.Linear(64, 64)
    linear.set_dtype(mx.bfloat16)
    x = normal(1, 32, 64, dtype=mx.bfloat16)
    return [(models._bm32_linear(linear, x), linear(x))]


@case("short_block_hc_norm", VLM)
def connection_norm(package: str) -> Pairs:
    ops, x = module(f"{package}.models.fast_ops"), normal(2, 3, 4, 600, dtype=mx.float16)
    connection = module(f"{package}.models.deepseek_v4.hyper_connection")
    holder = SimpleNamespace(scale=normal(3), base=normal(24), sinkhorn_iters=5, hc_eps=1e-6)
    norm, mixes = nn.RMSNorm(600), normal(2, 3, 24)
    norm.set_dtype(mx.float16)
    found = on_metal(ops.exact_hc_norm, holder, norm, x, mixes)
    y, *more = connection._hc_ops(x, x, mixes, holder.scale, holder.base, 4, 5, 1e-6)
    return list(zip(found, [norm(y), *more], strict=True))


@case("short_block_hc_expand", VLM)
def connection_expand(package: str) -> Pairs:
    ops = module(f"{package}.models.fast_ops")
    connection = module(f"{package}.models.deepseek_v4.hyper_connection")
    x, residual = normal(2, 3, 40, dtype=mx.float16), normal(2, 3, 4, 40, dtype=mx.float16)
    arguments = [x, residual, normal(2, 3, 4), normal(2, 3, 4, 4)]
    found = on_metal(ops.exact_hc_expand, *arguments)
    return [(found, connection._hc_expand_op(*arguments))]


def experts(package: str, columns: int, rows: int) -> Any:
    layers = module(f"{package}.models.switch_layers")
    linear = layers.SwitchLinear(columns, rows, 5, bias=False)
    linear.set_dtype(mx.float16)
    return linear.to_quantized(64, 4)


INDICES = mx.array([[[0, 3], [2, 1], [4, 0]]], dtype=mx.int32)


@case("short_block_affine4_switch_gate_up", VLM)
def gate_up(package: str) -> Pairs:
    ops, x = module(f"{package}.models.fast_ops"), normal(1, 3, 512, dtype=mx.float16)
    up, gate = experts(package, 512, 16), experts(package, 512, 16)
    switch = SimpleNamespace(up_proj=up, gate_proj=gate)
    found = on_metal(ops.exact_affine_switch_gate_up, switch, x, INDICES)
    return [
        (y, linear(x[:, :, None, None], INDICES).squeeze(-2))
        for y, linear in zip(found, (up, gate), strict=True)
    ]


@case("short_block_affine4_moe_down", VLM)
def moe_down(package: str) -> Pairs:
    ops, down = module(f"{package}.models.fast_ops"), experts(package, 512, 16)
    x, shared = normal(1, 3, 2, 512, dtype=mx.float16), normal(1, 3, 16, dtype=mx.float16)
    weights = normal(1, 3, 2)
    found = on_metal(ops.exact_affine_moe_down, down, x, INDICES, weights, shared)
    routed = down(x[..., None, :], INDICES).squeeze(-2).astype(mx.float32)
    return [(found, ((routed * weights[..., None]).sum(-2) + shared).astype(mx.float16))]


MOE = "quantized_verify_fused_affine4_moe_hc quantized_verify_moe_hc_expand"


@case(MOE, VLM)
def moe_connection(package: str) -> Pairs:
    verifier, linear = module(f"{package}.models.quantized_verifier"), experts(package, 512, 16)
    connection = module(f"{package}.models.deepseek_v4.hyper_connection")
    x, shared = normal(1, 3, 2, 512, dtype=mx.float16), normal(1, 3, 16, dtype=mx.float16)
    weights, residual = normal(1, 3, 2), normal(1, 3, 4, 16, dtype=mx.float16)
    mixes = [residual, normal(1, 3, 4), normal(1, 3, 4, 4)]
    expand = verifier.exact_quantized_moe_hc_expand
    routed = linear(x[..., None, :], INDICES).squeeze(-2)
    found = on_metal(expand, linear, x, INDICES, weights, shared, *mixes)
    other = on_metal(expand, linear, x, INDICES, weights, shared, *mixes, routed=routed)
    combined = (routed.astype(mx.float32) * weights[..., None]).sum(-2) + shared
    expected = connection._hc_expand_op(combined.astype(mx.float16), *mixes)
    return [(found, expected), (other, expected)]


@case("glm_moe_dsa_target_verify_qmv", VLM)
def head(package: str) -> Pairs:
    verifier = module(f"{package}.models.glm_moe_dsa.speculative_verifier")
    linear, x = quantized(40), normal(2, 3, 512, dtype=mx.float16)
    return [(verifier._quantized_head_logits(linear, x), linear(x))]


@case("nemotron_h_target_verify_mamba nemotron_h_target_replay_mamba", VLM)
def mamba(package: str) -> Pairs:
    verifier = module(f"{package}.models.nemotron_h.speculative_verifier")
    x, (b, c) = normal(2, 3, 4, 16), normal(2, 2, 3, 2, 32)
    more = [normal(4), normal(2, 3, 4), normal(4), normal(2, 4, 16, 32), (0.001, 100.0), None]
    arguments = [x, normal(4), b, c, *more]
    y, state, kept = on_metal(verifier._mamba_update_exact, *arguments)
    expected, last, states = verifier._mamba_update_timewise(*arguments)
    replayed = on_metal(verifier.replay_mamba_state, kept, 2)
    return [(y, expected), (state, last), (replayed, states[:, 1])]


# ------------------------------------------------------------------------------- the test


@pytest.fixture(scope="module", autouse=True)
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeping]:
    """Import the packages again: modules of other tests have kernels that are not emulated."""
    ours = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in (LM, VLM)}
    for name in ours:
        del sys.modules[name]
    with emulate() as emulation, Keeping(tmp_path_factory.mktemp("calls")) as recording:
        yield recording
        emulation.update()
        emulation.errors.clear()  # those of FOUND
    for name in [name for name in sys.modules if name.partition(".")[0] in (LM, VLM)]:
        del sys.modules[name]
    sys.modules.update(ours)


@pytest.fixture
def seen() -> Iterator[Emulation]:
    mx.random.seed(0)
    with emulate() as seen:
        yield seen


# What the emulation finds wrong in a kernel.
RACE = "race: .* of shared"
FOUND = {
    "mlx_lm kl_forward": RACE,
    "mlx_lm kl_backward": RACE,
    "mlx_lm js_forward": RACE,
    "mlx_lm js_backward": RACE,
    "mlx_vlm turboquant_fused_kv_quantize_k3_v3": "nan location mismatch",
    "mlx_vlm grid_sample": "access outside of buffer 0 .x.",
    "mlx_vlm inkling_moe_route inkling_moe_down_combine": "Not equal to tolerance",
}

# The kernels with these mistakes, whose operators have them too.
MISTAKEN = {"kl_forward", "kl_backward", "js_forward", "js_backward", "grid_sample"}


def compare(pairs: Pairs) -> None:
    mx.eval(pairs)  # NumPy drops the errors of arrays
    for found, expected in pairs:
        assert found.shape == expected.shape
        a, b = (np.array(x.astype(mx.float32)) for x in (found, expected))
        close = 1e-4 if found.dtype == mx.float32 else 2e-2
        np.testing.assert_allclose(a, b, rtol=close, atol=close)


RAN: set[str] = set()  # the cases whose calls are recorded


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, seen: Emulation) -> None:
    package, *kernels = name.split()
    RAN.add(name)
    if name in FOUND:
        with pytest.raises((EmulationError, AssertionError), match=FOUND[name]):
            compare(CASES[name](package))
        return
    compare(CASES[name](package))
    seen.update()
    for kernel in kernels or [""]:
        assert any(launched.startswith(kernel) for launched in seen.launches)


def test_import(recording: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are imported as operators give the same numbers, bitwise."""
    for name in CASES.keys() - RAN - FOUND.keys():
        compare(CASES[name](name.split()[0]))
    recording.write()
    output, calls = tmp_path / "ops.yaml", str(recording.folder)
    done = CliRunner().invoke(cli, ["import", "metal_kernel", calls, "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "Calls without an entry" not in output.read_text()
    entries = converted(recording.folder)
    names = {entry.name for entry, _ in entries.values()}
    module = built(output, monkeypatch, names)
    differences: dict[Kernel, set[str]] = {kept.kernel: set() for kept in recording.kept}
    for kept in recording.kept:
        try:
            mx.eval(kept.outputs)
        except EmulationError:
            assert kept.kernel.name in MISTAKEN
        except (RuntimeError, ValueError) as error:  # the call is within `mx.compile`
            assert "without a primitive" in str(error)
        else:
            entry, position = entries[kept.kernel, kept.call]
            differences[kept.kernel].add(same(module, kept, entry, position))
    differ = {kernel.name: found for kernel, found in differences.items() if found != {""}}
    assert differ.keys() <= MISTAKEN, differ
