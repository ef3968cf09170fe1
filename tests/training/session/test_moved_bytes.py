"""A run moves the bytes that its plan says, from disk and to it."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from openwafer.training.metrics.run_record import load_run
from openwafer.training.plan_record import Activations, Mode, StepBytes
from openwafer.training.session import RunConfig, Session, Weights
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    OptimizerConfig,
    StreamingConfig,
)
from openwafer.training.store import StoreOptions
from openwafer.training.store.store_file import FileIo
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.tiny_runs import GPT, MODEL, TinyData, quiet, tiny_config

MIB = 1 << 20
# 24 layers of 64 KiB between an embedding and a head: 1.6 MiB of weights, 6.3 with all that is kept
# for them.
DEEP = replace(MODEL, kwargs={"size": 128, "num_layers": 24})
FEW_STEPS, MORE_STEPS = 3, 7


@dataclass(frozen=True)
class Shape:
    """What a run differs in from the default."""

    clip_norm: float | None = 1.0
    tier: StoreTier = StoreTier.DISK
    host_bytes: int = 2 * MIB
    device_bytes: int | None = None
    micro_batches: int | None = None
    optimizer: str = "adamw"
    weights: Weights = Weights.FP32
    prefetch_layers: int | None = None


SHAPES = {
    "clipped": Shape(),
    "not clipped": Shape(clip_norm=None),
}
MORE_SHAPES = {
    f"{name}, {'clipped' if clip_norm else 'not clipped'}": replace(shape, clip_norm=clip_norm)
    for clip_norm in (1.0, None)
    for name, shape in {
        "small ring": Shape(host_bytes=MIB),
        "large ring": Shape(host_bytes=3 * MIB),
        "mixed tiers": Shape(tier=StoreTier.AUTO, host_bytes=4 * MIB),
        "micro-batches": Shape(micro_batches=3),
        "small device": Shape(device_bytes=7 * MIB // 2),
        "no prefetch": Shape(prefetch_layers=0),
        "sgd": Shape(optimizer="sgd"),
        "bf16 weights": Shape(weights=Weights.BF16),
    }.items()
}


def config_of(data: TinyData, folder: Path, shape: Shape) -> RunConfig:
    return replace(
        tiny_config(data, folder),
        model=DEEP,
        clip_norm=shape.clip_norm,
        device_memory=shape.device_bytes,
        weights=shape.weights,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=shape.micro_batches),
        optimizer=OptimizerConfig(shape.optimizer),
        checkpoint=CheckpointConfig(every=100, at_end=False),
        streaming=StreamingConfig(
            device="cpu",
            store=shape.tier,
            host_memory=shape.host_bytes,
            mode=Mode.STREAMED,
            activations=Activations.KEEP,
            prefetch_layers=shape.prefetch_layers,
        ),
    )


class CountingIo(FileIo):
    """The system's calls, with the bytes that they moved."""

    def __init__(self) -> None:
        self.read_bytes = self.written_bytes = 0

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        num_bytes = super().read(descriptor, buffer, offset)
        self.read_bytes += num_bytes
        return num_bytes

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        num_bytes = super().write(descriptor, buffer, offset)
        self.written_bytes += num_bytes
        return num_bytes


def run_bytes(config: RunConfig) -> tuple[int, int]:
    """Bytes that a whole run reads and writes."""
    # One thread each way, so that the sums need no lock.
    counting = CountingIo()
    options = StoreOptions(num_readers=1, num_writers=1, file_io=counting, is_paced=True)
    Session(config, console=quiet(), store=options).train()
    return counting.read_bytes, counting.written_bytes


def moved_bytes(
    config: RunConfig, few_steps: int = FEW_STEPS, more_steps: int = MORE_STEPS
) -> tuple[int, int]:
    """Bytes that a step reads from disk and writes to it, of the steps from few to more.

    A longer run moves what a shorter one does and then that of its further steps.
    """
    short, long = replace(config, name="short", steps=few_steps), replace(config, steps=more_steps)
    sums = zip(run_bytes(short), run_bytes(long), strict=True)
    read, written = ((more - few) // (more_steps - few_steps) for few, more in sums)
    return read, written


def check(planned: StepBytes | None, moved: tuple[int, int]) -> None:
    assert planned is not None
    assert moved == pytest.approx((planned.disk_read, planned.disk_write), rel=0.02)


@pytest.mark.parametrize(
    "shape", [case(s, by_default=name == "clipped", id=name) for name, s in SHAPES.items()]
)
def test_a_run_moves_the_bytes_of_its_plan(data: TinyData, tmp_path: Path, shape: Shape) -> None:
    config = config_of(data, tmp_path, shape)
    moved = moved_bytes(config)
    check(load_run(config.path).plan.step_bytes, moved)


@pytest.mark.slow
@pytest.mark.parametrize("shape", MORE_SHAPES.values(), ids=MORE_SHAPES)
def test_a_run_of_any_shape_moves_the_bytes_of_its_plan(
    data: TinyData, tmp_path: Path, shape: Shape
) -> None:
    config = config_of(data, tmp_path, shape)
    moved = moved_bytes(config)
    check(load_run(config.path).plan.step_bytes, moved)


def speculating(data: TinyData, folder: Path, clip_norm: float) -> RunConfig:
    """A run of which some of the weights are in DRAM; its norms are about 3."""
    config = config_of(data, folder, Shape(clip_norm, host_bytes=2 * MIB))
    return replace(config, model=replace(GPT, num_layers=12, hidden_size=64))


@pytest.mark.slow
def test_a_step_that_is_not_clipped_moves_what_the_plan_says(
    data: TinyData, tmp_path: Path
) -> None:
    config = speculating(data, tmp_path, clip_norm=1e9)
    moved = moved_bytes(config)
    check(load_run(config.path).plan.step_bytes, moved)


@pytest.mark.slow
def test_a_step_that_is_undone_moves_what_the_plan_says(data: TinyData, tmp_path: Path) -> None:
    config = speculating(data, tmp_path, clip_norm=0.1)
    read, written = moved_bytes(config, 1, 2)
    planned = load_run(config.path).plan.undone_step_bytes
    assert planned is not None
    assert read == pytest.approx(planned.disk_read, rel=0.02)
    # What is still to be written when a step is undone never is, and how much that is varies.
    assert written == pytest.approx(planned.disk_write, rel=0.2)


@pytest.mark.slow
def test_a_step_that_keeps_gradients_moves_what_the_plan_says(
    data: TinyData, tmp_path: Path
) -> None:
    config = speculating(data, tmp_path, clip_norm=0.1)
    moved = moved_bytes(config)
    check(load_run(config.path).plan.kept_step_bytes, moved)
