"""Rows of models that see or hear."""

from tests.training.models.architecture import DECODER, SPECIAL, TEXT, VISION, Architecture
from tests.training.models.architecture_batches import (
    IMAGE_SIZE,
    IMAGE_TOKEN,
    NUM_CLASSES,
    NUM_MELS,
    VOCAB_SIZE,
    image,
    image_and_text,
    image_in_text,
    spectrogram,
    waveform,
)

VIT = {**VISION, "num_labels": NUM_CLASSES}
DINOV2 = {
    "hidden_size": 32,
    "mlp_ratio": 2,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": IMAGE_SIZE,
    "patch_size": 8,
    "num_labels": NUM_CLASSES,
}
SWIN = {
    "image_size": IMAGE_SIZE,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "drop_path_rate": 0.0,
    "num_labels": NUM_CLASSES,
}
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "num_labels": NUM_CLASSES,
}
CONVNEXT = {
    "hidden_sizes": [8, 16],
    "depths": [2, 2],
    "num_stages": 2,
    "patch_size": 4,
    "image_size": IMAGE_SIZE,
    "num_labels": NUM_CLASSES,
}
CLIP = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16}
SIGLIP = {"text_config": {**TEXT, "projection_size": 32}, "vision_config": VISION}
LLAVA = {
    "text_config": {**DECODER, "model_type": "llama"},
    "vision_config": {**VISION, "model_type": "clip_vision_model"},
    "image_token_index": IMAGE_TOKEN,
}
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
LAST_VISION_LAYER = ("model.vision_tower.encoder.layers.2.*", "model.vision_tower.post_layernorm.*")

PERCEPTION = (
    Architecture("vit", "ViTForImageClassification", image, VIT),
    Architecture(
        "vit-dropout",
        "ViTForImageClassification",
        image,
        {**VIT, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        draws_random_numbers=True,
    ),
    Architecture("deit", "DeiTForImageClassification", image, VIT),
    Architecture(
        "beit",
        "BeitForImageClassification",
        image,
        {**VIT, "use_relative_position_bias": True, "drop_path_rate": 0.1},
        draws_random_numbers=True,
    ),
    Architecture(
        "dinov2", "Dinov2ForImageClassification", image, DINOV2, without_gradient=("*.mask_token",)
    ),
    Architecture("swin", "SwinForImageClassification", image, SWIN),
    Architecture("convnext", "ConvNextForImageClassification", image, CONVNEXT),
    Architecture(
        "resnet", "ResNetForImageClassification", image, RESNET, has_stateful_buffers=True
    ),
    Architecture("clip", "CLIPModel", image_and_text, CLIP),
    Architecture("siglip", "SiglipModel", image_and_text, SIGLIP),
    Architecture(
        "llava",
        "LlavaForConditionalGeneration",
        image_in_text,
        LLAVA,
        without_gradient=LAST_VISION_LAYER,
    ),
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
