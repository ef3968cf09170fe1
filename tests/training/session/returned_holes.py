"""Prints the resident set with holes in the heap, then without, and whether the rest is whole."""

import sys
import time

import torch

from openwafer.training.host_memory import (
    MARGIN,
    keeping_freed_memory,
    read_host_memory,
    returning_holes,
)

MIB = 1 << 20
NUM_HOLES = 100
PATIENCE_SECONDS = 120


def main() -> None:
    """Free every second of many blocks, under a limit that the holes pass."""
    with keeping_freed_memory():
        blocks = [torch.ones(MIB, dtype=torch.uint8) for _ in range(2 * NUM_HOLES)]
    del blocks[::2]
    before = left = read_host_memory().resident_bytes
    # The heap may keep a share of the limit beyond it, and half of the holes are beyond that.
    limit = int((before - NUM_HOLES // 2 * MIB) / (1 + MARGIN))
    enough = before - 0.95 * NUM_HOLES * MIB
    give_up = time.monotonic() + PATIENCE_SECONDS
    with returning_holes(limit):
        while left > enough and time.monotonic() < give_up:
            time.sleep(0.01)
            left = read_host_memory().resident_bytes
    is_whole = all(bool(block.all()) for block in blocks)
    sys.stdout.write(f"{before} {left} {int(is_whole)}\n")


if __name__ == "__main__":
    main()
