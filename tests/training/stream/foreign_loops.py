"""One model, one loop's own lines, twice: plainly and with streamed weights."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _pytest.mark.structures import ParameterSet
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from openwafer.training.frontends import StreamedLoop, stream_weights
from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.stream.both_loops import STREAMED

SIZE = 32
CAP = "200KiB"


class Small(nn.Module):
    """Three layers with dropout between two others, and a pinned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(SIZE, SIZE)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE), nn.Dropout(0.1))
            for _ in range(3)
        )
        self.scale = nn.Parameter(torch.tensor([1.5, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for layer in self.layers:
            x = layer(x).tanh()
        return x * self.scale[0] + self.scale[1]


@dataclass
class Loop:
    """What a loop has in hand, and what it has seen."""

    model: nn.Module
    optimizer: Optimizer

    def loss(self, step: int) -> Tensor:
        torch.manual_seed(step)
        loss: Tensor = self.model(torch.randn(4, SIZE)).pow(2).mean()
        return loss

    def backward(self, step: int = 0) -> None:
        self.loss(step).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, num_steps: int = 2) -> None:
        for step in range(num_steps):
            self.backward(step)
            self.step()

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


Lines = Callable[[Loop], Any]


def on_both_tiers(table: list[Lines]) -> list[ParameterSet]:
    """Every case in DRAM and on disk: one of the two by default, in turns, the other as slow."""
    return [
        case(
            lines,
            is_on_disk,
            by_default=is_on_disk is bool(number % 2),
            id=f"{lines.__name__}-{'disk' if is_on_disk else 'dram'}",
        )
        for number, lines in enumerate(table)
        for is_on_disk in (False, True)
    ]


def some_in_a_row(table: list[Lines], num_cases: int = 5) -> list[ParameterSet]:
    """Loops that do so many cases one after the other, which share what it takes to plan.

    Each by itself, in DRAM and on disk, is slow.
    """
    rows = [table[first : first + num_cases] for first in range(0, len(table), num_cases)]
    alone = [case(*row.values, by_default=False, id=str(row.id)) for row in on_both_tiers(table)]
    return [row for row in on_both_tiers([in_a_row(row) for row in rows]) if not row.marks] + alone


def in_a_row(row: list[Lines]) -> Lines:
    """A loop that does some cases one after the other, with a step between."""

    def lines(loop: Loop) -> Any:
        seen = []
        for one in row:
            seen.append(one(loop))
            loop.train(1)
        return seen

    lines.__name__ = "+".join(one.__name__ for one in row)
    return lines


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def new_loop(build: Callable[[], nn.Module] = Small) -> Loop:
    torch.manual_seed(0)
    model = build()
    return Loop(model, adamw(model))


def stream(
    loop: Loop, *, folder: Path | None = None, policy: Activations | None = None
) -> StreamedLoop:
    """On disk where there is a folder."""
    options = replace(STREAMED, default_activations=policy)
    if folder is not None:
        options = replace(options, tier=StoreTier.DISK, host_memory_bytes=100_000)
    return stream_weights(
        loop.model, loop.optimizer, device_memory=CAP, folder=folder, options=options
    )


def outcome(
    lines: Lines,
    *,
    build: Callable[[], nn.Module] = Small,
    streams: bool = True,
    trains_before: bool = True,
    trains_on: bool = True,
    **options: Any,
) -> list[Tensor]:
    """All that a loop has seen, and all that it leaves in model and optimizer."""
    loop = new_loop(build)
    with stream(loop, **options) if streams else nullcontext():
        loop.train(int(trains_before))
        seen = lines(loop)
        loop.train(int(trains_on))
        left = seen, loop.model.state_dict(), loop.optimizer.state_dict()["state"]
        leaves = [leaf for leaf in pytree.tree_leaves(left) if leaf is not None]
        return [torch.as_tensor(leaf).clone() for leaf in leaves]


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))
