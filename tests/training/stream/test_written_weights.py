"""Weights that a forward writes to after many that did not, and those it reads by their place."""

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.tables import checkerboard
from tests.training.stream.foreign_loops import new_loop, stream

SIZE = 32


class Late(nn.Module):
    """A layer that scales its weight once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, SIZE)
        self.is_late = False

    def forward(self, x: Tensor) -> Tensor:
        if self.is_late:
            self.change(self.second.weight)
        out: Tensor = self.second(self.first(x).tanh()) + x
        return out

    def change(self, weight: Tensor) -> None:
        with torch.no_grad():
            weight.mul_(0.9)


class LateData(Late):
    """Autograd counts no write to what it writes to."""

    def change(self, weight: Tensor) -> None:
        weight.data[1:].clamp_(-0.1, 0.1)


class Strides(Late):
    """A layer that reads its weight from the beginning of its storage."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.second.weight.as_strided((SIZE, SIZE), (SIZE, 1), 0)
        return torch.nn.functional.linear(super().forward(x), weight)


class Stacked(nn.Module):
    def __init__(self, kind: type[Late]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind(), kind()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("policy", "kind", "grad"), checkerboard(Activations, (Late, LateData), (True, False), one_in=3)
)
def test_a_late_write_is_refused_where_the_layer_ends(
    policy: Activations, kind: type[Late], grad: bool
) -> None:
    loop = new_loop(lambda: Stacked(kind))
    with stream(loop, policy=policy):
        loop.train(5)
        loop.model.get_submodule("layers.1").__dict__["is_late"] = True
        message = r"writes to the weight 'layers\.1\.second\.weight'"
        with torch.set_grad_enabled(grad), pytest.raises(OpenwaferError, match=message):
            loop.loss(5)


def test_a_weight_that_is_read_by_its_place_is_refused() -> None:
    loop = new_loop(lambda: Stacked(Strides))
    message = r"reads 'layers\.0\.second\.weight' by as_strided with a storage_offset"
    with stream(loop), pytest.raises(OpenwaferError, match=message):
        loop.train(1)
