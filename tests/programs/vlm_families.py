"""Tiny models of mlx-vlm's families, with random weights, for the tests of mlxops.mlx_vlm."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from programs.families import FAMILIES as LM_FAMILIES
from programs.families import SHARED

from examples.fine_tune import CONFIGURATIONS

QWEN: dict[str, Any] = {
    **CONFIGURATIONS["qwen3_next"],
    "rope_parameters": {
        **{"type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4},
        "partial_rotary_factor": 0.5,
    },
    "vision_config": {
        **{"depth": 1, "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32},
        **{"num_heads": 2, "patch_size": 2, "temporal_patch_size": 2, "in_channels": 3},
        **{"spatial_merge_size": 2, "num_position_embeddings": 16},
    },
    **{"image_token_id": 37, "video_token_id": 38, "vision_start_token_id": 36},
}
# Keys as in files config.json, added to those of SHARED.
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba": {},
    "recurrent_gemma": {},
    "falcon_h1": {},
    "bitnet": {},
    **{name: CONFIGURATIONS[name] for name in ("mamba2", "rwkv7", "qwen3_next")},
    **{name: LM_FAMILIES[name] for name in ("jamba", "bailing_moe_linear", "granitemoehybrid")},
    "nemotron_h": {
        **{"mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_proj_bias": False, "n_groups": 2},
        **{"ssm_state_size": 8, "layers_block_type": ["mamba", "attention"]},
    },
    "kimi_linear": {
        "linear_attn_config": {
            **{"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1]},
        },
        "model_max_length": 64,
    },
    "qwen3_5": QWEN,
    "qwen4_exp": {
        **QWEN,
        **{"layer_types": ["linear_attention"] * 3 + ["full_attention"], "indexer_head_dim": 8},
        **{"indexer_n_heads": 2, "indexer_budget": 8, "hc_lowrank": 8},
    },
    "plamo2vl": {
        **{"mamba_d_state": 8, "mamba_num_heads": 4, "hidden_size_per_head": 8},
        **{"tie_word_embeddings": True, "full_attention_idx": [], "model_type": "plamo2"},
    },
    "glm5_next": {
        **{"num_key_value_heads": 4, "qk_rope_head_dim": 0, "q_lora_rank": 8, "index_topk": 4},
        **{"index_head_dim": 8, "index_n_heads": 2, "index_kpool": 2, "linear_head_dim": 8},
        **{"linear_num_heads": 2, "num_hidden_layers": 4, "layer_types": None},
    },
    "muse_spark": {
        **{
            "rope_parameters": {"rope_theta": 1e4},
            "layer_rope_theta": [1e4, 0],
            "moe_hidden_size": 24,
        },
        **{"post_norm_eps": 1e-5, "layer_types": ["sliding_attention", "full_attention"]},
        **{"output_multiplier": 0.5, "num_shared_experts": 0},
    },
    "inkling": {
        **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8},
        **{"sliding_window_size": 6, "d_rel": 4, "rel_extent": 16, "dense_intermediate_size": 48},
        **{"layer_types": ["hybrid_sliding", "hybrid"], "n_shared_experts": 2},
    },
    "nemotron_labs_diffusion": {},
    "minimax_m3_vl": {"moe_layer_freq": [1, 1]},
    "longcat_flash_sparse": {
        **{"ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "moe_topk": 2, "num_layers": 2},
        **{"q_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
    },
    "deepseek_v41": {
        **{"num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 32, "o_lora_rank": 32},
        **{"o_groups": 2, "sliding_window": 8, "moe_intermediate_size": 32},
        **{"compress_ratios": [0, 0], "kv_source_layer_ids": [], "index_source_layer_ids": []},
        **{"scoring_func": "sqrtsoftplus", "engram_layer_ids": [], "engram_num_embeddings": []},
    },
    "kimi_k3": {
        **{"num_key_value_heads": 4, "q_lora_rank": 8, "num_experts_per_token": 2},
        **{"hidden_act": "situ", "activation_situ_beta": 1.0, "attn_res_block_size": 2},
        "linear_attn_config": {
            **{"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1]},
            **{"full_attn_layers": [2], "gate_lower_bound": -5.0},
        },
    },
}


WHOLE = ("qwen3_5", "qwen4_exp")  # with an image encoder


def build(name: str, **keys: Any) -> Any:
    """Return a model with random weights in training mode: what computes logits from tokens."""
    package = importlib.import_module(f"mlx_vlm.models.{name}")
    configuration = importlib.import_module(f"mlx_vlm.models.{name}.config")
    values = {**SHARED, "model_type": name, **FAMILIES[name], **keys}
    mx.random.seed(7)
    if (hasattr(configuration, "TextConfig") and name not in WHOLE) or name == "deepseek_v41":
        language = importlib.import_module(f"mlx_vlm.models.{name}.language")
        text = getattr(configuration, "TextConfig", configuration.ModelConfig)
        model = language.LanguageModel(text.from_dict(values))
    else:
        values["text_config"] = dict(values)
        model = package.Model(package.ModelConfig.from_dict(values))
    for key, value in tree_flatten(model.parameters()):
        if value.dtype == mx.uint8:
            value = mx.random.randint(0, 256, value.shape, mx.uint8)
        elif not value.any():
            value = mx.random.normal(value.shape) * 0.3
        model.load_weights([(key, value)], strict=False)
    if name == "recurrent_gemma":  # its constructor does not call Module's, which training needs
        for module in model.modules():
            vars(module).setdefault("_no_grad", set())
            vars(module).setdefault("_training", True)
    model.train()
    for module in model.modules():
        if "weight" in module and module.weight.dtype == mx.uint8:
            module.freeze(recurse=False, keys=["weight"])
    return model
