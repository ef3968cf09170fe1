"""A run from disk of a given shape, which prints what it held as a script.

Planning tries operators once a process, in memory that would hide what training takes, so the run
is planned first and the kernel's peak set back.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from openwafer.training.host_memory import read_host_memory
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

# See proc(5): 5 sets the peak of the resident set to what it is.
SET_PEAK_BACK = Path("/proc/self/clear_refs")


def deep_config(folder: Path, num_layers: int, batch_size: int, micro_batches: int) -> RunConfig:
    """A million parameters a layer; what is in host memory has one size at any depth."""
    return replace(
        tiny_config(make_tiny_data(folder), folder),
        steps=3,
        batch=BatchConfig(batch_size, 12, micro_batches),
        model=GptConfig(
            hidden_size=256, num_layers=num_layers, num_heads=2, mlp_size=1024, context_length=16
        ),
        streaming=StreamingConfig(
            device="cpu",
            store=StoreTier.DISK,
            host_memory=24 << 20,
            mode=Mode.STREAMED,
            activations=Activations.RECOMPUTE,
        ),
        checkpoint=CheckpointConfig(at_end=False),
    )


def main(folder: Path, num_layers: int, batch_size: int, micro_batches: int) -> None:
    """Train, then print bytes.

    They are the largest resident set, by how much training raised it, those of weights and states,
    and the predicted peak of the device.
    """
    torch.set_num_threads(1)
    config = deep_config(folder, num_layers, batch_size, micro_batches)
    Session(config, console=quiet()).plan()
    SET_PEAK_BACK.write_text("5")
    before = read_host_memory().peak_bytes
    Session(config, console=quiet()).train()
    plan = json.loads((folder / "tiny/plan.json").read_text())
    num_bytes = sum(layer["weights_bytes"] + layer["states_bytes"] for layer in plan["layers"])
    peak = read_host_memory().peak_bytes
    sys.stdout.write(f"{peak} {peak - before} {num_bytes} {plan['predicted_peak_bytes']}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
