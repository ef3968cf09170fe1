"""Runs whose batch grows on the way, against a plain loop over the one stream of samples."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import Sampling, SizeChange, TokenDataset, prepare
from openwafer.training.metrics import METRICS_FORMAT, StepMetrics, read_lines
from openwafer.training.models import build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.noise_scale import Watched
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.building import largest_block, tokenizer_of
from openwafer.training.session.config_sections import BatchConfig, ScheduleConfig, StreamingConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_optimizer,
    plain_step,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

SIZES = [4, 4, 8, 12, 12, 4]
CHANGES = (SizeChange(2, 8), SizeChange(3, 12), SizeChange(5, 4))
PIECE = 2
BATCH = BatchConfig(size=4, sequence_length=12, micro_batch_size=PIECE, schedule=CHANGES)


def growing(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    """A clipped run with dropout, whose micro-batches number from 2 to 6 and 2 again."""
    config = replace(tiny_config(data, folder, tier), steps=len(SIZES), clip_norm=0.1)
    return replace(config, model=GPT, batch=BATCH, schedule=ScheduleConfig("constant"))


def rows_of(folder: Path) -> tuple[StepMetrics, ...]:
    return read_lines(folder / "metrics.jsonl", METRICS_FORMAT).rows


def pieces_of(config: RunConfig) -> Iterator[list[Any]]:
    """Micro-batches of each step: the next ones of the stream, read in steps of one piece each."""
    assert config.data.folder is not None
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    sampling = Sampling(config.batch.sequence_length, PIECE, config.seed)
    dataset: TokenDataset = prepare(replace(preparation, sampling=sampling), config.data.folder)
    consumed = 0
    for size in SIZES:
        yield [dataset.batch(consumed + index) for index in range(size // PIECE)]
        consumed += size // PIECE


def grown_loop(config: RunConfig) -> Mapping[str, torch.Tensor]:
    """Parameters of an ordinary loop, which accumulates the micro-batches of each step."""
    pieces = [*pieces_of(config)]
    folder = config.data.folder
    assert folder is not None
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    vocab_size = prepare(preparation, folder).tokenizer.vocab_size
    model = build(with_vocab_size(config.model, vocab_size), config.seed)
    optimizer = plain_optimizer(model, config)
    for step, batches in enumerate(pieces):
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.learning_rate * config.schedule.build(6)(step)
        plain_step(model, optimizer, batches, config, step, torch.amp.GradScaler(enabled=False))
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def looped(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    return grown_loop(growing(data, tmp_path_factory.mktemp("looped")))


@pytest.fixture(scope="module")
def told() -> io.StringIO:
    """What the unbroken run prints."""
    return io.StringIO()


@pytest.fixture(scope="module")
def unbroken(
    data: TinyData, tmp_path_factory: pytest.TempPathFactory, told: io.StringIO
) -> TrainResult:
    config = growing(data, tmp_path_factory.mktemp("unbroken"))
    return Session(config, console=Console(file=told, width=200)).train()


STREAMED = tiny_config(TinyData(Path(), Path(), Path()), Path()).streaming
WAYS = {
    "resident": StreamingConfig(device="cpu", mode=Mode.RESIDENT),
    "from disk": replace(STREAMED, store=StoreTier.DISK),
}


def test_a_streamed_growing_run_equals_the_plain_loop(
    unbroken: TrainResult, looped: Mapping[str, torch.Tensor]
) -> None:
    assert differing(saved_parameters(unbroken), looped) == []


# By default a run that stopped equals from disk what an unbroken one leaves.
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_growing_run_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, looped: Mapping[str, torch.Tensor], way: str
) -> None:
    config = replace(growing(data, tmp_path), streaming=WAYS[way])
    assert differing(saved_parameters(train_quietly(config)), looped) == []


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "stop"), [*product(TIERS, [2, 3, 4])])
def test_a_growing_run_that_stopped_equals_the_unbroken_one(
    data: TinyData, tmp_path: Path, unbroken: TrainResult, tier: StoreTier, stop: int
) -> None:
    """Before a change, at one, and between two."""
    config = growing(data, tmp_path, tier)
    behind = tuple(change for change in CHANGES if change.from_step < stop)
    train_quietly(replace(config, steps=stop, batch=replace(BATCH, schedule=behind)))
    resumed = Session(config, console=quiet()).resume()
    assert differing(saved_arrays(resumed), saved_arrays(unbroken)) == []


def test_a_size_that_steps_were_trained_with_stays(data: TinyData, tmp_path: Path) -> None:
    batch = replace(BATCH, schedule=(SizeChange(1, 8),))
    config = replace(growing(data, tmp_path), steps=3, batch=batch, streaming=WAYS["resident"])
    train_quietly(replace(config, steps=2))
    other = replace(BATCH, schedule=(SizeChange(1, 12),))
    with pytest.raises(OpenwaferError, match=r"changes of batch.schedule that are still to come"):
        Session(replace(config, batch=other), console=quiet()).resume()


@pytest.mark.slow
def test_two_systems_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, looped: Mapping[str, torch.Tensor]
) -> None:
    config = growing(data, tmp_path)
    assert differing(saved_parameters(pool.train(config, 2)), looped) == []


def test_systems_that_would_be_idle_in_some_step_are_refused(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(growing(data, tmp_path), systems=3)
    with pytest.raises(OpenwaferError, match="a step has 2 micro-batches, and there are 3 systems"):
        largest_block(config)


def test_a_pipeline_is_refused(data: TinyData, tmp_path: Path, pool: FollowerPool) -> None:
    config = growing(data, tmp_path)
    config = replace(config, streaming=StreamingConfig(device="cpu", mode=Mode.PIPELINED))
    with pytest.raises(OpenwaferError, match=r"pipelined-option.* batch.schedule is set"):
        pool.train(config, 2)


def test_metrics_tell_the_tokens_of_each_step(unbroken: TrainResult) -> None:
    rows = rows_of(unbroken.folder)
    assert [row.tokens for row in rows] == [12 * size for size in SIZES]


@pytest.mark.slow
@pytest.mark.parametrize("watched", [*Watched])
def test_the_noise_of_a_step_is_that_of_its_own_batch(
    data: TinyData, tmp_path: Path, watched: Watched
) -> None:
    """The third step, of samples 8 to 16, is the second of a run with 8 samples in each."""
    grown_batch = replace(BATCH, schedule=CHANGES[:1])
    config = replace(growing(data, tmp_path), steps=3, batch=grown_batch, noise_scale=watched)
    config = replace(config, model=replace(GPT, dropout=0.0))
    config = replace(config, optimizer=replace(config.optimizer, learning_rate=1e-30))
    train_quietly(config)
    fixed_batch = BatchConfig(8, 12, micro_batch_size=PIECE)
    alone = replace(config, name="alone", steps=2, batch=fixed_batch)
    train_quietly(alone)
    grown, fixed = (rows_of(each.path) for each in (config, alone))
    assert grown[2].gradient_noise == fixed[1].gradient_noise
    assert grown[2].gradient_signal == fixed[1].gradient_signal


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 9}, "size 9 from step 2 on is no multiple of the micro-batch, which has 2"),
        ({"from_step": 6}, "changes the size to 8 from step 6 on, and the run ends after 6 steps"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(
    data: TinyData, tmp_path: Path, values: dict[str, int], message: str
) -> None:
    change = replace(CHANGES[0], **values)
    with pytest.raises(InvalidFieldError, match=message):
        replace(growing(data, tmp_path), batch=replace(BATCH, schedule=(change,)))


def test_noise_needs_two_samples_in_every_step(data: TinyData, tmp_path: Path) -> None:
    batch = BatchConfig(2, 12, micro_batch_size=1, schedule=(SizeChange(1, 1),))
    with pytest.raises(InvalidFieldError, match="one sample a step does not tell noise"):
        replace(growing(data, tmp_path), batch=batch, noise_scale=Watched.NORMS)


@pytest.mark.slow
def test_a_smaller_batch_keeps_to_the_memory_of_a_larger_one(
    data: TinyData, tmp_path: Path
) -> None:
    # Of few tokens, so that gradients are a large part of what a device holds.
    batch = BatchConfig(size=1, sequence_length=2, micro_batch_size=1, schedule=(SizeChange(2, 3),))
    tied = replace(GPT, has_tied_embeddings=True)
    config = replace(growing(data, tmp_path), steps=3, model=tied, batch=batch)
    peak_bytes = Session(config, console=quiet()).plan().predicted_peak_bytes
    assert train_quietly(replace(config, device_memory=peak_bytes)).is_complete


@pytest.mark.usefixtures("unbroken")
def test_a_run_tells_its_sizes(told: io.StringIO) -> None:
    assert "4 samples a step, 8 from step 2 on, 12 from step 3 on, 4 from step 5 on" in (
        told.getvalue()
    )
