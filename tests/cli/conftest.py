"""A config file over data that all tests of commands share."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openwafer.config import to_yaml
from openwafer.training.session.config import EvaluateConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.cli.command import EXAMPLES, Done, run_command
from tests.training.session.tiny_runs import GPT, make_tiny_data, tiny_config


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
