"""The time of a step on several systems, where it follows from one part alone."""

from dataclasses import replace

import pytest

from openwafer.replica_steps import Joined, LayerWork, Part, StreamedStep, replica_step

LAYERS = 10
LAYER = LayerWork(1.0, 3.0, 1.0, 1.0, 0.0)
EASY = Joined(1, link=1e9, hop_seconds=0.0, store=1e9, adding=1e12, chunk_bytes=0.01)


def seconds(num_systems: int, joined: Joined = EASY, micro_batches: int = 64) -> float:
    step = StreamedStep([LAYER] * LAYERS, micro_batches, room_bytes=3.0)
    return replica_step(step, replace(joined, num_systems=num_systems)).seconds


@pytest.mark.parametrize("num_systems", [1, 2, 16, 64])
def test_devices_alone_share_the_micro_batches(num_systems: int) -> None:
    assert seconds(num_systems) == pytest.approx(LAYERS * 4 * 64 / num_systems)


def test_a_step_waits_for_the_system_with_most_micro_batches() -> None:
    assert seconds(48) == pytest.approx(LAYERS * 4 * 2)


@pytest.mark.parametrize("num_systems", [2, 3, 8])
def test_one_store_sends_every_layer_once(num_systems: int) -> None:
    # Slow links: weights of a forward and those of a backward but for three, and a running sum.
    moved = LAYERS + LAYERS - 3 + LAYERS
    found = seconds(num_systems, replace(EASY, link=1e-3))
    assert found == pytest.approx(moved / 1e-3, rel=0.02)


def test_links_share_what_all_stores_send() -> None:
    """Two systems whose layers take turns, with room for all: each link carries half of them."""
    layers = [replace(LAYER, owner=number % 2) for number in range(LAYERS)]
    step = StreamedStep(layers, 64, room_bytes=LAYERS)
    found = replica_step(step, replace(EASY, num_systems=2, link=1e-3)).seconds
    # And all sums pass over one of them.
    assert found == pytest.approx((LAYERS / 2 + LAYERS) / 1e-3, rel=0.02)


def test_a_sum_comes_back_over_the_link_on_which_it_came_to_its_owner() -> None:
    """Three systems, the second of which has the first layer, whose sum is the last."""
    layers = [replace(LAYER, owner=owner) for owner in (1, 0, 0)]
    step = StreamedStep(layers, 3, room_bytes=2.0)
    found = replica_step(step, replace(EASY, num_systems=3, link=1e-3)).seconds
    # The first system sends all layers, the first one again, and all sums; one sum comes back.
    assert found == pytest.approx((3 + 1 + 3 + 1) / 1e-3, rel=0.03)


def test_the_last_chunk_goes_through_all_systems() -> None:
    coarse = replace(EASY, link=0.1, chunk_bytes=0.01)
    fine = replace(coarse, chunk_bytes=0.001)
    more = seconds(192, coarse, micro_batches=192) - seconds(192, fine, micro_batches=192)
    assert more == pytest.approx(191 * (0.01 - 0.001) / 0.1, rel=0.1)


def test_the_part_without_which_the_step_is_shortest_limits_it() -> None:
    step = StreamedStep([LAYER] * LAYERS, 16, room_bytes=3.0)
    slow_updates = replace(step, layers=[replace(LAYER, update_seconds=1000.0)] * LAYERS)
    assert replica_step(step, EASY).limit is Part.COMPUTE
    assert replica_step(step, replace(EASY, store=1e-4)).limit is Part.STORE
    assert replica_step(step, replace(EASY, num_systems=4, link=1e-4)).limit is Part.LINK
    assert replica_step(slow_updates, EASY).limit is Part.UPDATES
