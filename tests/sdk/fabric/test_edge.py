"""Ports: a stream of n words over k of them takes n/k cycles and its latency; others wait."""

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import Edge, Port, Side, Simulator, SimulatorOptions, Transport
from openwafer.sdk.fabric.edge import system_rate
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import Pe, PythonCode, image, program

WEST, EAST, SOUTH, RAMP = 1, 2, 4, 16
COLOR = 3
THROUGH = ColorConfig(WEST, EAST)


def idle(_pe: Pe) -> Generator[None, None, None]:
    yield from ()


def ports(columns: int, rows: int, rate: float | None = None) -> tuple[Port, ...]:
    """One in the west of each row, and one in its east."""
    into = [Port(f"in {y}", 0, y, Side.WEST, into=(COLOR,), rate=rate) for y in range(rows)]
    out = [
        Port(f"out {y}", columns - 1, y, Side.EAST, out=(COLOR,), rate=rate) for y in range(rows)
    ]
    return (*into, *out)


def rows_of(
    columns: int,
    rows: int,
    edge: Edge,
    arch: Arch = Arch.WSE2,
    config: ColorConfig = THROUGH,
    transport: Transport = Transport.IDEAL,
) -> Simulator:
    """Rows that a color crosses from west to east."""
    code = PythonCode([idle])
    made = program([[0] * columns] * rows, [image()], [[(COLOR, config)]], arch)
    simulator = code.simulator(made, SimulatorOptions(edge=edge, transport=transport))
    simulator.run_until_idle()
    return simulator


def stream(simulator: Simulator, rows: int, words: int) -> int:
    """Cycles from the sending of words, dealt out over the rows, until all have come."""
    begin, edge, parts = simulator.cycle, simulator.edge, np.array_split(np.arange(words), rows)
    for y, part in enumerate(parts):
        simulator.send_to_port(edge.named(f"in {y}"), COLOR, part)
    for y, part in enumerate(parts):
        got = simulator.take_of_port(edge.named(f"out {y}"), COLOR, part.size)
        assert got.tolist() == part.tolist()
    return simulator.cycle - begin


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize(("words", "num_ports", "columns"), [(1, 1, 1), (60, 1, 5), (62, 4, 3)])
def test_a_stream_takes_its_words_a_port_and_the_hops_to_the_other_edge(
    arch: Arch, words: int, num_ports: int, columns: int
) -> None:
    simulator = rows_of(columns, num_ports, Edge(ports(columns, num_ports)), arch)
    latency = columns * GENERATIONS[arch].timing.hop_cycles
    assert stream(simulator, num_ports, words) == -(-words // num_ports) + latency


@pytest.mark.parametrize("rate", [1.0, 0.75, 0.5, 0.3])
def test_a_port_keeps_its_rate_to_the_cycle(rate: float) -> None:
    simulator = rows_of(2, 1, Edge(ports(2, 1, rate)))
    assert stream(simulator, 1, 90) == pytest.approx(90 / rate + 2, abs=3)


def test_a_slow_port_holds_up_the_words_behind_and_loses_none() -> None:
    into, out = ports(4, 1)
    simulator = rows_of(4, 1, Edge((into, replace(out, rate=0.25))))
    assert stream(simulator, 1, 40) == pytest.approx(40 / 0.25 + 4, abs=4)
    entered = simulator.passed(into, is_into=True)
    # Four routers have held four words each, and so the last but these had to wait.
    assert entered.cycles == pytest.approx((40 - 16) / 0.25, abs=5)


def test_ports_share_what_the_links_of_a_system_move() -> None:
    assert system_rate(Arch.WSE2) == pytest.approx(44.1, abs=0.1)
    edge = Edge(ports(2, 3), words_per_cycle=1.5)
    assert [edge.rate(port, Arch.WSE2, is_into=True) for port in edge.ports[:3]] == [0.5] * 3
    assert stream(rows_of(2, 3, edge), 3, 90) == pytest.approx(30 / 0.5 + 2, abs=2)


def test_two_colors_of_one_link_take_turns_and_each_keeps_its_order() -> None:
    code = PythonCode([idle])
    made = program([[0, 0]], [image()], [[(COLOR, THROUGH), (4, THROUGH)]])
    both = Port("in", 0, 0, Side.WEST, into=(3, 4)), Port("out", 1, 0, Side.EAST, out=(3, 4))
    simulator = code.simulator(made, SimulatorOptions(edge=Edge(both)))
    for color in (3, 4):
        simulator.send_to_port(both[0], color, np.arange(20) + 100 * color)
    for color in (4, 3):
        got = simulator.take_of_port(both[1], color, 20)
        assert got.tolist() == list(range(100 * color, 100 * color + 20))


def test_a_snapshot_goes_back_only_to_a_machine_with_the_same_ports() -> None:
    fast, slow = (rows_of(2, 1, Edge(ports(2, 1, rate))) for rate in (1.0, 0.5))
    with pytest.raises(OpenwaferError, match=r"whose edge is .*rate=1\.0.*, and this one's is"):
        slow.restore(fast.snapshot())


def refusal(columns: int, rows: int, given: Sequence[Port], rate: float | None = None) -> str:
    with pytest.raises(OpenwaferError) as caught:
        rows_of(columns, rows, Edge(tuple(given), rate))
    return str(caught.value)


IN, OUT = ports(4, 2)[0], ports(4, 2)[2]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([replace(IN, x=1)], "PE (1, 0) is not at the edge: the rectangle ends there at column 0"),
        ([replace(IN, y=1, side=Side.NORTH)], "ends there at row 0"),
        ([replace(IN, x=4)], "PE (4, 0) lies outside of the rectangle of 4 by 2 PEs"),
        ([IN, replace(IN, name="other")], "in the west of PE (0, 0) has the link of port 'in 0'"),
        ([IN, replace(OUT, name="in 0")], "is called like port 'in 0'"),
        ([replace(IN, into=(5,))], "leads color 5, and no route of the PE receives it from there"),
        ([replace(OUT, into=(3,), out=())], "no route of the PE receives it from there"),
        ([replace(IN, into=(), out=(3,))], "no route of the PE transmits it there"),
        ([replace(IN, into=(24,))], "there is no color 24"),
        ([replace(IN, into=())], "port 'in 0' in the west of PE (0, 0) has no color"),
        ([replace(IN, rate=0.0)], "moves 0.0 words a cycle"),
        ([replace(IN, rate=-1.0)], "moves -1.0 words a cycle"),
        ([replace(IN, rate=1.5)], "a link moves one wavelet a cycle"),
    ],
)  # fmt: skip
def test_what_is_no_port_is_refused_before_anything_runs(given: list[Port], told: str) -> None:
    assert told in refusal(4, 2, given)


def test_a_system_without_a_rate_is_refused() -> None:
    assert "the system's links move 0.0 words a cycle" in refusal(4, 2, [IN], 0.0)


def test_a_color_or_port_that_a_run_does_not_have_is_named_with_those_that_it_has() -> None:
    with pytest.raises(OpenwaferError, match=r"the run has no port 'east'; it has 'in 0'"):
        Edge((IN,)).named("east")
    with pytest.raises(OpenwaferError, match=r"leads 3 into the fabric, and color 7 was given"):
        IN.color(7, is_into=True)


def test_a_deadlock_names_the_words_that_wait_in_a_port() -> None:
    simulator = rows_of(1, 1, Edge(ports(1, 1)[:1]), config=ColorConfig(WEST, RAMP))
    simulator.send_to_port(IN, COLOR, np.arange(9))
    with pytest.raises(OpenwaferError) as caught:
        simulator.run_until_injected()
    told = str(caught.value)
    assert "PE (0, 0), west port: 5 words of color 3 wait, as PE (0, 0) is full" in told
    assert "goes to the core, but no input queue has that color" in told


def test_a_deadlock_names_the_words_that_have_not_come_to_a_port() -> None:
    simulator = rows_of(2, 1, Edge(ports(2, 1)))
    simulator.send_to_port(simulator.edge.named("in 0"), COLOR, np.arange(2))
    with pytest.raises(OpenwaferError, match=r"PE \(1, 0\), east port: 1 word missing"):
        simulator.take_of_port(simulator.edge.named("out 0"), COLOR, 3)


def test_what_leaves_on_a_color_that_the_port_does_not_lead_is_lost() -> None:
    config = ColorConfig(WEST, EAST | SOUTH)
    simulator = rows_of(1, 1, Edge(ports(1, 1)), config=config)
    assert stream(simulator, 1, 3) == 3 + 1
    (told,) = simulator.left_over(is_at_rest=True)
    assert told.message == "PE (0, 0): 3 wavelets of color 3 left the rectangle southward"
