"""Describes a training, as far as a plan for a system needs to know."""

import math
from dataclasses import dataclass
from enum import StrEnum

from openwafer.planning.memory import ACTIVATION_BYTES
from openwafer.planning.placement import LayerLoad
from openwafer.planning.throughput import ModelShape


class Activations(StrEnum):
    """The ways to have activations in the backward."""

    KEPT = "kept"
    BY_LAYER = "recomputed layer by layer"
    BY_GROUPS = "recomputed by groups of layers"

    @property
    def forwards_again(self) -> int:
        """Forwards that a backward makes again: of each layer, and before that of each group."""
        return {Activations.KEPT: 0, Activations.BY_LAYER: 1, Activations.BY_GROUPS: 2}[self]


@dataclass(frozen=True)
class TrainingTask:
    """A training in 16-bit.

    Attributes:
        model: its shape.
        batch_size: sequences of a step, of the largest where steps differ.
        sequence_length: tokens of a sequence.
        steps: steps of the training; 0 where nobody has counted them.
        sparsity: share of zeros in the weights that may be sparse.
        layer_activation_bytes: bytes that a layer's forward leaves for a token.
        other_activation_bytes: bytes that the rest of the forward leaves for a token.
        fused_attentions: attentions of a forward whose scores stay within a kernel.
        changing: batch sizes with the numbers of steps that have them, where steps differ.
        loads: loads of the layers on a wafer, one after the other, as if dense; none where the
            model does not call each of them once.
    """

    model: ModelShape
    batch_size: int
    sequence_length: int
    steps: int
    sparsity: float
    layer_activation_bytes: float
    other_activation_bytes: float
    fused_attentions: int = 0
    changing: tuple[tuple[int, int], ...] = ()
    loads: tuple[LayerLoad, ...] = ()

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Each batch size with the number of steps that have it."""
        return self.changing or ((self.batch_size, self.steps),)

    @property
    def step_tokens(self) -> int:
        """Tokens of a step, of the largest where steps differ."""
        return self.batch_size * self.sequence_length

    @property
    def tokens(self) -> int:
        """Tokens of the training."""
        return sum(size * steps for size, steps in self.sizes) * self.sequence_length

    @property
    def size_source(self) -> str:
        """Which steps `batch_size` is of."""
        if len(self.sizes) == 1:
            return "the config"
        return "the config, the largest: " + ", then ".join(
            f"{steps} steps of {size}" for size, steps in self.sizes
        )

    @property
    def boundary_bytes(self) -> float:
        """Of the vector between two layers, for a token."""
        return self.model.width * ACTIVATION_BYTES

    @property
    def kept_bytes(self) -> float:
        """Of a token's activations, all kept."""
        return self.model.layers * self.layer_activation_bytes + self.other_activation_bytes

    def activation_bytes(self, activations: Activations) -> float:
        """Of a token's activations: vectors between layers, and the inside of the layer at work.

        Made again by groups, vectors are there for each group and for the layers of one (Chen et
        al. 2016, arXiv 1604.06174, section 4.1).
        """
        if activations is Activations.KEPT:
            return self.kept_bytes
        layers = self.model.layers
        vectors = layers if activations is Activations.BY_LAYER else 2 * math.sqrt(layers)
        recomputed = vectors * self.boundary_bytes + self.layer_activation_bytes
        return min(recomputed + self.other_activation_bytes, self.kept_bytes)
