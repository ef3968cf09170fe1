"""Layers that the data choose: the bits of the plain loop, and weights of layers that run alone."""

from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, product
from pathlib import Path

import pytest
import torch

from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.schedule import Kind
from tests.tables import case
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    StreamedRun,
    differing,
    on_tier,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.routed_models import (
    MODELS,
    EarlyExit,
    Shuffled,
    StochasticDepth,
    build,
    draw,
    loss_of,
)

OPTIONS = replace(STREAMED, min_layer_bytes=1)


def run_of(kind: type[EarlyExit], *, depths: tuple[int, ...] = (6, 2, 4, 1)) -> Run:
    return Run(
        partial(build, kind),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        partial(draw, depths=depths),
        loss_of,
        num_steps=6,
    )


def executor_of(streamed: StreamedRun) -> Executor:
    return streamed.execution.executor  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("kind", "micro_batches", "clip_norm"),
    [
        (EarlyExit, 1, None),
        (StochasticDepth, 2, 0.1),
        *(case(*row, by_default=False) for row in product(MODELS, [1, 3], [None, 0.1])),
    ],
)
def test_bits_are_those_of_the_plain_loop(
    tmp_path: Path, kind: type[EarlyExit], micro_batches: int, clip_norm: float | None
) -> None:
    run = replace(run_of(kind), num_micro_batches=micro_batches, clip_norm=clip_norm)
    planned = on_tier(plan(run, OPTIONS, folder=tmp_path), StoreTier.DISK, 1 << 20)
    streamed = train_streamed(run, planned, folder=tmp_path)
    try:
        assert differing(streamed.parameters(), train_plainly(run)) == []
    finally:
        streamed.close()


@pytest.mark.parametrize(
    "kind", [EarlyExit, *(case(kind, by_default=False) for kind in MODELS[1:])]
)
def test_memory_is_lent_for_layers_that_run_alone(kind: type[EarlyExit]) -> None:
    run = run_of(kind)
    streamed = StreamedRun(run, plan(run, OPTIONS))
    try:
        # Until a pass departs from it, the plan's schedule is walked.
        executor, has_departed = executor_of(streamed), False
        for step in range(6):
            streamed.step(step)
            fetched = [name for did, name in executor.log.executed if did is Kind.FETCH]
            assert not has_departed or fetched == needed_by(executor)
            has_departed |= executor.log.num_departures > 0
        assert has_departed
    finally:
        streamed.close()


def test_a_wrong_forecast_keeps_to_the_capacity() -> None:
    run = run_of(EarlyExit)
    streamed = StreamedRun(run, plan(run, OPTIONS))
    try:
        for step in range(6):
            streamed.step(step)
            assert most_held(executor_of(streamed)) <= executor_of(streamed).weights.capacity_bytes
    finally:
        streamed.close()


def test_loans_that_a_departed_pass_gives_back_are_no_memory_of_the_device(tmp_path: Path) -> None:
    run = run_of(StochasticDepth)
    planned = plan(run, replace(OPTIONS, most_layer_calls=7), folder=tmp_path)
    # Room for few loans, so that others wait for those that are given back.
    streamed = StreamedRun(run, on_tier(planned, StoreTier.DISK, 34_000), tmp_path)
    try:
        for step in range(2):
            streamed.step(step, is_watched=True)
            assert streamed.peak_bytes <= planned.plan.predicted_peak_bytes
    finally:
        streamed.close()


@pytest.mark.slow
def test_a_pass_of_which_nothing_is_foreseen_is_planned_from_its_first_call() -> None:
    run = run_of(Shuffled)
    streamed = StreamedRun(run, plan(run, OPTIONS))
    try:
        for step in range(4):
            streamed.step(step)
            assert executor_of(streamed).log.num_departures > 0
    finally:
        streamed.close()


def needed_by(executor: Executor) -> list[str]:
    """Records in the order of their calls, those that are there still left out."""
    visits = executor.log.visits
    return [name for name, _ in groupby([*visits, *visits[::-1]])]


def most_held(executor: Executor) -> int:
    """Bytes of weights that were on the device at once in the last pass, by its log."""
    signs = {Kind.FETCH: 1, Kind.RELEASE: -1}
    return max(
        accumulate(
            signs[kind] * executor.weights.num_bytes(record)
            for kind, record in executor.log.executed
            if kind in signs
        )
    )
