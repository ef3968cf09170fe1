"""Several forwards before a backward on several systems, on devices that hold few graphs."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tests.tables import some
from tests.training.stream.both_loops import STREAMED, differing
from tests.training.stream.loop_programs import joined, rank
from tests.training.stream.loop_ranks import LoopRanks

SIZE, CAP = 64, "400000B"
NUM_FORWARDS, FEW, MANY = 2, 8, 200


class Chain(nn.Module):
    """Six layers that save much and are small, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        linear = [nn.Linear(SIZE, SIZE) for _ in range(6)]
        layers = (nn.Sequential(one, nn.GELU(), nn.SiLU(), nn.Tanh()) for one in linear)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def backward(model: nn.Module, num_rows: int) -> None:
    torch.manual_seed(num_rows)
    batches = [torch.randn(num_rows, SIZE) for _ in range(NUM_FORWARDS)]
    torch.stack([model(batch) for batch in batches]).sum().backward()


def plain_gradients(sizes: tuple[int, ...]) -> dict[str, Tensor]:
    model = Chain()
    for num_rows in sizes:
        backward(model, num_rows)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class Forwards:
    """Gradients behind forwards of so many rows on each system, on rank 0."""

    sizes: tuple[int, ...]

    def __call__(self) -> dict[str, Tensor]:
        model = Chain()
        optimizer = torch.optim.AdamW(model.parameters())
        with joined(model, optimizer, STREAMED, memory=CAP) as streamed:
            backward(model, self.sizes[rank()])
            return {} if rank() else dict(streamed.gradients())


SIZES = [(MANY, MANY), (MANY, FEW), (FEW, MANY)]


@pytest.mark.parametrize(("first", "second"), some(SIZES, (FEW, MANY)))
def test_graphs_of_any_system_make_room_for_its_next_forward(
    loop_ranks: LoopRanks, first: int, second: int
) -> None:
    sizes = first, second
    found = loop_ranks.run(Forwards(sizes))[0]
    assert isinstance(found, dict), found
    assert differing(found, plain_gradients(sizes)) == []
