"""A config file over data that all tests of commands share."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openwafer.config import to_yaml
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import BatchConfig, EvaluateConfig, StreamingConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.cli.command import EXAMPLES, Done, run_command
from tests.shared_folders import made_once
from tests.training.session.tiny_runs import (
    GPT,
    make_tiny_data,
    tiny_config,
    tiny_data,
    train_quietly,
)


@pytest.fixture(scope="session")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from disk of two steps; its folder is beside the file."""
    folder = tmp_path_factory.mktemp("cli")
    config = replace(
        tiny_config(make_tiny_data(folder), folder / "runs", StoreTier.DISK),
        name=None,
        steps=2,
        model=GPT,
        evaluate=EvaluateConfig(every=2, batches=1),
        trace_steps=(1,),
        log_every=1,
    )
    path = folder / "tiny.yaml"
    path.write_text(to_yaml(config))
    return path


@pytest.fixture(scope="session")
def trained(config_file: Path) -> Done:
    """The end of ``openwafer train``."""
    return run_command("train", config_file)


@pytest.fixture(scope="session")
def run(config_file: Path, trained: Done) -> Path:
    """The folder of the trained run."""
    assert trained.code == 0, trained.err
    return config_file.parent / "runs/tiny"


def config_of_ladder(folder: Path) -> RunConfig:
    """What the runs of a ladder have in common."""
    return replace(
        tiny_config(tiny_data(folder), folder / "runs"),
        streaming=StreamingConfig(device="cpu", mode=Mode.RESIDENT),
        batch=BatchConfig(size=6, sequence_length=12),
        model=replace(GPT, dropout=0.0),
        evaluate=EvaluateConfig(every=1, batches=2),
    )


def train_ladder(folder: Path) -> None:
    """Train runs of three sizes, each for two and for four steps."""
    make_tiny_data(folder)
    config = config_of_ladder(folder)
    for name, width in (("small", 8), ("medium", 16), ("large", 24)):
        for steps in (2, 4):
            model = replace(GPT, hidden_size=width, dropout=0.0)
            train_quietly(replace(config, model=model, steps=steps, name=f"{name}-{steps}"))


@pytest.fixture(scope="session")
def ladder_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """What the runs of the ladder have in common, and where they are."""
    return config_of_ladder(made_once(tmp_path_factory, "ladder", train_ladder))


@pytest.fixture(scope="session")
def ladder(ladder_config: RunConfig) -> Path:
    """The folder of the ladder's runs."""
    return ladder_config.folder


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny operators only wait for each other on more threads."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(earlier)


@pytest.fixture
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder where a user starts them; the import path is put back in the end."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
