"""Rows of dense decoder-only language models."""

from tests.training.models.architecture import DECODER, SPECIAL, TEXT, Architecture
from tests.training.models.architecture_batches import VOCAB_SIZE, causal

GPT = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    **SPECIAL,
}
GPT2 = {**GPT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2_DROPOUT = {**GPT, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
GPT_NEO = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 4,
    "max_position_embeddings": 64,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 8,
    **SPECIAL,
}
OPT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 16,
    "ffn_dim": 48,
    "dropout": 0.0,
    **SPECIAL,
}
FALCON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_hidden_size": 48,
    **SPECIAL,
}
BLOOM = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "n_layer": 3, "n_head": 4, **SPECIAL}
MPT = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "n_layers": 3,
    "n_heads": 4,
    "max_seq_len": 64,
    **SPECIAL,
}
XGLM = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "num_layers": 3,
    "attention_heads": 4,
    "ffn_dim": 48,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "layerdrop": 0.0,
    **SPECIAL,
}
WINDOW = {**DECODER, "sliding_window": 8}
HEAD = {**DECODER, "head_dim": 8}
TIED = {**DECODER, "tie_word_embeddings": True}

DECODERS = (
    Architecture("llama", "LlamaForCausalLM", causal, DECODER),
    Architecture(
        "llama-dropout",
        "LlamaForCausalLM",
        causal,
        {**TIED, "attention_dropout": 0.2},
        is_tied=True,
        draws_random_numbers=True,
    ),
    Architecture("mistral", "MistralForCausalLM", causal, WINDOW),
    Architecture("qwen2", "Qwen2ForCausalLM", causal, TIED, is_tied=True),
    Architecture("qwen3", "Qwen3ForCausalLM", causal, HEAD),
    Architecture("gpt2", "GPT2LMHeadModel", causal, GPT2, is_tied=True),
    Architecture(
        "gpt2-dropout",
        "GPT2LMHeadModel",
        causal,
        GPT2_DROPOUT,
        is_tied=True,
        draws_random_numbers=True,
    ),
    Architecture("gpt-neox", "GPTNeoXForCausalLM", causal, TEXT),
    Architecture("gpt-j", "GPTJForCausalLM", causal, {**GPT, "rotary_dim": 4}),
    Architecture("gpt-neo", "GPTNeoForCausalLM", causal, GPT_NEO, is_tied=True),
    Architecture("opt", "OPTForCausalLM", causal, OPT, is_tied=True),
    Architecture("bloom", "BloomForCausalLM", causal, BLOOM, is_tied=True),
    Architecture(
        "bloom-dropout",
        "BloomForCausalLM",
        causal,
        {**BLOOM, "hidden_dropout": 0.1, "attention_dropout": 0.1},
        is_tied=True,
        draws_random_numbers=True,
    ),
    Architecture("falcon", "FalconForCausalLM", causal, FALCON, is_tied=True),
    Architecture("phi", "PhiForCausalLM", causal, DECODER),
    Architecture("phi3", "Phi3ForCausalLM", causal, DECODER),
    Architecture("gemma", "GemmaForCausalLM", causal, HEAD, is_tied=True),
    Architecture("gemma2", "Gemma2ForCausalLM", causal, {**HEAD, **WINDOW}, is_tied=True),
    Architecture("gemma3", "Gemma3ForCausalLM", causal, {**HEAD, **WINDOW}, is_tied=True),
    Architecture("olmo", "OlmoForCausalLM", causal, DECODER),
    Architecture("olmo2", "Olmo2ForCausalLM", causal, DECODER),
    Architecture("granite", "GraniteForCausalLM", causal, DECODER),
    Architecture("cohere", "CohereForCausalLM", causal, DECODER, is_tied=True),
    Architecture("stablelm", "StableLmForCausalLM", causal, DECODER),
    Architecture("starcoder2", "Starcoder2ForCausalLM", causal, DECODER, is_tied=True),
    Architecture("smollm3", "SmolLM3ForCausalLM", causal, DECODER, is_tied=True),
    Architecture("glm", "GlmForCausalLM", causal, HEAD),
    Architecture("nemotron", "NemotronForCausalLM", causal, DECODER),
    Architecture("mpt", "MptForCausalLM", causal, MPT, is_tied=True),
    Architecture("xglm", "XGLMForCausalLM", causal, XGLM, is_tied=True),
    Architecture("ministral", "MinistralForCausalLM", causal, {**HEAD, **WINDOW}),
    Architecture("apertus", "ApertusForCausalLM", causal, DECODER),
    Architecture("arcee", "ArceeForCausalLM", causal, DECODER),
    Architecture(
        "biogpt",
        "BioGptForCausalLM",
        causal,
        {
            **TEXT,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "activation_dropout": 0.0,
            "layerdrop": 0.0,
        },
        is_tied=True,
    ),
    Architecture("bitnet", "BitNetForCausalLM", causal, DECODER),
    Architecture("codegen", "CodeGenForCausalLM", causal, {**GPT, "rotary_dim": 4}),
    Architecture(
        "cohere2", "Cohere2ForCausalLM", causal, {**DECODER, "sliding_window": 8}, is_tied=True
    ),
    Architecture(
        "ctrl",
        "CTRLLMHeadModel",
        causal,
        {**GPT, "dff": 48, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
        is_tied=True,
    ),
    Architecture("ernie4_5", "Ernie4_5ForCausalLM", causal, HEAD, is_tied=True),
    Architecture("glm4", "Glm4ForCausalLM", causal, HEAD),
    Architecture("gpt-bigcode", "GPTBigCodeForCausalLM", causal, GPT2, is_tied=True),
    Architecture("openai-gpt", "OpenAIGPTLMHeadModel", causal, GPT2, is_tied=True),
    Architecture("helium", "HeliumForCausalLM", causal, HEAD),
    Architecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", causal, HEAD),
    Architecture(
        "modernbert-decoder",
        "ModernBertDecoderForCausalLM",
        causal,
        {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
        is_tied=True,
    ),
    Architecture("nanochat", "NanoChatForCausalLM", causal, DECODER),
    Architecture("olmo3", "Olmo3ForCausalLM", causal, {**DECODER, "sliding_window": 8}),
    Architecture("persimmon", "PersimmonForCausalLM", causal, TEXT),
    Architecture("seed-oss", "SeedOssForCausalLM", causal, HEAD, draws_random_numbers=True),
    Architecture("vaultgemma", "VaultGemmaForCausalLM", causal, {**HEAD, **WINDOW}, is_tied=True),
    Architecture("diffllama", "DiffLlamaForCausalLM", causal, DECODER),
    Architecture("doge", "DogeForCausalLM", causal, DECODER),
    Architecture(
        "gemma3n",
        "Gemma3nForCausalLM",
        causal,
        {
            **HEAD,
            "sliding_window": 8,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "laurel_rank": 8,
            "num_kv_shared_layers": 0,
        },
        is_tied=True,
        # It clamps weights in place, by their data.
        writes_weights=True,
    ),
)
