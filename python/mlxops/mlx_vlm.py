"""Importing this module makes mlx-vlm's models compute with mlxops, so that they can be trained.

    >>> import mlxops.mlx_vlm
    >>> mlxops.mlx_vlm.report(model)

mlx-vlm has Metal kernels without gradients. Some layers replace them in training by a loop over the
time steps, whose results are all stored; others fail, because MLX cannot differentiate a kernel.
Three kinds of replacements have gradients:

- operators of ``mlxops.nn``;
- mlx-vlm's kernels with the gradient of mlx-vlm's own operations for other devices;
- these operations instead of the kernels, in training only.

``REPLACED`` lists the replaced functions; all modules that have already imported them are updated,
too. ``uninstall()`` undoes the replacement, ``install()`` repeats it, and ``report(model)`` prints
what they do in a model. Results have the same dtypes as mlx-vlm's.

Requires mlx-vlm 0.7.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx_vlm.models import ssm
from mlx_vlm.models.activations import swiglu
from mlx_vlm.models.gated_delta import compute_g, compute_g_safe

import mlxops
from mlxops import _models, mlx_vlm_packing
from mlxops._experts import Experts
from mlxops._fused import Fused
from mlxops._kernels import Kernels, operator_of_attention
from mlxops._models import Function, Place, Row, too_many_states

_MODELS = "mlx_vlm.models."
GATED_DELTA = (_MODELS + "gated_delta", "gated_delta_update")
QWEN_GATED_DELTA = (_MODELS + "qwen3_5.gated_delta", "gated_delta_update")
MAMBA = (_MODELS + "mamba.language", "MambaBlock._process_sequence")
JAMBA = (_MODELS + "jamba.language", "JambaMambaMixer.ssm_step")
ATTENTION = (_MODELS + "base", "scaled_dot_product_attention")
BITNET = (_MODELS + "bitnet.bitlinear", "BitLinear.execute_matmul_kernel")
INKLING_ROUTE = (_MODELS + "inkling.language", "InklingSparseMoE._route")
QUANTIZED = (_MODELS + "qwen4_exp.language", "_row_invariant_quantized_projection")


def gated_delta_update(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    use_kernel: bool = True,  # false in training
    lower_bound: float | None = None,
    state_steps: int | None = None,
    cache: Any = None,
    cache_index: int = 1,
) -> tuple[mx.array, ...]:
    """Compute the gated delta rule with ``nn.gated_delta`` or MLX; the gates are mlx-vlm's.

    mlx-vlm's function computes the states of single steps, for speculative decoding, and handles
    caches, for which it calls this function.
    """
    if cache is not None or state_steps is not None:
        return _patch.own(GATED_DELTA)(  # type: ignore[no-any-return]
            *(q, k, v, a, b, A_log, dt_bias, state, mask, use_kernel, lower_bound, state_steps),
            *(cache, cache_index),
        )
    if lower_bound is None:
        g = compute_g(A_log, a, dt_bias)
    else:
        g = compute_g_safe(A_log, a, dt_bias, lower_bound)
    fused = not use_kernel and _patch.mlx_kernels  # in training
    use_kernel = use_kernel and k.shape[-1] % 32 == 0
    return _models.gated_delta(q, k, v, g, mx.sigmoid(b), state, mask, use_kernel, fused)


def qwen_gated_delta_update(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    use_kernel: bool = True,
    state_steps: int | None = None,
    cache: Any = None,
    cache_index: int = 1,
) -> tuple[mx.array, ...]:
    """Compute the gated delta rule of Qwen3.5 as ``gated_delta_update``."""
    if cache is not None or state_steps is not None:
        return _patch.own(QWEN_GATED_DELTA)(  # type: ignore[no-any-return]
            *(q, k, v, a, b, A_log, dt_bias, state, mask, use_kernel, state_steps),
            *(cache, cache_index),
        )
    g = compute_g(A_log, a, dt_bias)
    fused = not use_kernel and _patch.mlx_kernels  # in training
    return _models.gated_delta(q, k, v, g, mx.sigmoid(b), state, mask, use_kernel, fused)


def ssm_update(
    hidden_states: mx.array,
    A_log: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array,
    dt: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    time_step_limit: tuple[float, float] = (0.001, 100.0),
    mask: mx.array | None = None,
    lengths: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Compute Mamba-2's scan with ``nn.ssm_scan``; the time steps are mlx-vlm's."""
    dt = ssm.compute_dt(dt, dt_bias, time_step_limit)
    return _models.ssm(hidden_states, A_log, B, C, D, dt, state, mask, lengths)


def wkv7(
    layer: Any,
    r: mx.array,
    w: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Compute RWKV-7's recurrence with ``nn.wkv7``."""
    return _models.wkv7(r, w, k, v, a, b, state)


def mamba(
    layer: Any, x: mx.array, convolution_cache: mx.array | None, state_cache: mx.array | None
) -> tuple[mx.array, tuple[mx.array, mx.array]]:
    """Compute Mamba's mixer with ``nn.selective_scan``."""
    if too_many_states(layer):
        own = _patch.own(MAMBA)
        return own(layer, x, convolution_cache, state_cache)  # type: ignore[no-any-return]
    return _models.mamba(layer, x, convolution_cache, state_cache, swiglu)


def jamba(
    layer: Any, x: mx.array, A: mx.array, state: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Compute Jamba's state space with ``nn.selective_scan``."""
    if too_many_states(layer):
        return _patch.own(JAMBA)(layer, x, A, state)  # type: ignore[no-any-return]
    return _models.jamba(layer, x, state)


def rnn_scan(x: mx.array, a: mx.array, h0: mx.array | None) -> tuple[mx.array, mx.array]:
    """Compute RecurrentGemma's recurrence with ``nn.linear_recurrence``."""
    return _models.rnn_scan(x, a, h0)


def recurrent_gla(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    scale: float,
    h: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Compute Bailing's linear attention with ``nn.ssm_scan``; each head has a constant decay."""
    return _models.recurrent_gla(q, k, v, g, scale, h)


def grid_sample(x: mx.array, grid: mx.array) -> mx.array:
    """Sample images with ``mlxops.grid_sample``: bilinear, with zeros outside."""
    kept = x.dtype if _models.has_kernels() else mx.result_type(x, grid, mx.zeros(0))
    return mlxops.grid_sample(x, grid).astype(kept)


def mrope(
    kernel: Any,
    q: mx.array,
    k: mx.array,
    position_ids: mx.array,
    inv_freq: mx.array,
    position_selector: mx.array,
    pairing: str = "half_split",  # the kernel's
) -> tuple[mx.array, mx.array]:
    """Rotate by M-RoPE with mlx-vlm's kernel, which also computes the gradient.

    The gradient of a rotation is the rotation by the negative angle.
    """

    def rotated(x: mx.array, growth: mx.array) -> mx.array:
        pairs = x.shape[-1] - growth.shape[0]  # also elements that are not rotated
        (y,) = kernel(
            inputs=[x, position_ids, growth, position_selector],
            template=[("T", x.dtype)],
            grid=(x.size // x.shape[-1] * pairs, 1, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )
        return y  # type: ignore[no-any-return]

    @mx.custom_function
    def apply(q: mx.array, k: mx.array) -> tuple[mx.array, mx.array]:
        return rotated(q, inv_freq), rotated(k, inv_freq)

    @apply.vjp
    def apply_vjp(_: Any, cotangents: Any, __: Any) -> tuple[mx.array, ...]:
        return tuple(rotated(cotangent, -inv_freq) for cotangent in cotangents)

    return apply(q, k)  # type: ignore[no-any-return]


def _row_invariant_quantized_projection(linear: Any, x: mx.array) -> mx.array:
    """Call a layer in training, instead of a kernel that computes rows as in decoding."""
    own = _patch.own(QUANTIZED)
    return linear(x) if linear.training else own(linear, x)  # type: ignore[no-any-return]


def inkling_route(layer: Any, logits: mx.array) -> Any:
    """Choose Inkling's experts; mlx-vlm's operations in training.

    The factor of the kernel, which mlx-vlm computes once, is computed again after training.
    """
    if not layer.training:
        return _patch.own(INKLING_ROUTE)(layer, logits)
    routed = _kernels.composed(INKLING_ROUTE)(layer, logits)
    layer._wscale = None
    return routed


_kernels = Kernels("mlx_vlm", lambda place: _patch.own(place))
_fused = Fused("mlx_vlm")
_experts = Experts(
    lambda place: _patch.own(place),
    *(_MODELS + "switch_layers", "mlx_vlm.trainer.peft.lora_layers"),
    "mlx_vlm.quantization.nvfp4",
)
bit_linear = _kernels.bit_linear(BITNET)
attention = _kernels.attention(ATTENTION)
_OWN = "its kernel, with the gradient of mlx-vlm's operations"
_TRAINING = "mlx-vlm's operations, in training"
_STRAIGHT = "its rounding, with the gradient of the identity"


def _places(module: str, *names: str) -> list[Place]:
    return [(_MODELS + module, name) for name in names]


_KERNELS_WITH_GRADIENT = [
    *_places("kernels", "nearest_interpolate", "bicubic_interpolate", "separable_interpolate"),
    *_places("inkling.language", "banded_additive_mask"),
    *_places("deepseek_v4.hyper_connection", "hc_split_sinkhorn"),
    *_places("glm5_next.language", "_sparse_prefill_attention"),
    *_places("qwen4_exp.qsa_kernel", "dispatch_qsa_attention"),
    ("mlx_vlm.quantization.one_bit", "one_bit_quantized_matmul"),
]
_COMPOSED_IN_TRAINING = [
    *_places("inkling.language", "InklingSparseMoE.__call__"),
    *_places("deepseek_v32.language", "Indexer.__call__"),
    *_places("deepseek_v4.language", "Indexer.__call__", "Indexer._hisa_select"),
    *_places("deepseek_vl_v2.language", "MoEGate.__call__"),
    *_places("deepseekocr.language", "MoEGate.__call__"),
    *_places("hy_v4.indexer", "HyV4Indexer.__call__"),
    *_places("longcat_flash_sparse.language", "Indexer.__call__"),
    *_places("longcat_flash_sparse.language", "LongcatFlashTopkRouter.__call__"),
    *_places("qwen4_exp.language", "Qwen4ExpQSAIndexer.select_from_projected"),
    *_places("minimax_m3_vl.language", "MiniMaxAttention._sparse_prefill_attention"),
    *_places("nemotron_labs_diffusion.language", "MLP.__call__", "Attention.__call__"),
    *_places("nemotron_labs_diffusion.language", "LanguageModel._project_hidden"),
]
_ROUNDINGS = _places(
    "deepseek_v41.fakequant",
    *("fake_quant_fp8_ue8m0", "fake_quant_fp4_ue8m0", "fake_quant_fp4_e4m3"),
)
# The replaced functions of mlx-vlm, by module and name, and their replacements.
REPLACED: dict[Place, Function] = {
    GATED_DELTA: gated_delta_update,
    QWEN_GATED_DELTA: qwen_gated_delta_update,
    (_MODELS + "ssm", "ssm_update"): ssm_update,
    (_MODELS + "rwkv7.language", "Rwkv7TimeMixing._wkv7"): wkv7,
    MAMBA: mamba,
    JAMBA: jamba,
    (_MODELS + "recurrent_gemma.language", "rnn_scan"): rnn_scan,
    (_MODELS + "bailing_moe_linear.language", "recurrent_gla"): recurrent_gla,
    (_MODELS + "kernels", "grid_sample"): grid_sample,
    ATTENTION: attention,
    **_fused.replaced,
    BITNET: bit_linear,
    (_MODELS + "rope_utils", "_fast_mrope_apply"): mrope,
    QUANTIZED: _row_invariant_quantized_projection,
    INKLING_ROUTE: inkling_route,
    **_experts.replaced,
    **{place: _kernels.with_gradient(place) for place in _KERNELS_WITH_GRADIENT},
    **{place: _kernels.composed_in_training(place) for place in _COMPOSED_IN_TRAINING},
    **{place: _kernels.straight_through(place) for place in _ROUNDINGS},
}
# What the replacements use.
_OPERATORS: dict[Function, str | Callable[[Any], str | None]] = {
    gated_delta_update: "nn.gated_delta",
    qwen_gated_delta_update: "nn.gated_delta",
    ssm_update: "nn.ssm_scan",
    wkv7: "nn.wkv7",
    mamba: "nn.selective_scan",
    jamba: "nn.selective_scan",
    rnn_scan: "nn.linear_recurrence",
    recurrent_gla: "nn.ssm_scan",
    grid_sample: "mlxops.grid_sample",
    attention: operator_of_attention,
    **_fused.operators,
    bit_linear: _OWN,
    mrope: "its kernel, also for the gradient",
    _row_invariant_quantized_projection: "the quantized layer, in training",
    inkling_route: _TRAINING,
    **_experts.operators,
    **{REPLACED[place]: _OWN for place in _KERNELS_WITH_GRADIENT},
    **{REPLACED[place]: _TRAINING for place in _COMPOSED_IN_TRAINING},
    **{REPLACED[place]: _STRAIGHT for place in _ROUNDINGS},
}
# Kernels of mlx-vlm that are not replaced although layers call them in training, and the reasons.
_ROTARY = "its kernel has mlx-vlm's gradient"
UNREPLACED: dict[Place, str] = {
    (_MODELS + "rope_utils", "apply_multimodal_rotary_pos_emb"): _ROTARY,
    (_MODELS + "rope_utils", "apply_rotary_pos_emb_even_odd"): _ROTARY,
}
# Modules with kernels that no layer calls in training.
_DECODING = "speculative decoding"
UNUSED: dict[str, str] = {
    _MODELS + "fast_ops": "decoding of a few tokens",
    _MODELS + "kimi_k3.language": "generation",
    _MODELS + "qwen3_5.language": "decoding with a cache",
    _MODELS + "quantized_verifier": _DECODING,
    _MODELS + "exact_speculative_verify": _DECODING,
    _MODELS + "nemotron_h.speculative_verifier": _DECODING,
    _MODELS + "glm_moe_dsa.speculative_verifier": _DECODING,
    _MODELS + "bonsai.klein_fast.blocks": "generation of images, not by layers",
    _MODELS + "embedding_gemma2._video_kernel": "reading of videos",
    "mlx_vlm.structured": "sampling",
    "mlx_vlm.turboquant": "compressed caches",
}
_UNFIT = {**dict.fromkeys((MAMBA, JAMBA), too_many_states), **_experts.unfit}
_patch = _models.Patch(
    *("mlx-vlm", "0.7"),
    *(REPLACED, _OPERATORS, UNREPLACED, _UNFIT),
)


def install(mlx_kernels: bool = False) -> None:
    """Replace mlx-vlm's functions with mlxops' functions; see ``mlxops.mlx_lm.install``."""
    _patch.install(mlx_kernels)


def uninstall() -> None:
    """Restore mlx-vlm's own functions."""
    _patch.uninstall()


def report(model: mlx.nn.Module) -> list[Row]:
    """Print and return the layers whose functions are replaced, and those that are not, and why.

    A line is about all layers of one kind. Their numbers are ranges, as in ``layers.0-2,4-6``.
    Raises ``TypeError`` if the model is not a module.
    """
    return _patch.report(model)


def packed(model: Any, cu_seqlens: mx.array) -> AbstractContextManager[None]:
    """Return a context in which the model computes rows of several sequences.

    ``cu_seqlens`` has the starts of the sequences and the end of the last one, ascending, for all
    rows. Each sequence sees only itself: attention, short convolutions and recurrences begin again.
    Positions continue, also those of images, so that RoPE and M-RoPE yield the same attention. The
    images of a row are in the order of its tokens. Raises ``ValueError`` for a family that is not
    in ``mlx_vlm_packing.FAMILIES``, for a model with an encoder of images that is not in
    ``mlx_vlm_packing.IMAGES``, and if ``cu_seqlens`` is not of integers. Other models must not run
    meanwhile.
    """
    return mlx_vlm_packing.packed(model, cu_seqlens)


install()
