"""A device whose copies run beside compute gives the bits of the plain loop.

The CPU device with a slow link takes the way through the link's threads that a GPU takes: fetches
are served and updates applied on one thread, gradients are pushed on another, activations leave
and come back on the link, and compute waits for nothing but the copies it needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import pytest

from openwafer.training.models.reference_gpt import GptConfig
from openwafer.training.stream.activations import Activations
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.placement import StoreTier
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
from tests.training.stream.small_gpt import CONFIG, build_gpt, gpt_run

DEEP = GptConfig(**{**vars(CONFIG), "num_layers": 4})
LINK_BYTES_PER_SECOND = 50e6
# On disk: room for the largest record on its way, and for next to nothing else.
HOST_BYTES = {StoreTier.DRAM: 1 << 30, StoreTier.DISK: 300_000}


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


TIERS = (StoreTier.DRAM, StoreTier.DISK)
CASES = [Case(*axes) for axes in product(TIERS, (0, 1, None), Activations, (False, True))]


@cache
def deep_run(*, clips: bool) -> Run:
    run = gpt_run(num_steps=5, num_micro_batches=2, clips=clips)
    return replace(run, build=partial(build_gpt, DEEP))


@cache
def plain_parameters(*, clips: bool) -> Parameters:
    return train_plainly(deep_run(clips=clips))


@cache
def plan_of(prefetch_layers: int | None, policy: Activations, *, clips: bool) -> Planned:
    """A plan whose budget is the very peak that it predicts."""
    options = replace(
        STREAMED,
        link_bytes_per_second=LINK_BYTES_PER_SECOND,
        prefetch_layers=prefetch_layers,
        default_activations=policy,
    )
    planned = plan(deep_run(clips=clips), options)
    budget = planned.plan.predicted_peak_bytes
    return replace(planned, options=replace(planned.options, device_memory_bytes=budget))


@pytest.fixture(scope="module", params=CASES, ids=str)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, StreamedRun]]:
    case: Case = request.param
    planned = plan_of(case.prefetch_layers, case.policy, clips=case.clips)
    streamed = train_streamed(
        deep_run(clips=case.clips),
        on_tier(planned, case.tier, HOST_BYTES[case.tier]),
        folder=tmp_path_factory.mktemp("run") / "store",
    )
    yield case, streamed
    streamed.close()


def test_parameters_are_those_of_the_plain_loop(trained: tuple[Case, StreamedRun]) -> None:
    case, streamed = trained
    expected = plain_parameters(clips=case.clips)
    assert differing(streamed.parameters(), expected) == []


def test_what_copies_hold_on_the_device_was_planned(trained: tuple[Case, StreamedRun]) -> None:
    _, streamed = trained
    assert streamed.execution.device.peak_bytes <= streamed.planned.plan.predicted_peak_bytes
