"""Rows of encoders and of encoder-decoders for text."""

from tests.training.models.architecture import SPECIAL, TEXT, Architecture
from tests.training.models.architecture_batches import VOCAB_SIZE, masked, translation

QUIET = {**TEXT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NOISY = {**TEXT, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
DISTILBERT = {
    "vocab_size": VOCAB_SIZE,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    **SPECIAL,
}
MODERNBERT = {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}
XLNET = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "n_layer": 3,
    "n_head": 4,
    "d_inner": 48,
    "dropout": 0.0,
    **SPECIAL,
}
FNET = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "tpu_short_seq_length": 16,
    **SPECIAL,
}
T5 = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
SWITCH = {
    **T5,
    "num_decoder_layers": 2,
    "num_experts": 4,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "expert_capacity": 16,
}
BART = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": 2,
    **SPECIAL,
}
BART_LAYERDROP = {**BART, "dropout": 0.1, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}

ENCODERS = (
    Architecture("bert", "BertForMaskedLM", masked, QUIET, is_tied=True),
    Architecture(
        "bert-dropout", "BertForMaskedLM", masked, NOISY, is_tied=True, draws_random_numbers=True
    ),
    Architecture("roberta", "RobertaForMaskedLM", masked, QUIET, is_tied=True),
    Architecture("distilbert", "DistilBertForMaskedLM", masked, DISTILBERT, is_tied=True),
    Architecture(
        "albert", "AlbertForMaskedLM", masked, {**QUIET, "embedding_size": 16}, is_tied=True
    ),
    Architecture(
        "albert-dropout",
        "AlbertForMaskedLM",
        masked,
        {**NOISY, "embedding_size": 16},
        is_tied=True,
        draws_random_numbers=True,
    ),
    Architecture(
        "electra", "ElectraForMaskedLM", masked, {**QUIET, "embedding_size": 16}, is_tied=True
    ),
    Architecture(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        masked,
        {**QUIET, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        is_tied=True,
    ),
    Architecture("mpnet", "MPNetForMaskedLM", masked, QUIET, is_tied=True),
    Architecture("modernbert", "ModernBertForMaskedLM", masked, MODERNBERT, is_tied=True),
    Architecture(
        "fnet",
        "FNetForMaskedLM",
        masked,
        FNET,
        is_tied=True,
        without_gradient=("fnet.pooler.*",),
    ),
    Architecture(
        "xlnet",
        "XLNetLMHeadModel",
        masked,
        XLNET,
        is_tied=True,
        without_gradient=("*.mask_emb", "*.r_s_bias", "*.seg_embed"),
    ),
)

ENCODER_DECODERS = (
    Architecture(
        "t5",
        "T5ForConditionalGeneration",
        translation,
        T5,
        is_tied=True,
        is_encoder_decoder=True,
    ),
    Architecture(
        "t5-dropout",
        "T5ForConditionalGeneration",
        translation,
        {**T5, "dropout_rate": 0.1},
        is_tied=True,
        is_encoder_decoder=True,
        draws_random_numbers=True,
    ),
    Architecture(
        "switch-transformers",
        "SwitchTransformersForConditionalGeneration",
        translation,
        SWITCH,
        is_tied=True,
        is_moe=True,
        is_encoder_decoder=True,
        draws_random_numbers=True,
        without_gradient=("*.experts.*",),
    ),
    Architecture(
        "bart",
        "BartForConditionalGeneration",
        translation,
        BART,
        is_tied=True,
        is_encoder_decoder=True,
    ),
    Architecture(
        "bart-layerdrop-dropout",
        "BartForConditionalGeneration",
        translation,
        BART_LAYERDROP,
        is_tied=True,
        is_encoder_decoder=True,
        draws_random_numbers=True,
        skips_layers=True,
        without_gradient=("*.layers.*",),
    ),
    Architecture(
        "pegasus",
        "PegasusForConditionalGeneration",
        translation,
        BART,
        is_tied=True,
        is_encoder_decoder=True,
    ),
    Architecture(
        "mbart",
        "MBartForConditionalGeneration",
        translation,
        BART,
        is_tied=True,
        is_encoder_decoder=True,
    ),
)
