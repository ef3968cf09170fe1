"""Operands and options of vector operations that the machine serves."""

from collections.abc import Callable, Generator

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, registers
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.descriptor import DsdFlag
from openwafer.sdk.program.image import DsrLoad, QueueBinding, Start, TaskBinding, TaskKind
from openwafer.sdk.program.image import Fifo as ImageFifo
from openwafer.sdk.program.routing import ColorConfig, Switches, SwitchPosition
from tests.sdk.fabric.python_code import (
    Dsr,
    Fifo,
    Pe,
    Pointer,
    PythonCode,
    Task,
    fabin,
    fabout,
    image,
    mem1d,
    mem4d,
    program,
)

RAMP = 16
ASYNC = int(mb.Option.ASYNC)
LOOP = ((3, ColorConfig(RAMP, RAMP)), (4, ColorConfig(RAMP, RAMP)))
STREAMS = (("MEMCPYH2D_1", 5), ("MEMCPYD2H_1", 6))
TABLE = np.arange(1000, dtype=np.uint16)
Code = Generator[None, None, None]


def run(*entries: Task, arch: Arch = Arch.WSE2, **fields: object) -> Simulator:
    """One PE with 0, 1, ... from word 1000 on; colors 3 and 4 lead from its ramp to its ramp."""
    bound = [(True, 1, 3), (True, 4, 4), (True, 5, 5), (False, 2, 3), (False, 3, 6)]
    queues = tuple(QueueBinding(*binding) for binding in bound)
    code = PythonCode(entries)
    own = image("code", queues=queues, **fields)
    simulator = code.simulator(program([[0]], [own], [LOOP], arch, STREAMS))
    simulator.write(0, 0, 1000, TABLE)
    simulator.start_command([0])
    simulator.run_until_idle(10_000)
    return simulator


def read(simulator: Simulator, address: int, num: int) -> list[int]:
    return simulator.read(0, 0, address, num).tolist()  # type: ignore[no-any-return]


def one(fill: Callable[[Pe], None]) -> Task:
    """An entry that makes one request."""

    def entry(pe: Pe) -> Code:
        fill(pe)
        yield
        pe.memory[0] = pe.result

    return entry


def loop_back(pe: Pe) -> Code:
    pe.vector("mov32", mem1d(100, 6, 2, 2), fabin(3, 6, 1), options=ASYNC, activate=9)
    yield
    pe.vector("mov32", fabout(3, 6, 2), mem1d(1000, 6, 2, 2))
    yield


def test_a_microthread_and_the_main_thread_work_together() -> None:
    assert read(run(loop_back), 100, 12) == list(range(12))


def test_the_end_of_a_microthread_activates_a_task() -> None:
    def after(pe: Pe) -> Code:
        pe.memory[0] = 1
        yield from ()

    simulator = run(loop_back, after, tasks=(TaskBinding(TaskKind.LOCAL, 9, 1),))
    assert read(simulator, 0, 1) == [1]


def test_a_second_operation_waits_for_its_microthread() -> None:
    def twice(pe: Pe) -> Code:
        for _ in range(2):
            pe.vector("mov32", fabout(6, 4, 3), mem1d(1000, 4, 2, 2), options=ASYNC)
            yield

    simulator = run(twice)
    assert simulator.num_collected(6, 0, 0) == 8


def test_words_to_the_host_can_be_taken_once() -> None:
    simulator = run(one(lambda pe: pe.vector("mov32", fabout(6, 4, 3), mem1d(1000, 4, 2, 2))))
    simulator.take(6, 0, 0, 4)
    with pytest.raises(OpenwaferError, match="has sent 0 words on color 6, not 1"):
        simulator.take(6, 0, 0, 1)


def test_the_index_goes_into_the_high_half_of_wavelets() -> None:
    flags = int(DsdFlag.WAVELET_INDEX)
    has_index = int(mb.Option.HAS_INDEX)
    simulator = run(
        one(lambda pe: pe.vector("mov16", fabout(6, 1, 3, flags), 7, options=has_index, index=9))
    )
    assert simulator.take(6, 0, 0, 1).tolist() == [9 << 16 | 7]


def test_a_reduction_ends_in_a_scalar() -> None:
    simulator = run(one(lambda pe: pe.vector("add16", Pointer(50), 3, mem4d(1000, [4], [1]))))
    assert read(simulator, 50, 1) == [3 + 0 + 1 + 2 + 3]


def test_four_dimensions_step_from_the_last_element_of_the_inner_ones() -> None:
    source = mem4d(1000, [3, 2], [2, 6])
    simulator = run(one(lambda pe: pe.vector("mov16", mem1d(100, 6), source)))
    assert read(simulator, 100, 6) == [0, 2, 4, 10, 12, 14]


def test_the_first_source_gives_the_length() -> None:
    simulator = run(one(lambda pe: pe.vector("mov32", fabout(6, 1, 3), mem1d(1000, 3, 2, 2))))
    assert simulator.num_collected(6, 0, 0) == 3


def test_a_stride_counts_elements_of_the_operation() -> None:
    source = mem1d(1000, 3, stride=1, words=1)
    simulator = run(one(lambda pe: pe.vector("mov32", fabout(6, 3, 3), source)))
    assert simulator.take(6, 0, 0, 3).tolist() == [1 << 16, 3 << 16 | 2, 5 << 16 | 4]


def test_a_source_is_cleared_where_the_output_asks_for_it() -> None:
    flags = int(DsdFlag.ZERO_SECOND)
    simulator = run(one(lambda pe: pe.vector("mov16", fabout(6, 3, 3, flags), mem1d(1001, 3))))
    assert read(simulator, 1000, 5) == [0, 0, 0, 0, 4]


def test_a_dsr_goes_on_where_the_operation_before_ended() -> None:
    def entry(pe: Pe) -> Code:
        for address in (100, 110):
            pe.vector("mov16", mem1d(address, 3), Dsr(1, 2))
            yield

    load = DsrLoad(1, 2, mem1d(1000, 3), options=int(mb.Option.SAVE_ADDRESS))
    simulator = run(entry, dsrs=(load,))
    assert read(simulator, 110, 3) == [3, 4, 5]


def test_a_loaded_dsr_brings_its_options() -> None:
    def entry(pe: Pe) -> Code:
        options = {"options": ASYNC, "activate": 9}
        pe.request(mb.Request.LOAD_DSR, 1 << 8 | 3, fabin(5, 2, 5), **options)
        yield
        pe.vector("mov32", mem1d(100, 2, 2, 2), Dsr(1, 3))
        yield
        pe.memory[0] = 1

    simulator = run(entry)
    assert read(simulator, 0, 1) == [1]


def test_a_full_fifo_ends_a_synchronous_push() -> None:
    fifo = ImageFifo("buffer", 500, 4, 1)
    simulator = run(one(lambda pe: pe.vector("mov16", Fifo(0), mem1d(1000, 6))), fifos=(fifo,))
    assert (read(simulator, 0, 1), read(simulator, 500, 5)) == ([0], [0, 1, 2, 3, 0])


def test_a_fifo_passes_elements_from_writer_to_reader() -> None:
    def entry(pe: Pe) -> Code:
        pe.vector("mov16", Fifo(0), mem1d(1000, 9), options=ASYNC, microthread=5)
        yield
        pe.vector("mov16", mem1d(100, 9), Fifo(0), options=ASYNC, microthread=6)
        yield

    simulator = run(entry, fifos=(ImageFifo("buffer", 500, 4, 1),))
    assert read(simulator, 100, 9) == list(range(9))


def test_a_push_behind_an_empty_pop_activates_the_task() -> None:
    def entry(pe: Pe) -> Code:
        pe.vector("mov16", mem1d(100, 1), Fifo(0))
        yield
        pe.vector("mov16", Fifo(0), mem1d(1000, 1))
        yield

    def pushed(pe: Pe) -> Code:
        pe.memory[0] = 1
        yield from ()

    fifo = ImageFifo("buffer", 500, 4, 1, activate_push=9)
    simulator = run(entry, pushed, fifos=(fifo,), tasks=(TaskBinding(TaskKind.LOCAL, 9, 1),))
    assert read(simulator, 0, 1) == [1]


def test_a_pop_behind_a_push_without_space_activates_the_task() -> None:
    def entry(pe: Pe) -> Code:
        pe.vector("mov16", Fifo(0), mem1d(1000, 6))
        yield
        pe.vector("mov16", mem1d(100, 1), Fifo(0))
        yield

    def popped(pe: Pe) -> Code:
        pe.memory[0] = 1
        yield from ()

    fifo = ImageFifo("buffer", 500, 4, 1, activate_pop=9)
    simulator = run(entry, popped, fifos=(fifo,), tasks=(TaskBinding(TaskKind.LOCAL, 9, 1),))
    assert read(simulator, 0, 1) == [1]


@pytest.mark.parametrize(
    ("arch", "elements"), [(Arch.WSE3, [7, 7, 0]), (Arch.WSE2, [7, 0, 0])], ids=str
)
def test_a_control_wavelet_ends_an_operation(arch: Arch, elements: list[int]) -> None:
    def entry(pe: Pe) -> Code:
        options = ASYNC | int(mb.Option.TERMINATE_ON_CONTROL)
        pe.vector("mov16", mem1d(100, 9), fabin(3, 9, 1), options=options, activate=9)
        yield
        for flags in (0, 8):
            pe.vector("mov16", fabout(3, 1, 2, flags), 7)
            yield

    def after(pe: Pe) -> Code:
        pe.memory[0] = 1
        yield from ()

    tasks = (TaskBinding(TaskKind.LOCAL, 9, 1),)
    simulator = run(entry, after, arch=arch, tasks=tasks, start=Start(blocked=1 << 3))
    assert read(simulator, 0, 1) + read(simulator, 100, 3) == [1, *elements]


def note_end(pe: Pe) -> Code:
    pe.memory[0] = 1
    yield from ()


@pytest.mark.parametrize("arch", list(Arch))
def test_a_control_wavelet_without_a_task_waits_for_the_operation_that_takes_it(arch: Arch) -> None:
    def entry(pe: Pe) -> Code:
        options = ASYNC | int(mb.Option.TERMINATE_ON_CONTROL)
        pe.vector("mov16", mem1d(100, 9), fabin(3, 9, 1), options=options, activate=9)
        yield
        # Its beats come before those of the one that receives.
        pe.vector("mov16", mem1d(300, 900), 5, options=ASYNC, microthread=4, priority=2)
        yield
        pe.vector("mov32", fabout(3, 1, 2, 8), 31 << 16, options=ASYNC, microthread=5, priority=2)
        yield

    simulator = run(entry, note_end, arch=arch, tasks=(TaskBinding(TaskKind.LOCAL, 9, 1),))
    assert read(simulator, 0, 1) == [1]


def test_the_control_wavelet_that_ended_an_operation_of_wse2_can_be_read() -> None:
    def entry(pe: Pe) -> Code:
        options = ASYNC | int(mb.Option.TERMINATE_ON_CONTROL)
        pe.vector("mov16", mem1d(100, 9), fabin(3, 9, 1), options=options, activate=9)
        yield
        for flags, value in ((0, 7), (8, 5)):
            pe.vector("mov16", fabout(3, 1, 2, flags), value)
            yield

    def after(pe: Pe) -> Code:
        pe.vector("mov16", mem1d(110, 1), fabin(3, 1, 1))
        yield

    tasks = (TaskBinding(TaskKind.LOCAL, 9, 1),)
    simulator = run(entry, after, tasks=tasks, start=Start(blocked=1 << 3))
    assert read(simulator, 100, 2) + read(simulator, 110, 1) == [7, 0, 5]


def test_a_flushed_queue_starts_its_handler_once_it_is_empty() -> None:
    def entry(pe: Pe) -> Code:
        pe.vector("mov32", fabout(6, 8, 3), 1, options=ASYNC)
        yield
        pe.request(mb.Request.FLUSH_QUEUE, 8 + 3)
        yield

    def handler(pe: Pe) -> Code:
        pe.memory[0] = 1
        yield from ()

    simulator = run(entry, handler, arch=Arch.WSE3, empty_queue_handlers=((11, 1),))
    assert read(simulator, 0, 1) == [1]


def test_prints_carry_cycle_and_place() -> None:
    def entry(pe: Pe) -> Code:
        pe.memory[10:12] = [ord("h"), ord("i")]
        pe.request(mb.Request.PRINT, 0, 10, 2)
        yield

    (only,) = run(entry).prints()
    assert (only.x, only.y, only.text) == (0, 0, "hi")


def test_an_address_beyond_memory_is_an_error() -> None:
    with pytest.raises(OpenwaferError, match="read word 0x6000, outside of its memory"):
        run(one(lambda pe: pe.vector("mov16", fabout(6, 1, 3), mem1d(0x6000, 1))))


def register(address: int, arch: Arch = Arch.WSE2, write: int | None = None) -> int:
    """Value of a register of a PE whose color 3 has a switch, perhaps behind a write."""

    def entry(pe: Pe) -> Code:
        if write is not None:
            pe.request(mb.Request.WRITE_REGISTER, address, write)
            yield
        pe.request(mb.Request.READ_REGISTER, address)
        yield
        pe.memory[0] = pe.result

    code = PythonCode([entry])
    switches = Switches((SwitchPosition(tx=8),), current=1, is_ring=True)
    routes = [[(3, ColorConfig(1, 16, switches, swap_y=True))]]
    simulator = code.simulator(program([[0]], [image("code")], routes, arch))
    simulator.start_command([0])
    simulator.run_until_idle(100)
    return read(simulator, 0, 1)[0]


@pytest.mark.parametrize(
    ("arch", "address"), [(Arch.WSE2, 0x7F23), (Arch.WSE3, registers.WSE3_COLORS + 3)]
)
def test_a_color_register_shows_the_routes(arch: Arch, address: int) -> None:
    assert register(address, arch) == 16 | 1 << 5 | 1 << 10


@pytest.mark.parametrize(
    ("arch", "address"), [(Arch.WSE2, 0x7F43), (Arch.WSE3, registers.WSE3_SWITCHES + 3)]
)
def test_a_switch_register_shows_the_positions(arch: Arch, address: int) -> None:
    assert register(address, arch) == 3 | 5 << 4 | 5 << 8 | 1 << 12 | 1 << 13


@pytest.mark.parametrize("value", [0x4230, 0x0821, 0x3000])
def test_a_color_register_holds_what_was_written(value: int) -> None:
    assert register(0x7F23, write=value) == value


@pytest.mark.parametrize("value", [0x0555, 0x155C, 0x3408])
def test_a_switch_register_holds_what_was_written(value: int) -> None:
    assert register(0x7F43, write=value) == value


def test_an_invalid_position_keeps_which_side_it_would_change() -> None:
    value = (5 | 8) | 5 << 4 | 5 << 8
    assert register(0x7F43, write=value) == value


def test_other_registers_hold_what_was_written() -> None:
    assert register(0x7021, write=1234) == 1234
