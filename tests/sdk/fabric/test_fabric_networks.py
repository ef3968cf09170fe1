"""Laws that hold on every network: nothing lost or doubled, order, one wavelet a cycle, space.

A network is drawn and run once, and all laws are asked of it.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import Landing, Simulator, SimulatorOptions, words
from tests.examples import examples
from tests.sdk.fabric.networks import (
    AREA,
    LINKS,
    RECEIVED,
    Network,
    Place,
    Tree,
    build,
    networks,
)

MAX_CYCLES = 20_000
ARCHS = st.sampled_from(list(Arch))
DEPTHS = {arch: GENERATIONS[arch].output_queue_words[0] for arch in Arch}
PERIOD = {Arch.WSE2: 5, Arch.WSE3: 8}
"""Cycles in which an output queue lets so many wavelets pass: two, and eight."""
At = dict[tuple[Place, int], list[Landing]]


def run(network: Network, arch: Arch) -> tuple[Simulator, At]:
    """A network that came to rest, and its landings by place and color, in their order."""
    simulator, _code = build(network, arch, SimulatorOptions(landing_log=True))
    assert simulator.run_until_idle(MAX_CYCLES), "the network has not come to rest"
    landings: At = defaultdict(list)
    for landing in simulator.landings():
        landings[(landing.x, landing.y), landing.color].append(landing)
    return simulator, landings


def every_receiver_gets_every_word_once_and_in_order(
    network: Network, simulator: Simulator
) -> None:
    for number, tree in enumerate(network.trees):
        for place in tree.receivers:
            area = simulator.read(*place, RECEIVED + AREA * number, AREA)
            expected = np.zeros(AREA // 2, np.uint32)
            expected[: len(tree.words)] = tree.words
            assert area.view(np.uint32).tolist() == expected.tolist()


def every_link_of_a_tree_carries_the_words_in_order_and_nothing_else(
    network: Network, landings: At
) -> None:
    expected = {
        (place, tree.color): [(LINKS[side], word) for word in tree.words]
        for tree in network.trees
        for place, side in tree.entry.items()
        if tree.words
    }
    found = {key: [(one.link, one.data) for one in ones] for key, ones in landings.items()}
    assert found == expected


def a_link_carries_at_most_one_wavelet_a_cycle(landings: At) -> None:
    times = [(one.x, one.y, one.link, one.cycle) for ones in landings.values() for one in ones]
    assert len(times) == len(set(times))


def a_hop_takes_at_least_its_cycles(network: Network, arch: Arch, landings: At) -> None:
    hop = GENERATIONS[arch].timing.hop_cycles
    for tree in network.trees:
        for place, before in tree.links:
            pairs = zip(landings[before, tree.color], landings[place, tree.color], strict=True)
            assert all(second.cycle >= first.cycle + hop for first, second in pairs)


def most_kept(tree: Tree, place: Place, before: Place, landings: At) -> int:
    """Most wavelets that had arrived at `before` and not yet at `place`."""
    events = [(one.cycle, 1) for one in landings[before, tree.color]]
    events += [(one.cycle, -1) for one in landings[place, tree.color]]
    return int(np.cumsum([change for _, change in sorted(events)]).max(initial=0))


def a_router_keeps_no_more_than_its_channel_holds(network: Network, landings: At) -> None:
    for tree in network.trees:
        for place, before in tree.links:
            assert most_kept(tree, place, before, landings) <= words.CHANNEL_DEPTH


def counts_are_those_of_the_trees(network: Network, simulator: Simulator) -> None:
    counts = simulator.statistics()
    assert counts.wavelets == sum(len(tree.words) for tree in network.trees)
    assert counts.landings == sum(len(tree.words) * len(tree.entry) for tree in network.trees)


@examples(60, deadline=None)
@given(network=networks(), arch=ARCHS)
def test_a_network_keeps_every_law_and_leaves_the_same_trace_again(
    network: Network, arch: Arch
) -> None:
    simulator, landings = run(network, arch)
    every_receiver_gets_every_word_once_and_in_order(network, simulator)
    every_link_of_a_tree_carries_the_words_in_order_and_nothing_else(network, landings)
    a_link_carries_at_most_one_wavelet_a_cycle(landings)
    a_hop_takes_at_least_its_cycles(network, arch, landings)
    a_router_keeps_no_more_than_its_channel_holds(network, landings)
    counts_are_those_of_the_trees(network, simulator)
    assert run(network, arch)[1] == landings


@examples(40, deadline=None)
@given(network=networks(), arch=ARCHS)
def test_a_channel_never_falls_behind_while_all_is_free(network: Network, arch: Arch) -> None:
    """A single color whose receivers are ready moves a word over each link in every cycle.

    A queue holds back all but its depth until the core knows of their places.
    """
    trees = [tree for tree in network.trees if tree.words][:1]
    alone = replace(network, trees=trees, delays=dict.fromkeys(network.delays, 0))
    simulator, _code = build(alone, arch, SimulatorOptions(landing_log=True))
    assert simulator.run_until_idle(MAX_CYCLES)
    for tree in trees:
        piece = [one.cycle for one in simulator.landings() if (one.x, one.y) == tree.source]
        first = piece[: tree.pieces[0]]
        assert {b - a for a, b in zip(first, first[DEPTHS[arch] :], strict=False)} <= {PERIOD[arch]}
