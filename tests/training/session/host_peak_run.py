"""A run that prints, as a script, the peak of host memory that was predicted and the kernel's."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from openwafer.training.host_memory import read_host_memory
from openwafer.training.metrics.run_record import PLAN
from openwafer.training.models import GptConfig
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    StreamingConfig,
)
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import make_tiny_data, quiet, tiny_config

MIB = 1 << 20


@dataclass(frozen=True)
class Shape:
    """What differs from run to run; `clip_norm` 0 is none, `host_mib` is that of the disk tier."""

    tier: StoreTier = StoreTier.DRAM
    mode: Mode = Mode.STREAMED
    activations: Activations = Activations.RECOMPUTE
    num_layers: int = 4
    hidden_size: int = 512
    batch_size: int = 8
    micro_batches: int = 1
    clip_norm: float = 0.0
    host_mib: int = 96

    def config(self, folder: Path) -> RunConfig:
        """Three steps of a decoder."""
        is_on_disk = self.tier is StoreTier.DISK
        return replace(
            tiny_config(make_tiny_data(folder), folder),
            steps=3,
            clip_norm=self.clip_norm or None,
            batch=BatchConfig(self.batch_size, 64, self.micro_batches),
            model=GptConfig(
                hidden_size=self.hidden_size,
                num_layers=self.num_layers,
                num_heads=4,
                mlp_size=4 * self.hidden_size,
                context_length=64,
            ),
            streaming=StreamingConfig(
                device="cpu",
                store=self.tier,
                host_memory=self.host_mib * MIB if is_on_disk else None,
                mode=self.mode,
                activations=self.activations,
            ),
            checkpoint=CheckpointConfig(at_end=False),
        )


def arguments_of(shape: Shape) -> tuple[object, ...]:
    """The shape as words of a command line."""
    return tuple(vars(shape).values())


def shape_of(words: Sequence[str]) -> Shape:
    """The shape that the words stand for."""
    tier, mode, activations, layers, hidden_size, size, pieces, clip_norm, host_mib = words
    return Shape(
        StoreTier(tier),
        Mode(mode),
        Activations(activations),
        num_layers=int(layers),
        hidden_size=int(hidden_size),
        batch_size=int(size),
        micro_batches=int(pieces),
        clip_norm=float(clip_norm),
        host_mib=int(host_mib),
    )


def main(folder: Path, shape: Shape) -> None:
    """Train, then print the predicted peak and the kernel's, in bytes."""
    torch.set_num_threads(1)
    result = Session(shape.config(folder), console=quiet()).train()
    predicted = PLAN.read(result.folder).predicted_host_bytes
    sys.stdout.write(f"{predicted} {read_host_memory().peak_bytes}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), shape_of(sys.argv[2:]))
