"""A plan of a hundred billion parameters, made as a script, which prints what that took."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from openwafer.training.host_memory import read_host_memory
from openwafer.training.models import GptConfig
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import BatchConfig, StreamingConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import make_tiny_data, quiet, tiny_config


def large_config(folder: Path) -> RunConfig:
    """80 layers of 1.26 billion parameters, in 24 GiB on the device and 32 GiB on the host."""
    return replace(
        tiny_config(make_tiny_data(folder), folder),
        device_memory=24 << 30,
        batch=BatchConfig(size=4, sequence_length=2048, micro_batches=2),
        model=GptConfig(hidden_size=10_240, num_layers=80, num_heads=80, context_length=2048),
        streaming=StreamingConfig(device="cpu", store=StoreTier.DISK, host_memory=32 << 30),
    )


def main(folder: Path) -> None:
    """Plan, then print parameters, processor milliseconds of the process and its peak in bytes."""
    torch.set_num_threads(1)
    record = Session(large_config(folder), console=quiet()).plan()
    milliseconds = round(1000 * time.process_time())
    peak_bytes = read_host_memory().peak_bytes
    sys.stdout.write(f"{record.parameters} {milliseconds} {peak_bytes}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
