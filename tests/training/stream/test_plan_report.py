"""What a plan says of the device and of what its layers leave there."""

from dataclasses import replace

import pytest
from torch import nn

from openwafer.training.plan_record import Activations, Mode, StepBytes
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.plan.dry_run import DryRun
from openwafer.training.stream.plan.operators import StepCalls
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.report import report_of
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import Prediction
from openwafer.training.stream.plan.traffic import PlannedBytes, StepTraffic
from openwafer.training.stream.schedule import UpdateTiming
from tests.training.stream.both_loops import STREAMED, plan
from tests.training.stream.small_gpt import gpt_run


@pytest.mark.parametrize(("budget", "shown"), [(None, 12345), (1000, 1000)])
def test_without_a_budget_it_is_the_memory_of_the_device(budget: int | None, shown: int) -> None:
    calls = StepCalls({})
    dry = DryRun(0, (), (), (), (), calls)
    planned = StreamPlan(Mode.RESIDENT, Partition((), {}), {}, None, {}, 0, (), 1, 0, dry, calls)
    device = CpuDevice(budget)
    device.memory_bytes = 12345
    idle = StepBytes(0, 0, 0, 0)
    moved = PlannedBytes(StepTraffic(idle, idle, UpdateTiming.ON_PUSH))
    nothing = StorePlacement({}, 0, 0), nn.Module(), device, moved
    assert report_of(planned, *nothing, Prediction(None, None)).device_budget_bytes == shown


@pytest.mark.slow
def test_layers_of_a_resident_run_leave_what_streamed_ones_keep() -> None:
    kept = replace(STREAMED, default_activations=Activations.KEEP)
    streamed, resident = (plan(gpt_run(), options) for options in (kept, replace(kept, mode=None)))
    assert resident.plan.mode is Mode.RESIDENT
    assert resident.plan.dry.activation_bytes == streamed.plan.dry.activation_bytes
