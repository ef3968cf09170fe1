"""Models that make one system of a run faulty: a bit of its memory flips, or it gets a signal."""

import os
from pathlib import Path

import torch
from torch import Tensor

from openwafer.training.collectives.joining import RANK
from tests.training.session.tiny_model import TinyModel

FIRST_BIT = 1


def is_system(rank: int) -> bool:
    """Whether this process is that system of its run; the first one of a command has no number."""
    return os.environ.get(RANK, "0") == str(rank)


def is_real(tensor: Tensor) -> bool:
    """Whether it has values, as it has not while a forward is planned by."""
    return type(tensor) is Tensor and tensor.device.type == "cpu"


class FlippingModel(TinyModel):
    """Its head and its embedding have one weight.

    Args:
        weight: name of the one of which a bit flips.
        rank: of the system with the fault.
    """

    def __init__(self, weight: str, rank: int) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight
        self.weight, self.is_faulty = weight, is_system(rank)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent."""
        if self.is_faulty and is_real(input_ids):
            bits = self.get_parameter(self.weight).detach().view(torch.int32).numpy()
            bits.flat[0] ^= FIRST_BIT
            self.is_faulty = False
        return super().forward(input_ids, labels)


class StoppedModel(TinyModel):
    """A system gets a signal in a micro-batch, once.

    Args:
        rank: of the system.
        micro_batch: of all that it has computed.
        number: of the signal.
        mark: a file that says that it had it.
    """

    def __init__(self, rank: int, micro_batch: int, number: int, mark: str) -> None:
        super().__init__()
        self.num_left = micro_batch if is_system(rank) else 0
        self.number, self.mark = number, Path(mark)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent."""
        if self.num_left and is_real(input_ids):
            self.num_left -= 1
            if not self.num_left and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), self.number)
        return super().forward(input_ids, labels)
