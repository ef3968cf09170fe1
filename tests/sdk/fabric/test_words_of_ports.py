"""A port moves a word a cycle each way at most, a program's or the host's: counted from records."""

from collections import defaultdict
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import (
    Edge,
    EventKind,
    Passed,
    Scope,
    Simulator,
    SimulatorOptions,
    Transport,
)
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.host_links import HostLinks
from openwafer.sdk.program.image import QueueBinding
from openwafer.sdk.program.routing import ColorConfig
from tests.examples import examples
from tests.sdk.fabric.noted import Noted
from tests.sdk.fabric.python_code import PythonCode, image, program
from tests.sdk.fabric.random_machines import CYCLES, build, random_machine
from tests.sdk.fabric.test_edge import COLOR, EAST, WEST, ports
from tests.sdk.fabric.test_host_links import NUM_WORDS, TO_HOST, give

ARRIVALS = (EventKind.LANDING, EventKind.NOWHERE)
"""What becomes of a word behind a port: a PE's route takes it, or none does."""
Way = tuple[int, bool]
"""The number of a port among the links, and whether into the fabric."""


def cycles_of_words(noted: Noted, links: HostLinks, height: int) -> dict[Way, list[int]]:
    """The cycle of each word that has passed a port, by way, from what was noted alone."""
    by_side = {(p.x, p.y, int(p.side.direction)): n for n, p in enumerate(links.ports)}
    found, landed = defaultdict[Way, list[int]](list), set[tuple[int, int, int]]()
    events = noted.lists()
    names = ("kind", "cycle", "x", "y", "link", "other_color")
    for kind, cycle, x, y, link, color in zip(*(events[name] for name in names), strict=True):
        number = by_side.get((x, y, link), -1)
        own = int(links.port_of[x * height + y]) if x >= 0 else -1
        if kind == EventKind.SINK:
            found[own if link < 0 else number, False].append(cycle)
        elif kind == EventKind.ENTERED and link == w.FROM_HOST:
            found[own, True].append(cycle)
        elif kind in ARRIVALS and number >= 0 and (cycle, number, color) not in landed:
            # A word that lands on both colors of a pair has passed once.
            landed.add((cycle, number, color))
            found[number, True].append(cycle)
    return found


@examples(200, by_default=6)
@given(st.randoms(use_true_random=False), st.booleans())
def test_no_port_moves_two_words_of_a_way_in_a_cycle(random: Random, is_checked: bool) -> None:
    machine = random_machine(random)
    options = SimulatorOptions(scope=Scope(), is_checked=is_checked, transport=Transport.EDGE)
    simulator, _code = build(machine, options)
    noted, links = Noted(simulator), simulator.links
    assert links is not None
    with suppress(OpenwaferError):
        simulator.run_until_idle(CYCLES)
    for (number, is_into), cycles in cycles_of_words(noted, links, machine.height).items():
        apart = (len(cycles) - 1) / links.rates[number]
        assert len(set(cycles)) == len(cycles)
        assert cycles[-1] - cycles[0] >= apart - 1
        seen = simulator.passed(links.ports[number], is_into=is_into)
        assert seen == Passed(len(cycles), cycles[0], cycles[-1])


def row_that_sends(rate: float) -> Simulator:
    """Two PEs that send to the host, beside words that cross both from port to port."""
    own = image("code", queues=(QueueBinding(False, 3, TO_HOST),))
    through = [[(COLOR, ColorConfig(WEST, EAST))]]
    made = program([[0, 0]], [own], through, streams=(("MEMCPYD2H_1", TO_HOST),))
    options = SimulatorOptions(transport=Transport.EDGE, edge=Edge(ports(2, 1, rate)))
    simulator = PythonCode([give]).simulator(made, options)
    simulator.start_command([0])
    simulator.send_to_port(simulator.edge.named("in 0"), COLOR, np.arange(NUM_WORDS))
    return simulator


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_words_of_a_program_and_of_the_host_share_the_time_of_a_port(rate: float) -> None:
    simulator = row_that_sends(rate)
    port = simulator.edge.named("out 0")
    assert simulator.take_of_port(port, COLOR, NUM_WORDS).tolist() == list(range(NUM_WORDS))
    simulator.run_until_collected(TO_HOST, [(0, 0), (1, 0)], NUM_WORDS)
    passed = simulator.passed(port, is_into=False)
    assert passed.num_words == 2 * NUM_WORDS
    assert passed.cycles >= (2 * NUM_WORDS - 1) / rate


def test_words_of_the_host_are_none_that_a_port_is_waited_for() -> None:
    simulator = row_that_sends(1.0)
    with pytest.raises(OpenwaferError, match=r"PE \(1, 0\), east port: 1 word missing"):
        simulator.take_of_port(simulator.edge.named("out 0"), COLOR, NUM_WORDS + 1)
