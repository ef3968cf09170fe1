"""Tasks: what starts them, with which argument, and what holds them back."""

from collections.abc import Generator, Sequence

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import GENERATIONS, WSE2, WSE3, Arch
from openwafer.sdk.fabric import Simulator, registers
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import QueueBinding, RegisterWrite, Start, TaskBinding, TaskKind
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import (
    Pe,
    PythonCode,
    Task,
    TrapError,
    fabout,
    image,
    mem1d,
    program,
)

RAMP = 16
LOOP = ((3, ColorConfig(RAMP, RAMP)),)
Code = Generator[None, None, None]


def note(pe: Pe) -> Code:
    """Append the low half of the argument to a list at word 200."""
    pe.memory[200] += 1
    pe.memory[200 + pe.memory[200]] = pe.argument & 0xFFFF
    yield from ()


def noted(simulator: Simulator) -> list[int]:
    num = int(simulator.read(0, 0, 200, 1)[0])
    return simulator.read(0, 0, 201, num).tolist()  # type: ignore[no-any-return]


def alone(
    entries: Sequence[Task],
    tasks: Sequence[TaskBinding],
    arch: Arch = Arch.WSE2,
    **fields: object,
) -> tuple[Simulator, PythonCode]:
    """One PE whose color 3 leads from its ramp to its ramp, into input queue 1."""
    code = PythonCode(entries)
    queues = (QueueBinding(True, 1, 3), QueueBinding(False, 2, 3))
    own = image("code", tasks=tuple(tasks), queues=queues, **fields)
    simulator = code.simulator(program([[0]], [own], [LOOP], arch, (("MEMCPYH2D_1", 3),)))
    return simulator, code


def test_a_command_gets_its_arguments() -> None:
    simulator, _code = alone([note], [])
    simulator.start_command([0], [77])
    simulator.run_until_idle()
    assert noted(simulator) == [77]


def test_a_command_ends_when_the_stream_is_open_again() -> None:
    def main(pe: Pe) -> Code:
        pe.work(500)
        pe.open_stream()
        yield from ()

    simulator, _code = alone([main], [])
    simulator.start_command([0])
    simulator.run_until_command_done()
    assert 500 <= simulator.cycle < 520


def test_the_next_command_begins_as_much_later_as_the_host_needs() -> None:
    def main(pe: Pe) -> Code:
        pe.work(500)
        pe.open_stream()
        yield from ()

    simulator, _code = alone([main], [])
    ends = []
    for _ in range(2):
        simulator.start_command([0])
        simulator.run_until_command_done()
        ends.append(simulator.cycle)
    waits = WSE2.timing.switch_cycles + WSE2.timing.command_cycles
    assert 500 + waits <= ends[1] - ends[0] < 505 + waits


@pytest.mark.parametrize("arch", list(Arch))
def test_each_column_begins_a_command_a_hop_behind_the_one_before(arch: Arch) -> None:
    begins = []

    def main(pe: Pe) -> Code:
        begins.append(int(pe.mailbox[mb.CYCLE]))
        yield from ()

    code = PythonCode([main])
    simulator = code.simulator(program([[0, 0, 0]], [image()], arch=arch))
    simulator.start_command([0])
    simulator.run_until_idle()
    assert np.diff(sorted(begins)).tolist() == 2 * [GENERATIONS[arch].timing.hop_cycles]


def test_an_activated_task_runs_once() -> None:
    def main(pe: Pe) -> Code:
        pe.activate(9)
        pe.activate(9)
        yield from ()

    simulator, _code = alone([main, note], [TaskBinding(TaskKind.LOCAL, 9, 1)])
    simulator.start_command([0])
    simulator.run_until_idle()
    assert len(noted(simulator)) == 1


@pytest.mark.parametrize("others", [0, 1 << 10], ids=["alone", "beside one that runs"])
def test_a_blocked_task_waits(others: int) -> None:
    def nothing(_pe: Pe) -> Code:
        yield from ()

    tasks = [TaskBinding(TaskKind.LOCAL, 9, 0), TaskBinding(TaskKind.LOCAL, 10, 1)]
    start = Start(active=1 << 9 | others, blocked=1 << 9)
    simulator, _code = alone([note, nothing], tasks, start=start)
    simulator.run_until_idle()
    assert noted(simulator) == []


@pytest.mark.parametrize(("arch", "task_id"), [(Arch.WSE2, 3), (Arch.WSE3, 1)])
def test_a_data_task_runs_once_for_each_wavelet(arch: Arch, task_id: int) -> None:
    simulator, _code = alone([note], [TaskBinding(TaskKind.DATA, task_id, 0)], arch)
    simulator.inject(3, 0, 0, np.array([5, 6, 7], np.uint32))
    simulator.run_until_idle()
    assert noted(simulator) == [5, 6, 7]


@pytest.mark.parametrize(("arch", "task_id"), [(Arch.WSE2, 3), (Arch.WSE3, 1)])
def test_a_blocked_channel_keeps_its_wavelets(arch: Arch, task_id: int) -> None:
    start = Start(blocked=1 << 3) if arch is Arch.WSE2 else Start(blocked_queues=1 << 1)
    tasks = [TaskBinding(TaskKind.DATA, task_id, 0)]
    simulator, _code = alone([note], tasks, arch, start=start)
    simulator.inject(3, 0, 0, np.array([5], np.uint32))
    simulator.run_until_idle()
    assert noted(simulator) == []


def control_sender(data: int) -> Task:
    def send(pe: Pe) -> Code:
        pe.vector("mov32", fabout(3, 1, 2, 8), data)
        yield

    return send


def test_a_control_wavelet_starts_the_task_that_it_names() -> None:
    entries = [control_sender(40 << 16 | 123), note]
    simulator, _code = alone(entries, [TaskBinding(TaskKind.CONTROL, 40, 1)])
    simulator.start_command([0])
    simulator.run_until_idle()
    assert noted(simulator) == [123]


def test_a_control_wavelet_that_names_no_task_vanishes_in_the_core() -> None:
    simulator, _code = alone([control_sender(31 << 16), note], [])
    simulator.start_command([0])
    assert simulator.run_until_idle(1000)


def test_a_control_wavelet_that_names_an_unbound_task_is_an_error() -> None:
    simulator, _code = alone([control_sender(12 << 16), note], [])
    simulator.start_command([0])
    with pytest.raises(OpenwaferError, match="names task 12, which is bound to nothing"):
        simulator.run_until_idle(1000)


def trap(pe: Pe) -> Code:
    """Give up as compiled code does."""
    pe.mailbox[mb.TRAP], pe.mailbox[mb.TRAP_VALUE] = mb.Trap.OUT_OF_BOUNDS, 0x7000
    if pe.memory.size:
        raise TrapError
    yield


def test_a_trap_names_the_pe_and_its_reason() -> None:
    simulator, _code = alone([trap], [])
    simulator.start_command([0])
    with pytest.raises(OpenwaferError, match=r"PE \(0, 0\) stopped at .* word 0x7000 lies outside"):
        simulator.run_until_command_done()


def counter(place: int, task: int) -> Task:
    """Count runs at a word of memory and activate the task again."""

    def run(pe: Pe) -> Code:
        pe.memory[place] += 1
        pe.activate(task)
        yield from ()

    return run


def test_tasks_take_turns() -> None:
    tasks = [TaskBinding(TaskKind.LOCAL, 9, 0), TaskBinding(TaskKind.LOCAL, 10, 1)]
    entries = [counter(200, 9), counter(201, 10)]
    simulator, _code = alone(entries, tasks, start=Start(active=3 << 9))
    simulator.run_cycles(1000)
    first, second = simulator.read(0, 0, 200, 2).tolist()
    assert first > 10
    assert abs(first - second) <= 1


@pytest.mark.parametrize("arch", list(Arch))
def test_a_task_of_high_priority_goes_first(arch: Arch) -> None:
    tasks = [TaskBinding(TaskKind.LOCAL, 9, 0), TaskBinding(TaskKind.LOCAL, 10, 1)]
    high = (RegisterWrite(registers.HIGH_TASKS, 1 << 10),)
    entries = [counter(200, 9), counter(201, 10)]
    simulator, _code = alone(entries, tasks, arch, start=Start(active=3 << 9), registers=high)
    simulator.run_cycles(1000)
    assert simulator.read(0, 0, 200, 1)[0] == 0


def first_beside_a_control_task(arch: Arch, high_task: int) -> str:
    """Of local task 9, next in the ring, and a wavelet's control task 40: which one runs first."""
    begun: list[str] = []

    def send(pe: Pe) -> Code:
        pe.vector("mov32", fabout(3, 1, 2, 8), 40 << 16)
        yield
        pe.activate(9)
        pe.work(200)

    def local(_pe: Pe) -> Code:
        begun.append("local")
        yield from ()

    def commanded(_pe: Pe) -> Code:
        begun.append("control")
        yield from ()

    tasks = [
        TaskBinding(TaskKind.LOCAL, 8, 0),
        TaskBinding(TaskKind.LOCAL, 9, 1),
        TaskBinding(TaskKind.CONTROL, 40, 2),
    ]
    high = (RegisterWrite(registers.HIGH_TASKS + high_task // 16, 1 << high_task % 16),)
    start = Start(active=1 << 8)
    simulator, _code = alone([send, local, commanded], tasks, arch, start=start, registers=high)
    simulator.run_until_idle()
    assert sorted(begun) == ["control", "local"]
    return begun[0]


@pytest.mark.parametrize("arch", list(Arch))
def test_a_control_wavelet_has_the_priority_of_the_task_that_it_names(arch: Arch) -> None:
    of_channel = {Arch.WSE2: 3, Arch.WSE3: 1}[arch]
    assert first_beside_a_control_task(arch, high_task=40) == "control"
    assert first_beside_a_control_task(arch, high_task=of_channel) == "local"


def test_control_wavelets_reach_tasks_without_a_bound_queue_on_wse2() -> None:
    code = PythonCode([control_sender(40 << 16 | 123), note])
    own = image("code", tasks=(TaskBinding(TaskKind.CONTROL, 40, 1),))
    simulator = code.simulator(program([[0]], [own], [LOOP]))
    simulator.start_command([0])
    simulator.run_until_idle()
    assert noted(simulator) == [123]


def begins_of_data_tasks(*, has_vector: bool) -> list[int]:
    """Cycles at which three wavelets' tasks begin that work for 30 cycles each."""
    begins: list[int] = []

    def work(pe: Pe) -> Code:
        begins.append(int(pe.mailbox[mb.CYCLE]))
        if has_vector:
            pe.vector("mov16", mem1d(300, 1), mem1d(310, 1))
            yield
        pe.work(30)

    simulator, _code = alone([work], [TaskBinding(TaskKind.DATA, 1, 0)], Arch.WSE3)
    simulator.inject(3, 0, 0, np.array([5, 6, 7], np.uint32))
    simulator.run_until_idle()
    return begins


def switch_to_second(arch: Arch, *, is_waiting: bool) -> int:
    """Cycles from the end of a task to the next, which it activates, or which waits for its end."""
    notes: list[int] = []

    def main(pe: Pe) -> Code:
        pe.activate(9)
        if is_waiting:
            pe.activate(10)
        yield from ()

    def task(pe: Pe) -> Code:
        notes.append(int(pe.mailbox[mb.CYCLE]))
        pe.work(30)
        if len(notes) == 1:
            pe.activate(10)
        yield from ()

    tasks = [TaskBinding(TaskKind.LOCAL, 9, 1), TaskBinding(TaskKind.LOCAL, 10, 1)]
    simulator, _code = alone([main, task], tasks, arch)
    simulator.start_command([0])
    simulator.run_until_idle()
    return notes[1] - notes[0] - 30


@pytest.mark.parametrize("arch", list(Arch))
def test_a_task_that_waited_is_chosen_before_the_last_one_ends(arch: Arch) -> None:
    timing = GENERATIONS[arch].timing
    assert switch_to_second(arch, is_waiting=True) == timing.wavelet_switch_cycles
    assert switch_to_second(arch, is_waiting=False) == timing.switch_cycles


@pytest.mark.parametrize("has_vector", [False, True])
def test_a_wavelets_task_follows_sooner_behind_one_without_vector_operations(
    *, has_vector: bool
) -> None:
    timing, apart = WSE3.timing, np.diff(begins_of_data_tasks(has_vector=has_vector)) - 30
    sooner = timing.switch_cycles - timing.wavelet_switch_cycles
    assert apart.min() >= timing.wavelet_switch_cycles + sooner * has_vector
    assert apart.max() < timing.switch_cycles + 10 * has_vector
