"""Micro-batches find in a model, and around it, what they find in a plain loop.

What a forward leaves for a later part of itself, for the next forward, or for others: each model
does that in a way of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from openwafer.training.stream.stream_options import StreamOptions
from tests.tables import checkerboard, some
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    StreamedRun,
    differing,
    plan,
    train_plainly,
    train_streamed,
)

WIDTH = 24
SEEN: list[float] = []

with torch.inference_mode():
    TABLE = torch.ones(20_000)


@pytest.fixture(autouse=True)
def from_nothing() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        out_BD: Tensor = x_BD + self.down(torch.tanh(self.up(x_BD)))
        return out_BD


class Model(nn.Module):
    """Blocks with nothing between them."""

    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.num_calls = 0

    def forward(self, x_BD: Tensor) -> Tensor:
        for block in self.blocks:
            x_BD = self.between(block(x_BD))
        return x_BD.square().mean()

    def between(self, x_BD: Tensor) -> Tensor:
        return x_BD


class Balanced(Block):
    """Leaves a loss for the model, as routers of experts do."""

    balance: Tensor

    def forward(self, x_BD: Tensor) -> Tensor:
        out_BD = super().forward(x_BD)
        self.balance = out_BD.softmax(-1).mean(0).square().sum()
        return out_BD


class LossesOfLayers(Model):
    def __init__(self) -> None:
        super().__init__(Balanced)

    def forward(self, x_BD: Tensor) -> Tensor:
        loss = super().forward(x_BD)
        for block in self.blocks:
            assert isinstance(block, Balanced)
            loss = loss + block.balance
        return loss


class Normalised(Model):
    """Takes a mean out of the input, and adds it to the output."""

    mean: Tensor

    def forward(self, x_BD: Tensor) -> Tensor:
        self.mean = x_BD.mean(0)
        return super().forward(x_BD - self.mean) * self.mean.exp().sum()


class CountsFirst(Model):
    def forward(self, x_BD: Tensor) -> Tensor:
        self.num_calls += 1
        return super().forward(x_BD) * (1 + self.num_calls % 5)


class CountsLast(Model):
    def forward(self, x_BD: Tensor) -> Tensor:
        loss = super().forward(x_BD * (1 + self.num_calls % 5))
        self.num_calls += 1
        return loss


class CountsOnTrial(Model):
    """Begins to count late."""

    def forward(self, x_BD: Tensor) -> Tensor:
        self.num_calls += int(x_BD.sum() > 0)
        return super().forward(x_BD) * (1 + self.num_calls % 5)


class NormOften(Model):
    """Statistics that are moved behind every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, x_BD: Tensor) -> Tensor:
        out_BD: Tensor = self.norm(x_BD)
        return out_BD


class MovedBeside(Model):
    """Moves its statistics, and saves them for its backward."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x_BD: Tensor) -> Tensor:
        self.scale.lerp_(x_BD.abs().mean(0), 0.1)
        return (super().forward(x_BD) * self.scale).sum()


class MovedInside(Block):
    """A layer that does."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x_BD: Tensor) -> Tensor:
        self.scale.lerp_(x_BD.detach().abs().mean(0), 0.1)
        return super().forward(x_BD) * self.scale


class Noting(Block):
    """Counts in a list of Python's module."""

    def forward(self, x_BD: Tensor) -> Tensor:
        SEEN.append(0.5)
        return super().forward(x_BD) / (1 + len(SEEN) % 7)


class LooksUp(LossesOfLayers):
    """Reads a table of Python's module, which nobody changes."""

    def forward(self, x_BD: Tensor) -> Tensor:
        return super().forward(x_BD * TABLE[0])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "losses of layers": LossesOfLayers,
    "a table outside": LooksUp,
    "normalised": Normalised,
    "counts first": CountsFirst,
    "counts last": CountsLast,
    "counts on trial": CountsOnTrial,
    "norm often": NormOften,
    "moved beside": MovedBeside,
    "a list outside": partial(Model, Noting),
    "moved inside": partial(Model, MovedInside),
}


def seeded(kind: Callable[[], nn.Module], kept: list[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    SEEN.clear()
    kept.append(kind())
    return kept[-1]


def run_of(kind: Callable[[], nn.Module], kept: list[nn.Module]) -> Run:
    return Run(
        partial(seeded, kind, kept),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda generator: torch.randn(6, WIDTH, generator=generator),
        lambda model, x_BD: model(x_BD),
        num_steps=2,
        num_micro_batches=3,
    )


def left_by(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_buffers()) | {"seen": torch.tensor(SEEN)}


def options(policy: Activations = Activations.KEEP) -> StreamOptions:
    return replace(STREAMED, default_activations=policy, min_layer_bytes=1)


def streamed_run(run: Run) -> StreamedRun:
    return StreamedRun(run, plan(run, options()))


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        row
        for row in checkerboard(tuple(MODELS), Activations, one_in=7)
        # Its layers cannot run again, which is refused.
        if row.values != ("a list outside", Activations.RECOMPUTE)
    ],
)
def test_a_model_that_its_forwards_change_learns_what_it_learns_plainly(
    name: str, policy: Activations
) -> None:
    kept: list[nn.Module] = []
    run = run_of(MODELS[name], kept)
    expected = train_plainly(run)
    left = left_by(kept[-1])
    with closing(StreamedRun(run, plan(run, options(policy)))) as streamed:
        for step in range(run.num_steps):
            streamed.step(step)
        assert differing(streamed.parameters(), expected) == []
        assert differing(left_by(streamed.model), left) == []


@pytest.mark.parametrize(
    "name", some(["normalised", "counts last", "a list outside"], "normalised")
)
def test_evaluation_of_a_model_that_changes_is_that_of_the_plain_loop(name: str) -> None:
    kept: list[nn.Module] = []
    run = run_of(MODELS[name], kept)
    with closing(streamed_run(run)) as streamed, torch.no_grad():
        plain, model = kept[0].eval(), streamed.model.eval()
        for step in range(2):
            SEEN.clear()
            expected = [plain(batch) for batch in run.batches(step)]
            SEEN.clear()
            found = streamed.execution.evaluate([partial(model, b) for b in run.batches(step)])
            assert torch.equal(torch.stack(found), torch.stack(expected))


def test_forwards_that_may_not_be_repeated_are_refused_where_they_meet_changes() -> None:
    run = run_of(Normalised, [])
    with closing(streamed_run(run)) as streamed:
        forwards = [partial(streamed.model, batch) for batch in run.batches(0)]
        message = r"forward changes mean, .*\n.*run them one at a time"
        with pytest.raises(OpenwaferError, match=message):
            streamed.execution.evaluate(forwards, may_repeat=False)


class ReadsInLayer(Block):
    def forward(self, x_BD: Tensor) -> Tensor:
        gradient = self.up.weight.grad
        return super().forward(x_BD if gradient is None else x_BD * gradient.mean())


class ReadsBesideLayers(Model):
    def between(self, x_BD: Tensor) -> Tensor:
        gradient = self.get_parameter("blocks.0.up.weight").grad
        return x_BD if gradient is None else x_BD * gradient.mean()


class GivesInLayer(Block):
    def forward(self, x_BD: Tensor) -> Tensor:
        self.up.weight.grad = torch.ones_like(self.up.weight)
        return super().forward(x_BD)


@pytest.mark.parametrize(
    "kind", [partial(Model, ReadsInLayer), ReadsBesideLayers, partial(Model, GivesInLayer)]
)
def test_forwards_that_use_gradients_of_earlier_micro_batches_are_refused(
    kind: Callable[[], nn.Module],
) -> None:
    run = run_of(kind, [])
    message = r"forward uses the gradient of 'blocks\.\d\.up\.weight', .*\n.*one micro-batch, or"
    with closing(streamed_run(run)) as streamed, pytest.raises(OpenwaferError, match=message):
        streamed.step(0)


def test_a_forward_of_one_micro_batch_finds_no_gradient_as_in_a_plain_loop() -> None:
    run = replace(run_of(partial(Model, ReadsInLayer), []), num_micro_batches=1)
    expected = train_plainly(run)
    with closing(train_streamed(run, plan(run, options()))) as streamed:
        assert differing(streamed.parameters(), expected) == []


@pytest.mark.parametrize(
    ("name", "policy"),
    checkerboard(tuple(MODELS), (Activations.KEEP, Activations.OFFLOAD), one_in=11),
)
def test_no_pass_needs_more_than_was_planned(name: str, policy: Activations) -> None:
    run = run_of(MODELS[name], [])
    planned = plan(run, options(policy))
    budget = planned.plan.predicted_peak_bytes
    capped = replace(planned, given=replace(planned.given, device_memory_bytes=budget))
    with closing(StreamedRun(run, capped)) as streamed:
        for step in range(2):
            streamed.step(step)
        assert streamed.peak_bytes <= budget


@pytest.mark.parametrize(
    "name", some(["losses of layers", "normalised", "counts last"], "normalised")
)
def test_gradients_that_wait_for_all_micro_batches_are_planned(name: str) -> None:
    unchanged, changed = (run_of(kind, []) for kind in (Model, MODELS[name]))
    gradients = 3 * sum(parameter.nbytes for parameter in Model().parameters())
    assert plan(unchanged, options()).plan.dry.host_bytes < gradients
    assert plan(changed, options()).plan.dry.host_bytes >= gradients
