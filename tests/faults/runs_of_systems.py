"""Configs of runs on several systems, and what a broken run has in common with an unbroken one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from openwafer.config import to_yaml
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.store import list_checkpoints
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import (
    GPT,
    differing,
    make_tiny_data,
    saved_arrays,
    tiny_config,
    train_quietly,
)


def written_config(folder: Path, num_steps: int, **changes: Any) -> RunConfig:
    """A config of four micro-batches a step, which is also in ``folder / "tiny.yaml"``."""
    config = replace(
        tiny_config(make_tiny_data(folder), folder, StoreTier.DISK),
        steps=num_steps,
        log_every=1,
        batch=BatchConfig(size=4, sequence_length=12, micro_batches=4),
        **{"model": GPT, **changes},
    )
    (folder / "tiny.yaml").write_text(to_yaml(config))
    return config


def differing_from_alone(config: RunConfig) -> list[str]:
    """Arrays in which the last checkpoint of a run differs from that of one unbroken system."""
    alone = train_quietly(replace(config, name="alone"))
    together = replace(alone, checkpoint=list_checkpoints(config.path / "checkpoints")[-1])
    return differing(saved_arrays(together), saved_arrays(alone))
