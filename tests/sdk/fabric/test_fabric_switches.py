"""Control wavelets: switches, pop modes, teardown; filters; swapped colors."""

import inspect
from collections.abc import Generator, Sequence

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions, control
from openwafer.sdk.program.descriptor import DsdFlag
from openwafer.sdk.program.image import QueueBinding, TaskBinding, TaskKind
from openwafer.sdk.program.routing import (
    ColorConfig,
    Filter,
    FilterKind,
    PopMode,
    Switches,
    SwitchPosition,
)
from tests.sdk.fabric.python_code import Pe, PythonCode, Task, fabout, image, mem1d, program

WEST, EAST, SOUTH, NORTH, RAMP = 1, 2, 4, 8, 16
ADVANCE = 0x095F9249
RESET = 0x099F9249
TEARDOWN = 0x09DF9249
Code = Generator[None, None, None]
Wavelet = tuple[bool, int]


def sender(wavelets: Sequence[Wavelet], color: int = 3) -> Task:
    def send(pe: Pe) -> Code:
        for is_control, data in wavelets:
            pe.vector("mov32", fabout(color, 1, 2, 8 * is_control), data)
            yield
        pe.open_stream()

    return send


def note(pe: Pe) -> Code:
    """Append the argument to a list at word 200."""
    pe.memory[200] += 1
    pe.memory[200 + pe.memory[200]] = pe.argument & 0xFFFF
    yield from ()


def noted(simulator: Simulator, x: int, y: int = 0) -> list[int]:
    num = int(simulator.read(x, y, 200, 1)[0])
    return simulator.read(x, y, 201, num).tolist()  # type: ignore[no-any-return]


def machine(
    wavelets: Sequence[Wavelet], routes: Sequence[ColorConfig], color: int = 3
) -> tuple[Simulator, PythonCode]:
    """A row of PEs: the first one sends, all note what reaches their core on the color."""
    code = PythonCode([sender(wavelets, color), note], [sender([]), note])
    tasks = tuple(TaskBinding(TaskKind.DATA, c, 1) for c in (color, color ^ 1))
    images = [image(name, tasks=tasks) for name in ("first", "others")]
    grid = [[0] + [1] * (len(routes) - 1)]
    per_pe = [[(color, config), (color ^ 1, config)] for config in routes]
    simulator = code.simulator(program(grid, images, per_pe), SimulatorOptions(max_cycles=10**5))
    simulator.start_command([0, 0])
    simulator.run_until_command_done()
    simulator.run_until_idle(1000)
    return simulator, code


def data(*values: int) -> list[Wavelet]:
    return [(False, value) for value in values]


TO_EAST = ColorConfig(RAMP, EAST)
TO_CORE = ColorConfig(WEST, RAMP)


def switch(*positions: SwitchPosition, **fields: object) -> ColorConfig:
    switches = Switches(positions, **fields)  # type: ignore[arg-type]
    return ColorConfig(WEST, RAMP, switches=switches)


def test_an_advance_changes_the_route_of_the_wavelets_behind_it() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST)), TO_CORE]
    simulator, _code = machine([*data(1), (True, ADVANCE), *data(2)], routes)
    assert (noted(simulator, 1), noted(simulator, 2)) == ([1], [2])


def test_the_advance_itself_takes_the_route_before() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST)), switch(SwitchPosition(tx=EAST)), TO_CORE]
    simulator, _code = machine([(True, ADVANCE), *data(2)], routes)
    assert noted(simulator, 2) == [2]


def test_a_ring_goes_back_to_the_base_route() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST), is_ring=True), TO_CORE]
    wavelets = [(True, ADVANCE), *data(1), (True, ADVANCE), *data(2)]
    simulator, _code = machine(wavelets, routes)
    assert (noted(simulator, 1), noted(simulator, 2)) == ([2], [1])


def test_a_ring_of_four_positions_takes_each_in_turn() -> None:
    positions = (SwitchPosition(tx=EAST), SwitchPosition(tx=RAMP), SwitchPosition(tx=EAST))
    routes = [TO_EAST, switch(*positions, is_ring=True), TO_CORE]
    wavelets = [one for value in range(5) for one in (*data(value), (True, ADVANCE))]
    simulator, _code = machine(wavelets, routes)
    assert (noted(simulator, 1), noted(simulator, 2)) == ([0, 2, 4], [1, 3])


def test_without_a_ring_the_last_position_stays() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST)), TO_CORE]
    simulator, _code = machine([(True, ADVANCE), (True, ADVANCE), *data(2)], routes)
    assert noted(simulator, 2) == [2]


def test_a_reset_goes_back_to_the_base_route() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST)), TO_CORE]
    simulator, _code = machine([(True, ADVANCE), (True, RESET), *data(2)], routes)
    assert noted(simulator, 1) == [2]


def test_a_switch_can_begin_at_a_later_position() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST), current=1), TO_CORE]
    simulator, _code = machine(data(2), routes)
    assert noted(simulator, 2) == [2]


def test_a_position_keeps_what_it_does_not_change_from_the_position_before() -> None:
    routes = [TO_EAST, switch(SwitchPosition(tx=EAST), SwitchPosition(rx=WEST)), TO_CORE]
    simulator, _code = machine([(True, ADVANCE), (True, ADVANCE), *data(2)], routes)
    assert noted(simulator, 2) == [2]


def test_a_popped_command_lets_the_next_router_obey_the_second() -> None:
    twice = 0x0B5F9249
    first = switch(SwitchPosition(tx=EAST), pop_mode=PopMode.ALWAYS_POP, current=1)
    routes = [TO_EAST, first, switch(SwitchPosition(tx=EAST)), TO_CORE]
    simulator, _code = machine([(True, twice), *data(2)], routes)
    assert noted(simulator, 3) == [2]


def test_a_command_that_does_nothing_is_popped_where_the_mode_says_so() -> None:
    nothing_then_advance = 0x0B1F9249
    first = switch(SwitchPosition(tx=EAST), pop_mode=PopMode.POP_ON_ADVANCE_NOP, current=1)
    routes = [TO_EAST, first, switch(SwitchPosition(tx=EAST)), TO_CORE]
    simulator, _code = machine([(True, nothing_then_advance), *data(2)], routes)
    assert noted(simulator, 3) == [2]


def test_popping_a_teardown_leaves_nothing_to_do() -> None:
    assert inspect.unwrap(control.popped)(TEARDOWN) == 0x091F9249


def test_the_wavelet_that_advances_a_switch_has_the_published_form() -> None:
    assert control.ADVANCE_WAVELET == ADVANCE


def send_and_advance(pe: Pe) -> Code:
    flags = int(DsdFlag.ADVANCE_SWITCH)
    for num, value in ((2, 7), (1, 8), (1, 9)):
        pe.vector("mov32", fabout(3, num, 2, flags), value)
        yield


def test_advance_switch_changes_the_own_router_behind_the_last_wavelet() -> None:
    code = PythonCode([send_and_advance, note], [send_and_advance, note])
    tasks = (TaskBinding(TaskKind.DATA, 3, 1),)
    own = ColorConfig(RAMP, EAST, switches=Switches((SwitchPosition(tx=WEST),), is_ring=True))
    next_one = ColorConfig(WEST, RAMP, switches=Switches((SwitchPosition(tx=EAST),)))
    routes = [[(3, config)] for config in (ColorConfig(EAST, RAMP), own, next_one)]
    images = [image("first", tasks=tasks), image("others", tasks=tasks)]
    simulator = code.simulator(program([[1, 0, 1]], images, routes))
    simulator.start_command([0, -1])
    simulator.run_until_idle(1000)
    assert (noted(simulator, 0), noted(simulator, 2)) == ([8], [7, 7, 9])


def count(pe: Pe) -> Code:
    pe.memory[300] += 1
    yield from ()


@pytest.mark.parametrize("pop_mode", [PopMode.NO_POP, PopMode.POP_ON_ADVANCE])
def test_a_torn_down_color_starts_its_handlers_and_takes_no_more(pop_mode: PopMode) -> None:
    code = PythonCode([sender([*data(1), (True, TEARDOWN), *data(2)])], [sender([]), note, count])
    tasks = (TaskBinding(TaskKind.DATA, 3, 1),)
    images = [image("first"), image("others", tasks=tasks, teardown_handlers=((3, 2),))]
    middle = ColorConfig(WEST, EAST, switches=Switches(pop_mode=pop_mode))
    routes = [[(3, config)] for config in (TO_EAST, middle, TO_CORE)]
    simulator = code.simulator(program([[0, 1, 1]], images, routes))
    simulator.start_command([0, -1])
    simulator.run_until_idle(1000)
    counts = [int(simulator.read(x, 0, 300, 1)[0]) for x in (1, 2)]
    assert (noted(simulator, 2), counts) == ([1], [1, 1])


def filtered(given: Filter, wavelets: Sequence[int]) -> list[int]:
    config = ColorConfig(WEST, RAMP, filter=given)
    simulator, _code = machine(data(*wavelets), [TO_EAST, config])
    return noted(simulator, 1)


def test_a_counter_lets_the_first_of_each_period_in() -> None:
    given = Filter(FilterKind.COUNTER, count_data=True, limit1=4, max_counter=1)
    assert filtered(given, range(12)) == [0, 1, 5, 6, 10, 11]


def test_a_counter_can_begin_anywhere_in_its_period() -> None:
    given = Filter(FilterKind.COUNTER, True, init_counter=3, limit1=4, max_counter=1)
    assert filtered(given, range(6)) == [2, 3]


def test_a_range_looks_at_the_index() -> None:
    given = Filter(FilterKind.RANGE, min_index=3, max_index=4)
    assert filtered(given, [index << 16 | index for index in range(8)]) == [3, 4]


def test_a_sparse_counter_filters_two_periods() -> None:
    given = Filter(FilterKind.SPARSE_COUNTER, True, limit1=3, limit2=2, max_counter=0)
    assert filtered(given, range(10)) == [0, 4, 7, 8, 9]


def tell(color: int) -> Task:
    def task(pe: Pe) -> Code:
        pe.memory[200] = color
        yield from ()

    return task


def swapped_line(num_pes: int, came: int, goes: int) -> list[ColorConfig]:
    is_row = came | goes == WEST | EAST
    ways = [(RAMP, goes), *[(came, goes)] * (num_pes - 2), (came, RAMP)]
    return [ColorConfig(rx, tx, swap_x=is_row, swap_y=not is_row) for rx, tx in ways]


@pytest.mark.parametrize(("num_pes", "lands_on"), [(2, 2), (3, 3)])
@pytest.mark.parametrize(
    ("came", "goes"), [(WEST, EAST), (EAST, WEST), (NORTH, SOUTH), (SOUTH, NORTH)]
)
def test_swapped_colors_change_at_each_crossing(
    came: int, goes: int, num_pes: int, lands_on: int
) -> None:
    code = PythonCode([sender(data(9))], [sender([]), tell(2), tell(3)])
    tasks = (TaskBinding(TaskKind.DATA, 2, 1), TaskBinding(TaskKind.DATA, 3, 2))
    images = [image("first"), image("others", tasks=tasks)]
    way = -1 if goes in (WEST, NORTH) else 1
    row = np.array([[0] + [1] * (num_pes - 1)])[:, ::way]
    grid = row if came | goes == WEST | EAST else row.T
    routes = [[(2, one), (3, one)] for one in swapped_line(num_pes, came, goes)[::way]]
    simulator = code.simulator(program(grid.tolist(), images, routes))
    simulator.start_command([0, -1])
    simulator.run_until_idle(1000)
    told = [simulator.read(x, y, 200, 1)[0] for y, x in np.ndindex(grid.shape)]
    assert told[::way][-1] == lands_on


NO_PARTNER = [(2, ColorConfig(WEST, RAMP, swap_x=True)), (3, ColorConfig(WEST, RAMP))]


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        (NO_PARTNER, "landed on no color: color 2 swaps there, color 3 does not"),
        ([(2, ColorConfig(WEST, 0))], "landed where its route has no output"),
    ],
)
def test_a_report_counts_what_vanishes_at_a_router(
    routes: list[tuple[int, ColorConfig]], told: str
) -> None:
    code = PythonCode([sender(data(9, 8), 2)], [sender([])])
    grid, images = [[0, 1]], [image("first"), image("last")]
    simulator = code.simulator(program(grid, images, [[(2, TO_EAST)], routes]))
    simulator.start_command([0, -1])
    simulator.run_until_idle(1000)
    (found,) = simulator.left_over(is_at_rest=True)
    assert found.message == f"PE (1, 0): 2 wavelets of color 2 from the west {told}"


def test_a_multicast_goes_everywhere_or_nowhere() -> None:
    middle = ColorConfig(WEST, RAMP | EAST)
    code = PythonCode([sender(data(*range(20)))], [sender([]), note], [sender([])])
    tasks = (TaskBinding(TaskKind.DATA, 3, 1),)
    out = (QueueBinding(False, 2, 3),)
    into = (QueueBinding(True, 3, 3),)
    images = [image("first", queues=out), image("middle", queues=into, tasks=tasks), image("last")]
    routes = [[(3, TO_EAST)], [(3, middle)], [(3, TO_CORE)]]
    simulator = code.simulator(program([[0, 1, 2]], images, routes, Arch.WSE3))
    simulator.start_command([0, -1, -1])
    simulator.run_until_idle(1000)
    assert noted(simulator, 1) == [0, 1, 2, 3]


def test_a_queue_takes_a_second_color_on_wse2() -> None:
    def receive(pe: Pe) -> Code:
        for color, address in ((4, 100), (3, 110)):
            pe.vector("mov32", mem1d(address, 2, 2, 2), (2, color, 2, 0, 1, 2, 0, 0))
            yield
        pe.open_stream()

    code = PythonCode([receive])
    images = [image("one", queues=(QueueBinding(True, 1, 4),))]
    streams = (("MEMCPYH2D_1", 4), ("MEMCPYH2D_2", 3))
    simulator = code.simulator(program([[0]], images, streams=streams))
    simulator.inject(4, 0, 0, np.array([1, 2], np.uint32))
    simulator.inject(3, 0, 0, np.array([3, 4], np.uint32))
    simulator.start_command([0])
    simulator.run_until_command_done()
    assert simulator.read(0, 0, 110, 4).tolist() == [3, 0, 4, 0]
