"""Wavelets between PEs: order, rates, back-pressure, multicast."""

from collections.abc import Generator

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.descriptor import DsdFlag
from openwafer.sdk.program.image import QueueBinding
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import Pe, PythonCode, fabin, fabout, image, mem1d, program

WEST, EAST, SOUTH, NORTH, RAMP = 1, 2, 4, 8, 16
Code = Generator[None, None, None]


def row_of_pes(
    num_pes: int, length: int, arch: Arch = Arch.WSE2, delay: int = 0, is_async: bool = False
) -> tuple[Simulator, PythonCode]:
    """PE 0 sends words 0, 1, ... of color 3; the last one stores them at word 100."""

    def send(pe: Pe) -> Code:
        pe.vector("mov32", fabout(3, length, 2), mem1d(10, length, 2, 2))
        yield
        pe.open_stream()

    def receive(pe: Pe) -> Code:
        pe.work(delay)
        options = int(mb.Option.ASYNC) if is_async else 0
        given = {"activate": 9} if is_async else {}
        pe.vector("mov32", mem1d(100, length, 2, 2), fabin(3, length, 1), options=options, **given)
        yield
        if not is_async:
            pe.open_stream()

    def relay(pe: Pe) -> Code:
        pe.open_stream()
        yield from ()

    code = PythonCode([send], [receive], [relay])
    queues = (QueueBinding(True, 1, 3), QueueBinding(False, 2, 3))
    images = [image("send", queues=queues), image("receive", queues=queues), image("relay")]
    routes = [[(3, ColorConfig(WEST, EAST))] for _ in range(num_pes)]
    routes[0], routes[-1] = [(3, ColorConfig(RAMP, EAST))], [(3, ColorConfig(WEST, RAMP))]
    grid = [[0, *[2] * (num_pes - 2), 1]]
    simulator = code.simulator(
        program(grid, images, routes, arch), SimulatorOptions(landing_log=True, max_cycles=10**5)
    )
    simulator.write(0, 0, 10, np.arange(2 * length, dtype=np.uint16))
    simulator.start_command([0, 0, 0])
    return simulator, code


@pytest.mark.parametrize("arch", list(Arch))
def test_words_arrive_complete_and_in_order(arch: Arch) -> None:
    simulator, _code = row_of_pes(5, 40, arch)
    simulator.run_until_command_done()
    assert simulator.read(4, 0, 100, 80).tolist() == list(range(80))


@pytest.mark.parametrize(("arch", "cycles"), [(Arch.WSE2, 1), (Arch.WSE3, 2)])
def test_a_hop_takes_the_cycles_of_its_generation(arch: Arch, cycles: int) -> None:
    simulator, _code = row_of_pes(4, 1, arch)
    simulator.run_until_command_done()
    landings = [landing.cycle for landing in simulator.landings()]
    assert np.diff(landings).tolist() == [cycles] * 3


@pytest.mark.parametrize("arch", list(Arch))
def test_a_link_carries_one_wavelet_a_cycle(arch: Arch) -> None:
    simulator, _code = row_of_pes(3, 50, arch)
    simulator.run_until_command_done()
    landings = [landing.cycle for landing in simulator.landings() if landing.x == 1]
    assert np.diff(landings).tolist() == [1] * 49


def test_a_late_receiver_loses_nothing() -> None:
    simulator, _code = row_of_pes(4, 60, delay=3000)
    simulator.run_until_command_done()
    assert simulator.read(3, 0, 100, 120).tolist() == list(range(120))


def test_routers_hold_back_what_a_late_receiver_has_no_space_for() -> None:
    simulator, _code = row_of_pes(4, 60, delay=3000)
    simulator.run_cycles(1000)
    assert len([e for e in simulator.landings() if e.x == 3]) == 4 + 6


def test_a_microthread_receives_while_the_main_thread_is_idle() -> None:
    simulator, _code = row_of_pes(2, 5, is_async=True)
    assert simulator.run_until_idle(1000)
    assert simulator.read(1, 0, 100, 10).tolist() == list(range(10))


def test_two_sides_at_once_are_an_error_that_names_both() -> None:
    def send(pe: Pe) -> Code:
        pe.vector("mov32", fabout(3, 4, 2), 7)
        yield

    code = PythonCode([send], [])
    routes = [[(3, ColorConfig(RAMP, EAST))], [(3, ColorConfig(WEST | EAST, RAMP))]]
    routes.append([(3, ColorConfig(RAMP, WEST))])
    simulator = code.simulator(program([[0, 1, 0]], [image("a"), image("b")], routes))
    simulator.start_command([0, -1])
    with pytest.raises(OpenwaferError, match=r"color 3 arrived from East and West .* PE \(1, 0\)"):
        simulator.run_until_command_done()


def test_a_deadlock_names_who_waits_for_what() -> None:
    def receive(pe: Pe) -> Code:
        pe.vector("mov32", mem1d(100, 8, 2, 2), fabin(3, 8, 1))
        yield

    code = PythonCode([receive])
    simulator = code.simulator(program([[0]], [image("a", queues=(QueueBinding(True, 1, 3),))]))
    simulator.start_command([0])
    reason = r"@mov32 has 8 elements left, waits for wavelets in input queue 1 \(color 3\)"
    with pytest.raises(OpenwaferError, match=reason):
        simulator.run_until_command_done()


def test_wavelets_without_a_route_show_in_the_report() -> None:
    def send(pe: Pe) -> Code:
        pe.vector("mov32", fabout(3, 30, 2), 7)
        yield

    code = PythonCode([send])
    routes = [[(3, ColorConfig(RAMP, EAST))], []]
    simulator = code.simulator(program([[0, 0]], [image("a")], routes))
    simulator.start_command([0])
    reason = r"color 3 goes east, where PE \(1, 0\) receives nothing from there"
    with pytest.raises(OpenwaferError, match=reason):
        simulator.run_until_command_done()


def simd_pair(length: int, num_words: int = 1) -> tuple[Simulator, PythonCode]:
    op = "mov16" if num_words == 1 else "mov32"

    def send(pe: Pe) -> Code:
        source = mem1d(10, length, num_words, num_words)
        pe.vector(op, fabout(3, length, 2, int(DsdFlag.SIMD)), source)
        yield
        pe.open_stream()

    def receive(pe: Pe) -> Code:
        target = mem1d(100, length, num_words, num_words)
        pe.vector(op, target, fabin(3, length, 1, int(DsdFlag.SIMD)))
        yield
        pe.open_stream()

    code = PythonCode([send], [receive])
    queues = (QueueBinding(True, 1, 3),)
    routes = [[(3, ColorConfig(RAMP, EAST))], [(3, ColorConfig(WEST, RAMP))]]
    images = [image("send"), image("receive", queues=queues)]
    simulator = code.simulator(program([[0, 1]], images, routes))
    simulator.write(0, 0, 10, np.arange(length * num_words, dtype=np.uint16) + 1)
    simulator.start_command([0, 0])
    simulator.run_until_command_done()
    return simulator, code


def test_elements_of_32_bits_fill_a_wavelet_in_every_mode() -> None:
    simulator, _code = simd_pair(5, num_words=2)
    assert simulator.statistics().wavelets == 5
    assert simulator.read(1, 0, 100, 10).tolist() == list(range(1, 11))


def test_simd_mode_sends_two_elements_in_a_wavelet() -> None:
    simulator, _code = simd_pair(10)
    assert simulator.statistics().wavelets == 5


@pytest.mark.parametrize("length", [1, 2, 9, 10])
def test_simd_mode_keeps_the_elements(length: int) -> None:
    simulator, _code = simd_pair(length)
    assert simulator.read(1, 0, 100, length).tolist() == list(range(1, length + 1))


def multicast_at_the_edge(length: int) -> tuple[Simulator, PythonCode]:
    """PE 0 sends to PE 1, whose core receives while as much leaves the rectangle."""

    def send(pe: Pe) -> Code:
        pe.vector("mov32", fabout(3, length, 2), 7)
        yield
        pe.open_stream()

    def receive(pe: Pe) -> Code:
        pe.vector("mov32", mem1d(100, length + 1, 2, 2), fabin(3, length + 1, 1))
        yield

    code = PythonCode([send], [receive])
    queues = (QueueBinding(True, 1, 3),)
    routes = [[(3, ColorConfig(RAMP, EAST))], [(3, ColorConfig(WEST, RAMP | SOUTH))]]
    simulator = code.simulator(
        program([[0, 1]], [image("a", queues=queues), image("b", queues=queues)], routes)
    )
    simulator.start_command([0, 0])
    return simulator, code


def test_what_leaves_the_rectangle_holds_nothing_up() -> None:
    simulator, _code = multicast_at_the_edge(30)
    simulator.run_until_idle()
    assert simulator.read(1, 0, 100, 60)[::2].tolist() == [7] * 30


def test_a_report_counts_what_left_the_rectangle() -> None:
    simulator, _code = multicast_at_the_edge(30)
    reason = r"PE \(1, 0\): 30 wavelets of color 3 left the rectangle southward"
    with pytest.raises(OpenwaferError, match=reason):
        simulator.run_until_command_done()
