"""A device whose copies run beside compute gives the bits of the plain loop.

The CPU device with a slow link takes the way through the link's threads that a GPU takes: fetches
are served and updates applied on one thread, gradients are pushed on another, activations leave
and come back on the link, and compute waits for nothing but the copies it needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest
import torch

from openwafer.training.plan_record import Activations
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.plan.dry_run import DryRunSettings, DryStep
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.schedule import Schedule
from openwafer.training.stream.step_plan import record_bytes
from tests.tables import case
from tests.training.stream.axes import DEPTHS, HOST_BYTES, TIERS, default_values
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    StreamedRun,
    differing,
    on_tier,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_gpt import gpt_run

THROTTLED = replace(STREAMED, link_bytes_per_second=50e6)


@dataclass(frozen=True)
class Case:
    """One way to run."""

    tier: StoreTier
    prefetch_layers: int | None
    policy: Activations
    clips: bool

    def __str__(self) -> str:
        clip = "clipped" if self.clips else "unclipped"
        return f"{self.tier}, prefetch {self.prefetch_layers}, {self.policy}, {clip}"

    @property
    def run(self) -> Run:
        return run_of(clips=self.clips)

    @property
    def is_default(self) -> bool:
        others = default_values(self.prefetch_layers, self.policy)
        # What is kept meets each depth on the plain link by default, as all policies do.
        are_paired = DEPTHS.index(self.prefetch_layers) == [*Activations].index(self.policy)
        return (
            are_paired
            and self.policy is not Activations.KEEP
            and (self.tier, self.clips) == (others.tier, others.clips)
        )


CASES = [
    case(way, by_default=way.is_default, id=str(way))
    for way in (Case(*axes) for axes in product(TIERS, DEPTHS, Activations, (False, True)))
]


@cache
def run_of(*, clips: bool) -> Run:
    return gpt_run(num_steps=5, num_micro_batches=2, clips=clips)


@cache
def plain_parameters(*, clips: bool) -> Parameters:
    return train_plainly(run_of(clips=clips))


@cache
def default_plan(*, clips: bool) -> Planned:
    return plan(run_of(clips=clips), THROTTLED)


def schedule_of(planned: StreamPlan, prefetch_layers: int | None) -> Schedule:
    assert planned.schedule is not None
    return schedules.build(
        planned.dry.visits,
        record_bytes(planned.split, planned.layouts, planned.dry.received),
        timing=planned.schedule.timing,
        capacity_bytes=planned.schedule.capacity_bytes,
        prefetch_layers=prefetch_layers,
    )


@cache
def peak_of(prefetch_layers: int | None, policy: Activations) -> int:
    """The peak that a dry run foresees, which does not depend on when records are updated."""
    run, chosen = run_of(clips=False), default_plan(clips=False).plan
    policies = dict.fromkeys(chosen.policies, policy)
    settings = DryRunSettings(policies, schedule_of(chosen, prefetch_layers), overlaps=True)
    workload = Workload(run.build(), run.batches(0), run.loss_of)
    cpu = torch.device("cpu")
    return DryStep(workload, chosen.split, chosen.layouts, cpu, settings).run().peak_bytes


def plan_of(case: Case) -> Planned:
    """The case's plan, whose budget is the very peak that it foresees."""
    planned = default_plan(clips=case.clips)
    peak = peak_of(case.prefetch_layers, case.policy)
    forced = replace(
        planned.plan,
        policies=dict.fromkeys(planned.plan.policies, case.policy),
        schedule=schedule_of(planned.plan, case.prefetch_layers),
        predicted_peak_bytes=peak,
    )
    given = replace(planned.given, device_memory_bytes=peak)
    return on_tier(replace(planned, plan=forced, given=given), case.tier, HOST_BYTES[case.tier])


def test_the_depths_of_prefetch_make_different_schedules() -> None:
    planned = default_plan(clips=False).plan
    assert len({schedule_of(planned, depth).actions for depth in DEPTHS}) == 3


@pytest.fixture(scope="module", params=CASES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, StreamedRun]]:
    case: Case = request.param
    folder = tmp_path_factory.mktemp("run") / "store"
    streamed = train_streamed(case.run, plan_of(case), folder=folder)
    yield case, streamed
    streamed.close()


def test_parameters_are_those_of_the_plain_loop(trained: tuple[Case, StreamedRun]) -> None:
    case, streamed = trained
    assert differing(streamed.parameters(), plain_parameters(clips=case.clips)) == []


def test_copies_hold_no_more_of_the_device_than_planned(trained: tuple[Case, StreamedRun]) -> None:
    _, streamed = trained
    assert streamed.peak_bytes <= streamed.planned.plan.predicted_peak_bytes
