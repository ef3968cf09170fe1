"""Copies and streams of the host share links at the edge, at their rates."""

from collections.abc import Generator, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import NO_PORTS, Edge, Passed, Simulator, SimulatorOptions, Transport
from openwafer.sdk.fabric.host_links import HostLinks
from openwafer.sdk.program.image import QueueBinding
from tests.examples import examples
from tests.sdk.fabric import random_code
from tests.sdk.fabric.python_code import Pe, PythonCode, Task, fabin, fabout, image, mem1d, program
from tests.sdk.fabric.random_machines import Machine, build, untimed_machine
from tests.sdk.fabric.test_edge import ports, rows_of, stream

FROM_HOST, TO_HOST = 5, 6
NUM_WORDS = 24
SLOW = Edge(words_per_cycle=0.5)
Code = Generator[None, None, None]


def take(pe: Pe) -> Code:
    pe.vector("mov32", mem1d(100, NUM_WORDS, 2, 2), fabin(FROM_HOST, NUM_WORDS, 5))
    yield


def give(pe: Pe) -> Code:
    pe.vector("mov32", fabout(TO_HOST, NUM_WORDS, 3), mem1d(100, NUM_WORDS, 2, 2))
    yield


def slow(pe: Pe) -> Code:
    for number in range(NUM_WORDS):
        pe.vector("mov32", mem1d(100 + 2 * number, 1, 2, 2), fabin(FROM_HOST, 1, 5))
        yield
        pe.work(20)


def in_a_row(entry: Task, columns: int, edge: Edge = NO_PORTS) -> Simulator:
    """PEs side by side that run one entry; their words for the host lie from word 100 on."""
    code = PythonCode([entry])
    own = image("code", queues=(QueueBinding(True, 5, FROM_HOST), QueueBinding(False, 3, TO_HOST)))
    streams = (("MEMCPYH2D_1", FROM_HOST), ("MEMCPYD2H_1", TO_HOST))
    made = program([[0] * columns], [own], streams=streams)
    simulator = code.simulator(made, SimulatorOptions(transport=Transport.EDGE, edge=edge))
    simulator.run_until_idle()
    for x in range(columns):
        simulator.write(x, 0, 100, np.arange(2 * NUM_WORDS, dtype=np.uint16) + 1000 * x)
    return simulator


def cycles_of(simulator: Simulator, sent: Sequence[np.ndarray] = ()) -> int:
    begin = simulator.cycle
    for x, words in enumerate(sent):
        simulator.inject(FROM_HOST, x, 0, words.astype(np.uint32))
    simulator.start_command([0])
    simulator.run_until_idle()
    return simulator.cycle - begin


def entered(simulator: Simulator) -> Passed:
    """Words that came by the link of the only row."""
    links = simulator.links
    assert links is not None
    return simulator.passed(links.ports[0], is_into=True)


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize(("rows", "columns", "words"), [(1, 1, 1), (1, 5, 60), (4, 3, 16)])
def test_a_copy_takes_what_as_many_words_take_through_ports(
    arch: Arch, rows: int, columns: int, words: int
) -> None:
    links = HostLinks((columns, rows), arch, Edge())
    last = links.numbers(range(columns - 1, columns), range(rows))
    # To the last column and over its edge are as many hops.
    simulator = rows_of(columns, rows, Edge(ports(columns, rows)), arch)
    assert links.cycles(last, words, is_into=True) == stream(simulator, rows, rows * words)
    assert links.cycles(last, words, is_into=False) == links.cycles(last, words, is_into=True)


@pytest.mark.parametrize("rate", [0.75, 0.5, 0.3])
def test_a_copy_takes_as_long_as_its_ports_need(rate: float) -> None:
    edge = Edge(ports(2, 1, rate)[:1])
    links = HostLinks((2, 1), Arch.WSE2, edge)
    taken = links.cycles(links.numbers(range(2), range(1)), 45, is_into=True)
    assert taken == pytest.approx(stream(rows_of(2, 1, Edge(ports(2, 1, rate))), 1, 90), abs=2)


def test_rows_without_ports_share_what_the_links_of_a_system_move() -> None:
    links = HostLinks((2, 10), Arch.WSE2, Edge(words_per_cycle=5))
    pes = links.numbers(range(2), range(10))
    # The last of 60 words comes after 59 others, and from the second column on its way in.
    assert links.cycles(pes, 30, is_into=True) == 59 / 0.5 + 1 + 2
    assert links.cycles(pes[:2], 30, is_into=False) == 59 / 0.5 + 1 + 1


def test_ports_of_either_way_have_no_more_together_than_the_links_of_a_system() -> None:
    edge = Edge(ports(2, 3), words_per_cycle=1.5)
    assert HostLinks((2, 3), Arch.WSE2, edge).rates == [1.5 / 6] * 6
    simulator = rows_of(2, 3, edge, transport=Transport.EDGE)
    # The last of 20 words comes after 19 others, and over two hops.
    assert stream(simulator, 3, 60) == 19 / 0.25 + 1 + 2


@pytest.mark.parametrize("columns", [1, 3])
def test_streams_of_a_row_share_its_link_and_come_whole(columns: int) -> None:
    simulator = in_a_row(take, columns, SLOW)
    sent = [np.arange(NUM_WORDS) + 100 * x for x in range(columns)]
    assert cycles_of(simulator, sent) == pytest.approx(columns * NUM_WORDS / 0.5, abs=20)
    for x, words in enumerate(sent):
        assert simulator.read(x, 0, 100, 2 * NUM_WORDS)[::2].tolist() == words.tolist()
    assert entered(simulator).num_words == columns * NUM_WORDS
    assert entered(simulator).cycles >= (columns * NUM_WORDS - 1) / 0.5


def test_a_core_that_sends_to_the_host_waits_for_the_link_of_its_row() -> None:
    simulator = in_a_row(give, 3, SLOW)
    assert cycles_of(simulator) == pytest.approx(3 * NUM_WORDS / 0.5, abs=20)
    for x in range(3):
        words = 1000 * x + np.arange(2 * NUM_WORDS)
        expected = words[::2] | words[1::2] << 16
        assert simulator.take(TO_HOST, x, 0, NUM_WORDS).tolist() == expected.tolist()


def test_a_slow_core_holds_up_the_link() -> None:
    simulator = in_a_row(slow, 1)
    cycles_of(simulator, [np.arange(NUM_WORDS)])
    assert entered(simulator).cycles > 20 * (NUM_WORDS - 8)


def words_of(machine: Machine, transport: Transport) -> tuple[str, object, object]:
    """How a run ends, and what each PE has received and has sent to the host."""
    simulator, _code = build(machine, SimulatorOptions(max_cycles=100_000, transport=transport))
    end, color, places = "", random_code.TO_HOST, list(machine.drafts)
    try:
        # Threads go on behind a command.
        simulator.run_until_idle(100_000)
        simulator.run_until_command_done()
    except OpenwaferError as stop:
        end = str(stop).partition(" at cycle")[0]
    received = [simulator.read(*place, random_code.TARGETS, 900).tolist() for place in places]
    numbers = [simulator.num_collected(color, *place) for place in places]
    sent = [simulator.take(color, *place, n) for place, n in zip(places, numbers, strict=True)]
    # Several threads of a PE send there.
    return end, received, [sorted(words.tolist()) for words in sent]


@examples(100, by_default=10)
@given(st.randoms(use_true_random=False))
def test_no_word_is_lost_doubled_or_reordered_by_links(random: Random) -> None:
    machine = untimed_machine(random)
    assert words_of(machine, Transport.EDGE) == words_of(machine, Transport.IDEAL)
