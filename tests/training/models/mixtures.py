"""Rows of decoder-only models with experts, states or shared layers in place of plain layers."""

from tests.training.models.architecture import DECODER, SPECIAL, TEXT, Architecture
from tests.training.models.architecture_batches import VOCAB_SIZE, causal

MIXTRAL = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}
OLMOE = {**DECODER, "num_experts": 4, "num_experts_per_tok": 2}
QWEN = {**OLMOE, "moe_intermediate_size": 24}
BALANCED = {**QWEN, "output_router_logits": True, "router_aux_loss_coef": 0.01}
DEEPSEEK = {
    **TEXT,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
GPT_OSS = {
    **MIXTRAL,
    "head_dim": 8,
    "sliding_window": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
LLAMA4 = {
    **MIXTRAL,
    "intermediate_size_mlp": 48,
    "head_dim": 8,
    "attention_chunk_size": 8,
    "num_experts_per_tok": 1,
}
JAMBA = {
    **OLMOE,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
}
MAMBA = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "state_size": 4,
    **SPECIAL,
}
MAMBA2 = {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}
# One attention layer, called after the first and the third layer.
ZAMBA2 = {
    **DECODER,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "num_mem_blocks": 1,
    "adapter_rank": 4,
    "mamba_d_state": 8,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "chunk_size": 8,
}
RECURRENT_GEMMA = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "lru_width": 32,
    "attention_window_size": 8,
    **SPECIAL,
}
QWEN3_NEXT = {
    **QWEN,
    "num_hidden_layers": 4,
    "shared_expert_intermediate_size": 24,
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

MIXTURES = (
    Architecture("mixtral", "MixtralForCausalLM", causal, MIXTRAL, is_moe=True),
    Architecture(
        "qwen2-moe",
        "Qwen2MoeForCausalLM",
        causal,
        {**BALANCED, "shared_expert_intermediate_size": 48},
        is_moe=True,
    ),
    Architecture("qwen3-moe", "Qwen3MoeForCausalLM", causal, QWEN, is_moe=True),
    Architecture("olmoe", "OlmoeForCausalLM", causal, OLMOE, is_moe=True),
    Architecture("gpt-oss", "GptOssForCausalLM", causal, GPT_OSS, is_moe=True),
    Architecture("granite-moe", "GraniteMoeForCausalLM", causal, MIXTRAL, is_moe=True),
    Architecture(
        "phi-moe", "PhimoeForCausalLM", causal, MIXTRAL, is_moe=True, draws_random_numbers=True
    ),
    Architecture(
        "deepseek-v2",
        "DeepseekV2ForCausalLM",
        causal,
        {**DEEPSEEK, "n_group": 1, "topk_group": 1, "head_dim": 4},
        is_moe=True,
    ),
    Architecture(
        "deepseek-v3",
        "DeepseekV3ForCausalLM",
        causal,
        {**DEEPSEEK, "n_group": 2, "topk_group": 1},
        is_moe=True,
    ),
    Architecture("llama4", "Llama4ForCausalLM", causal, LLAMA4, is_moe=True),
    Architecture("mamba", "MambaForCausalLM", causal, MAMBA, is_tied=True),
    Architecture("mamba2", "Mamba2ForCausalLM", causal, MAMBA2),
    Architecture("jamba", "JambaForCausalLM", causal, JAMBA, is_moe=True),
    Architecture("zamba2", "Zamba2ForCausalLM", causal, ZAMBA2, is_tied=True),
    Architecture(
        "recurrent-gemma", "RecurrentGemmaForCausalLM", causal, RECURRENT_GEMMA, is_tied=True
    ),
    Architecture("qwen3-next", "Qwen3NextForCausalLM", causal, QWEN3_NEXT, is_moe=True),
    Architecture(
        "falcon-h1",
        "FalconH1ForCausalLM",
        causal,
        {
            **DECODER,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        causal,
        {**DECODER, "layer_types": ["conv", "full_attention", "conv"]},
        is_tied=True,
    ),
    Architecture(
        "rwkv",
        "RwkvForCausalLM",
        causal,
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "attention_hidden_size": 32,
            "intermediate_size": 48,
            "context_length": 64,
            **SPECIAL,
        },
    ),
    Architecture(
        "jetmoe",
        "JetMoeForCausalLM",
        causal,
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "kv_channels": 8,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            **SPECIAL,
        },
        is_tied=True,
        is_moe=True,
    ),
    Architecture(
        "minimax",
        "MiniMaxForCausalLM",
        causal,
        {
            **MIXTRAL,
            "head_dim": 8,
            "block_size": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        is_moe=True,
    ),
    Architecture(
        "granite-moe-shared",
        "GraniteMoeSharedForCausalLM",
        causal,
        {**MIXTRAL, "shared_intermediate_size": 24},
        is_moe=True,
    ),
    Architecture(
        "granite-moe-hybrid",
        "GraniteMoeHybridForCausalLM",
        causal,
        {
            **MIXTRAL,
            "shared_intermediate_size": 24,
            "layer_types": ["mamba", "attention", "mamba"],
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 8,
        },
        is_moe=True,
    ),
    Architecture(
        "ernie4_5-moe",
        "Ernie4_5_MoeForCausalLM",
        causal,
        {**DECODER, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
        is_tied=True,
        is_moe=True,
    ),
    Architecture(
        "hunyuan-moe",
        "HunYuanMoEV1ForCausalLM",
        causal,
        {**DECODER, "head_dim": 8, "num_experts": 4, "moe_topk": 2},
        is_moe=True,
    ),
    Architecture("flex-olmo", "FlexOlmoForCausalLM", causal, OLMOE, is_moe=True),
    Architecture(
        "lfm2-moe",
        "Lfm2MoeForCausalLM",
        causal,
        {**QWEN, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
        is_tied=True,
        is_moe=True,
    ),
    Architecture(
        "bamba",
        "BambaForCausalLM",
        causal,
        {
            **DECODER,
            "attn_layer_indices": [1],
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    Architecture("falcon-mamba", "FalconMambaForCausalLM", causal, MAMBA, is_tied=True),
    Architecture(
        "xlstm",
        "xLSTMForCausalLM",
        causal,
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "num_blocks": 2,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "chunk_size": 8,
            **SPECIAL,
        },
    ),
    Architecture(
        "mixtral-eager",
        "MixtralForCausalLM",
        causal,
        {**MIXTRAL, "experts_implementation": "eager"},
        is_moe=True,
    ),
    Architecture(
        "qwen3-moe-eager",
        "Qwen3MoeForCausalLM",
        causal,
        {**QWEN, "experts_implementation": "eager"},
        is_moe=True,
    ),
)
