"""Prints the pages that blocks bring, in steps and between them, in a process with a new heap."""

import resource
import sys

import torch

from openwafer.training.host_memory import keeping_freed_memory, return_large_blocks

NUM_BYTES = 32 << 20


def faults_of_a_block(num_bytes: int) -> int:
    """Pages that the kernel has to bring for a block that is filled and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(num_bytes, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def main() -> None:
    """The last of several blocks each way."""
    return_large_blocks()
    with keeping_freed_memory():
        within = [faults_of_a_block(NUM_BYTES) for _ in range(5)]
    between = [faults_of_a_block(16 * NUM_BYTES) for _ in range(2)]
    sys.stdout.write(f"{within[-1]} {between[-1]}\n")


if __name__ == "__main__":
    main()
