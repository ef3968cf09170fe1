"""Models to train: the reference GPT, the transformers library, checkpoints, a user's modules."""

from openwafer.training.models.build import ModelConfig, UserModule, build
from openwafer.training.models.checkpoint_folder import CheckpointFolder
from openwafer.training.models.loss import loss_of
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.models.transformers_model import Task, TransformersModel

__all__ = [
    "CheckpointFolder",
    "GptConfig",
    "ModelConfig",
    "ReferenceGpt",
    "Task",
    "TransformersModel",
    "UserModule",
    "build",
    "loss_of",
]
