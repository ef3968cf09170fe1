"""Stages of one host share its memory, and what does not fit is refused before a run begins."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Limit, Mode, PipelineUse
from openwafer.training.session import RunConfig
from openwafer.training.session.building import build_hollow_model, make_optimizers, make_updater
from openwafer.training.session.pipelined.plan import require_room
from openwafer.training.stream.replicas.ownership import HostMemory
from openwafer.training.stream.stages.stage_plan import HostRooms
from tests.tables import case
from tests.training.session.planned_systems import (
    SMALL,
    VOCAB_SIZE,
    apart,
    open_config,
    planned,
)
from tests.training.session.tiny_runs import MODEL, TinyData

ROOMS = HostRooms(("a", "b", "a"), {"a": 100, "b": 30}, "")


def staged_config(data: TinyData, folder: Path, systems: int, stages: int) -> RunConfig:
    config = open_config(data, folder, SMALL, systems)
    streaming = replace(config.streaming, mode=Mode.PIPELINED, stages=stages)
    return replace(config, streaming=streaming)


def pipeline_of(config: RunConfig, hosts: list[HostMemory]) -> PipelineUse:
    pipeline = planned(config, hosts).report.pipeline
    assert pipeline is not None
    return pipeline


def test_systems_of_a_host_share_it_evenly() -> None:
    assert ROOMS.equal_bytes == (50, 30, 50)


@pytest.mark.parametrize(
    ("held", "host"), [((60, 30, 40), None), ((60, 30, 41), "a"), ((0, 31, 0), "b")]
)
def test_what_ranks_hold_is_added_up_by_host(held: tuple[int, ...], host: str | None) -> None:
    assert ROOMS.too_full(held) == host


def on_one_host(config: RunConfig, host_memory: int | None) -> PipelineUse:
    streaming = replace(config.streaming, host_memory=host_memory)
    hosts = [HostMemory("here", 1 << 30)] * config.systems
    return pipeline_of(replace(config, streaming=streaming), hosts)


@pytest.mark.parametrize("stages", [4, case(1, by_default=False)])
def test_what_stages_of_one_host_hold_together_is_what_it_has_to_have(
    data: TinyData, tmp_path: Path, stages: int
) -> None:
    # There is one way to cut this model into four stages.
    config = replace(staged_config(data, tmp_path, 4, stages), model=MODEL)
    found = on_one_host(config, None)
    needed = sum(one.total_bytes for one in (*found.stages, *3 * found.others))
    assert on_one_host(config, needed) == found
    told = f"host 'here' has {needed - 1:,} bytes for .* which need {needed:,} bytes"
    with pytest.raises(OpenwaferError, match=f"(?s)pipelined-memory.*{told}"):
        on_one_host(config, needed - 1)


@pytest.mark.slow
def test_a_host_of_its_own_has_to_hold_one_stage(data: TinyData, tmp_path: Path) -> None:
    config = replace(staged_config(data, tmp_path, 4, 4), model=MODEL)
    held = [one.total_bytes for one in on_one_host(config, None).stages]
    assert pipeline_of(config, apart(*(int(one / 0.8) + 2 for one in held))) is not None
    with pytest.raises(OpenwaferError, match="rank 3 has stage 3, of"):
        pipeline_of(config, apart(*[1 << 30] * 3, int(held[3] / 0.8) - 2))


def test_the_message_says_where_the_memory_of_a_host_comes_from(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(staged_config(data, tmp_path, 2, 2), model=MODEL)
    with pytest.raises(OpenwaferError, match="that is 80% of what is free there"):
        pipeline_of(config, [HostMemory("here", 100_000)] * 2)
    with pytest.raises(OpenwaferError, match=r"streaming\.host_memory says how much"):
        on_one_host(config, 100_000)


def test_what_no_hosts_have_room_for_is_refused_before_weights_are_drawn(
    data: TinyData, tmp_path: Path
) -> None:
    config = staged_config(data, tmp_path, 2, 2)
    streaming = replace(config.streaming, host_memory=10_000)
    model = build_hollow_model(config, VOCAB_SIZE, tmp_path)
    updater = make_updater(make_optimizers(model, config, VOCAB_SIZE), model, config)
    needed = 3 * sum(parameter.nbytes for parameter in model.parameters())
    with pytest.raises(OpenwaferError, match="2 hosts like this one have 20,000 bytes") as told:
        require_room(model, updater, replace(config, streaming=streaming))
    [found] = re.findall("states need ([0-9,]+) bytes", str(told.value))
    # Parts of records begin at whole pages of a disk.
    assert needed <= int(found.replace(",", "")) < 2 * needed


@pytest.mark.slow
def test_a_host_with_less_memory_gets_a_smaller_stage(data: TinyData, tmp_path: Path) -> None:
    config = staged_config(data, tmp_path, 2, 2)
    first, _ = pipeline_of(config, apart(1 << 30, 1 << 30)).stages
    less = first.total_bytes - 1
    smaller, _ = pipeline_of(config, apart(int(less / 0.8), 1 << 30)).stages
    assert smaller.total_bytes <= less


@pytest.mark.slow
def test_stages_that_are_asked_for_by_name_take_the_network_into_account(
    data: TinyData, tmp_path: Path
) -> None:
    plan = planned(staged_config(data, tmp_path, 2, 2)).report
    assert plan.step_limit is Limit.NETWORK
