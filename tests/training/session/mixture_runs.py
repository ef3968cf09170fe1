"""Runs of a tiny mixture whose experts are fused into one weight."""

from dataclasses import replace
from pathlib import Path

from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import ScheduleConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import TinyData, tiny_config

MIXTRAL = TransformersModel(
    "mixtral",
    config={
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "max_position_embeddings": 64,
    },
)


def mixture_config(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    """Clipped, with a moving average, and learning rates that no number of steps is in."""
    tiny = tiny_config(data, folder, tier)
    schedule = ScheduleConfig("constant", {"num_warm_up_steps": 1})
    return replace(tiny, model=MIXTRAL, ema=0.9, clip_norm=0.5, schedule=schedule)
