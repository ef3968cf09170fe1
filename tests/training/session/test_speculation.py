"""Steps that are updated before their norm is known end with the bits of the plain loop."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics.run_record import load_run
from openwafer.training.session import Precision, RunConfig, Session, Weights
from openwafer.training.session.config_sections import BatchConfig, ScheduleConfig
from openwafer.training.step import LossScaling, Outcome, require_same
from openwafer.training.store import StoreOptions
from openwafer.training.store.layout import Part
from openwafer.training.store.store_file import FileIo
from openwafer.training.store.store_folder import read_manifest
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.test_averages import PlainAverage
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)

# Norms are about 3 in these runs, and differ from step to step.
NEVER, SOMETIMES, ALWAYS = 1e9, 3.1, 0.1
# Some of the records in DRAM, all of them on disk.
HOST_BYTES = {"mixed": 400 << 10, "disk": 190 << 10}


def config_of(data: TinyData, folder: Path, clip_norm: float, host: str = "disk") -> RunConfig:
    config = tiny_config(data, folder, StoreTier.DISK)
    streaming = replace(config.streaming, host_memory=HOST_BYTES[host])
    return replace(
        config,
        model=GPT,
        steps=6,
        clip_norm=clip_norm,
        streaming=streaming,
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    )


def undone_of(config: RunConfig) -> tuple[bool, ...]:
    undone = read_manifest(config.path / "store").state["undone"]
    assert isinstance(undone, list)
    return tuple(map(bool, undone))


def num_passes(config: RunConfig) -> list[int]:
    """How many passes each step took, by the weights that it fetched."""
    fetched = [row.fetch_bytes for row in load_run(config.path).metrics.rows]
    return [num_bytes // min(fetched) for num_bytes in fetched]


def differing_from_loop(config: RunConfig) -> list[str]:
    """Names of the weights that a run has otherwise than the plain loop."""
    return differing(saved_parameters(train_quietly(config)), plain_loop(config))


@pytest.mark.slow
def test_a_run_that_clips_now_and_then_equals_the_plain_loop(
    data: TinyData, tmp_path: Path
) -> None:
    assert differing_from_loop(config_of(data, tmp_path, SOMETIMES, "mixed")) == []


def test_a_run_that_clips_often_undoes_two_steps_and_then_keeps_gradients(
    data: TinyData, tmp_path: Path
) -> None:
    """One that is resumed between remembers which were undone."""
    config = config_of(data, tmp_path, ALWAYS)
    train_quietly(replace(config, steps=3))
    resumed = Session(config, console=quiet()).resume()
    assert differing(saved_parameters(resumed), plain_loop(config)) == []
    assert num_passes(config) == [2, 2, 1, 1, 1, 1]
    assert undone_of(config) == (True,) * 6


def test_a_step_that_is_not_clipped_takes_one_pass(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path, NEVER), steps=3)
    assert differing_from_loop(config) == []
    assert num_passes(config) == [1] * 3


class WrittenPlaces(FileIo):
    """The system's calls, with the offsets written to."""

    def __init__(self) -> None:
        self.offsets: set[int] = set()

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self.offsets.add(offset)
        return super().write(descriptor, buffer, offset)


def keeps_gradients(config: RunConfig) -> bool:
    """Go on with a run, and say whether it writes gradients."""
    written = WrittenPlaces()
    Session(config, console=quiet(), store=StoreOptions(file_io=written)).resume()
    places = read_manifest(config.path / "store").catalog.file_plan.offsets
    gradients = {
        offset for (_, part), of in places.items() if part is Part.GRADIENTS for offset in of
    }
    return not gradients.isdisjoint(written.offsets)


@pytest.mark.slow
def test_a_run_whose_norms_fall_again_is_updated_at_once_again(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(config_of(data, tmp_path, ALWAYS), steps=3)
    train_quietly(config)
    calm = replace(config, clip_norm=NEVER)
    found = [keeps_gradients(replace(calm, steps=steps)) for steps in (10, 13)]
    assert found == [True, False]


@pytest.mark.slow
def test_a_resumed_run_remembers_which_steps_were_undone(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path / "cut", SOMETIMES)
    train_quietly(replace(config, steps=3))
    resumed = Session(config, console=quiet()).resume()
    whole = replace(config, folder=tmp_path / "whole")
    assert differing(saved_arrays(resumed), saved_arrays(train_quietly(whole))) == []
    assert undone_of(config) == undone_of(whole)


@pytest.mark.slow
def test_micro_batches_are_run_again_with_their_own_seeds(data: TinyData, tmp_path: Path) -> None:
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=3)
    config = replace(config_of(data, tmp_path, SOMETIMES), batch=batch)
    assert differing_from_loop(config) == []


# test_covering_runs has averages of clipped runs of three micro-batches.
@pytest.mark.slow
def test_an_average_moves_once_in_a_step_that_is_run_again(data: TinyData, tmp_path: Path) -> None:
    """With each micro-batch by its own seed, as the weights say."""
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=3)
    config = replace(config_of(data, tmp_path, SOMETIMES), batch=batch, ema=0.9)
    average = PlainAverage()
    plain = plain_loop(config, average)
    arrays = saved_arrays(train_quietly(config))
    kept = {name: arrays[f"average/{name}"] for name in average.weights()}
    assert differing(kept, average.weights()) == []
    assert differing({name: arrays[name] for name in plain}, plain) == []


@pytest.mark.slow
def test_overflowing_steps_are_undone(data: TinyData, tmp_path: Path) -> None:
    scaling = LossScaling(initial_scale=2.0**40, backoff_factor=2.0**-12)
    config = replace(
        config_of(data, tmp_path, SOMETIMES), precision=Precision.FP16, loss_scale=scaling
    )
    assert differing_from_loop(config) == []
    assert undone_of(config)[0]


@pytest.mark.slow
def test_masters_of_a_step_that_is_run_again_are_those_of_one_that_waits(
    data: TinyData, tmp_path: Path
) -> None:
    on_disk = replace(config_of(data, tmp_path / "disk", SOMETIMES), weights=Weights.BF16)
    streaming = replace(on_disk.streaming, store=StoreTier.DRAM, host_memory=None)
    in_dram = replace(on_disk, folder=tmp_path / "dram", streaming=streaming)
    results = [saved_arrays(train_quietly(config)) for config in (on_disk, in_dram)]
    assert differing(*results) == []


def test_a_norm_that_is_not_finite_leaves_the_step_before(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, NEVER)
    train_quietly(replace(config, steps=2))
    optimizer = replace(config.optimizer, learning_rate=1e20)
    with pytest.raises(OpenwaferError, match="nothing of the step was applied"):
        Session(replace(config, optimizer=optimizer, steps=20), console=quiet()).resume()


def test_a_step_that_gives_other_gradients_the_second_time_is_refused() -> None:
    first, second = Outcome((1.0, 2.0), 3.0), Outcome((1.0, 2.0), 3.0000001)
    with pytest.raises(OpenwaferError, match="gave others than before"):
        require_same(first, second)


def test_code_of_a_users_own_is_not_run_twice(data: TinyData, tmp_path: Path) -> None:
    own = tiny_config(data, tmp_path, StoreTier.DISK)
    config = replace(own, steps=2, clip_norm=ALWAYS)
    train_quietly(config)
    assert (num_passes(config), undone_of(config)) == ([1, 1], ())
