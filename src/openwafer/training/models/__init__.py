"""Models to train: the reference GPT, the transformers library, checkpoints, a user's modules."""

from openwafer.training.models.build import ModelConfig, build, with_vocab_size
from openwafer.training.models.checkpoint_folder import CheckpointFolder
from openwafer.training.models.export import (
    SAFETENSORS_METADATA,
    HuggingFaceFiles,
    hugging_face_files,
    to_hugging_face,
)
from openwafer.training.models.loss import loss_of
from openwafer.training.models.reference_gpt import GptConfig, GptOutput, ReferenceGpt
from openwafer.training.models.transformers_model import Task, TransformersModel
from openwafer.training.models.user_module import UserModule

__all__ = [
    "SAFETENSORS_METADATA",
    "CheckpointFolder",
    "GptConfig",
    "GptOutput",
    "HuggingFaceFiles",
    "ModelConfig",
    "ReferenceGpt",
    "Task",
    "TransformersModel",
    "UserModule",
    "build",
    "hugging_face_files",
    "loss_of",
    "to_hugging_face",
    "with_vocab_size",
]
