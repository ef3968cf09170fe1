"""A plan and the metrics of a run say what crosses the link of the experts, and what is used."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from openwafer.training.metrics.run_record import RunRecord, load_run
from openwafer.training.plan_record import ExpertUse
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.mixture_runs import MIXTRAL, mixture_config
from tests.training.session.test_moved_bytes import check, moved_bytes
from tests.training.session.tiny_runs import TinyData

# By default test_expert_traffic holds loops to the bytes of their plans.
pytestmark = pytest.mark.slow


def run_of(config: RunConfig) -> tuple[RunRecord, str]:
    """The record of a run, and what it printed."""
    console = Console(file=io.StringIO(), width=140)
    session = Session(config, console=console)
    session.train()
    assert isinstance(console.file, io.StringIO)
    return load_run(session.folder.path), console.file.getvalue()


def config_of(data: TinyData, folder: Path, tier: StoreTier, num_tokens: int) -> RunConfig:
    """One sequence a step; a mixture that routes each token to two of sixteen experts."""
    config = mixture_config(data, folder, tier)
    model = replace(MIXTRAL, config={**MIXTRAL.config, "num_local_experts": 16})
    return replace(config, model=model, batch=BatchConfig(size=1, sequence_length=num_tokens))


@pytest.fixture(scope="module")
def of_few_tokens(
    data: TinyData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunRecord, str]:
    return run_of(config_of(data, tmp_path_factory.mktemp("few"), StoreTier.DRAM, num_tokens=3))


def test_experts_cross_the_link_once_a_pass_if_they_are_used(
    of_few_tokens: tuple[RunRecord, str],
) -> None:
    check_of_link(of_few_tokens[0])


def test_many_tokens_use_more_of_the_experts(data: TinyData, tmp_path: Path) -> None:
    check_of_link(run_of(config_of(data, tmp_path, StoreTier.DRAM, num_tokens=12))[0])


def check_of_link(run: RunRecord) -> None:
    experts = run.plan.experts
    assert experts is not None
    others = run.plan.step_bytes.fetch - 2 * experts.used_bytes
    rows = [(row.fetch_bytes, row.expert_bytes) for row in run.metrics.rows]
    assert all(fetched == others + 2 * (used or 0) for fetched, used in rows)
    assert all((used or 0) < experts.weights_bytes for _, used in rows)


def test_the_plan_shows_the_experts_that_are_used(of_few_tokens: tuple[RunRecord, str]) -> None:
    run, printed = of_few_tokens
    experts = run.plan.experts
    assert isinstance(experts, ExpertUse)
    assert (experts.layers, experts.experts) == (2, 32)
    assert f"experts      about {experts.used / 2:.3g} of 16 used a layer" in printed


def test_bytes_of_the_disk_are_those_of_the_plan(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, StoreTier.DISK, num_tokens=64)
    ring = replace(config.streaming, host_memory=2 << 20)
    config = replace(config, streaming=ring, clip_norm=None)
    moved = moved_bytes(config)
    check(load_run(config.path).plan.step_bytes, moved)
