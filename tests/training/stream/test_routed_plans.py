"""A model whose control flow depends on values is planned with real tensors, layer by layer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Mode
from tests.tables import case
from tests.training.stream.both_loops import STREAMED, LossOf, Run, plan

WIDTH = 64
NUM_LAYERS = 8


class Routed(nn.Module):
    """Rows with a positive mean take one way, the others another: how many, the values decide."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        is_first = x.mean(-1) > 0
        out = torch.zeros_like(x)
        for way, chosen in zip(self.ways, (is_first, ~is_first), strict=True):
            (rows,) = torch.where(chosen)
            out = out.index_add(0, rows, way(x[rows]))
        return x + out


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Routed() for _ in range(NUM_LAYERS)))


def noting_to(path: Path) -> LossOf:
    """A loss that notes how many bytes of weights have memory when it is taken.

    In a file, since a plan undoes what it changes in the process.
    """

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x).pow(2).mean()
        held = [p.nbytes for p in model.parameters() if p.untyped_storage().nbytes() >= p.nbytes]
        with path.open("a") as file:
            file.write(f"{sum(held)}\n")
        return loss

    return loss_of


@pytest.mark.parametrize(
    ("budget", "mode"),
    [
        case(150_000, Mode.STREAMED, by_default=True),
        case(1 << 30, Mode.RESIDENT, by_default=False),
    ],
)
def test_weights_that_do_not_fit_are_never_in_memory_together(
    tmp_path: Path, budget: int, mode: Mode
) -> None:
    run = Run(
        build,
        lambda model: torch.optim.AdamW(model.parameters(), fused=True),
        lambda generator: torch.randn(16, WIDTH, generator=generator),
        noting_to(tmp_path / "held"),
        num_steps=1,
    )
    options = replace(STREAMED, mode=None, min_layer_bytes=1024)
    planned = plan(run, options, budget=budget)
    weights = sum(parameter.nbytes for parameter in build().parameters())
    assert planned.plan.mode is mode
    assert planned.plan.dry.depends_on_values
    most = max(map(int, (tmp_path / "held").read_text().split()))
    assert (most < weights) is (mode is Mode.STREAMED)
