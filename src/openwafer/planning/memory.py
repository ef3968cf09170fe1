"""Counts the memory of a training, and the tokens that leave room for it.

On a wafer that streams weights the activations of a micro-batch stay beside the cores, so that the
memory bounds the tokens of a pass; weights and optimizer states are in the parameter store.
"""

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

ACTIVATION_BYTES: Final = 2
"""Of one activation in a 16-bit format."""

STORE_BYTES_PER_WEIGHT: Final = 20
"""With Adam, between steps: 2.4 PB for 120 trillion weights (Lie, Hot Chips 33, 2021)."""

UPDATE_BYTES_PER_WEIGHT: Final = 36
"""That Adam moves in the store for each weight: 16 read, 16 written, 4 of gradients."""


class Sharding(IntEnum):
    """The stages of ZeRO: what systems divide among themselves, in place of a copy on each.

    Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1. The last is what FSDP does.
    """

    NONE = 0
    STATES = 1
    GRADIENTS = 2
    WEIGHTS = 3


PARTS_OF_A_WEIGHT: Final[Mapping[Sharding, int]] = {
    Sharding.STATES: 12,
    Sharding.GRADIENTS: 2,
    Sharding.WEIGHTS: 2,
}
"""Bytes in training with Adam, by what deals them: in fp32 the weight and two moments."""

RESIDENT_BYTES_PER_WEIGHT: Final = sum(PARTS_OF_A_WEIGHT.values())
"""Of a system that holds all: 16."""


def sharded_bytes(sharding: Sharding, num_systems: int) -> float:
    """That each of so many systems holds for a weight, its gradient and its states."""
    return sum(
        own / (num_systems if sharding >= stage else 1) for stage, own in PARTS_OF_A_WEIGHT.items()
    )


def held_activations(memory_bytes: float, weights_bytes: float = 0.0) -> float:
    """Activations that memory has room for beside weights; 0 where these alone are too large.

    40 GB hold 20 billion, as published of the CS-2 (Lie, Hot Chips 33, 2021).
    """
    return max(memory_bytes - weights_bytes, 0.0) / ACTIVATION_BYTES


def tokens_kept(activations: float, layers: int, width: int) -> float:
    """Tokens whose activations are all held: one vector of `width` a token and layer.

    What a layer needs inside is made again when its gradients are, from that vector.
    """
    return activations / (layers * width)


def tokens_recomputed(activations: float, layers: int, width: int) -> float:
    """Tokens if only every sqrt(`layers`)-th vector is held, and the others are made again.

    ``2 sqrt(layers)`` vectors at a time: Chen et al. 2016, arXiv 1604.06174, section 4.1.
    """
    return activations / (2 * math.sqrt(layers) * width)


def tokens_of_product(activations: float, features: int) -> float:
    """Tokens of one product with a square matrix of `features` rows: inputs and outputs held."""
    return activations / (2 * features)


def store_bytes(parameters: float, bytes_per_weight: float = STORE_BYTES_PER_WEIGHT) -> float:
    """What the parameter store holds."""
    return parameters * bytes_per_weight


def stored_parameters(capacity_bytes: float) -> float:
    """The largest model of a parameter store, in weights trained with Adam."""
    return capacity_bytes / STORE_BYTES_PER_WEIGHT
