"""What a row of the table of architectures is, and the tiny sizes the rows share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from openwafer.training.models import TransformersModel, build
from tests.training.models.architecture_batches import VOCAB_SIZE, Batch


@dataclass(frozen=True)
class Architecture:
    """One row: a tiny configuration of one architecture of the transformers library.

    Attributes:
        name: short and unique; ends in "-dropout" where dropout is on.
        model_class: class of the transformers library.
        make_batch: keyword arguments of forward for a seed and a batch size.
        config: overrides of the class's config.
        is_tied: a parameter has two names.
        is_moe: has a mixture of experts.
        is_encoder_decoder: has an encoder whose output every decoder layer reads.
        has_stateful_buffers: forward changes buffers, as batch norm does.
        draws_random_numbers: forward in training mode advances the random state.
        skips_layers: forward calls a random subset of its layers.
        writes_weights: forward writes to weights, which cannot be streamed then.
        needs_fp32_range: its own checks fail under fp16 for the small random weights on which a
            plan is made.
        without_gradient: globs over the trainable parameters that the loss does not reach.
    """

    name: str
    model_class: str
    make_batch: Callable[[int, int], Batch] = field(repr=False)
    config: Mapping[str, object] = field(repr=False)
    is_tied: bool = False
    is_moe: bool = False
    is_encoder_decoder: bool = False
    has_stateful_buffers: bool = False
    draws_random_numbers: bool = False
    skips_layers: bool = False
    writes_weights: bool = False
    needs_fp32_range: bool = False
    without_gradient: tuple[str, ...] = ()

    def build(self, seed: int = 0) -> nn.Module:
        """The model in training mode, initialised from ``seed``."""
        return build(TransformersModel(self.model_class, config=self.config), seed)

    def batch(self, seed: int = 0, size: int = 2) -> Batch:
        """Keyword arguments of forward; ``model(**batch).loss`` is a scalar with a graph."""
        return self.make_batch(seed, size)


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **SPECIAL,
}
DECODER = {**TEXT, "num_key_value_heads": 2}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
