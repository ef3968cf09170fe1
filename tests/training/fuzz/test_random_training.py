"""Whatever people bring trains with the plain loop's bits, or is refused: none is silent."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from torch.utils import _pytree as pytree

from openwafer.training.plan_record import Activations
from tests.training.fuzz.random_training import (
    OF_TORCH,
    Case,
    LoopPlan,
    ModelPlan,
    Outcome,
    cases,
    train,
)

WHATEVER = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def leaves(tree: Any) -> list[Any]:
    return list(pytree.tree_leaves(tree))


def are_equal(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor):
        return torch.equal(found, expected) or bool(found.isnan().any() and expected.isnan().any())
    return bool(found == expected)


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """Names of what two loops saw or left otherwise."""
    different = [
        f"seen {number}"
        for number, pair in enumerate(zip(found.seen, expected.seen, strict=True))
        if not are_equal(*pair)
    ]
    return different + [
        name
        for name in expected.left.keys() | found.left.keys()
        if len(leaves(found.left.get(name))) != len(leaves(expected.left.get(name)))
        or not all(map(are_equal, leaves(found.left.get(name)), leaves(expected.left.get(name))))
    ]


def check(case: Case) -> str | None:
    return check_both(partial(train, case), case.policy)


def check_both(train: Callable[..., Outcome], policy: Activations | None) -> str | None:
    """Compare both loops; what the streamed one was told, if it was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = train(is_streamed=False), train(is_streamed=True)
    if expected.refusal == OF_TORCH:
        # One that is recomputed is right all the same.
        assert found.refusal is not None or policy is not Activations.KEEP
    elif found.refusal is None:
        assert differences(found, expected) == []
    else:
        common = zip(found.seen, expected.seen, strict=False)
        assert [n for n, pair in enumerate(common) if not are_equal(*pair)] == []
    return found.refusal


# Cases that were silently different once, or refused for no reason.
FIRST_FORWARD_FAILS = Case(
    ModelPlan(("counting", "block"), (), (1,), True, False),
    LoopPlan((("fail", "backward", "step", "zero"),) * 2, "sgd", False),
    Activations.OFFLOAD,
    40,
)
LOSS_OF_ITS_OWN = Case(
    ModelPlan(("leaving", "averaging", "normed", "slicing"), ((3, 0),), (), False, False),
    LoopPlan((("backward", "penalise", "step", "zero"),) * 2, "adam", False),
    Activations.RECOMPUTE,
    40,
)
SPREAD_WEIGHTS = Case(
    ModelPlan(("slicing", "branching", "half"), (), (), False, False),
    LoopPlan((("backward", "read_gradients", "step", "zero"),) * 2, "sgd", False),
    Activations.KEEP,
    400,
)


CALLED_AGAIN_UNDER_AUTOCAST = Case(
    ModelPlan(("attending", "attending"), (), (0,), False, False),
    LoopPlan((("backward", "clip", "step", "zero"), ("backward", "step", "zero")), "adam", True),
    Activations.RECOMPUTE,
    40,
)
# A gradient that a failed backward has left, and one of weights alone behind it.
FAILED_BEFORE_A_PENALTY = Case(
    ModelPlan(("splitting", "giving", "writingdata", "averaging"), (), (), True, True),
    LoopPlan((("backward", "fail_at_a_gradient", "penalise", "step", "zero"),), "sgd", True),
    None,
    64,
)


@settings(max_examples=2, suppress_health_check=WHATEVER)
@example(case=FIRST_FORWARD_FAILS)
@example(case=LOSS_OF_ITS_OWN)
@example(case=SPREAD_WEIGHTS)
@example(case=CALLED_AGAIN_UNDER_AUTOCAST)
@example(case=FAILED_BEFORE_A_PENALTY)
@given(case=cases(is_unusual=True))
def test_random_training_is_plain_training_or_refused(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=2000, suppress_health_check=WHATEVER)
@given(case=cases(is_unusual=True))
def test_much_random_training_is_plain_training_or_refused(case: Case) -> None:
    check(case)
