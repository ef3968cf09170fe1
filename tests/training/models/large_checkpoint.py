"""Reads a checkpoint folder in a process of its own, and prints what it held in memory.

The kernel's peak is set back once a small folder has loaded what the library loads late.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from openwafer.training.host_memory import read_host_memory
from openwafer.training.models import CheckpointFolder, build
from openwafer.training.store.deferred_memory import DeferredMemory

SET_PEAK_BACK = Path("/proc/self/clear_refs")


def save_llama(folder: Path, num_layers: int, dtype: torch.dtype) -> None:
    """Layers of 3 million parameters, in shards."""
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    model.to(dtype).save_pretrained(folder, max_shard_size="20MB")


def read(folder: Path, scratch: Path) -> int:
    """Build the model of a folder; returns the bytes of its weights."""
    with DeferredMemory(scratch, resident_bytes=8 << 20, min_bytes=64 << 10):
        model = build(CheckpointFolder(folder), seed=0)
    return sum(parameter.nbytes for parameter in model.parameters())


def main(small: Path, large: Path) -> None:
    """Print by how many bytes the resident set rose, and the bytes of the weights."""
    torch.set_num_threads(1)
    read(small, small)
    SET_PEAK_BACK.write_text("5")
    before = read_host_memory().peak_bytes
    num_bytes = read(large, small)
    sys.stdout.write(f"{read_host_memory().peak_bytes - before} {num_bytes}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
