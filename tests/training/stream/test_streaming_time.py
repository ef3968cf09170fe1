"""What streaming takes beside operators is measured by streaming, and counted by call."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.execute.pass_watch import ROOT, CallKind
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.plan.dry_run import DryRun
from openwafer.training.stream.plan.machine import PassSeconds, call_seconds, streaming_seconds
from openwafer.training.stream.plan.operators import StepCalls
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.schedule import Visit

KEEP, RECOMPUTE = Activations.KEEP, Activations.RECOMPUTE
CALLS = StepCalls({})
ROOT_CALL = CallKind(ROOT, (), is_graded=True, autocast=None, training=(), trained=())


def plan_of(policies: Sequence[Activations], num_micro_batches: int = 1) -> StreamPlan:
    """A plan of one call for each policy."""
    by_layer = {str(index): policy for index, policy in enumerate(policies)}
    visits = tuple(Visit(name, (name,)) for name in by_layer)
    split, kinds = Partition((), {}), (ROOT_CALL,) * num_micro_batches
    dry = DryRun(0, visits, (), (), (), CALLS, kinds)
    return StreamPlan(
        Mode.STREAMED, split, {}, None, by_layer, 0, (), num_micro_batches, 0, dry, CALLS
    )


def seconds_of(*policies: Activations) -> PassSeconds:
    return streaming_seconds(plan_of(policies), CpuDevice())


def test_every_call_of_a_layer_takes_what_one_of_its_policy_takes() -> None:
    kept, again = seconds_of(KEEP), seconds_of(RECOMPUTE)
    assert seconds_of(KEEP, KEEP, RECOMPUTE) == PassSeconds(
        2 * kept.forward + again.forward, 2 * kept.backward + again.backward
    )


@pytest.mark.slow
def test_more_micro_batches_than_are_tried_take_as_much_each() -> None:
    four, eight = (streaming_seconds(plan_of([KEEP], num), CpuDevice()) for num in (4, 8))
    assert eight == PassSeconds(2 * four.forward, 2 * four.backward)


def test_the_small_steps_take_time() -> None:
    assert seconds_of(KEEP) != PassSeconds()


def test_a_step_and_its_operators_are_timed_by_one_clock() -> None:
    assert call_seconds(KEEP, 1, clock=lambda: 0.0) == PassSeconds()


def test_a_resident_plan_streams_nothing() -> None:
    resident = replace(plan_of([KEEP]), mode=Mode.RESIDENT)
    assert streaming_seconds(resident, CpuDevice()) == PassSeconds()


def test_it_is_not_measured_for_a_device_that_copies_by_itself() -> None:
    device = CpuDevice(link_bytes_per_second=1e9)
    assert streaming_seconds(plan_of([KEEP]), device) == PassSeconds()


def test_measuring_leaves_the_random_state_as_it_is() -> None:
    before = torch.get_rng_state()
    seconds_of(Activations.OFFLOAD)
    assert torch.equal(torch.get_rng_state(), before)
