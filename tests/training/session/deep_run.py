"""A run from disk of a given depth; run as a script, it prints what it held and what it trained.

Planning tries operators once a process, in memory that would hide what training takes, so the run
is planned first and the kernel's peak set back.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from openwafer.training.metrics.host_memory import read_host_memory
from openwafer.training.models import GptConfig
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config import CheckpointConfig, StreamingConfig
from openwafer.training.stream.activations import Activations
from openwafer.training.stream.placement import StoreTier
from openwafer.training.stream.plan import Mode
from tests.training.session.tiny_runs import make_tiny_data, quiet, tiny_config

# See proc(5): 5 sets the peak of the resident set to what it is.
SET_PEAK_BACK = Path("/proc/self/clear_refs")


def deep_config(folder: Path, num_layers: int) -> RunConfig:
    """A million parameters a layer; what is in host memory has one size at any depth."""
    return replace(
        tiny_config(make_tiny_data(folder), folder),
        steps=3,
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


def main(folder: Path, num_layers: int) -> None:
    """Train, then print the largest resident set and the bytes of weights and states."""
    torch.set_num_threads(1)
    config = deep_config(folder, num_layers)
    Session(config, console=quiet()).plan()
    SET_PEAK_BACK.write_text("5")
    Session(config, console=quiet()).train()
    layers = json.loads((folder / "tiny/plan.json").read_text())["layers"]
    num_bytes = sum(layer["weights_bytes"] + layer["states_bytes"] for layer in layers)
    sys.stdout.write(f"{read_host_memory().peak_bytes} {num_bytes}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
