"""Layers whose forward gives a buffer another size, as observers of ranges do."""

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from tests.training.stream.foreign_loops import SIZE, are_equal, outcome


class Ranged(nn.Linear):
    """Scales by the largest number that each column has had; of none before its first call."""

    def __init__(self) -> None:
        super().__init__(SIZE, SIZE)
        self.largest: Tensor
        self.register_buffer("largest", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        found = x.detach().abs().amax(0)
        if not self.largest.numel():
            self.largest.resize_(SIZE).zero_()
        self.largest.copy_(torch.maximum(self.largest, found))
        return super().forward(x / (1 + self.largest)).tanh()


@pytest.mark.parametrize("policy", Activations)
def test_a_buffer_that_is_resized_is_that_of_the_plain_loop(policy: Activations) -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(Ranged() for _ in range(4)))

    expected = outcome(lambda loop: loop.train(2), build=build, streams=False)
    assert are_equal(outcome(lambda loop: loop.train(2), build=build, policy=policy), expected)
