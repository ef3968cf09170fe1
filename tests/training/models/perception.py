"""Rows of models that see."""

from tests.training.models.architecture import DECODER, TEXT, VISION, Architecture
from tests.training.models.architecture_batches import (
    IMAGE_SIZE,
    IMAGE_TOKEN,
    NUM_CLASSES,
    image,
    image_and_text,
    image_in_text,
)
from tests.training.models.encoders import QUIET

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
        "dinov2-with-registers",
        "Dinov2WithRegistersForImageClassification",
        image,
        DINOV2,
        without_gradient=("*.mask_token",),
    ),
    Architecture("vit-msn", "ViTMSNForImageClassification", image, VIT),
    Architecture("swinv2", "Swinv2ForImageClassification", image, SWIN),
    Architecture("convnextv2", "ConvNextV2ForImageClassification", image, CONVNEXT),
    Architecture(
        "poolformer",
        "PoolFormerForImageClassification",
        image,
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "padding": [1, 1],
            "drop_path_rate": 0.0,
            "num_labels": NUM_CLASSES,
        },
    ),
    Architecture(
        "segformer",
        "SegformerForImageClassification",
        image,
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "sr_ratios": [2, 1],
            "drop_path_rate": 0.0,
            "num_labels": NUM_CLASSES,
            "decoder_hidden_size": 8,
        },
    ),
    Architecture(
        "regnet",
        "RegNetForImageClassification",
        image,
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "groups_width": 4,
            "num_labels": NUM_CLASSES,
        },
        has_stateful_buffers=True,
    ),
    Architecture(
        "mobilenet-v1",
        "MobileNetV1ForImageClassification",
        image,
        {
            "image_size": 16,
            "depth_multiplier": 0.125,
            "classifier_dropout_prob": 0.0,
            "num_labels": NUM_CLASSES,
        },
        has_stateful_buffers=True,
    ),
    Architecture(
        "mobilenet-v2",
        "MobileNetV2ForImageClassification",
        image,
        {
            "image_size": 16,
            "depth_multiplier": 0.125,
            "classifier_dropout_prob": 0.0,
            "num_labels": NUM_CLASSES,
        },
        has_stateful_buffers=True,
    ),
    Architecture(
        "bit",
        "BitForImageClassification",
        image,
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_groups": 4,
            "num_labels": NUM_CLASSES,
        },
    ),
    Architecture(
        "focalnet",
        "FocalNetForImageClassification",
        image,
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "focal_levels": [1, 1],
            "focal_windows": [3, 3],
            "drop_path_rate": 0.0,
            "num_labels": NUM_CLASSES,
        },
    ),
    Architecture(
        "hiera",
        "HieraForImageClassification",
        image,
        {
            "embed_dim": 8,
            "image_size": [16, 16],
            "patch_size": [3, 3],
            "patch_stride": [2, 2],
            "patch_padding": [1, 1],
            "depths": [1, 1],
            "num_heads": [1, 2],
            "embed_dim_multiplier": 2.0,
            "num_query_pool": 1,
            "query_stride": [2, 2],
            "masked_unit_size": [4, 4],
            "masked_unit_attention": [True, True],
            "drop_path_rate": 0.0,
            "num_labels": NUM_CLASSES,
        },
    ),
    Architecture("ijepa", "IJepaForImageClassification", image, VIT),
    Architecture(
        "data2vec-vision",
        "Data2VecVisionForImageClassification",
        image,
        {**VIT, "use_relative_position_bias": True, "drop_path_rate": 0.0},
    ),
    Architecture("clipseg", "CLIPSegModel", image_and_text, CLIP),
    Architecture(
        "chinese-clip", "ChineseCLIPModel", image_and_text, {**CLIP, "text_config": QUIET}
    ),
    Architecture(
        "altclip",
        "AltCLIPModel",
        image_and_text,
        {**CLIP, "text_config": {**QUIET, "project_dim": 32}},
    ),
    Architecture("metaclip2", "MetaClip2Model", image_and_text, CLIP),
)
