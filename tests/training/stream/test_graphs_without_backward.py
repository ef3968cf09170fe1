"""A graph that no backward comes to goes when its loss goes, and its activations with it."""

import weakref

import pytest
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from tests.training.stream.foreign_loops import SIZE, new_loop, stream

RESULTS: "list[weakref.ref[Tensor]]" = []


class Exponent(nn.Linear):
    """Saves its own result."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x).exp()
        RESULTS.append(weakref.ref(result))
        return result


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Exponent(SIZE, SIZE) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sigmoid()
        return x


@pytest.mark.parametrize("policy", [Activations.KEEP, Activations.OFFLOAD])
def test_what_a_forward_saved_goes_with_its_loss(policy: Activations) -> None:
    loop = new_loop(Stack)
    with stream(loop, policy=policy):
        loop.train(1)
        RESULTS.clear()
        loss = loop.loss(1)
        del loss
        assert [result() for result in RESULTS] == [None] * len(RESULTS)
