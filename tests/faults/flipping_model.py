"""A model of which one system has a faulty memory: a bit of a weight flips there."""

import os

import torch
from torch import Tensor

from openwafer.training.collectives.joining import RANK
from tests.training.session.tiny_model import TinyModel

FIRST_BIT = 1


class FlippingModel(TinyModel):
    """Its head and its embedding have one weight.

    Args:
        weight: name of the one that flips.
        rank: of the system with the fault; no launcher names it to the first one.
    """

    def __init__(self, weight: str, rank: int) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight
        self.weight, self.is_faulty = weight, os.environ.get(RANK) == str(rank)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent; a forward that is planned by has no memory that could be faulty."""
        if self.is_faulty and type(input_ids) is Tensor and input_ids.device.type == "cpu":
            bits = self.get_parameter(self.weight).detach().view(torch.int32).numpy()
            bits.flat[0] ^= FIRST_BIT
            self.is_faulty = False
        return super().forward(input_ids, labels)
