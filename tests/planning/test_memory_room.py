"""How many tokens fit beside the cores, and how large a model the store holds."""

import pytest

from openwafer.planning import memory
from openwafer.planning.systems import CS2, CS3

TRILLION = (128, 25_600)
"""Layers and width of a transformer of 1.007 trillion weights."""


def test_40_gb_hold_the_20_billion_activations_that_are_published() -> None:
    assert memory.held_activations(CS2.memory.value) == 20e9


def test_weights_beside_them_leave_less_room_and_never_less_than_none() -> None:
    assert memory.held_activations(40e9, 30e9) == 5e9
    assert memory.held_activations(40e9, 50e9) == 0


def test_a_trillion_weights_leave_room_for_6100_tokens() -> None:
    layers, width = TRILLION
    assert 12 * layers * width**2 == pytest.approx(1e12, rel=0.01)
    assert memory.tokens_kept(20e9, *TRILLION) == pytest.approx(6100, abs=50)


def test_120_trillion_weights_leave_room_for_200_tokens_and_3200_recomputed() -> None:
    shape = (1000, 100_000)
    assert memory.tokens_kept(20e9, *shape) == 200
    assert memory.tokens_recomputed(20e9, *shape) == pytest.approx(3200, abs=50)


def test_recomputing_keeps_what_a_walk_in_segments_needs() -> None:
    """Inputs of all segments, and those of the layers of one, counted for 100 layers."""
    segments = [range(start, start + 10) for start in range(0, 100, 10)]
    held = len(segments) + max(map(len, segments))
    assert memory.tokens_recomputed(20e9, 100, 50) == pytest.approx(20e9 / (held * 50))


def test_a_product_of_100000_by_100000_takes_100000_tokens() -> None:
    assert memory.tokens_of_product(20e9, 100_000) == 100_000


def test_the_largest_store_holds_120_trillion_weights() -> None:
    assert CS2.store is not None
    assert memory.stored_parameters(CS2.store.value) == 120e12
    assert memory.store_bytes(120e12) == CS2.store.value


def test_a_later_wafer_holds_more_activations() -> None:
    assert memory.held_activations(CS3.memory.value) == 22e9
