"""Where large freed memory goes."""

import resource

import torch

from openwafer.training.session.allocator import keeping_freed_memory, return_large_blocks

NUM_BYTES = 32 << 20
NUM_PAGES = NUM_BYTES // resource.getpagesize()


def faults_of_a_block(num_bytes: int) -> int:
    """Pages that the kernel has to bring for a block that is filled and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(num_bytes, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_steps_use_the_pages_of_freed_blocks_again() -> None:
    return_large_blocks()
    with keeping_freed_memory():
        faults = [faults_of_a_block(NUM_BYTES) for _ in range(5)]
    assert faults[-1] < NUM_PAGES // 100


def test_between_steps_a_block_larger_than_the_heap_leaves_the_process() -> None:
    return_large_blocks()
    with keeping_freed_memory():
        faults_of_a_block(NUM_BYTES)
    faults = [faults_of_a_block(16 * NUM_BYTES) for _ in range(2)]
    # In huge pages, if torch asks for them.
    assert faults[-1] >= 16 * NUM_BYTES // (2 << 20)
