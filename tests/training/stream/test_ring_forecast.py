"""Which parts a step finds in the ring, foretold from the order of their uses."""

import torch

from openwafer.training.store.layout import PAGE_BYTES, ArraySpec, Part, lay_out
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.plan.traffic import RingForecast

NAMES = ("first", "second", "third")


def forecast(num_pages: int) -> RingForecast:
    """A ring of so many pages, for records of one page of weights each."""
    layouts = {name: lay_out(name, [ArraySpec(name, torch.uint8, (1,))]) for name in NAMES}
    tiers = {(name, Part.WEIGHTS): Tier.DISK for name in NAMES} | {
        ("third", Part.WEIGHTS): Tier.DRAM
    }
    return RingForecast(layouts, tiers, num_pages * PAGE_BYTES)


def reads(ring: RingForecast, *records: str) -> list[int]:
    """Pages that each use reads."""
    return [ring.use(record, (Part.WEIGHTS,)) // PAGE_BYTES for record in records]


def test_what_is_still_in_the_ring_is_not_read() -> None:
    assert reads(forecast(2), "first", "second", "first") == [1, 1, 0]


def test_what_was_used_longest_ago_leaves_the_ring() -> None:
    assert reads(forecast(1), "first", "second", "first") == [1, 1, 1]


def test_a_part_in_dram_is_not_read() -> None:
    assert reads(forecast(2), "third") == [0]


def test_what_is_overwritten_is_not_read_and_stays() -> None:
    ring = forecast(1)
    assert ring.use("first", (Part.WEIGHTS,), fresh=(Part.WEIGHTS,)) == 0
    assert reads(ring, "first") == [0]
