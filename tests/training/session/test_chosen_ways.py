"""Whether several systems stream or have stages, where the config leaves it to the plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer import atomic_file
from openwafer.training.noise_scale import Watched
from openwafer.training.plan_record import Mode, PlanRecord
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.report import to_json
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.tables import case
from tests.training.session.planned_systems import SMALL, apart, open_config, planned
from tests.training.session.tiny_runs import TinyData, quiet

LARGE = BatchConfig(size=128, sequence_length=12, micro_batches=4)
# So that four systems stream, too.
LARGER = replace(LARGE, size=256)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "mode"), [(SMALL, Mode.PIPELINED), case(LARGE, Mode.STREAMED, by_default=False)]
)
def test_what_passes_less_over_a_slow_network_is_chosen(
    data: TinyData, tmp_path: Path, batch: BatchConfig, mode: Mode
) -> None:
    plan = planned(open_config(data, tmp_path, batch)).report
    assert plan.mode is mode
    assert plan.choice is not None
    streamed, staged = plan.choice.streamed_seconds, plan.choice.pipelined_seconds
    assert streamed is not None
    assert staged is not None
    assert (staged < streamed) == (mode is Mode.PIPELINED)
    assert (plan.predicted_step_seconds, plan.step_limit) == (min(streamed, staged), "network")


def test_as_many_stages_in_a_replica_are_chosen_as_are_fastest(
    data: TinyData, tmp_path: Path
) -> None:
    plan = planned(open_config(data, tmp_path, SMALL, systems=4)).report
    assert plan.pipeline is not None
    # Two replicas would pass all gradients and weights besides.
    assert (plan.pipeline.replicas, len(plan.pipeline.stages)) == (1, 4)


def test_stages_are_chosen_where_one_system_has_no_room_for_the_store(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(open_config(data, tmp_path, SMALL), store_systems=StoreSystems.FIRST)
    streaming = replace(config.streaming, store=StoreTier.DRAM, host_memory=200_000)
    plan = planned(replace(config, streaming=streaming)).report
    assert plan.mode is Mode.PIPELINED
    assert plan.choice is not None
    assert plan.choice.reason.startswith("weights cannot stream: ")


@pytest.mark.slow
def test_no_stages_are_chosen_where_hosts_have_no_room_for_them(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(open_config(data, tmp_path, SMALL), store_systems=StoreSystems.FIRST)
    config = replace(config, streaming=replace(config.streaming, store=StoreTier.AUTO))
    plan = planned(config, apart(100_000, 100_000)).report
    assert plan.mode is Mode.STREAMED
    assert plan.choice is not None
    assert "host 'host-0' has 80,000 bytes for the stages of its systems" in plan.choice.reason


def test_what_stages_cannot_do_is_the_reason_to_stream(data: TinyData, tmp_path: Path) -> None:
    config = replace(open_config(data, tmp_path, SMALL), noise_scale=Watched.NORMS)
    choice = planned(config).report.choice
    assert choice is not None
    assert choice.reason == (
        "no stages are made: noise_scale is set, and no stage has the gradients of a sample"
    )


def test_systems_that_have_not_met_stream(data: TinyData, tmp_path: Path) -> None:
    plan = Session(open_config(data, tmp_path, SMALL), console=quiet()).plan()
    assert plan.mode is Mode.STREAMED
    assert plan.choice is not None
    assert "is measured when they meet" in plan.choice.reason


def begun(config: RunConfig) -> PlanRecord:
    """The plan that a run was begun with."""
    before = planned(config).report
    folder = RunFolder(config.path)
    folder.path.mkdir()
    atomic_file.write_text(folder.plan, to_json(before))
    folder.config.touch()
    return before


def test_a_run_goes_on_as_was_chosen_when_it_began(data: TinyData, tmp_path: Path) -> None:
    config = open_config(data, tmp_path, SMALL)
    before = begun(config)
    # By itself, this one would stream.
    again = planned(replace(config, batch=LARGE)).report
    assert (again.mode, again.choice) == (Mode.PIPELINED, before.choice)


@pytest.mark.slow
def test_what_was_chosen_for_other_systems_is_chosen_anew(data: TinyData, tmp_path: Path) -> None:
    config = open_config(data, tmp_path, SMALL)
    assert begun(config).mode is Mode.PIPELINED
    assert planned(replace(config, batch=LARGER, systems=4)).report.mode is Mode.STREAMED
