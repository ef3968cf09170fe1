import resource

import torch

from openwafer.training.store.layout import Part
from openwafer.training.store.pages import HUGE_BYTES
from openwafer.training.store.parts import PartState, Ring, Tier

PAGE = 4096


def filled_part(ring: Ring, name: str, num_pages: int = 1) -> PartState:
    """A part that was read and is now idle."""
    part = PartState(name, Part.WEIGHTS, Tier.DISK, num_pages * PAGE, (0, 0))
    part.buffer = ring.take(part.num_bytes)
    part.is_loaded = True
    ring.note_use(part)
    ring.keep_idle(part)
    return part


def test_lent_buffers_leave_no_room_beyond_the_bound() -> None:
    ring = Ring(4 * PAGE)
    ring.take(3 * PAGE)
    assert (ring.has_room(PAGE, []), ring.has_room(2 * PAGE, [])) == (
        True,
        False,
    )


def test_idle_parts_are_room() -> None:
    ring = Ring(4 * PAGE)
    filled_part(ring, "old", 4)
    assert ring.has_room(4 * PAGE, [])


def test_idle_parts_that_the_same_loan_asks_for_are_no_room() -> None:
    ring = Ring(4 * PAGE)
    part = filled_part(ring, "asked too", 2)
    assert not ring.has_room(3 * PAGE, [part])


def test_the_part_used_longest_ago_goes_first() -> None:
    ring = Ring(3 * PAGE)
    parts = [filled_part(ring, name) for name in "abc"]
    for part in (parts[1], parts[0], parts[2]):
        ring.note_use(part)
    ring.take(PAGE)
    assert [part.is_loaded for part in parts] == [True, False, True]


def test_a_buffer_of_the_same_size_is_reused() -> None:
    ring = Ring(2 * PAGE)
    part = filled_part(ring, "old")
    buffer = part.held_buffer()
    ring.drop(part)
    assert ring.take(PAGE) is buffer


def test_buffers_of_other_sizes_make_way() -> None:
    ring = Ring(4 * PAGE)
    for name in "ab":
        filled_part(ring, name, 2)
    assert ring.take(3 * PAGE).tensor.shape == torch.Size([3 * PAGE])


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_pages_move_to_buffers_of_other_sizes() -> None:
    ring = Ring(12 * HUGE_BYTES)
    for name in "ab":
        part = filled_part(ring, name, 6 * HUGE_BYTES // PAGE)
        part.held_buffer().tensor.fill_(1)
    big, small = ring.take(8 * HUGE_BYTES), ring.take(4 * HUGE_BYTES)
    before = page_faults()
    for buffer in (big, small):
        buffer.tensor.fill_(2)
    assert page_faults() - before < 6


def test_what_is_left_of_a_buffer_is_room_again() -> None:
    ring = Ring(4 * HUGE_BYTES)
    filled_part(ring, "old", 4 * HUGE_BYTES // PAGE)
    ring.take(3 * HUGE_BYTES)
    assert ring.has_room(HUGE_BYTES, [])


def test_pages_that_nobody_can_take_over_are_given_back() -> None:
    ring = Ring(4 * HUGE_BYTES)
    filled_part(ring, "old", 4 * HUGE_BYTES // PAGE)
    ring.take(4 * HUGE_BYTES - PAGE)
    assert ring.mapped_bytes == 4 * HUGE_BYTES - PAGE


def test_a_buffer_that_took_pages_over_keeps_its_bytes_when_the_giver_is_gone() -> None:
    ring = Ring(3 * HUGE_BYTES)
    filled_part(ring, "old", 3 * HUGE_BYTES // PAGE)
    first, second = ring.take(2 * HUGE_BYTES), ring.take(HUGE_BYTES)
    first.tensor.fill_(1)
    second.tensor.fill_(2)
    assert first.tensor.unique().tolist() + second.tensor.unique().tolist() == [1, 2]
