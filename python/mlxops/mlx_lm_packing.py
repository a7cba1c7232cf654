"""The families of mlx-lm whose rows can have several sequences; see ``mlxops.mlx_lm.packed``."""

from __future__ import annotations

from mlxops._packing import Packing

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
packing = Packing("mlx-lm", "0.32", "mlx_lm.models.base", "mlx_lm.models.rwkv7", FAMILIES)
