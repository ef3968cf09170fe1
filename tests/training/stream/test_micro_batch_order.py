"""Gradients of micro-batches are added as the plain loop adds them, one after the other.

Each model uses some weights in a way of its own; 1 to 8 micro-batches; every activation policy.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.stream_options import StreamOptions
from tests.tables import case
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    StreamedRun,
    differing,
    plan,
    seed_of,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_gpt import adamw, gpt_run

WIDTH = 24
NUMBERS = (1, 2, 3, 5, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        out_BD: Tensor = self.down(functional.gelu(self.up(x_BD)))
        return x_BD + out_BD


class Repeated(nn.Module):
    """A layer that is called three times, as ALBERT's is, between pinned scales."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x_BD: Tensor) -> Tensor:
        for _ in range(3):
            x_BD = self.blocks[0](x_BD * self.scale)
        return (x_BD * self.scale).square().mean()


class Shared(nn.Module):
    """A weight of the first and the last layer, and one of every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.blocks[3].up.weight = self.blocks[0].up.weight  # type: ignore[union-attr]
        for block in self.blocks:
            block.down.bias = self.blocks[0].down.bias  # type: ignore[union-attr]

    def forward(self, x_BD: Tensor) -> Tensor:
        for block in self.blocks:
            x_BD = block(x_BD)
        return x_BD.square().mean()


class OwnWays(nn.Module):
    """Micro-batches that take their layers in different orders, and not all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x_BD: Tensor) -> Tensor:
        order = [(0, 1, 2), (2, 0), (1, 2, 0)][int(x_BD.shape[0]) % 3]
        for index in order:
            x_BD = self.blocks[index](x_BD)
        return x_BD.square().mean()


class Running(nn.Module):
    """Statistics that a forward moves, pinned and in layers, and a count that turns values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.blocks = nn.ModuleList([Counting() for _ in range(2)])

    def forward(self, x_BD: Tensor) -> Tensor:
        x_BD = self.norm(x_BD)
        for block in self.blocks:
            x_BD = block(x_BD)
        return x_BD.square().mean()


class Counting(Block):
    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x_BD: Tensor) -> Tensor:
        self.num_calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x_BD.detach().mean(0)
        return super().forward(x_BD - self.mean) * (1 + self.num_calls % 3)


def draw(generator: torch.Generator, *, has_equal_sizes: bool) -> Tensor:
    size = 6 if has_equal_sizes else int(torch.randint(4, 9, (), generator=generator))
    return torch.randn(size, WIDTH, generator=generator)


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def loss_of(model: nn.Module, x_BD: Tensor) -> Tensor:
    loss: Tensor = model(x_BD)
    return loss


def buffers(model: nn.Module) -> Parameters:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def run_of(kind: Callable[[], nn.Module], number: int) -> Run:
    drawing = partial(draw, has_equal_sizes=kind is not OwnWays)
    return Run(partial(seeded, kind), adamw, drawing, loss_of, 4, number)


RUNS: dict[str, Callable[[int], Run]] = {
    "untied decoder": lambda number: gpt_run(num_steps=3, num_micro_batches=number),
    "tied decoder": lambda number: gpt_run(num_steps=3, num_micro_batches=number, is_tied=True),
    "clipped": lambda number: gpt_run(num_steps=3, num_micro_batches=number, clips=True),
    "repeated layer": partial(run_of, Repeated),
    "shared weights": partial(run_of, Shared),
    "running statistics": partial(run_of, Running),
    "own ways": partial(run_of, OwnWays),
}
# Each model runs by default, policies and small numbers in turn.
DEFAULT = {*zip(RUNS, cycle(Activations), cycle(NUMBERS[:4]))}
DEFAULT = {cell for cell in DEFAULT if cell[0] not in ("untied decoder", "clipped")}
CASES = [
    case(*cell, by_default=cell in DEFAULT, id="{}, {}, {}".format(*cell))
    for cell in product(RUNS, Activations, NUMBERS)
]


@cache
def plain_parameters(model: str, number: int) -> Parameters:
    return train_plainly(RUNS[model](number))


def options(policy: Activations) -> StreamOptions:
    return replace(STREAMED, default_activations=policy, min_layer_bytes=1)


@pytest.mark.parametrize(("model", "policy", "number"), CASES)
def test_parameters_are_those_of_the_plain_loop(
    model: str, policy: Activations, number: int
) -> None:
    run = RUNS[model](number)
    streamed = train_streamed(run, plan(run, options(policy)))
    found = streamed.parameters()
    streamed.close()
    assert differing(found, plain_parameters(model, number)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [case(p, by_default=p is Activations.RECOMPUTE) for p in Activations]
)
def test_buffers_see_micro_batches_in_the_order_of_the_plain_loop(policy: Activations) -> None:
    run = RUNS["running statistics"](3)
    plain = run.build()
    for step, index in product(range(run.num_steps), range(3)):
        run.loss_of(plain, run.batch(step, index))
    streamed = train_streamed(replace(run, optimize=resting), plan(run, options(policy)))
    streamed.close()
    assert differing(buffers(streamed.model), buffers(plain)) == []


def resting(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


@pytest.mark.parametrize("mode", [Mode.RESIDENT, Mode.STREAMED])
def test_watchers_see_the_gradients_of_each_micro_batch(mode: Mode) -> None:
    run = RUNS["tied decoder"](3)
    streamed = StreamedRun(run, plan(run, replace(STREAMED, mode=mode)))
    seen: dict[tuple[int, str], Tensor] = {}
    streamed.execution.watch_micro_batches(lambda *_: None)
    streamed.execution.watch_micro_batches(lambda i, name, g: seen.update({(i, name): g.clone()}))
    streamed.step(0)
    streamed.close()
    for index in range(3):
        found = {name: gradient for (of, name), gradient in seen.items() if of == index}
        assert differing(found, plain_gradients(run, index)) == []


def plain_gradients(run: Run, index: int) -> Parameters:
    model = run.build()
    seed_of(0, index)
    (run.loss_of(model, run.batch(0, index)) / run.num_micro_batches).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
