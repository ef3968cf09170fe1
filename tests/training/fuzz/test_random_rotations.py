"""Micro-batches that take turns train any model as the plain loop does, or are refused."""

import warnings

import pytest
from hypothesis import given, settings

from openwafer.training.plan_record import Activations
from tests.training.fuzz.random_rotations import Rotation, rotations, train_rotation
from tests.training.fuzz.random_training import OF_TORCH
from tests.training.fuzz.test_random_training import WHATEVER, differences


def check(case: Rotation) -> str | None:
    """Compare both; what the streamed one was told, if it was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = train_rotation(case, is_streamed=False)
        found = train_rotation(case, is_streamed=True)
    if expected.refusal == OF_TORCH:
        # One that is recomputed is right all the same.
        assert found.refusal is not None or case.policy is not Activations.KEEP
    elif found.refusal is None:
        assert differences(found, expected) == []
    return found.refusal


@settings(max_examples=2, suppress_health_check=WHATEVER)
@given(case=rotations())
def test_random_rotations_are_plain_training_or_refused(case: Rotation) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=WHATEVER)
@given(case=rotations())
def test_many_random_rotations_are_plain_training_or_refused(case: Rotation) -> None:
    check(case)
