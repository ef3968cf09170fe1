"""What goes wrong in a run is told clearly and loses nothing."""

import io
import os
import re
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from openwafer.config import Bytes
from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.config_sections import (
    CheckpointConfig,
    EvaluateConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from openwafer.training.session.run_folder import RunFolder
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


class InterruptingFile(io.StringIO):
    """Raises SIGINT when a line about a step is written to it."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._start = f"step {step}/"

    def write(self, text: str) -> int:
        if text.startswith(self._start):
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def exploding(config: RunConfig) -> RunConfig:
    """The first update makes all weights so large that the second loss is NaN."""
    return replace(
        config,
        optimizer=OptimizerConfig(learning_rate=1e30),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 0}),
    )


def resume_quietly(config: RunConfig, checkpoint: Path | None = None) -> TrainResult:
    return Session(config, console=quiet()).resume(checkpoint)


def interrupt_after(config: RunConfig, steps: int) -> TrainResult:
    console = Console(file=InterruptingFile(steps))
    return Session(replace(config, log_every=1), console=console).train()


def damage(folder: Path) -> None:
    """Change the bytes in the middle of every block of a store's file."""
    with (folder / "store/records.bin").open("r+b") as file:
        for start in range(0, os.fstat(file.fileno()).st_size, 4096):
            file.seek(start)
            block = file.read(4096)
            file.seek(start)
            file.write(bytes(255 - byte for byte in block))


@pytest.mark.parametrize("tier", [case(t, by_default=t is StoreTier.DRAM) for t in TIERS])
def test_a_loss_that_is_not_finite_is_told_with_its_step(
    data: TinyData, tmp_path: Path, tier: StoreTier
) -> None:
    message = (
        r"step 1: the loss of micro-batch 0 is nan\n"
        r" += note: the learning rate of this step is 1e\+30\n"
        r" += note: nothing of the step was applied; the 1 steps before it are safe in .*/tiny/"
    )
    with pytest.raises(OpenwaferError, match=message):
        train_quietly(exploding(tiny_config(data, tmp_path, tier)))


@pytest.mark.parametrize(
    ("clip_norm", "tier"),
    [
        case(clip, tier, by_default=(clip, tier) == (None, StoreTier.DISK))
        for clip, tier in product((None, 1.0), TIERS)
    ],
)
def test_the_steps_before_a_loss_that_is_not_finite_are_safe(
    data: TinyData, tmp_path: Path, tier: StoreTier, clip_norm: float | None
) -> None:
    config = replace(exploding(tiny_config(data, tmp_path, tier)), clip_norm=clip_norm)
    with pytest.raises(OpenwaferError, match=r"is nan"):
        train_quietly(config)
    one_step = replace(config, steps=1, name="one")
    result = resume_quietly(replace(config, steps=1))
    assert differing(saved_arrays(result), saved_arrays(train_quietly(one_step))) == []


@pytest.mark.slow
@pytest.mark.parametrize("tier", [case(t, by_default=t is StoreTier.DISK) for t in TIERS])
def test_an_interrupted_run_ends_after_its_step_and_goes_on(
    data: TinyData, tmp_path: Path, tier: StoreTier
) -> None:
    config = tiny_config(data, tmp_path, tier)
    first = interrupt_after(config, 2)
    assert (first.steps_done, first.is_complete, first.interrupted_by) == (2, False, "SIGINT")
    unbroken = train_quietly(replace(config, name="unbroken"))
    assert differing(saved_arrays(resume_quietly(config)), saved_arrays(unbroken)) == []


def test_an_interruption_in_the_last_step_changes_nothing(data: TinyData, tmp_path: Path) -> None:
    result = interrupt_after(tiny_config(data, tmp_path), NUM_STEPS)
    assert (result.is_complete, result.interrupted_by) == (True, "")


def test_a_damaged_store_names_the_newest_checkpoint(data: TinyData, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path, StoreTier.DISK)
    folder = train_quietly(replace(config, steps=2)).folder
    damage(folder)
    message = r"store-corrupt(.|\n)*note.run-checkpoint.: the newest checkpoint .*step-00000002\n"
    with pytest.raises(OpenwaferError, match=message + ".*openwafer resume .* --checkpoint "):
        resume_quietly(config)


@pytest.mark.slow
def test_a_run_with_a_damaged_store_goes_on_from_a_checkpoint(
    data: TinyData, tmp_path: Path
) -> None:
    config = tiny_config(data, tmp_path, StoreTier.DISK)
    config = replace(config, schedule=ScheduleConfig("constant"))
    folder = train_quietly(replace(config, steps=2)).folder
    damage(folder)
    [checkpoint] = list_checkpoints(folder / "checkpoints")
    unbroken = train_quietly(replace(config, name="unbroken"))
    assert differing(saved_arrays(resume_quietly(config, checkpoint)), saved_arrays(unbroken)) == []


@pytest.fixture(scope="module")
def begun(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Of a run of which one step is trained, and to which no test does more."""
    config = tiny_config(data, tmp_path_factory.mktemp("begun"))
    train_quietly(replace(config, steps=1))
    return config


def test_a_run_in_use_is_refused(begun: RunConfig) -> None:
    with (
        RunFolder(begun.path).locked(),
        pytest.raises(OpenwaferError, match=rf"in use by process {os.getpid()}"),
    ):
        resume_quietly(begun)


def test_a_new_run_does_not_overwrite_another(begun: RunConfig) -> None:
    with pytest.raises(OpenwaferError, match=r"there is a run in .*/tiny already"):
        train_quietly(begun)


def test_a_run_that_could_not_begin_can_be_begun_again(data: TinyData, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path, StoreTier.DISK)
    with pytest.raises(OpenwaferError, match=r"device-budget-too-small"):
        train_quietly(replace(config, device_memory=1000))
    assert not config.path.exists()
    assert train_quietly(config).is_complete


def test_what_a_run_that_never_began_found_in_its_folder_stays(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(tiny_config(data, tmp_path), device_memory=1000)
    config = replace(config, data=replace(config.data, folder=None))
    (config.path / "store").mkdir(parents=True)
    with pytest.raises(OpenwaferError, match=r"device-budget-too-small"):
        train_quietly(config)
    assert sorted(path.name for path in config.path.iterdir()) == ["data", "store"]


@pytest.mark.parametrize("assignment", ["name=other", "folder=elsewhere"])
def test_a_run_that_is_to_go_on_elsewhere_is_refused(begun: RunConfig, assignment: str) -> None:
    message = rf"run-place.: {assignment.partition('=')[0]} is set to .*, but the run is .*/tiny\n"
    with pytest.raises(OpenwaferError, match=message):
        Session(begun.path, [assignment], console=quiet())


@pytest.mark.parametrize(
    ("share", "message"),
    [(0.0, "data.validation_share is 0"), (1e-9, "holds no validation documents")],
)
def test_missing_held_out_documents_are_told_before_a_step_is_planned(
    data: TinyData, tmp_path: Path, share: float, message: str
) -> None:
    tokens = replace(data.config(), validation_share=share, folder=tmp_path / "tokens")
    config = replace(tiny_config(data, tmp_path), data=tokens, evaluate=EvaluateConfig())
    # No step fits into this.
    config = replace(config, device_memory=Bytes(1))
    with pytest.raises(OpenwaferError, match=message):
        train_quietly(config)
    assert (tmp_path / "tokens").exists() is (share > 0)
    assert not (tmp_path / "tiny/config.yaml").exists()


def without_checkpoint(config: RunConfig, step: int) -> RunConfig:
    """What stands in the place of its checkpoint's folder lets none be made at that step."""
    (config.path / "checkpoints").mkdir(parents=True)
    (config.path / f"checkpoints/.step-{step:08d}.partial").touch()
    return replace(config, checkpoint=CheckpointConfig(every=1, keep=9))


def test_a_run_goes_on_where_a_checkpoint_cannot_be_written(data: TinyData, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path)
    console = Console(file=io.StringIO(), record=True)
    result = Session(without_checkpoint(config, 2), console=console).train()
    names = [path.name[-1] for path in list_checkpoints(result.folder / "checkpoints")]
    assert names == ["1", "3", "4"]
    told = r"warning.checkpoint-not-written.: cannot write .*step-00000002: (.|\n)* after step 3\n"
    assert re.search(told + r".*the newest checkpoint is .*step-00000001\n", console.export_text())
    unbroken = train_quietly(replace(config, name="unbroken"))
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []


def test_a_last_checkpoint_that_cannot_be_written_is_no_success(
    data: TinyData, tmp_path: Path
) -> None:
    config = without_checkpoint(tiny_config(data, tmp_path), 2)
    message = r"checkpoint-not-written(.|\n)*the newest .*step-00000001\n.*openwafer resume [^ ]*$"
    with pytest.raises(OpenwaferError, match=message):
        interrupt_after(config, 2)
    assert resume_quietly(config).is_complete


def test_a_bad_loss_is_told_where_the_steps_before_it_cannot_be_saved(
    data: TinyData, tmp_path: Path
) -> None:
    config = without_checkpoint(exploding(tiny_config(data, tmp_path)), 1)
    message = r"steps before it could not be saved(.|\n)*error.checkpoint-not-written"
    with pytest.raises(OpenwaferError, match=message):
        train_quietly(config)


def test_only_the_latest_checkpoints_are_kept(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), checkpoint=CheckpointConfig(every=1, keep=2))
    folder = train_quietly(config).folder
    names = [path.name for path in list_checkpoints(folder / "checkpoints")]
    assert names == ["step-00000003", "step-00000004"]
