"""Loops that go forward more than once before a backward, on devices that hold few graphs."""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from tests.tables import case
from tests.training.stream.both_loops import STREAMED

OPTIONS = replace(STREAMED, min_layer_bytes=1)
Program = Callable[[int | None], list[Tensor]]


def chain(*sizes: int) -> tuple[nn.Module, Adam]:
    layers = [one for a, b in pairwise(sizes) for one in (nn.Linear(a, b), nn.Tanh())]
    model = nn.Sequential(*layers[:-1])
    return model, Adam(model.parameters(), lr=1e-3)


def streamed(budget: int | None, *pairs: tuple[nn.Module, Adam]) -> None:
    for model, optimizer in pairs if budget is not None else ():
        stream_weights(model, optimizer, device_memory=budget or 0, options=OPTIONS)


def values(*models: nn.Module) -> list[Tensor]:
    return [value.clone() for model in models for value in model.state_dict().values()]


def train_adversaries(budget: int | None) -> list[Tensor]:
    torch.manual_seed(0)
    (maker, of_maker), (judge, of_judge) = chain(8, 64, 64, 16), chain(16, 64, 64, 64, 1)
    streamed(budget, (maker, of_maker), (judge, of_judge))
    for _ in range(3):
        made = maker(torch.randn(16, 8))
        losses = functional.softplus(-judge(torch.randn(16, 16))) + functional.softplus(
            judge(made.detach())
        )
        for optimizer, loss in (of_judge, losses), (of_maker, None):
            optimizer.zero_grad()
            (functional.softplus(-judge(made)) if loss is None else loss).mean().backward()
            optimizer.step()
    return values(maker, judge)


def train_student(budget: int | None) -> list[Tensor]:
    """Two views of a batch, and a teacher that is the average of its student."""
    torch.manual_seed(0)
    student, optimizer = chain(16, 64, 64, 64, 16)
    teacher = copy.deepcopy(student)
    streamed(budget, (student, optimizer))
    for _ in range(3):
        x = torch.randn(16, 16)
        with torch.no_grad():
            wanted = teacher(x)
        losses = [functional.mse_loss(student(x + noise), wanted) for noise in (0, 0.1)]
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, weight in zip(teacher.parameters(), student.parameters(), strict=True):
                average.lerp_(weight, 0.1)
    return values(student, teacher)


def train_on_views(budget: int | None) -> list[Tensor]:
    """Three forwards whose activations are larger than all weights."""
    torch.manual_seed(0)
    model, optimizer = chain(16, 32, 32, 32, 1)
    streamed(budget, (model, optimizer))
    for _ in range(2):
        means = [model(torch.randn(256, 16)).sigmoid().mean() for _ in range(3)]
        torch.stack(means).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(model)


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(map(torch.equal, found, expected))


def refused_until_served(program: Program) -> tuple[list[str], list[Tensor]]:
    """Codes of refusals, where each is followed by the budget that it names; what was trained."""
    codes: list[str] = []
    budget = 1
    while True:
        try:
            return codes, program(budget)
        except OpenwaferError as told:
            codes.append(told.diagnostics[0].code)
            named = re.search(r"(?:plan needs|a budget of) ([\d,]+) bytes", str(told))
            assert named is not None
            larger = int(named[1].replace(",", ""))
            assert larger > budget
            budget = larger


@pytest.mark.parametrize("program", [case(train_adversaries, by_default=False), train_student])
def test_a_loop_is_refused_once_in_its_midst_and_named_the_budget_that_serves(
    program: Program,
) -> None:
    codes, found = refused_until_served(program)
    assert codes[-1:] == ["batch-larger-than-planned"]
    assert codes.count("batch-larger-than-planned") == 1
    assert are_equal(found, program(None))


@pytest.mark.parametrize(
    "budget",
    [
        case(budget, by_default=budget == 175_000)
        for budget in (175_000, 200_000, 225_000, 250_000, 300_000)
    ],
)
def test_every_budget_above_the_smallest_serves(budget: int) -> None:
    assert are_equal(train_on_views(budget), train_on_views(None))
