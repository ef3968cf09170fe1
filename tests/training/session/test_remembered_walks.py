"""What one plan of a process has walked, the next one need not walk."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.training.models import UserModule
from openwafer.training.plan_record import PlanRecord
from openwafer.training.session import Precision, RunConfig, Session, Weights
from openwafer.training.session.config_sections import (
    BatchConfig,
    OptimizerConfig,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.stream.plan import walks
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config

HERE = "tests.training.session.tiny_model"
MEASURED = ("predicted_step_seconds", "step_limit", "predicted_host_bytes")


@pytest.fixture
def config(data: TinyData, tmp_path: Path) -> RunConfig:
    """A run of a model that adds to a file in each forward."""
    file = tmp_path / "forwards"
    file.touch()
    model = UserModule(f"{HERE}:ToldModel", {"path": str(file)})
    return replace(tiny_config(data, tmp_path), model=model)


def plan(config: RunConfig) -> PlanRecord:
    return Session(config, console=quiet()).plan()


def num_forwards(config: RunConfig) -> int:
    """That a plan makes."""
    assert isinstance(config.model, UserModule)
    file = Path(str(config.model.kwargs["path"]))
    before = file.stat().st_size
    plan(config)
    return file.stat().st_size - before


BESIDE: dict[str, dict[str, Any]] = {
    "another run": {"name": "other", "steps": 9, "schedule": ScheduleConfig("constant")},
    "another rate": {"optimizer": OptimizerConfig("adamw", learning_rate=0.5)},
}


@pytest.mark.parametrize("change", BESIDE.values(), ids=BESIDE)
def test_what_was_walked_is_not_walked_again(config: RunConfig, change: dict[str, Any]) -> None:
    assert num_forwards(config) == 2
    assert num_forwards(replace(config, **change)) == 0


OF_THE_STEP: dict[str, dict[str, Any]] = {
    "batch": {"batch": BatchConfig(size=4, sequence_length=12)},
    "micro-batches": {"batch": BatchConfig(size=6, sequence_length=12, micro_batches=2)},
    "precision": {"precision": Precision.BF16},
    "weights": {"weights": Weights.BF16},
    "states": {"optimizer": OptimizerConfig("sgd")},
    "frozen": {"optimizer": OptimizerConfig(frozen=("head.*",))},
    "mode": {"streaming": StreamingConfig(device="cpu")},
}


@pytest.mark.parametrize("change", OF_THE_STEP.values(), ids=OF_THE_STEP)
def test_another_step_is_walked(config: RunConfig, change: dict[str, Any]) -> None:
    plan(config)
    assert num_forwards(replace(config, **change)) > 0


def test_a_budget_asks_anew_only_for_what_it_changes(config: RunConfig) -> None:
    peak_bytes = plan(replace(config, clip_norm=None)).predicted_peak_bytes
    assert num_forwards(replace(config, clip_norm=None, device_memory=peak_bytes)) < 2


def test_a_model_that_is_built_otherwise_by_now_is_walked(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(config.model, UserModule)
    model = replace(config.model, factory=f"{HERE}:told_with_the_dropout_of_the_environment")
    config = replace(config, model=model)
    for dropout in ("0.1", "0.2"):
        monkeypatch.setenv("DROPOUT", dropout)
        assert num_forwards(config) > 0


def test_settings_of_torch_are_part_of_a_step(config: RunConfig) -> None:
    plan(config)
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert num_forwards(config) > 0
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize("tier", list(StoreTier))
def test_a_plan_of_what_is_remembered_is_the_plan(config: RunConfig, tier: StoreTier) -> None:
    config = replace(config, streaming=replace(config.streaming, store=tier))
    plan(replace(config, name="before"))
    remembered = asdict(plan(config))
    walks.forget()
    walked = asdict(plan(config))
    for key in MEASURED:
        del remembered[key], walked[key]
    assert remembered == walked
