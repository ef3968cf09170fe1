"""What is to be trained, as far as a plan for a system needs to know."""

import math
from dataclasses import dataclass

from openwafer.planning.throughput import ModelShape

ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class TrainingTask:
    """A training in 16-bit.

    Attributes:
        model: its shape.
        batch_size: sequences of a step.
        sequence_length: tokens of a sequence.
        steps: of the training.
        sparsity: share of zeros in the weights that may be sparse.
        layer_activation_bytes: that a layer's forward leaves for a token.
        other_activation_bytes: that the rest of the forward leaves for a token.
    """

    model: ModelShape
    batch_size: int
    sequence_length: int
    steps: int
    sparsity: float
    layer_activation_bytes: float
    other_activation_bytes: float

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.sequence_length

    @property
    def boundary_bytes(self) -> float:
        """Of the vector between two layers, for a token."""
        return self.model.width * ACTIVATION_BYTES

    @property
    def kept_bytes(self) -> float:
        """Of a token's activations, all kept."""
        return self.model.layers * self.layer_activation_bytes + self.other_activation_bytes

    @property
    def recomputed_bytes(self) -> float:
        """Of a token's activations if those of ``sqrt(layers)`` layers at a time are made again.

        Vectors between layers: one for each group and those of the group at work; and the inside
        of the layer at work (Chen et al. 2016, arXiv 1604.06174, section 4.1).
        """
        vectors = 2 * math.sqrt(self.model.layers) * self.boundary_bytes
        return min(
            vectors + self.layer_activation_bytes + self.other_activation_bytes, self.kept_bytes
        )
