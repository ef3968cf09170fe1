"""A step of events, reckoned by hand: layers of 4 bytes, links of 1 byte a second."""

from dataclasses import replace

import pytest

from openwafer.replica_steps import Joined, LayerWork, StreamedStep
from tests.replica_steps.event_run import run_events
from tests.replica_steps.modelled_steps import modelled

AT_ONCE = float("inf")
FREE = Joined(1, link=1.0, hop_seconds=0.0, store=AT_ONCE, adding=AT_ONCE, chunk_bytes=1)
WEIGHTS = LayerWork(0.0, 0.0, 4, 0, 0.0)
GRADIENTS = LayerWork(0.0, 0.0, 4, 4, 0.0)


def seconds(layer: LayerWork, joined: Joined, layers: int = 1, micro_batches: int = 1) -> float:
    step = StreamedStep([layer] * layers, max(micro_batches, joined.num_systems), 1000)
    return run_events(modelled(step, joined)).step


def test_one_system_reads_computes_and_updates() -> None:
    layer = LayerWork(3.0, 5.0, 4, 4, 7.0)
    # Two layers are read in 2 s each, computed one after the other, updated as they come.
    found = seconds(layer, replace(FREE, store=2.0), layers=2, micro_batches=1)
    assert found == 2 + 3 + 3 + 5 + max(5, 7) + 7


@pytest.mark.parametrize("num_systems", [2, 3, 4, 192])
def test_each_system_passes_chunks_on_as_they_come(num_systems: int) -> None:
    # The last byte leaves the store's host after 4 s, and goes over all the other links.
    assert seconds(WEIGHTS, replace(FREE, num_systems=num_systems)) == 4 + (num_systems - 2)


def test_layers_follow_each_other_on_each_link() -> None:
    assert seconds(WEIGHTS, replace(FREE, num_systems=5), layers=6) == 6 * 4 + 3


def test_a_system_without_room_holds_up_those_behind_it() -> None:
    step = StreamedStep([replace(WEIGHTS, forward_seconds=3.0)] * 2, 5, room_bytes=4)
    joined = replace(FREE, num_systems=4)
    # The last one has two micro-batches, and takes layer 0 after 6 s; the one before has the next
    # layer by the time that there is room for it.
    assert run_events(modelled(step, joined)).step == 6 + 6 + 4 + 6 + 4


@pytest.mark.parametrize(("num_systems", "nodes"), [(2, 1), (3, 2), (4, 2), (8, 3)])
def test_nodes_of_a_network_pass_on_what_they_have(num_systems: int, nodes: int) -> None:
    joined = replace(FREE, num_systems=num_systems, network_copies=True)
    assert seconds(WEIGHTS, joined) == 4 + (nodes - 1)


def test_a_sum_goes_through_all_systems_chunk_by_chunk() -> None:
    layer = replace(GRADIENTS, weight_bytes=0)
    # The first byte takes four hops, and the others come behind it.
    assert seconds(layer, replace(FREE, num_systems=4)) == 4 + 3


def test_each_system_adds_its_own_parts_to_a_chunk() -> None:
    layer = replace(GRADIENTS, weight_bytes=0)
    joined = replace(FREE, num_systems=2, adding=1.0)
    # Three parts a system: the first adds two of them, the second all three, each byte by itself.
    assert seconds(layer, joined, micro_batches=6) == (2 + 1) + 4 * 3 + 1


def test_a_sum_waits_for_the_system_that_takes_it() -> None:
    layer = replace(GRADIENTS, weight_bytes=0, backward_seconds=10.0)
    joined = replace(FREE, num_systems=2)
    # Of three micro-batches the second system has two.
    assert seconds(layer, joined, micro_batches=3) == 20 + 4 + 1


def test_a_hop_delays_a_message_and_what_asks_for_it() -> None:
    assert seconds(WEIGHTS, replace(FREE, num_systems=2, hop_seconds=0.5)) == 0.5 + 4 + 0.5


def test_without_room_a_layer_is_fetched_when_the_one_before_has_been_computed() -> None:
    step = StreamedStep([replace(WEIGHTS, forward_seconds=3.0)] * 2, 1, room_bytes=4)
    # Both for the forward, and the first again for the backward.
    assert run_events(modelled(step, replace(FREE, store=2.0))).step == 2 + 3 + 2 + 3 + 2


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_weights_go_round_from_their_owner(owner: int) -> None:
    layer = replace(WEIGHTS, owner=owner)
    assert seconds(layer, replace(FREE, num_systems=3)) == 4 + 1


def test_weights_of_two_owners_pass_each_other() -> None:
    layers = [replace(WEIGHTS, owner=owner) for owner in (0, 1)]
    step = StreamedStep(layers, 2, room_bytes=1000)
    assert run_events(modelled(step, replace(FREE, num_systems=2))).step == 4


def test_a_sum_ends_with_its_owner() -> None:
    layer, joined = replace(GRADIENTS, weight_bytes=0), replace(FREE, num_systems=4)
    # The last one sends it to another, to which the running sum comes as well; or to none.
    found = [seconds(replace(layer, owner=owner), joined) for owner in (0, 2, 3)]
    assert found == [4 + 3, 1 + 2 * 4, 4 + 2]


def test_owners_update_at_once() -> None:
    layers = [replace(GRADIENTS, weight_bytes=0, update_seconds=50.0, owner=o) for o in (0, 1)]
    step = StreamedStep(layers, 2, room_bytes=1000)
    # The sum of the last layer, which stays where it ends, and the one that follows it.
    assert run_events(modelled(step, replace(FREE, num_systems=2))).step == 8 + 1 + 50
