"""A run under a limit that the kernel keeps; as a script it prints what the run held.

Planning brings in what of the libraries a step needs, so the run is planned before memory is
limited.
"""

import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch

from openwafer.training.host_memory import read_host_memory
from openwafer.training.models import GptConfig
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    StreamingConfig,
)
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.options import SparsityGroup
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import make_tiny_data, quiet, tiny_config

MIB = 1 << 20
STORE_BYTES = 320 * MIB
LIMIT_BYTES = 480 * MIB
"""Of all that a run allocates. The weights of the dense model alone are 576 MiB."""


def config_of(folder: Path, sparsity: float | None, method: InitMethod) -> RunConfig:
    """Three steps of a decoder of 151 million parameters."""
    return replace(
        tiny_config(make_tiny_data(folder), folder),
        steps=3,
        sparsity=None if sparsity is None else SparsityGroup(sparsity, init_method=method),
        batch=BatchConfig(2, 64),
        model=GptConfig(hidden_size=1024, num_layers=12, num_heads=4, context_length=64),
        device_memory=96 * MIB,
        streaming=StreamingConfig(device="cpu", store=StoreTier.DRAM, host_memory=STORE_BYTES),
        checkpoint=CheckpointConfig(at_end=True),
    )


def allocated_bytes() -> int:
    """Of the process, as the limit counts them; see proc(5)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    [found] = (line for line in lines if line.startswith("VmData:"))
    return int(found.split()[1]) * 1024


def main(folder: Path, sparsity: float, method: InitMethod) -> None:
    """Train, then print by how much that raised the peak of the resident set, in bytes."""
    torch.set_num_threads(1)
    config = config_of(folder, sparsity, method)
    Session(config, console=quiet()).plan()
    most = allocated_bytes() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    before = read_host_memory().peak_bytes
    Session(config, console=quiet()).train()
    sys.stdout.write(f"{read_host_memory().peak_bytes - before}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), InitMethod(sys.argv[3]))
