"""Weights that the first steps do not use, and that get their first gradient later."""

from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from tests.tables import checkerboard
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    StreamedRun,
    differing,
    plan,
    train_plainly,
)

WIDTH = 16


class Branching(nn.Module):
    """Uses one of its weights where a value says so, before or behind its others."""

    def __init__(self, *, is_first: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.seldom = nn.Parameter(torch.rand(WIDTH))
        self.is_first = is_first

    def forward(self, x: Tensor) -> Tensor:
        is_used = bool(x[0, 0] > 0)
        if is_used and self.is_first:
            x = x * self.seldom
        x = x + self.down(self.up(x).tanh())
        return x * self.seldom if is_used and not self.is_first else x


def build(*, is_first: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Branching(is_first=is_first) for _ in range(3)))


def with_sign(used: frozenset[int], generator: torch.Generator) -> Tensor:
    """A batch that uses the seldom weights if its seed is one of ``used``."""
    x = torch.randn(4, WIDTH, generator=generator)
    x[0, 0] = 5.0 if generator.initial_seed() in used else -5.0
    return x


@pytest.mark.parametrize(
    ("clip_norm", "num_micro_batches", "used", "is_first"),
    checkerboard(
        (None, 0.5),
        (1, 2),
        ((1000,), (1001,), (1000, 2001), (1000, 1001, 2000)),
        (False, True),
        one_in=6,
    ),
)
def test_a_weight_that_no_plan_expects_is_trained_as_plainly(
    clip_norm: float | None, num_micro_batches: int, used: tuple[int, ...], is_first: bool
) -> None:
    run = Run(
        partial(build, is_first=is_first),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        partial(with_sign, frozenset(used)),
        lambda model, x: model(x).square().mean(),
        num_steps=4,
        num_micro_batches=num_micro_batches,
        clip_norm=clip_norm,
    )
    options = replace(STREAMED, default_activations=Activations.KEEP, min_layer_bytes=1)
    with closing(StreamedRun(run, plan(run, options))) as streamed:
        for step in range(run.num_steps):
            streamed.step(step)
        assert differing(streamed.parameters(), train_plainly(run)) == []
