"""Builds, streams and trains a deep model in a process of its own, and prints what it held.

The kernel's peak is set back once a small model has loaded all that planning needs.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import openwafer
from openwafer.training.host_memory import read_host_memory
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.stream_options import StreamOptions

SET_PEAK_BACK = Path("/proc/self/clear_refs")
SIZE = 1024
OPTIONS = StreamOptions(
    device="cpu",
    mode=Mode.STREAMED,
    tier=StoreTier.DISK,
    host_memory_bytes=24 << 20,
    default_activations=Activations.RECOMPUTE,
)


def train(folder: Path, num_layers: int) -> int:
    """One step; returns the bytes of the weights."""
    with openwafer.deferred_weights(folder, resident_bytes=8 << 20):
        model = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(num_layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    store = folder / f"store-{num_layers}"
    openwafer.stream_weights(
        model, optimizer, device_memory="256MiB", folder=store, options=OPTIONS
    )
    model(torch.ones(2, SIZE)).square().mean().backward()
    optimizer.step()
    return num_bytes


def main(folder: Path, num_layers: int) -> None:
    """Print by how many bytes the resident set rose, and the bytes of the weights."""
    torch.set_num_threads(1)
    train(folder, 2)
    SET_PEAK_BACK.write_text("5")
    before = read_host_memory().peak_bytes
    num_bytes = train(folder, num_layers)
    sys.stdout.write(f"{read_host_memory().peak_bytes - before} {num_bytes}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
