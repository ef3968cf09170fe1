"""Streamed training gives the bits of the plain loop: every tier, depth, number, policy, clip.

Each cell of the table trains the reference GPT. The cells of one number of micro-batches, one
policy and one depth of prefetch share a dry run, whose peak knows neither where the store keeps its
records nor when it updates them. By default nine cells run for 2 steps, in which every two values
of two axes meet; the others are slow and run for 20.
"""

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import combinations, product

import pytest
import torch

from openwafer.training.plan_record import Activations
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.plan.dry_run import DryRun, DryRunSettings, DryStep
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.schedule import Schedule
from openwafer.training.stream.step_plan import record_bytes
from tests.tables import case
from tests.training.stream.axes import DEPTHS, HOST_BYTES, TIERS, Others, default_values
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    differing,
    on_tier,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_gpt import gpt_run


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    tier: StoreTier
    prefetch_layers: int | None
    num_micro_batches: int
    policy: Activations
    clips: bool

    def __str__(self) -> str:
        clip = "clipped" if self.clips else "unclipped"
        ahead = f"prefetch {self.prefetch_layers}"
        return f"{self.tier}, {ahead}, {self.num_micro_batches} batches, {self.policy}, {clip}"

    @property
    def run(self) -> Run:
        num_steps = 2 if self.is_default else 20
        return gpt_run(
            num_steps=num_steps, num_micro_batches=self.num_micro_batches, clips=self.clips
        )

    @property
    def is_default(self) -> bool:
        others = Others(self.tier, self.num_micro_batches > 1, self.clips)
        return others == default_values(self.prefetch_layers, self.policy)


CELLS = [Cell(*axes) for axes in product(TIERS, DEPTHS, (1, 3), Activations, (False, True))]
CASES = [case(cell, by_default=cell.is_default, id=str(cell)) for cell in CELLS]


@dataclass(frozen=True)
class Outcome:
    """What a cell's run left behind."""

    cell: Cell
    parameters: Parameters
    unplanned: list[str]
    predicted_peak_bytes: int
    budget_bytes: int
    peak_bytes: int
    num_losses: int


@cache
def plain_parameters(run: Run) -> Parameters:
    return train_plainly(run)


@cache
def default_plan(*, clips: bool) -> Planned:
    """Layers and records, which the number of micro-batches leaves alone."""
    return plan(gpt_run(clips=clips), STREAMED)


def schedule_of(planned: StreamPlan, prefetch_layers: int | None) -> Schedule:
    """A schedule with room for two of the largest layers, so that depths of prefetch differ."""
    assert planned.schedule is not None
    return schedules.build(
        planned.dry.visits,
        record_bytes(planned.split, planned.layouts, planned.dry.received),
        timing=planned.schedule.timing,
        capacity_bytes=2 * planned.schedule.capacity_bytes,
        prefetch_layers=prefetch_layers,
    )


@cache
def dry_run_of(num_micro_batches: int, policy: Activations, prefetch_layers: int | None) -> DryRun:
    run = gpt_run(num_micro_batches=num_micro_batches)
    chosen = default_plan(clips=False).plan
    settings = DryRunSettings(
        dict.fromkeys(chosen.policies, policy), schedule_of(chosen, prefetch_layers)
    )
    workload = Workload(run.build(), run.batches(0), run.loss_of)
    cpu = torch.device("cpu")
    return DryStep(workload, chosen.split, chosen.layouts, cpu, settings).run()


def plan_of(cell: Cell) -> Planned:
    planned = default_plan(clips=cell.clips)
    dry = dry_run_of(cell.num_micro_batches, cell.policy, cell.prefetch_layers)
    forced = replace(
        planned.plan,
        policies=dict.fromkeys(planned.plan.policies, cell.policy),
        schedule=schedule_of(planned.plan, cell.prefetch_layers),
        predicted_peak_bytes=dry.peak_bytes,
        dry=dry,
    )
    given = replace(planned.given, device_memory_bytes=dry.peak_bytes)
    return on_tier(replace(planned, plan=forced, given=given), cell.tier, HOST_BYTES[cell.tier])


def test_the_depths_of_prefetch_make_different_schedules() -> None:
    planned = default_plan(clips=False).plan
    assert len({schedule_of(planned, depth).actions for depth in DEPTHS}) == 3


def test_all_two_values_of_two_axes_meet_by_default() -> None:
    def pairs(cells: Iterable[Cell]) -> set[object]:
        return {pair for cell in cells for pair in combinations(enumerate(astuple(cell)), 2)}

    assert pairs(cell for cell in CELLS if cell.is_default) == pairs(CELLS)


@pytest.fixture(scope="module", params=CASES)
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcome]:
    """One run, under a budget of what was predicted to be its peak."""
    cell: Cell = request.param
    planned = plan_of(cell)
    streamed = train_streamed(cell.run, planned, folder=tmp_path_factory.mktemp("run") / "store")
    yield Outcome(
        cell,
        streamed.parameters(),
        streamed.unplanned,
        planned.plan.predicted_peak_bytes,
        planned.given.device_memory_bytes or 0,
        streamed.peak_bytes,
        len(streamed.losses),
    )
    streamed.close()


def test_parameters_are_those_of_the_plain_loop(outcome: Outcome) -> None:
    assert differing(outcome.parameters, plain_parameters(outcome.cell.run)) == []


def test_the_peak_is_the_predicted_one_within_5_percent(outcome: Outcome) -> None:
    assert outcome.peak_bytes == pytest.approx(outcome.predicted_peak_bytes, rel=0.05)


def test_the_peak_stays_under_the_budget(outcome: Outcome) -> None:
    assert outcome.peak_bytes <= outcome.budget_bytes


def test_the_schedule_foresees_every_layer(outcome: Outcome) -> None:
    assert outcome.unplanned == []
