"""Rows of models that hear."""

from tests.training.models.architecture import SPECIAL, Architecture
from tests.training.models.architecture_batches import NUM_MELS, VOCAB_SIZE, spectrogram, waveform

WHISPER = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_mel_bins": NUM_MELS,
    "max_source_positions": 16,
    "max_target_positions": 32,
    "decoder_start_token_id": 1,
    **SPECIAL,
}
WAV2VEC2 = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": [16, 16],
    "conv_kernel": [4, 4],
    "conv_stride": [2, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    **SPECIAL,
}

SPEECH = (
    Architecture(
        "whisper",
        "WhisperForConditionalGeneration",
        spectrogram,
        WHISPER,
        is_tied=True,
        is_encoder_decoder=True,
    ),
    Architecture(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        waveform,
        WAV2VEC2,
        without_gradient=("*.masked_spec_embed",),
    ),
)
