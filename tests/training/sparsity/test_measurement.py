"""Products are tried both ways, for each kind of weight once."""

import time
from collections.abc import Iterator

import pytest
import torch

from openwafer.training.sparsity.choice import WeightKind, measured, skipping_of
from openwafer.training.sparsity.packed import PackedRoom
from openwafer.training.sparsity.products import Skipping

LARGE = WeightKind(PackedRoom.smallest((2048, 1024), 20_000), is_turned=False)
SMALL = WeightKind(PackedRoom.smallest((16, 16), 200), is_turned=True)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Others wait for each other where the tests' machine is busy, and times mean nothing."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(earlier)


@pytest.mark.parametrize(
    ("gains", "fewest"),
    [
        ([(64, 0.5), (256, 0.9)], None),
        ([(64, 0.5), (256, 1.2)], 256),
        ([(64, 1.1), (256, 1.2)], 64),
        ([(64, 1.1), (256, 1.0)], None),
    ],
)
def test_zeros_are_skipped_from_where_on_that_was_always_faster(
    gains: list[tuple[int, float]], fewest: int | None
) -> None:
    assert skipping_of(gains) == Skipping(fewest, gains[-1][1])


def test_a_weight_of_few_kept_positions_is_skipped_and_a_small_full_one_is_not() -> None:
    found = measured([LARGE, LARGE, SMALL], most_seconds=60)
    assert [*found] == [LARGE, SMALL]
    assert found[LARGE].from_tokens is not None
    assert found[SMALL].from_tokens is None


def test_what_there_is_no_time_for_follows_the_rule() -> None:
    found = measured([LARGE, SMALL], most_seconds=0)
    assert found == {kind: Skipping.by_rule(kind.room) for kind in (LARGE, SMALL)}


def test_of_a_large_weight_a_part_is_tried() -> None:
    large = WeightKind(PackedRoom.smallest((16_384, 4096), 1 << 23), is_turned=False)
    measured([SMALL], most_seconds=0)
    start = time.thread_time()
    measured([large])
    assert time.thread_time() - start < 10


def test_the_random_numbers_of_a_run_are_not_touched() -> None:
    before = torch.get_rng_state()
    measured([SMALL])
    assert torch.equal(torch.get_rng_state(), before)
