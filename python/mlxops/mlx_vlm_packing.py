"""The families of mlx-vlm whose rows can have several sequences; see ``mlxops.mlx_vlm.packed``.

``FAMILIES`` are those whose language models separate sequences of words, and ``IMAGES`` those of
them whose whole models also do so with images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxops._packing import Packing

_NAMES = """
    afmoe apertus aya_vision bailing_moe bailing_moe_linear bitnet cohere cohere2 cohere2_moe
    cohere_compass dbrx deepseek deepseek_v2 deepseek_v3 deepseek_v32 deepseek_vl_v2 deepseekocr
    dots1 ernie4_5 ernie4_5_moe ernie4_5_moe_vl exaone exaone4 exaone_moe falcon_h1 fastvlm
    flint gemma gemma2 gemma3 gemma3n gemma4 gemma4_text glm glm4 glm4_moe glm4_moe_lite glm4v
    glm4v_moe glm_moe_dsa glm_ocr gpt_neox gpt_oss granite granite4_vision granite_vision
    granitemoe granitemoehybrid helium hrm_text hunyuan hunyuan_v1_dense hunyuan_vl hy_v4
    idefics2 idefics3 internvl_chat jamba jina_vlm k2_horizon kimi_k25 kimi_k3 kimi_linear
    kimi_vl klear kolibri1 laguna lfm2 lfm2_moe lfm2_vl lille_130m llama llama4_text llava
    llava_bunny llava_next llava_onevision llmjpvl longcat_flash mage_vl mamba mamba2 mellum
    mimo mimo_v2 mimo_v2_flash minicpm minicpm3 minicpmv4_6 minicpmv4_7 minimax mixtral
    multi_modality muse_glimmer muse_spark nanochat nemotron nemotron_h nemotron_h_nano_omni
    nemotron_nas olmo olmo2 olmo3 olmoe openelm paddleocr_vl paligemma phi phi3 phi4_siglip
    phi4mm phimoe phixtral pixtral plamo plamo2 plamo2vl qwen qwen2 qwen2_5_vl qwen2_moe
    qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next
    qwen3_omni_moe qwen3_vl qwen3_vl_moe rwkv7 seed_oss smollm3 spark2_5 stablelm starcoder2
    step3p5 step3p7 telechat3 xing4_0 youtu_llm youtu_vl
"""
FAMILIES = frozenset(_NAMES.split())
IMAGES = frozenset(("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl", "qwen3_vl_moe"))
_packing = Packing(
    *("mlx-vlm", "0.7", "mlx_vlm.models.base", "mlx_vlm.models.rwkv7.language", FAMILIES)
)


@contextmanager
def packed(model: Any, cu_seqlens: mx.array) -> Iterator[None]:
    """Compute rows of several sequences in this context; see ``mlxops.mlx_vlm.packed``."""
    family = type(model).__module__.removeprefix("mlx_vlm.models.").partition(".")[0]
    others = {name: part for name, part in model.parameters().items() if name != "language_model"}
    whole = "language_model" in model and tree_flatten(others)
    if whole and family in FAMILIES - IMAGES:
        raise ValueError(
            f"[packed] Models of {family} are not known to separate the images of a row: pass "
            "model.language_model for rows of words, or train with one sequence per row."
        )
    with _packing.packed(model, cu_seqlens):
        _forget_positions(model)
        try:
            yield
        finally:
            _forget_positions(model)


def _forget_positions(model: Any) -> None:
    """Forget the positions of the last row, which models with M-RoPE use for the next one."""
    for module in model.modules():
        for name in ("_position_ids", "_rope_deltas"):
            if hasattr(module, name):
                setattr(module, name, None)
