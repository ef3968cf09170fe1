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
from tests.training.session.tiny_runs import GPT, make_tiny_data, tiny_config, train_quietly


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


@pytest.fixture(scope="session")
def ladder_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """What the runs of a ladder have in common."""
    folder = tmp_path_factory.mktemp("ladder")
    return replace(
        tiny_config(make_tiny_data(folder), folder / "runs"),
        streaming=StreamingConfig(device="cpu", mode=Mode.RESIDENT),
        batch=BatchConfig(size=6, sequence_length=12),
        model=replace(GPT, dropout=0.0),
        evaluate=EvaluateConfig(every=1, batches=2),
    )


@pytest.fixture(scope="session")
def ladder(ladder_config: RunConfig) -> Path:
    """The folder of runs of three sizes, each trained for two and for four steps."""
    for name, width in (("small", 8), ("medium", 16), ("large", 24)):
        for steps in (2, 4):
            model = replace(GPT, hidden_size=width, dropout=0.0)
            train_quietly(replace(ladder_config, model=model, steps=steps, name=f"{name}-{steps}"))
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
