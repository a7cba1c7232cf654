"""The keys of tiny models of all families of mlx-lm and mlx-vlm that families.py does not have."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from programs import families, vlm_families
from programs.families import DELTA, LFM, SHARED

from examples.fine_tune import CONFIGURATIONS

BOTH = {"layer_types": ["sliding_attention", "full_attention"]}
ROPE = {"rope_theta": 1e4, "rope_type": "default"}
ROPES = {**BOTH, "rope_parameters": dict.fromkeys(BOTH["layer_types"], ROPE)}
SCALED = {
    **BOTH,
    "rope_parameters": {
        **ROPE,
        **{"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64},
    },
}
SPARSE = {
    **{"q_lora_rank": 8, "num_key_value_heads": 4, "rope_parameters": ROPE},
    **{"index_head_dim": 8, "index_n_heads": 2, "index_topk": 4},
}
GEMMA4 = {
    **BOTH,
    **{"global_head_dim": 8, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 4},
    **{"vocab_size_per_layer_input": 40, "enable_moe_block": True, "top_k_experts": 2},
}
LONGCAT = {
    **{"ffn_hidden_size": 48, "moe_topk": 2, "expert_ffn_hidden_size": 16, "num_layers": 2},
    **{"attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 2},
    **{"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "q_lora_rank": 8},
    "num_key_value_heads": 4,
}
QWEN = {
    **DELTA,
    **{"full_attention_interval": 2, "linear_num_key_heads": 2},
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
}
MROPE = {
    "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 1, 1]},
    "rope_parameters": {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0},
}
# The configurations of models that use those of others.
CONFIGURED = {
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), ("qwen3_5", "TextConfig")),
    **{"hunyuan_vl": ("hunyuan_vl", "TextConfig"), "jina_vlm": ("jina_vlm", "TextConfig")},
    **{"limite": ("limite", "ModelConfig"), "phi4mm": ("phi4mm", "ModelConfig")},
    "nemotron_h_nano_omni": ("nemotron_h", "ModelConfig"),
}
LLAMA = {"model_type": "llama"}
KEYS: dict[str, dict[str, Any]] = {
    **{name: CONFIGURATIONS[name] for name in ("mamba2", "rwkv7", "qwen3_next")},
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), SPARSE),
    **dict.fromkeys(("gemma4", "gemma4_text"), GEMMA4),
    **dict.fromkeys(("longcat_flash", "longcat_flash_ngram"), LONGCAT),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"), QWEN),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), QWEN),
    **dict.fromkeys(("ministral3", "mistral4"), SCALED),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), MROPE),
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl", "qwen3_omni_moe"), MROPE),
    "afm7": {
        **{"hidden_dim": 32, "num_layers": 3, "num_kv_reuse_layers": 1},
        **{"num_heads": 4, "num_kv_heads": 2},
    },
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "dbrx": {
        **{"d_model": 32, "n_layers": 2, "n_heads": 4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    },
    "deepseek_v2": {
        **{"q_lora_rank": 8, "topk_method": "greedy"},
        "rope_scaling": {
            **{"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
            **{"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    },
    "deepseek_vl_v2": {"topk_method": "greedy"},
    "deepseek_v4": {
        **{"q_lora_rank": 8, "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 8},
        **{"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "hc_mult": 2},
        **{"compress_ratios": [0, 4], "num_hash_layers": 0, "sliding_window": 8},
        **{"scoring_func": "sqrtsoftplus", "index_block": 4, "index_keep": 2},
    },
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1},
    "ernie4_5_moe_vl": {"rope_scaling": {"mrope_section": [1, 1, 2]}},
    "exaone_moe": {**BOTH, "is_moe_layer": [False, True]},
    "gemma3n": {
        **{**BOTH, "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 40},
        **{"rope_local_base_freq": 1e4, "activation_sparsity_pattern": [0.5, 0.0]},
        **{"hidden_size_per_layer_input": 4, "altup_num_inputs": 2, "altup_active_idx": 0},
        **{"altup_coef_clip": 120.0, "altup_correct_scale": True, "laurel_rank": 4},
        "intermediate_size": [48, 48],
    },
    "hunyuan": {
        **{"moe_topk": 2, "num_shared_expert": 1, "use_mixed_mlp_moe": True},
        **{"use_cla": True, "cla_share_factor": 2},
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
    },
    "hy_v4": {**SPARSE, "hc_mult": 2, "attention_bias": False, "qk_norm": True},
    "lfm2-vl": {
        **{**LFM, "block_dim": 32, "block_ff_dim": 48, "block_multiple_of": 8},
        **{"block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False},
    },
    "hunyuan_vl": {
        "rope_scaling": {"type": "xdrope", "xdrope_section": [1, 1, 1, 1], "alpha": 1000.0},
    },
    "limite": {
        **{"rope_n_pairs": 4, "attn_gate_channels": 16, "ve_dim": 8, "ve_gate_channels": 4},
        **{"mudd_inter": 8, "softcap_logits": {"kind": "sigmoid", "a": 20.0, "b": 0.0, "c": 5.0}},
    },
    "nemotron_h_nano_omni": vlm_families.FAMILIES["nemotron_h"],
    "phi4mm": {"original_max_position_embeddings": 64, "partial_rotary_factor": 1.0},
    "lille-130m": {"block_size": 64, "n_kv_heads": 2, "n_embd": 96},
    "llama4": {
        **{"attention_chunk_size": 64, "interleave_moe_layer_step": 2, "num_hidden_layers": 4},
        **{"intermediate_size_mlp": 48, "num_experts_per_tok": 1},
    },
    **dict.fromkeys(("llava", "llava_next", "llmjpvl", "multi_modality"), LLAMA),
    "paligemma": {"model_type": "gemma"},
    "llama4_text": {"intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    "mellum": ROPES,
    "mimo_v2": {"hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1],
                "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8,
                "swa_v_head_dim": 8, "n_shared_experts": None},
    "mimo_v2_flash": {
        **{"hybrid_layer_pattern": [0, 1], "add_swa_attention_sink_bias": True},
        **{"add_full_attention_sink_bias": False, "sliding_window_size": 8},
        **{"layernorm_epsilon": 1e-5, "swa_rope_theta": 1e4, "swa_num_attention_heads": 4},
        **{"swa_num_key_value_heads": 2, "swa_head_dim": 8, "swa_v_head_dim": 8},
        **{"moe_layer_freq": [0, 1], "n_shared_experts": None},
    },
    "minicpm3": {
        **{"dim_model_base": 16, "scale_depth": 1.4, "scale_emb": 12, "q_lora_rank": 8},
        "rope_scaling": {
            **{"type": "longrope", "original_max_position_embeddings": 64},
            **{"long_factor": [1.0, 1.0], "short_factor": [1.0, 1.0]},
        },
    },
    "minimax_m3_vl": {
        **{"moe_layer_freq": [0, 1], "dense_intermediate_size": 48},
        "shared_intermediate_size": 16,
    },
    "molmo": {
        **{"d_model": 32, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "mlp_hidden_size": 96},
        **{"embedding_size": 40, "additional_vocab_size": 8},
    },
    "moondream3": {"num_key_value_heads": 4, "rope_dim": 4, "moe_start_layer": 1},
    "nemotron-nas": {
        "block_configs": [
            {
                "attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
                "ffn": {"ffn_mult": 1.5, "no_op": False, "replace_with_linear": False},
            }
        ] * 2
    },
    "olmo": {
        **{"d_model": 32, "n_layers": 2, "n_heads": 4, "embedding_size": 40},
        "mlp_hidden_size": 96,
    },
    "openelm": {
        **{"num_transformer_layers": 2, "model_dim": 32, "ffn_dim_divisor": 8},
        **{"num_query_heads": [4, 4], "num_kv_heads": [2, 2], "ffn_multipliers": [1.0, 1.5]},
    },
    "phixtral": {"num_vocab": 40, "model_dim": 32, "num_layers": 2, "num_heads": 4},
    "plamo": {"n_shared_head": 2},
    "qwen": {"kv_channels": 8, "intermediate_size": 96, "num_key_value_heads": 4},
    "spark2_5": {**ROPES, "hidden_act": "gelu"},
    "step3p5": {"num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2},
    "step3p7": {"num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
SHARED.setdefault("tie_word_embeddings", False)


def modules(package: str) -> list[str]:
    """Return the names of the modules of a package's models."""
    found = importlib.import_module(f"{package}.models")
    return [module.name for module in pkgutil.iter_modules(found.__path__)]


def build_lm(name: str) -> Any:
    """Return a model of mlx-lm with random weights, in training mode."""
    return families.build(name, **KEYS.get(name, {}))


def keys_of(name: str) -> dict[str, Any]:
    own = vlm_families.FAMILIES.get(name)
    if own is None:
        keys = {key.replace("-", "_"): value for key, value in KEYS.items()}
        own = {**families.FAMILIES.get(name, {}), **keys.get(name, {})}
        own.pop("module", None)
    return own


def build_vlm(name: str) -> Any:
    """Return a language model of mlx-vlm with random weights, in training mode."""
    if name in vlm_families.FAMILIES:
        return vlm_families.build(name)
    language = importlib.import_module(f"mlx_vlm.models.{name}.language").LanguageModel
    arguments = list(inspect.signature(language).parameters)
    if arguments != ["args", "config"] and name not in CONFIGURED:
        vlm_families.FAMILIES[name] = keys_of(name)
        try:
            return vlm_families.build(name)
        finally:
            del vlm_families.FAMILIES[name]
    module, kind = CONFIGURED.get(name, (name, "TextConfig"))
    configuration = getattr(importlib.import_module(f"mlx_vlm.models.{module}.config"), kind)
    text = configuration.from_dict({**SHARED, "model_type": name, **keys_of(name)})
    # Positions of images need the configuration of the whole model.
    whole = SimpleNamespace(
        **{"image_token_id": 37, "video_token_id": 38, "vision_start_token_id": 36},
        vision_config=SimpleNamespace(
            **{"spatial_merge_size": 2, "tokens_per_second": 2, "temporal_patch_size": 1},
            **{"spatial_patch_size": 2, "channel_size": 3},
        ),
        text_config=text,
    )
    mx.random.seed(7)
    if name == "hunyuan_vl":
        model = language(whole)
    else:
        model = language(text, whole) if len(arguments) > 1 else language(text)
    if name == "jina_vlm":  # its whole model adds the layer
        model.lm_head = nn.Linear(text.hidden_size, text.vocab_size)
    for key, value in tree_flatten(model.parameters()):
        if not value.any():
            model.load_weights([(key, mx.random.normal(value.shape) * 0.3)], strict=False)
    return model.train()
