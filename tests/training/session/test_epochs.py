"""Runs whose length is told in epochs."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import SizeChange
from openwafer.training.data.dataset import BatchSizes
from openwafer.training.session import RunConfig, Session, load_config
from openwafer.training.session.config_sections import BatchConfig, ScheduleConfig
from openwafer.training.session.run_folder import RunFolder
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    quiet,
    saved_arrays,
    tiny_config,
    train_quietly,
)

LARGE = BatchConfig(size=24, sequence_length=12)


def epochs_config(data: TinyData, folder: Path, epochs: float) -> RunConfig:
    config = replace(tiny_config(data, folder), batch=LARGE, schedule=ScheduleConfig("constant"))
    return replace(config, steps=0, epochs=epochs)


@pytest.mark.parametrize("num_samples", [1, 7, 8, 9, 24, 25, 40, 41, 100])
def test_steps_of_samples_are_the_fewest_that_take_them(num_samples: int) -> None:
    sizes = BatchSizes(8, (SizeChange(3, 16), SizeChange(4, 5)))
    steps = sizes.steps_of(num_samples)
    assert sizes.before(steps - 1) < num_samples <= sizes.before(steps)


def test_an_epoch_is_every_sample_once_and_a_run_of_it_has_the_bits_of_its_steps(
    data: TinyData, tmp_path: Path
) -> None:
    text = io.StringIO()
    config = epochs_config(data, tmp_path, 0.5)
    result = Session(config, console=Console(file=text, width=200)).train()
    plain = train_quietly(replace(config, epochs=None, steps=result.steps_done, name="plain"))
    assert not differing(saved_arrays(plain), saved_arrays(result))
    assert f"step {result.steps_done}/{result.steps_done}  epoch 0.5" in text.getvalue()
    assert result.steps_done > 1
    assert load_config(RunFolder(result.folder).config).steps == result.steps_done


@pytest.mark.slow
def test_a_run_is_extended_by_epochs(data: TinyData, tmp_path: Path) -> None:
    half = train_quietly(epochs_config(data, tmp_path, 0.5))
    longer = Session(half.folder, ("epochs=1",), console=quiet(), trusts_code=True).resume()
    whole = train_quietly(epochs_config(data, tmp_path / "whole", 1))
    assert longer.steps_done == whole.steps_done > half.steps_done
    assert not differing(saved_arrays(whole), saved_arrays(longer))


def test_steps_that_are_not_those_of_the_epochs_are_refused(data: TinyData, tmp_path: Path) -> None:
    config = replace(epochs_config(data, tmp_path, 2), steps=1)
    with pytest.raises(OpenwaferError, match=r"epochs: 2 come to \d+ steps of .* steps: 1 says"):
        train_quietly(config)


@pytest.mark.parametrize(
    ("epochs", "words"), [(None, "neither steps nor epochs"), (0, "expected above 0, found 0")]
)
def test_a_run_needs_steps_or_some_epochs(
    data: TinyData, tmp_path: Path, epochs: float | None, words: str
) -> None:
    with pytest.raises(InvalidFieldError, match=words):
        replace(tiny_config(data, tmp_path), steps=0, epochs=epochs)
