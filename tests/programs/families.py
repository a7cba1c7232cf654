"""Tiny models of mlx-lm's families, with random weights, for the tests of mlxops.mlx_lm."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

# As in files config.json. Each family reads the keys that it knows.
SHARED: dict[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 40},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5},
    **{"norm_eps": 1e-5, "norm_epsilon": 1e-5},
    **{"max_position_embeddings": 64, "rope_theta": 1e4, "rope_scaling": None, "rotary_dim": 4},
    **{"rope_pct": 0.5, "rotary_pct": 0.5, "partial_rotary_factor": 0.5, "rotary_emb_base": 10000},
    **{"attention_bias": False, "mlp_bias": False, "use_bias": False, "bias": False},
    **{"hidden_act": "silu", "use_qk_norm": False, "qk_norm": True, "use_qkv_bias": False},
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1},
    **{"n_routed_experts": 4, "n_shared_experts": 1, "num_local_experts": 4, "topk_group": 1},
    **{"num_shared_experts": 1, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1},
    **{"first_k_dense_replace": 1, "moe_layer_freq": 1, "mlp_only_layers": []},
    **{"norm_topk_prob": True, "routed_scaling_factor": 1.0, "scoring_func": "sigmoid"},
    **{"topk_method": "noaux_tc"},
    **{"q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    **{"v_head_dim": 8},
    **{"logits_scaling": 4.0, "attention_multiplier": 0.25, "embedding_multiplier": 2.0},
    **{"residual_multiplier": 0.5, "logit_scale": 0.25, "final_logit_softcapping": 3.0},
    **{"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 8, "logits_soft_cap": 3.0},
    **{"sliding_window": 16, "sliding_window_pattern": 2, "attention_window_size": 16},
    **{"layer_types": ["full_attention"] * 2, "block_types": ["recurrent", "attention"]},
    **{"conv_kernel": 4, "state_size": 8, "time_step_rank": 4, "use_conv_bias": True},
    **{"conv1d_width": 4},
    **{"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64, "n_ctx": 64, "n_inner": 48},
}

DELTA = {
    **{"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
    "linear_conv_kernel_dim": 4,
}
LFM = {"conv_L_cache": 3, "conv_bias": False, "full_attn_idxs": [1], "layer_types": None}
# Families without other keys.
PLAIN = """
    Klear afmoe bailing_moe bailing_moe_v3 cohere cohere2 deepseek deepseek_v3 dots1 ernie4_5
    falcon_h1 gear gemma gemma2 gemma3 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode
    gpt_neox gptj granite granitemoe helium hunyuan_v1_dense internlm2 internlm3 iquestloopcoder
    kimi_k25 kimi_vl laguna llama mamba mimo mistral3 mixtral muse_glimmer nanbeige nanochat
    nemotron olmo2 olmoe phi phi3 phimoe pixtral plamo2 plamo3 qwen2 qwen2_moe qwen2_vl qwen3
    qwen3_moe qwen3_vl qwen3_vl_moe recurrent_gemma seed_oss smollm3 solar_open stablelm starcoder2
    talkie telechat3 youtu_llm
"""
# All families that the tests of the loss cover, and keys of single ones. Their modules have the
# name of the family, unless `module` names one.
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {} for name in PLAIN.split()},
    "falcon_mamba": {"module": "mamba"},
    "apertus": {"post_norm": True},
    "bailing_moe_linear": {"layer_group_size": 2, "group_norm_size": 2},
    "exaone": {"num_layers": 2, "layer_norm_epsilon": 1e-5},
    "granitemoehybrid": {
        **{"layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16},
        **{"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_proj_bias": False},
        **{"mamba_conv_bias": True, "shared_intermediate_size": 16},
        **{"position_embedding_type": "rope"},
    },
    "jamba": {
        **{"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_conv": 4, "mamba_d_state": 8},
        **{"expert_layer_offset": 1, "expert_layer_period": 2, "mamba_expand": 2},
    },
    "bailing_hybrid": {"layer_group_size": 2, "group_norm_size": 2, "rope_interleave": True},
    "bitnet": {},
    "exaone4": {"sliding_window_pattern": "LG"},
    **{
        name: {"layer_types": ["sliding_attention", "full_attention"]}
        for name in ("olmo3", "gpt_oss")
    },
    "kimi_linear": {
        **{"num_key_value_heads": 4, "num_experts_per_token": 2, "model_max_length": 64},
        "linear_attn_config": {
            **{"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1]},
            "full_attn_layers": [2],
        },
    },
    "lfm2": {
        **LFM,
        **{"block_dim": 32, "block_ff_dim": 48, "block_multiple_of": 8},
        **{"block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False},
    },
    "lfm2_moe": {**LFM, "num_dense_layers": 1, "use_expert_bias": False},
    "minimax": {"shared_intermediate_size": 16},
    "nemotron_h": {
        **{"mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_proj_bias": False, "n_groups": 2},
        **{"ssm_state_size": 8, "hybrid_override_pattern": ["M", "*"], "mlp_hidden_act": "relu2"},
    },
    "olmo_hybrid": {
        **DELTA,
        **{"linear_num_key_heads": 4, "linear_allow_neg_eigval": True},
        **{"layer_types": ["linear_attention", "full_attention"]},
    },
    "qwen3_5": {
        **DELTA,
        **{"full_attention_interval": 2, "linear_num_key_heads": 2},
        "rope_parameters": {
            **{"type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "mrope_section": [1, 1, 0],
        },
    },
    "deepseek_v41": {
        **{"num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 32, "o_lora_rank": 32},
        **{"o_groups": 2, "sliding_window": 8, "scoring_func": "sqrtsoftplus"},
        **{"compress_ratios": [0, 4], "kv_source_layer_ids": [1], "index_source_layer_ids": [1]},
        **{"index_topk": 2, "index_head_dim": 32, "index_n_heads": 2},
        **{"candidate_source_layer_id": 1, "candidate_topk_blocks": 2, "candidate_block_size": 1},
    },
    "kimi_k3": {
        **{"num_key_value_heads": 4, "q_lora_rank": 8, "num_experts_per_token": 2},
        **{"hidden_act": "situ", "activation_situ_beta": 1.0, "attn_res_block_size": 2},
        "linear_attn_config": {
            **{"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1]},
            **{"full_attn_layers": [2], "gate_lower_bound": -5.0},
        },
    },
    "muse_spark": {
        **{"rope_parameters": {"rope_theta": 1e4}, "layer_rope_theta": [1e4, 0]},
        **{"layer_types": ["sliding_attention", "full_attention"], "num_shared_experts": 0},
        **{"moe_hidden_size": 24, "post_norm_eps": 1e-5, "output_multiplier": 0.5},
    },
    "minicpm": {"dim_model_base": 16, "scale_depth": 1.4, "scale_emb": 12},
    "phi3small": {
        **{"dense_attention_every_n_layers": 1, "ff_intermediate_size": 48, "gegelu_limit": 20.0},
        **{"vocab_size": 100352, "num_hidden_layers": 1},
    },
}


def build(name: str, **keys: Any) -> Any:
    """Return a model with random weights, also for weights that start at zero or one."""
    own = {"model_type": name, **FAMILIES.get(name, {}), **keys}
    module = importlib.import_module(f"mlx_lm.models.{own.pop('module', name)}")
    configuration = {**SHARED, **own}
    configuration["text_config"] = dict(configuration)
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(configuration))
    if name == "recurrent_gemma":  # its constructor does not call Module's, which training needs
        vars(model).update(_no_grad=set(), _training=True)
    for key, value in tree_flatten(model.trainable_parameters()):
        if value.dtype == mx.uint8:
            packed = sum(mx.random.randint(0, 3, value.shape) << shift for shift in (0, 2, 4, 6))
            model.load_weights([(key, packed.astype(mx.uint8))], strict=False)
        elif key.endswith("weight_scale"):
            model.load_weights([(key, mx.array([4.0]))], strict=False)
        elif not value.any():
            model.load_weights([(key, mx.random.normal(value.shape) * 0.3)], strict=False)
    model.train()
    for module in model.modules():
        if "weight" in module and module.weight.dtype == mx.uint8:
            module.freeze(recurse=False, keys=["weight"])
    return model
