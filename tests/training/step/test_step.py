"""A step: what it does in which order, and what becomes of gradients that are not to be applied."""

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import nn

from openwafer.training.data import Batch
from openwafer.training.step import (
    GradientReport,
    LossScaling,
    NotFiniteError,
    Step,
    clip,
    tensor_norms,
)
from tests.training.stream.both_loops import (
    STREAMED,
    StreamedRun,
    differing,
    plan,
    seed_of,
    train_plainly,
)
from tests.training.stream.small_gpt import gpt_run

RUN = gpt_run(num_steps=2, clips=True)


class ToldStep(Step):
    """Takes the steps of a small GPT, and tells what it does."""

    def __init__(self, streamed: StreamedRun, scaling: LossScaling | None = None) -> None:
        super().__init__(
            streamed.model, streamed.execution, clip_norm=RUN.clip_norm, scaling=scaling
        )
        self.streamed, self.execution = streamed, streamed.execution
        self.told: list[str] = []
        self.report_of_others = GradientReport()

    def next(self) -> None:
        number = self.execution.updater.counts.steps_applied
        self.take(number, (), partial(self.told.append, "settled"))

    def run(self, number: int, batches: Sequence[Batch]) -> Sequence[float]:
        self.told.append("runs")
        forward = partial(RUN.loss_of, self.streamed.model, RUN.batch(number, 0))
        losses = self.execution.run([forward], self._scaled, partial(seed_of, number))
        self.gradients.add(self.report_of_others)
        return losses

    def _scaled(self, losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [loss * self.gradients.scale for loss in losses]

    def apply(self, coefficient: float | None) -> None:
        self.told.append("forgets" if coefficient is None else "applies")
        if coefficient is None:
            self.execution.discard_gradients()
        else:
            self.execution.complete_step(coefficient)

    def abandon(self) -> None:
        self.told.append("abandons")
        self.execution.discard_gradients()


def given(weight: nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


@pytest.fixture
def streamed() -> Iterator[StreamedRun]:
    opened = StreamedRun(RUN, plan(RUN, STREAMED))
    yield opened
    opened.close()


def test_steps_end_with_the_weights_of_the_plain_loop(streamed: StreamedRun) -> None:
    step = ToldStep(streamed)
    for _ in range(RUN.num_steps):
        step.next()
    assert differing(streamed.parameters(), train_plainly(RUN)) == []


def test_a_step_tells_what_it_applies_before_it_does(streamed: StreamedRun) -> None:
    step = ToldStep(streamed)
    step.next()
    assert step.told == ["runs", "settled", "applies"]


def test_a_step_that_is_clipped_is_one_good_step_of_the_scale(streamed: StreamedRun) -> None:
    step = ToldStep(streamed, LossScaling(initial_scale=1.0, growth_interval=2))
    assert step.scaler is not None
    scales = []
    for _ in range(RUN.num_steps):
        step.next()
        scales.append(step.scaler.scale)
    assert scales == [1.0, 2.0]


def test_an_overflow_lowers_the_scale_and_applies_nothing(streamed: StreamedRun) -> None:
    step = ToldStep(streamed, LossScaling(initial_scale=3e38, growth_factor=2.0))
    step.next()
    assert step.told == ["runs", "settled", "forgets"]
    assert step.scaler is not None
    assert step.scaler.scale == pytest.approx(1.5e38)


def test_a_norm_that_is_not_finite_ends_the_step_before_anything_is_applied(
    streamed: StreamedRun,
) -> None:
    step = ToldStep(streamed)
    step.report_of_others = GradientReport({"head.weight": torch.tensor(torch.inf)})
    with pytest.raises(NotFiniteError, match="the global norm of the gradients is inf"):
        step.next()
    assert step.told == ["runs", "abandons"]


@pytest.mark.parametrize("norm_type", [1.0, 2.0, torch.inf])
def test_a_clip_is_that_of_torch_whatever_the_order_of_the_norms(norm_type: float) -> None:
    torch.manual_seed(0)
    gradients = {name: torch.randn(7) for name in "abcde"}
    names = sorted(gradients, reverse=True)
    norms = tensor_norms([gradients[name] for name in names], norm_type)
    found = clip(dict(zip(names, norms, strict=True)), gradients, 0.5, norm_type)
    weights = {name: nn.Parameter(torch.zeros(7)) for name in gradients}
    for name, weight in weights.items():
        weight.grad = gradients[name].clone()
    assert found.norm == nn.utils.clip_grad_norm_(weights.values(), 0.5, norm_type)
    clipped = {name: gradient * found.coefficient for name, gradient in gradients.items()}
    assert differing({name: given(weight) for name, weight in weights.items()}, clipped) == []
