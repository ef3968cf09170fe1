"""A complex parameter beside the layers learns what it learns in the plain loop."""

import torch
from torch import Tensor, nn

from tests.training.stream.layers_with_state import WIDTH, Bare, Chain
from tests.training.stream.own_loops import PLAINLY, WAYS, differing, run_loop


class Bent(Bare):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.exp(self.inner(x_BTD))


class Filtered(nn.Module):
    """Multiplies its input's spectrum by a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))
        self.chain = Chain(Bent(), Bent())

    def forward(self, x_BTD: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x_BTD, norm="ortho") * self.filter
        loss: Tensor = self.chain(torch.fft.irfft(spectrum, n=WIDTH, norm="ortho"))
        return loss


def test_a_filter_of_a_spectrum_has_the_bits_of_the_plain_loop() -> None:
    plain, streamed = (run_loop(Filtered, way) for way in (PLAINLY, WAYS["recompute"]))
    assert differing(streamed, plain) == []
