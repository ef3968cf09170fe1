"""A run that stopped and went on equals the unbroken one, bit for bit."""

import io
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataSource
from openwafer.training.models import UserModule
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    OptimizerConfig,
    Precision,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.step import LossScaling
from openwafer.training.store import list_checkpoints
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.tiny_runs import (
    NUM_STEPS,
    TinyData,
    differing,
    quiet,
    saved_arrays,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

COUNTING = UserModule("tests.training.session.tiny_model:CountingModel")
STREAMED = StreamingConfig(device="cpu", mode=Mode.STREAMED, activations=Activations.KEEP)


def config_of(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    """Its learning rates do not depend on the number of steps."""
    schedule = ScheduleConfig("constant", {"num_warm_up_steps": 1})
    return replace(tiny_config(data, folder, tier), schedule=schedule)


def resume_quietly(config: RunConfig, checkpoint: Path | None = None) -> TrainResult:
    return Session(config, console=quiet()).resume(checkpoint)


def train_halfway(config: RunConfig) -> TrainResult:
    return train_quietly(replace(config, steps=NUM_STEPS // 2))


@pytest.fixture(scope="module")
def ended_halfway(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended halfway."""
    return train_halfway(config_of(data, tmp_path_factory.mktemp("ended_halfway"))).folder


@pytest.fixture
def halfway(data: TinyData, ended_halfway: Path, tmp_path: Path) -> RunConfig:
    """What such a run was to be; its folder is the test's own."""
    shutil.copytree(ended_halfway, tmp_path / ended_halfway.name)
    return config_of(data, tmp_path)


@pytest.fixture(scope="module")
def unbroken(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Clipped, with dropout, streamed from DRAM."""
    return train_quietly(config_of(data, tmp_path_factory.mktemp("unbroken")))


Change = Callable[[RunConfig], RunConfig]

CHANGES: dict[str, Change] = {
    "the same": lambda config: config,
    "resident": lambda config: replace(config, streaming=StreamingConfig(device="cpu")),
    "in DRAM": lambda config: replace(config, streaming=STREAMED),
    "on disk": lambda config: replace(config, streaming=replace(STREAMED, store=StoreTier.DISK)),
    "in other layers": lambda config: replace(
        config, streaming=replace(config.streaming, layers=("layers", "head"))
    ),
    "recomputed": lambda config: replace(
        config, streaming=replace(config.streaming, activations=Activations.RECOMPUTE)
    ),
    "under a cap": lambda config: replace(config, device_memory=300_000),
}


# By default test_covering_runs stops runs that go on as they were, under a cap.
@pytest.mark.parametrize(
    ("tier", "change"),
    [
        case(
            tier,
            CHANGES[name],
            by_default=(tier, name) == (StoreTier.DISK, "in other layers"),
            id=f"{tier}-{name}",
        )
        for tier, name in product(TIERS, CHANGES)
    ],
)
def test_a_run_goes_on_under_any_budget_and_tier(
    data: TinyData, tmp_path: Path, unbroken: TrainResult, tier: StoreTier, change: Change
) -> None:
    config = config_of(data, tmp_path, tier)
    train_halfway(config)
    result = resume_quietly(change(config))
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []


@pytest.mark.slow
def test_the_disk_tier_goes_on_without_a_checkpoint(
    data: TinyData, tmp_path: Path, unbroken: TrainResult
) -> None:
    config = config_of(data, tmp_path, StoreTier.DISK)
    first = train_halfway(replace(config, checkpoint=CheckpointConfig(at_end=False)))
    assert first.checkpoint is None
    assert differing(saved_arrays(resume_quietly(config)), saved_arrays(unbroken)) == []


MOVES: dict[str, Change] = {
    "no clip": lambda config: replace(config, clip_norm=None),
    "changing buffers": lambda config: replace(config, model=COUNTING),
    "average": lambda config: replace(config, ema=0.5),
    "loss scale": lambda config: replace(
        config, precision=Precision.FP16, loss_scale=LossScaling(1e38, 2.0, 1e-34, 1)
    ),
}


# By default test_covering_runs stops runs with averages, scaled losses and no clip.
@pytest.mark.parametrize(
    ("tier", "change"),
    [
        case(
            tier,
            MOVES[name],
            by_default=(tier, name) == (StoreTier.DISK, "changing buffers"),
            id=f"{tier}-{name}",
        )
        for tier, name in product(TIERS, MOVES)
    ],
)
def test_everything_that_moves_is_saved(
    data: TinyData, tmp_path: Path, tier: StoreTier, change: Change
) -> None:
    config = change(config_of(data, tmp_path / "one", tier))
    other = replace(config, folder=tmp_path / "two")
    train_halfway(other)
    assert differing(saved_arrays(resume_quietly(other)), saved_arrays(train_quietly(config))) == []


def test_a_run_that_saved_nothing_begins_again(halfway: RunConfig, unbroken: TrainResult) -> None:
    [checkpoint] = list_checkpoints(halfway.path / "checkpoints")
    (checkpoint / "index.json").unlink()
    console = Console(file=io.StringIO(), record=True)
    result = Session(halfway, console=console).resume()
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []
    assert "no step of this run has been kept, so it begins anew\n" in console.export_text()


@pytest.mark.parametrize("tier", [case(t, by_default=t is StoreTier.DRAM) for t in TIERS])
def test_an_earlier_checkpoint_can_be_chosen(
    data: TinyData, tmp_path: Path, unbroken: TrainResult, tier: StoreTier
) -> None:
    config = config_of(data, tmp_path, tier)
    config = replace(config, checkpoint=CheckpointConfig(every=1, keep=9))
    folder = train_halfway(config).folder
    first, second = list_checkpoints(folder / "checkpoints")
    result = resume_quietly(config, first)
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []
    assert (folder / "set-aside" / f"{second.name}.0").is_dir()


def test_a_chosen_checkpoint_that_does_not_fit_leaves_the_run_as_it_was(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(config_of(data, tmp_path), checkpoint=CheckpointConfig(every=1, keep=9))
    folder = train_halfway(config).folder
    checkpoints = list_checkpoints(folder / "checkpoints")
    other = replace(config, optimizer=OptimizerConfig(name="lion"))
    with pytest.raises(OpenwaferError, match=r"states of .* do not fit"):
        resume_quietly(other, checkpoints[0])
    assert list_checkpoints(folder / "checkpoints") == checkpoints


def test_a_damaged_checkpoint_leaves_no_store_open(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, StoreTier.DISK)
    checkpoint = train_halfway(config).checkpoint
    assert checkpoint is not None
    os.truncate(checkpoint / "weights-00001.safetensors", 900)
    with pytest.raises(OpenwaferError, match=r"checkpoint-broken"):
        resume_quietly(config, checkpoint)
    assert [t.name for t in threading.enumerate() if t.name.startswith("store")] == []


def test_a_run_that_is_extended_is_told_of_its_other_schedule(
    data: TinyData, tmp_path: Path
) -> None:
    """A cosine that came down to 0 at step 2 is one that comes down to 0 at step 4."""
    train_halfway(tiny_config(data, tmp_path))
    out = io.StringIO()
    Session(tmp_path / "tiny", ["steps=4"], console=Console(file=out), trusts_code=True).resume()
    told = out.getvalue()
    assert "than it had before step 2, where this one gives 0.5 of the highest rate" in told
    assert "that one 0: a run of 4 steps from its beginning ends with other weights" in told
    assert "before: cosine, num_steps: 2, num_warm_up_steps: 0" in told
    assert "now: cosine, num_steps: 4, num_warm_up_steps: 0" in told


@pytest.mark.parametrize(
    ("begun", "resumed"),
    [
        case(
            {"num_steps": 4, "num_warm_up_steps": 0},
            [],
            by_default=True,
            id="written when it began",
        ),
        case(
            {},
            ["schedule={name: cosine, options: {num_steps: 2, num_warm_up_steps: 0}}"],
            by_default=False,
            id="as the warning says",
        ),
    ],
)
def test_a_schedule_whose_end_is_written_goes_on(
    begun: dict[str, int | float], resumed: list[str], data: TinyData, tmp_path: Path
) -> None:
    train_halfway(replace(tiny_config(data, tmp_path), schedule=ScheduleConfig(options=begun)))
    out = io.StringIO()
    Session(
        tmp_path / "tiny", ["steps=4", *resumed], console=Console(file=out), trusts_code=True
    ).resume()
    assert "schedule-changed" not in out.getvalue()


def test_a_complete_run_has_nothing_left_to_do(
    data: TinyData, tmp_path: Path, unbroken: TrainResult
) -> None:
    config = config_of(data, tmp_path)
    shutil.copytree(unbroken.folder, tmp_path / "tiny")
    before = saved_arrays(unbroken)
    described = [(tmp_path / "tiny" / name).read_text() for name in ("plan.json", "config.yaml")]
    result = resume_quietly(replace(config, streaming=StreamingConfig(device="cpu")))
    assert result.is_complete
    assert differing(saved_arrays(result), before) == []
    assert described == [(result.folder / n).read_text() for n in ("plan.json", "config.yaml")]


@pytest.mark.slow
def test_metrics_of_a_resumed_run_have_each_step_once(halfway: RunConfig) -> None:
    lines = (resume_quietly(halfway).folder / "metrics.jsonl").read_text().splitlines()
    assert [line.startswith(f'{{"step": {n},') for n, line in enumerate(lines[1:])] == [True] * 4


def test_damaged_metrics_do_not_keep_a_run_from_going_on(halfway: RunConfig) -> None:
    metrics = halfway.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + "damage\n")
    console = Console(file=io.StringIO(), record=True)
    assert Session(halfway, console=console).resume().is_complete
    assert "are left out; they are in " in (told := console.export_text())
    assert "damaged-metrics.jsonl" in told
    assert f"goes on from step {NUM_STEPS // 2}\n" in told
    assert metrics.read_text().count("\n") == 5


def test_other_batches_are_refused(halfway: RunConfig) -> None:
    other = replace(halfway, batch=BatchConfig(size=4, sequence_length=12))
    with pytest.raises(OpenwaferError, match=r"not those that the run .* was trained on"):
        resume_quietly(other)


def test_another_model_is_refused_by_its_arrays(halfway: RunConfig) -> None:
    wider = UserModule("tests.training.session.tiny_model:TinyModel", kwargs={"size": 9})
    with pytest.raises(OpenwaferError, match=r"head.weight is float32\[300, 8\] and must be"):
        resume_quietly(replace(halfway, model=wider))


def test_another_optimizer_is_refused_and_leaves_the_store(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, StoreTier.DISK)
    train_halfway(config)
    before = (tmp_path / "tiny/store/manifest.json").read_bytes()
    with pytest.raises(OpenwaferError, match=r"(?s)states of .* do not fit.*keep the mod"):
        resume_quietly(replace(config, optimizer=OptimizerConfig(name="lion")))
    assert (tmp_path / "tiny/store/manifest.json").read_bytes() == before


def test_another_source_is_refused(halfway: RunConfig) -> None:
    assert isinstance(halfway.data.source, DataSource)
    source = replace(halfway.data.source, paths=("elsewhere",))
    with pytest.raises(
        OpenwaferError, match=r"(?s)data.source is not.* found .*'elsewhere'.*learn=answers"
    ):
        resume_quietly(replace(halfway, data=replace(halfway.data, source=source)))
