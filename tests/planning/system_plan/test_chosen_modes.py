"""Which way a system trains: weights stay where they fit, or else stream; what is refused."""

from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.system_plan import Mode, TrainingTask, plan_system
from openwafer.planning.systems import A100, CS1, CS2, CS3, H200, System
from tests.planning.system_plan.tasks import GPT_3, SMALL, task


@pytest.mark.parametrize(
    ("made", "system", "number", "mode"),
    [
        (SMALL, CS1, 1, Mode.PIPELINED),
        (SMALL, CS2, 1, Mode.PIPELINED),
        (SMALL, H200, 1, Mode.RESIDENT),
        (GPT_3, CS2, 1, Mode.STREAMED),
        (GPT_3, CS3, 1, Mode.STREAMED),
        (GPT_3, A100, 16, Mode.STREAMED),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_weights_stay_where_they_fit_and_stream_elsewhere(
    made: TrainingTask, system: System, number: int, mode: Mode
) -> None:
    assert plan_system(made, system, number).mode is mode


def test_a_model_that_is_no_pipeline_streams_or_is_refused() -> None:
    made = replace(SMALL, loads=())
    plan = plan_system(made, CS2, 1)
    told = "the model is no pipeline, which calls each of its layers once, behind each other"
    assert (plan.mode, plan.reason) == (Mode.STREAMED, f"{told}: weights stream")
    with pytest.raises(OpenwaferError, match=rf"plan-layers.*does not stream weights, and {told}"):
        plan_system(made, CS1, 1)


def test_the_reason_has_both_numbers() -> None:
    """16 bytes of 175 billion weights, against 48 KiB in each of 750 x 994 cores."""
    reason = plan_system(GPT_3, CS2, 1).reason
    assert reason == (
        "weights, gradients and states of 2,800 GB do not fit beside activations into 36.64 GB: "
        "weights stream"
    )


def test_activations_are_recomputed_where_kept_ones_leave_room_for_too_few_tokens() -> None:
    """A sequence of GPT-3 takes 82 GB with 17 vectors a layer, and 1.8 GB recomputed."""
    plan = plan_system(GPT_3, CS2, 192)
    assert plan.activations == "recomputed by groups of layers"
    assert plan.figure("memory", "activations beside the cores").value < 40e9


def test_activations_are_kept_where_they_fit() -> None:
    assert plan_system(SMALL, H200, 1).activations == "kept"


@pytest.mark.parametrize(("number", "told"), [(0, "0 systems"), (-3, "-3 systems")])
def test_no_system_is_refused(number: int, told: str) -> None:
    with pytest.raises(OpenwaferError, match=f"plan-systems.*{told} are asked for"):
        plan_system(SMALL, CS2, number)


def test_more_systems_than_a_cluster_has_are_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"193 systems are asked for, and .* at most 192"):
        plan_system(GPT_3, CS2, 193)


def test_more_systems_than_sequences_are_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"128 systems for a batch of 64 sequences"):
        plan_system(SMALL, CS2, 128)


def test_a_model_beyond_the_store_is_refused() -> None:
    huge = task(130e12, 1000, 100_000, batch_size=1, vectors=1)
    with pytest.raises(OpenwaferError, match=r"plan-store.*take 2\.6e\+06 GB .* at most 2\.4e\+06"):
        plan_system(replace(huge, sequence_length=64), CS2, 1)


def test_a_sparse_model_has_more_room_in_the_store() -> None:
    huge = task(130e12, 1000, 100_000, batch_size=1, vectors=1, sparsity=0.5)
    plan = plan_system(replace(huge, sequence_length=64), CS2, 1)
    assert plan.figure("memory", "parameter store").value == pytest.approx(20 * 65e12)


def test_who_does_not_stream_refuses_what_does_not_fit() -> None:
    with pytest.raises(OpenwaferError, match=r"plan-memory.*2,800 GB.*does not stream weights"):
        plan_system(GPT_3, CS1, 1)


def test_a_sequence_without_room_is_refused() -> None:
    long = replace(task(batch_size=1), sequence_length=2048 * 64)
    with pytest.raises(OpenwaferError, match=r"one sequence of 131072 tokens .* CS-2"):
        plan_system(long, CS2, 1)
