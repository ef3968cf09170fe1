"""Rows of encoders for text."""

from tests.training.models.architecture import DECODER, SPECIAL, TEXT, Architecture
from tests.training.models.architecture_batches import VOCAB_SIZE, masked

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
    Architecture("camembert", "CamembertForMaskedLM", masked, QUIET, is_tied=True),
    Architecture("xlm-roberta", "XLMRobertaForMaskedLM", masked, QUIET, is_tied=True),
    Architecture("xlm-roberta-xl", "XLMRobertaXLForMaskedLM", masked, QUIET, is_tied=True),
    Architecture(
        "roberta-prelayernorm", "RobertaPreLayerNormForMaskedLM", masked, QUIET, is_tied=True
    ),
    Architecture("ernie", "ErnieForMaskedLM", masked, QUIET, is_tied=True),
    Architecture("megatron-bert", "MegatronBertForMaskedLM", masked, QUIET, is_tied=True),
    Architecture(
        "funnel",
        "FunnelForMaskedLM",
        masked,
        {
            "vocab_size": VOCAB_SIZE,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 48,
            "num_decoder_layers": 1,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            **SPECIAL,
        },
        is_tied=True,
    ),
    Architecture(
        "layoutlm",
        "LayoutLMForMaskedLM",
        masked,
        QUIET,
        is_tied=True,
        without_gradient=("*.pooler.*",),
    ),
    Architecture(
        "longformer",
        "LongformerForMaskedLM",
        masked,
        {**QUIET, "attention_window": 4},
        is_tied=True,
        without_gradient=("*_global.*",),
    ),
    Architecture(
        "rembert",
        "RemBertForMaskedLM",
        masked,
        {
            **QUIET,
            "input_embedding_size": 16,
            "output_embedding_size": 24,
            "classifier_dropout_prob": 0.0,
        },
    ),
    Architecture("roformer", "RoFormerForMaskedLM", masked, QUIET, is_tied=True),
    Architecture(
        "squeezebert",
        "SqueezeBertForMaskedLM",
        masked,
        {**QUIET, "embedding_size": 32},
        is_tied=True,
        without_gradient=("*.pooler.*",),
    ),
    Architecture(
        "ibert",
        "IBertForMaskedLM",
        masked,
        {**QUIET, "quant_mode": True},
        is_tied=True,
        has_stateful_buffers=True,
        needs_fp32_range=True,
        without_gradient=("*.LayerNorm.bias",),
    ),
    Architecture(
        "esm",
        "EsmForMaskedLM",
        masked,
        {**QUIET, "mask_token_id": 4, "position_embedding_type": "rotary"},
        is_tied=True,
        without_gradient=("esm.contact_head.*",),
    ),
    Architecture("eurobert", "EuroBertForMaskedLM", masked, DECODER),
    Architecture("data2vec-text", "Data2VecTextForMaskedLM", masked, QUIET, is_tied=True),
)
