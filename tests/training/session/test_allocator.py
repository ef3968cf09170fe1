"""Where large freed memory goes, in a heap that other tests have not divided."""

import resource

import pytest

from tests.own_process import integers_of
from tests.training.session.faulting_blocks import NUM_BYTES

NUM_PAGES = NUM_BYTES // resource.getpagesize()


@pytest.fixture(scope="module")
def faults() -> tuple[int, int]:
    """Pages brought for a block of a step, and for one between steps, 16 times as large."""
    within, between = integers_of("tests.training.session.faulting_blocks")
    return within, between


def test_steps_use_the_pages_of_freed_blocks_again(faults: tuple[int, int]) -> None:
    assert faults[0] < NUM_PAGES // 100


def test_between_steps_a_block_larger_than_the_heap_leaves_the_process(
    faults: tuple[int, int],
) -> None:
    # In huge pages, if torch asks for them.
    assert faults[1] >= 16 * NUM_BYTES // (2 << 20)
