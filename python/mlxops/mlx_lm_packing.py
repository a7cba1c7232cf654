"""Packed rows for mlx-lm's models: several sequences in one row, of which each sees only itself.

``mlxops.mlx_lm.packed`` is a context in which mlx-lm's masks, attention, short convolutions, token
shifts and recurrences know the starts of the sequences. Positions continue from one sequence to the
next, so that the family must depend on differences of positions only, as with RoPE and ALiBi.
``FAMILIES`` lists the families whose results and gradients are compared with those of the sequences
alone. Others are an error, as those with learned positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from mlxops import _models, nn
from mlxops._models import Place, too_many_states

_NAMES = """
    Klear afmoe apertus bailing_hybrid bailing_moe bailing_moe_linear bailing_moe_v3 bitnet
    cohere cohere2 deepseek deepseek_v3 dots1 ernie4_5 exaone exaone4 falcon_h1 gear gemma
    gemma2 gemma3 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt_neox gpt_oss gptj granite
    granitemoe granitemoehybrid helium hunyuan_v1_dense jamba kimi_k25 kimi_k3 kimi_linear
    kimi_vl laguna lfm2 lfm2_moe llama mamba mamba2 mimo minicpm minimax mixtral muse_glimmer
    nanbeige nanochat nemotron nemotron_h olmo2 olmo3 olmo_hybrid olmoe phi phi3 phimoe pixtral
    plamo2 plamo3 qwen2 qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_moe qwen3_next qwen3_vl
    qwen3_vl_moe rwkv7 seed_oss smollm3 solar_open stablelm starcoder2 talkie telechat3
    youtu_llm
"""
FAMILIES = frozenset(_NAMES.split())


class _Packing:
    """The starts of the sequences of a row, and the masks for them."""

    def __init__(self, cu_seqlens: mx.array) -> None:
        self.cu_seqlens = cu_seqlens
        self._masks: dict[tuple[int, int | None], mx.array] = {}

    def mask(self, steps: int, window: int | None) -> mx.array:
        """Return the mask of causal attention. MLX computes it only if something reads it."""
        key = steps, window
        if key not in self._masks:
            number = self.sequence_of(mx.arange(steps))
            same = number[:, None] == number
            self._masks[key] = base.create_causal_mask(steps, window_size=window) & same
        return self._masks[key]

    def window(self, mask: Any) -> tuple[bool, int | None]:
        """Return whether a mask is one of ``mask``, and its window."""
        return next(((True, key[1]) for key, m in self._masks.items() if m is mask), (False, None))

    def sequence_of(self, steps: mx.array) -> mx.array:
        """Return the numbers of the sequences of steps; those behind the last one have the next."""
        return (steps[:, None] >= self.cu_seqlens).sum(-1)

    def starts(self, steps: int) -> mx.array:
        """Return for each step whether a sequence starts there."""
        return (mx.arange(steps)[:, None] == self.cu_seqlens).any(-1)


_packing: _Packing | None = None


def _active() -> _Packing:
    assert _packing is not None
    return _packing


def create_attention_mask(
    h: mx.array, cache: Any = None, window_size: int | None = None, return_array: bool = False
) -> mx.array:
    """Return the mask of causal attention within each sequence."""
    steps = h.shape[1]
    window = window_size if window_size and steps > window_size else None
    return _active().mask(steps, window)


def scaled_dot_product_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Compute attention within each sequence with ``nn.attention``; mlx-lm computes other masks."""
    known, window = _active().window(mask)
    if cache is not None or not known:
        own = _patch.own(_ATTENTION)
        return own(queries, keys, values, cache, scale, mask, sinks)  # type: ignore[no-any-return]
    return nn.attention(
        *(queries, keys, values, None, sinks, _active().cu_seqlens),
        **{"scale": scale, "causal": True, "window": window},
    )


def conv1d(layer: Any, x: mx.array) -> mx.array:
    """Compute a short convolution after its zeros with ``nn.causal_conv1d``."""
    channels, taps, inputs = layer.weight.shape
    if inputs > 1 or channels != x.shape[-1] or layer.stride != 1 or layer.padding != 0:
        raise ValueError("[packed] The model has a convolution that is not one of single channels.")
    x, weight = x[:, taps - 1 :], layer.weight[..., 0]
    y, _ = nn.causal_conv1d(x, weight, layer.get("bias"), cu_seqlens=_active().cu_seqlens)
    return y


def token_shift(layer: Any, x: mx.array, state: mx.array | None) -> mx.array:
    """Return the preceding step of each step, and zeros for the first one of a sequence."""
    before = _patch.own(_SHIFT)(layer, x, state)
    return mx.where(_active().starts(x.shape[1])[:, None], 0, before)


_ATTENTION = ("mlx_lm.models.base", "scaled_dot_product_attention")
_SHIFT = ("mlx_lm.models.rwkv7", "TokenShift.__call__")
REPLACED: dict[Place, Callable[..., Any]] = {
    ("mlx_lm.models.base", "create_attention_mask"): create_attention_mask,
    _ATTENTION: scaled_dot_product_attention,
    ("mlx.nn.layers.convolution", "Conv1d.__call__"): conv1d,
    _SHIFT: token_shift,
}
_patch = _models.Patch("mlx-lm, packed", "0.32", REPLACED, {}, {}, {})


@contextmanager
def packed(model: Any, cu_seqlens: mx.array) -> Iterator[None]:
    """Compute rows of several sequences in this context; see ``mlxops.mlx_lm.packed``."""
    global _packing
    family = type(model).__module__.removeprefix("mlx_lm.models.")
    if family not in FAMILIES:
        raise ValueError(
            f"[packed] Models of {family} are not known to separate the sequences of a row: train "
            "them with one sequence per row."
        )
    if any(type(m).__name__ == "DynamicNTKScalingRoPE" for m in model.modules()):
        raise ValueError("[packed] The model scales RoPE by the length of a row.")
    if any("x_proj" in m and "A_log" in m and too_many_states(m) for m in model.modules()):
        raise ValueError("[packed] nn.selective_scan has at most 64 states.")
    if cu_seqlens.ndim != 1 or cu_seqlens.size < 2:
        raise ValueError("[packed] cu_seqlens must have the starts of the sequences and the end.")
    if _packing is not None:
        raise RuntimeError("[packed] The context is already active.")
    _packing = _Packing(cu_seqlens.astype(mx.int32))
    _models.cu_seqlens = _packing.cu_seqlens
    _patch.install()
    try:
        yield
    finally:
        _patch.uninstall()
        _packing = _models.cu_seqlens = None
