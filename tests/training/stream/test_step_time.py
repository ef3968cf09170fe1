"""How the time of a step comes out of its parts."""

from dataclasses import replace
from functools import partial

import torch

from openwafer.training.plan_record import Limit, Mode, StepBytes
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.plan.dry_run import DryRun
from openwafer.training.stream.plan.machine import DiskRates
from openwafer.training.stream.plan.operators import StepCalls
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import (
    JoinedPass,
    Overlap,
    Rates,
    StepTime,
    step_time,
    time_of,
)
from openwafer.training.stream.plan.traffic import StepTraffic, bytes_of
from openwafer.training.stream.schedule import RecordBytes, UpdateTiming, Visit, build

PAGE = 4096
NAMES = ("first", "second")
IDLE = (0.0, 0.0)
NOTHING = StepBytes(0, 0, 0, 0)
DISK = DiskRates(read=1 << 30, both=1 << 30)


def record(name: str, *, keeps_gradients: bool) -> RecordLayout:
    """A page of weights, two of states."""
    weight = ArraySpec(name, torch.uint8, (PAGE,))
    states = [ArraySpec(f"{state}/{name}", torch.uint8, (PAGE,)) for state in "mv"]
    return lay_out(name, [weight], states, [weight] * keeps_gradients)


def make_plan(timing: UpdateTiming) -> StreamPlan:
    """Two layers, one at a time on the device, whose operators take no time."""
    keeps_gradients = timing is UpdateTiming.ON_FETCH
    visits = tuple(Visit(name, (name,), True) for name in NAMES)
    sizes = dict.fromkeys(NAMES, RecordBytes(PAGE, PAGE))
    calls = StepCalls({})
    return StreamPlan(
        mode=Mode.STREAMED,
        split=Partition((), {name: (name,) for name in NAMES}),
        layouts={name: record(name, keeps_gradients=keeps_gradients) for name in NAMES},
        predicted_peak_bytes=0,
        schedule=build(visits, sizes, timing=timing, capacity_bytes=PAGE),
        policies={},
        nested_capacity_bytes=0,
        received=NAMES,
        micro_batches=1,
        dry=DryRun(0, visits, NAMES, (), (), calls),
        calls=calls,
    )


planned_bytes = partial(bytes_of, ring_bytes=0, commits_steps=False, speculates=False)


def traffic(timing: UpdateTiming, tier: Tier) -> StepTraffic:
    plan = make_plan(timing)
    tiers = {(name, part): tier for name in NAMES for part in Part}
    return planned_bytes(plan, StorePlacement(tiers, 0, 0), timing).usual


def written_with_weights_in_dram(*, commits_steps: bool) -> int:
    tiers = {(name, part): Tier.DISK for name in NAMES for part in Part}
    tiers |= {(name, Part.WEIGHTS): Tier.DRAM for name in NAMES}
    plan, placement = make_plan(UpdateTiming.ON_PUSH), StorePlacement(tiers, 0, 0)
    moved = planned_bytes(plan, placement, UpdateTiming.ON_PUSH, commits_steps=commits_steps)
    return moved.usual.step.disk_write


def test_a_commit_writes_the_weights_that_are_kept_in_dram() -> None:
    without, committed = (written_with_weights_in_dram(commits_steps=c) for c in (False, True))
    assert (without, committed) == (len(NAMES) * 2 * PAGE, len(NAMES) * 3 * PAGE)


def predicted(read_bytes: int, disk: DiskRates | None) -> StepTime | None:
    moved = StepTraffic(NOTHING, StepBytes(0, 0, read_bytes, 0), UpdateTiming.ON_PUSH)
    return time_of(make_plan(UpdateTiming.ON_PUSH), moved, IDLE, IDLE, CpuDevice(), Rates(disk))


def over_links(*passes: JoinedPass) -> StepTime | None:
    """The time of passes whose operators take 1 and 4 s."""
    moved, rates = StepTraffic(NOTHING, NOTHING, UpdateTiming.ON_PUSH), Rates(network=passes)
    return time_of(make_plan(UpdateTiming.ON_PUSH), moved, (1.0, 4.0), IDLE, CpuDevice(), rates)


def test_a_pass_takes_what_links_take_that_are_busier_than_the_device() -> None:
    found = over_links(JoinedPass(2.5, 0.0, computing=2.5), JoinedPass(3.0, 0.0, computing=4.0))
    assert found == StepTime(2.5 + 4.0, Limit.NETWORK)


def test_a_pass_takes_longer_where_links_and_device_wait_for_each_other() -> None:
    found = over_links(JoinedPass(0.5, 0.0, computing=1.2), JoinedPass(3.0, 0.0, computing=5.0))
    assert found == StepTime(1.2 + 5.0, Limit.COMPUTE)


def test_a_pass_takes_as_long_as_its_busiest_part() -> None:
    passes = [{Limit.COMPUTE: 3.0, Limit.LINK: 2.0}, {Limit.COMPUTE: 1.0, Limit.LINK: 5.0}]
    assert step_time(passes, Overlap(1, 2.0), IDLE) == StepTime(8.0, Limit.LINK)


def test_the_limit_is_what_is_busy_longest_over_the_whole_step() -> None:
    passes = [{Limit.COMPUTE: 3.0, Limit.LINK: 1.0}, {Limit.COMPUTE: 1.0, Limit.LINK: 2.0}]
    assert step_time(passes, Overlap(1, 2.0), IDLE) == StepTime(5.0, Limit.COMPUTE)


def test_a_pass_waits_for_its_first_record_from_disk() -> None:
    work = {Limit.COMPUTE: 3.0, Limit.DISK: 4.0}
    assert Overlap(num_records=8, ring_records=3.0).seconds(work) == 4.0 + 4.0 / 8


def test_a_ring_with_room_for_one_record_lets_nothing_overlap() -> None:
    work = {Limit.COMPUTE: 3.0, Limit.DISK: 4.0}
    assert Overlap(num_records=8, ring_records=1.0).seconds(work) == 3.0 + 4.0 + 4.0 / 8


def test_a_disk_that_is_busy_longest_sets_the_time_of_a_step() -> None:
    assert predicted(64 << 30, DISK) == StepTime(64.0 + 64.0 / 2, Limit.DISK)


def test_a_store_in_dram_does_not_wait_for_the_disk() -> None:
    time = predicted(0, None)
    assert time is not None
    assert time.limit is Limit.COMPUTE


def test_the_time_is_not_predicted_where_the_disk_is_not_known() -> None:
    assert predicted(1, None) is None


def test_updates_on_push_write_in_the_backward_pass_alone() -> None:
    moved = traffic(UpdateTiming.ON_PUSH, Tier.DISK)
    # Each layer's weights come for both passes, but those of the last stay where the pass turns.
    assert moved.forward == StepBytes(2 * PAGE, 0, 2 * PAGE, 0)
    assert moved.backward == StepBytes(PAGE, 2 * PAGE, 6 * PAGE, 6 * PAGE)


def test_updates_on_fetch_move_states_in_the_forward_pass_and_gradients_in_both() -> None:
    moved = traffic(UpdateTiming.ON_FETCH, Tier.DISK)
    assert moved.forward == StepBytes(2 * PAGE, 0, 8 * PAGE, 6 * PAGE)
    assert moved.backward == StepBytes(PAGE, 2 * PAGE, PAGE, 2 * PAGE)


def test_a_step_that_is_undone_moves_what_two_do_and_reads_dram_again() -> None:
    tiers = {(name, part): Tier.DISK for name in NAMES for part in Part}
    placement = StorePlacement(tiers | {("first", Part.WEIGHTS): Tier.DRAM}, 0, 0)
    timing = UpdateTiming.ON_PUSH
    moved = planned_bytes(make_plan(timing), placement, timing, speculates=True)
    usual, undone = moved.usual.step, moved.undone
    assert undone is not None
    assert undone.disk_read == 2 * usual.disk_read + PAGE
    assert (undone.fetch, undone.disk_write) == (2 * usual.fetch, 2 * usual.disk_write)


def test_a_step_that_keeps_its_gradients_among_others_moves_what_it_does_alone() -> None:
    tiers = {(name, part): Tier.DISK for name in NAMES for part in Part}
    timing, placement = UpdateTiming.ON_PUSH, StorePlacement(tiers, 0, 0)
    plan = replace(make_plan(UpdateTiming.ON_FETCH), schedule=make_plan(timing).schedule)
    moved = planned_bytes(plan, placement, timing, speculates=True)
    assert moved.kept is not None
    assert moved.kept.disk_read == traffic(UpdateTiming.ON_FETCH, Tier.DISK).step.disk_read


def test_a_store_in_dram_moves_nothing_from_and_to_disk() -> None:
    step = traffic(UpdateTiming.ON_PUSH, Tier.DRAM).step
    assert step == StepBytes(3 * PAGE, 2 * PAGE, 0, 0)
