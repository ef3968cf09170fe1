"""Schedules as functions of the step, held against torch's and the transformers library's."""

from collections.abc import Callable

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import optimization as published

from openwafer.diagnostics import OpenwaferError
from openwafer.training.lr_schedules import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Schedule,
    WarmUpStableDecay,
    build_schedule,
)

NUM_STEPS = 40


def _optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.3, 0.007)]
    return torch.optim.SGD(groups)


def _rates(scheduler: LRScheduler) -> list[list[float]]:
    rates = []
    for _ in range(NUM_STEPS):
        rates.append([group["lr"] for group in scheduler.optimizer.param_groups])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "reference"),
    [
        (Constant(7), lambda o: published.get_constant_schedule_with_warmup(o, 7)),
        (Linear(40, 7), lambda o: published.get_linear_schedule_with_warmup(o, 7, 40)),
        (Cosine(40, 7), lambda o: published.get_cosine_schedule_with_warmup(o, 7, 40)),
        (InverseSqrt(9, 4), lambda o: published.get_inverse_sqrt_schedule(o, 4, timescale=9)),
        (
            Cosine(40, 7, final_factor=0.1),
            lambda o: published.get_cosine_with_min_lr_schedule_with_warmup(
                o, 7, 40, min_lr_rate=0.1
            ),
        ),
        (
            WarmUpStableDecay(40, 10, 7),
            lambda o: published.get_wsd_schedule(
                o, 7, 10, num_training_steps=40, decay_type="linear"
            ),
        ),
    ],
)
def test_rates_are_those_of_the_published_schedules(
    schedule: Schedule, reference: Callable[[torch.optim.Optimizer], LRScheduler]
) -> None:
    ours, theirs = _rates(LambdaLR(_optimizer(), schedule)), _rates(reference(_optimizer()))
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_decay_ends_at_the_final_factor_and_stays(kind: type[Linear | Cosine]) -> None:
    schedule = kind(num_steps=10, final_factor=0.25)
    assert [schedule(k) for k in (0, 10, 11, 10_000)] == [1.0, 0.25, 0.25, 0.25]


def test_the_rate_of_a_step_does_not_depend_on_the_steps_before() -> None:
    schedule = WarmUpStableDecay(num_steps=20, num_decay_steps=5, num_warm_up_steps=4)
    resumed = LambdaLR(_optimizer(), schedule)
    resumed.load_state_dict({**resumed.state_dict(), "last_epoch": 16})
    resumed.optimizer.step()
    resumed.step()
    assert resumed.get_last_lr() == [0.3 * schedule(17), 0.007 * schedule(17)]


def test_schedules_are_built_by_name() -> None:
    built = build_schedule("warm-up-stable-decay", {"num_steps": 9, "num_decay_steps": 2})
    assert built == WarmUpStableDecay(num_steps=9, num_decay_steps=2)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (
            "cosin",
            {},
            "no learning-rate schedule is called 'cosin'\n  = help: did you mean 'cosine'",
        ),
        (
            "cosine",
            {"num_step": 3},
            "cosine has no option 'num_step'\n  = help: did you mean 'num_s",
        ),
        ("warm-up-stable-decay", {"num_steps": 3}, "decay needs num_decay_steps"),
        ("linear", {"num_steps": 3, "num_warm_up_steps": 5}, "num_warm_up_steps=5, final_factor=0"),
        ("linear", {"num_steps": 3, "final_factor": 2}, "final_factor lies from 0 to 1"),
        ("inverse-sqrt", {"time_scale": 0}, "time_scale at least 1"),
        ("constant", {"num_warm_up_steps": -1}, "Constant(num_warm_up_steps=-1) is impossible"),
    ],
)
def test_a_wrong_schedule_is_named_with_its_remedy(
    name: str, options: dict[str, int | float], text: str
) -> None:
    with pytest.raises(OpenwaferError) as caught:
        build_schedule(name, options)
    assert text in str(caught.value)
