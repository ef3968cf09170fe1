"""Laws of the fabric on random rows of PEs, streams and reading speeds."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Landing, Simulator, SimulatorOptions
from openwafer.sdk.program.image import QueueBinding
from openwafer.sdk.program.routing import ColorConfig
from tests.examples import examples
from tests.sdk.fabric.python_code import Pe, PythonCode, Task, fabin, fabout, image, mem1d, program

WEST, EAST, RAMP = 1, 2, 16
BASE, RECORD = 1000, 3000
Code = Generator[None, None, None]


@dataclass(frozen=True)
class Stream:
    """Words of one color from a PE to one further east; both wait before they begin."""

    color: int
    source: int
    target: int
    length: int
    send_delay: int
    receive_delay: int
    is_multicast: bool


@st.composite
def rows_of_streams(draw: st.DrawFn) -> tuple[int, list[Stream]]:
    num_pes = draw(st.integers(2, 6))
    streams = []
    for color in range(draw(st.integers(1, 4))):
        source = draw(st.integers(0, num_pes - 2))
        target = draw(st.integers(source + 1, num_pes - 1))
        delays = st.integers(0, 300)
        length = draw(st.integers(1, 40))
        multicast = draw(st.booleans())
        both = draw(delays), draw(delays)
        streams.append(Stream(color, source, target, length, *both, multicast))
    return num_pes, streams


def reads(stream: Stream, x: int) -> bool:
    return x == stream.target or (stream.is_multicast and stream.source < x < stream.target)


def route(stream: Stream, x: int) -> ColorConfig:
    rx = RAMP if x == stream.source else WEST
    return ColorConfig(rx, (EAST if x < stream.target else 0) | RAMP * reads(stream, x))


def words(stream: Stream) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return np.arange(stream.length, dtype=np.uint32) + 1000 * (stream.color + 1)


def code_of(x: int, streams: list[Stream]) -> Task:
    """Start all of a PE's sends and receives as microthreads, then be idle."""

    def main(pe: Pe) -> Code:
        for stream in streams:
            own = BASE + 100 * stream.color
            if x == stream.source:
                pe.work(stream.send_delay)
                target = fabout(stream.color, stream.length, stream.color)
                pe.vector("mov32", target, mem1d(own, stream.length, 2, 2), options=1)
                yield
            if reads(stream, x):
                pe.work(stream.receive_delay)
                record = mem1d(RECORD + 100 * stream.color, stream.length, 2, 2)
                source = fabin(stream.color, stream.length, stream.color)
                pe.vector("mov32", record, source, options=1, microthread=4 + stream.color)
                yield

    return main


def run(num_pes: int, streams: list[Stream], arch: Arch) -> tuple[Simulator, PythonCode]:
    code = PythonCode(*([code_of(x, streams)] for x in range(num_pes)))
    queues = tuple(
        QueueBinding(is_in, s.color, s.color) for s in streams for is_in in (True, False)
    )
    images = [image(f"pe{x}", queues=queues) for x in range(num_pes)]
    routes = [
        [(s.color, route(s, x)) for s in streams if s.source <= x <= s.target]
        for x in range(num_pes)
    ]
    options = SimulatorOptions(landing_log=True, max_cycles=10**5)
    simulator = code.simulator(program([list(range(num_pes))], images, routes, arch), options)
    for stream in streams:
        halves = words(stream).view(np.uint16)
        simulator.write(stream.source, 0, BASE + 100 * stream.color, halves)
    simulator.start_command([0] * num_pes)
    simulator.run_until_idle(10**5)
    return simulator, code


def every_reader_gets_every_word_once_and_in_order(
    num_pes: int, streams: list[Stream], simulator: Simulator
) -> None:
    for stream in streams:
        for x in range(num_pes):
            if reads(stream, x):
                got = simulator.read(x, 0, RECORD + 100 * stream.color, 2 * stream.length)
                np.testing.assert_array_equal(got.view(np.uint32), words(stream))


def on_link(landings: tuple[Landing, ...], x: int, link: str) -> list[Landing]:
    return [landing for landing in landings if landing.x == x and landing.link == link]


def no_link_carries_two_wavelets_in_a_cycle(num_pes: int, simulator: Simulator) -> None:
    for x in range(num_pes):
        for link in "WR":
            cycles = [landing.cycle for landing in on_link(simulator.landings(), x, link)]
            assert len(set(cycles)) == len(cycles)


def a_color_keeps_its_order_on_every_link(streams: list[Stream], simulator: Simulator) -> None:
    for stream in streams:
        for x in range(stream.source + 1, stream.target + 1):
            passing = on_link(simulator.landings(), x, "W")
            data = [landing.data for landing in passing if landing.color == stream.color]
            assert data == words(stream).tolist()


@examples(60, deadline=None)
@given(row=rows_of_streams(), arch=st.sampled_from(list(Arch)))
def test_a_row_of_streams_keeps_every_law_and_leaves_the_same_trace_again(
    row: tuple[int, list[Stream]], arch: Arch
) -> None:
    num_pes, streams = row
    simulator, _code = run(num_pes, streams, arch)
    every_reader_gets_every_word_once_and_in_order(num_pes, streams, simulator)
    no_link_carries_two_wavelets_in_a_cycle(num_pes, simulator)
    a_color_keeps_its_order_on_every_link(streams, simulator)
    assert run(num_pes, streams, arch)[0].landings() == simulator.landings()
