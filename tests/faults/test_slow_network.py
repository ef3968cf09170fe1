"""A step over a slow network takes what the plan says, since the network is never idle in it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openwafer.config import to_yaml
from openwafer.training.metrics import METRICS_FORMAT, read_lines
from openwafer.training.models import GptConfig
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    StreamingConfig,
)
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.faults.hosts import NEEDS_HOSTS, hosts, systems_on
from tests.training.session.tiny_runs import make_tiny_data, tiny_config

MODEL = GptConfig(hidden_size=128, num_layers=4, num_heads=2, mlp_size=512, context_length=16)
WARM_UP_STEPS = 2
LIMIT_SECONDS = 300


def run_over(num_hosts: int, rate: str, folder: Path, **changes: Any) -> RunConfig:
    """Train on so many hosts, whose links have that rate."""
    config = replace(
        tiny_config(make_tiny_data(folder), folder),
        model=MODEL,
        steps=8,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=6),
        checkpoint=CheckpointConfig(at_end=False),
        **changes,
    )
    (folder / "tiny.yaml").write_text(to_yaml(config))
    with hosts(num_hosts) as made:
        for host in made:
            host.slow_down(rate)
        with systems_on(made, ["train", str(folder / "tiny.yaml")], folder) as systems:
            assert systems[0].wait(LIMIT_SECONDS) == 0, (folder / "said-0.txt").read_text()
    return config


@pytest.mark.slow
@NEEDS_HOSTS
@pytest.mark.parametrize("where", [StoreSystems.ALL, StoreSystems.FIRST])
@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_step_over_a_slow_network_takes_the_time_of_its_bytes(
    tmp_path: Path, num_hosts: int, where: StoreSystems
) -> None:
    run = run_over(num_hosts, "40mbit", tmp_path, store_systems=where).path
    plan = json.loads((run / "plan.json").read_text())
    rows = read_lines(run / "metrics.jsonl", METRICS_FORMAT).rows
    # Other work on this machine makes a step longer, and none shorter.
    seconds = min(row.seconds for row in rows[WARM_UP_STEPS:])
    assert plan["step_limit"] == "network"
    assert seconds == pytest.approx(plan["predicted_step_seconds"], rel=0.1)


@pytest.mark.slow
@NEEDS_HOSTS
def test_the_plan_of_stages_knows_how_slow_their_network_is(tmp_path: Path) -> None:
    streaming = StreamingConfig(device="cpu", mode=Mode.PIPELINED)
    run = run_over(2, "10mbit", tmp_path, streaming=streaming).path
    assert json.loads((run / "plan.json").read_text())["step_limit"] == "network"
