"""The account of time: a partition, and the same whoever runs what."""

from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Account, SimulatorOptions, SlotState
from openwafer.sdk.fabric import words as w
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Fifo as ImageFifo
from openwafer.sdk.program.image import QueueBinding, Start, TaskBinding, TaskKind
from openwafer.sdk.program.routing import ColorConfig
from tests.examples import examples
from tests.sdk.fabric.account_laws import check_laws
from tests.sdk.fabric.python_code import (
    Fifo,
    Operand,
    Pe,
    PythonCode,
    fabin,
    fabout,
    image,
    mem1d,
    program,
)
from tests.sdk.fabric.random_machines import CYCLES, Machine, build, machines, random_machine

Asked = tuple[str, tuple[Operand, ...], dict[str, int]]
ASYNC = int(mb.Option.ASYNC)
UT = [{"options": ASYNC, "microthread": number} for number in range(w.QUEUES)]
BOOKED = SimulatorOptions(max_cycles=10**5, has_account=True)


def history(machine: Machine, step_cycles: int, num_steps: int) -> list[Account]:
    """The account after each step, up to the run's end or what stops it."""
    simulator, _code = build(machine, BOOKED)
    found = [simulator.account()]
    with suppress(OpenwaferError):
        while len(found) <= num_steps and not simulator.run_until_idle(step_cycles):
            found.append(simulator.account())
    return [*found, simulator.account()]


@examples(25, by_default=6, deadline=None)
@given(machine=machines())
def test_each_slot_is_in_one_state_in_each_cycle(machine: Machine) -> None:
    accounts = history(machine, 1, 100)
    for account in accounts:
        check_laws(account)
    for before, after in pairwise(accounts):
        added = (after.cycles - before.cycles)[:, : w.MAIN_SLOT]
        assert added.min() >= 0
        assert added.sum(axis=2).max() == after.num_cycles - before.num_cycles
        assert added[:, :, SlotState.BEAT].sum(axis=1).max() <= 1


def ended(machine: Machine) -> Account:
    simulator, _code = build(machine, BOOKED)
    with suppress(OpenwaferError):
        simulator.run_until_idle(CYCLES)
    return simulator.account()


@examples(20, by_default=6, deadline=None)
@given(machine=machines())
def test_a_look_at_the_account_changes_nothing(machine: Machine) -> None:
    whole, stepped = ended(machine), history(machine, 97, CYCLES // 97)[-1]
    assert stepped.num_cycles == whole.num_cycles
    np.testing.assert_array_equal(stepped.cycles, whole.cycles)


IN_MACHINES = {
    *(SlotState.NOTHING, SlotState.SCALAR, SlotState.BEAT, SlotState.PAUSE, SlotState.TURN),
    *(SlotState.DRAIN, SlotState.SWITCH, SlotState.REQUEST, SlotState.LOST_BEAT),
}


def test_random_machines_wait_for_much() -> None:
    seen = sum(ended(random_machine(Random(seed))).cycles.sum(axis=(0, 1)) for seed in range(60))
    assert {state for state in IN_MACHINES if not seen[state]} == set()
    assert seen[SlotState.INPUT :][: w.QUEUES].any()
    assert seen[SlotState.OUTPUT :].any()


@examples(20, by_default=6, deadline=None)
@given(machine=machines())
def test_an_account_leaves_the_run_as_it_is(machine: Machine) -> None:
    runs = []
    for has_account in (False, True):
        options = SimulatorOptions(has_account=has_account, landing_log=True)
        simulator, _code = build(machine, options)
        with suppress(OpenwaferError):
            simulator.run_until_idle(CYCLES)
        runs.append((simulator.landings(), simulator.statistics(), simulator.cycle))
    assert runs[0] == runs[1]


def waiting(operations: Sequence[Asked]) -> Account:
    """The account of a PE whose command asks for operations, beside one that runs 400 cycles."""

    def main(pe: Pe) -> Generator[None, None, None]:
        pe.activate(9)
        for name, operands, options in operations:
            pe.vector(name, *operands, **options)
            yield

    def other(pe: Pe) -> Generator[None, None, None]:
        pe.work(400)
        yield from ()

    code = PythonCode([main], [other])
    start = Start(blocked=1 << 9, blocked_queues=1 << (w.QUEUES + 5))
    queues = (QueueBinding(True, 1, 3), QueueBinding(False, 2, 3))
    tasks, fifos = (TaskBinding(TaskKind.LOCAL, 9, 0),), (ImageFifo("fifo", 400, 8, 1),)
    own = image("code", start=start, queues=queues, tasks=tasks, fifos=fifos)
    routes = ((3, ColorConfig(16, 16)),)
    wafer = program([[0, 1]], [own, image("other")], [routes, ()], Arch.WSE3)
    simulator = code.simulator(wafer, BOOKED)
    simulator.start_command([0, 0])
    simulator.run_until_idle()
    return simulator.account()


MEMORY = mem1d(100, 4)
RECEIVE: Asked = ("mov16", (MEMORY, fabin(3, 4, 1)), {})
WAITING: dict[str, tuple[int, int, list[Asked]]] = {
    "for a wavelet": (8, SlotState.INPUT + 1, [RECEIVE]),
    "for space": (2, SlotState.OUTPUT + 2, [("mov16", (fabout(3, 90, 2), mem1d(0, 90)), UT[2])]),
    "for a FIFO": (4, SlotState.FIFO, [("mov16", (MEMORY, Fifo(0)), UT[4])]),
    "for its block": (5, SlotState.BLOCKED_THREAD, [("mov16", (MEMORY, 1), UT[5])]),
    "for a microthread": (
        *(8, SlotState.REQUEST),
        [("mov16", (MEMORY, fabin(3, 4, 1)), UT[6]), ("mov16", (MEMORY, 1), UT[6])],
    ),
    "for a task's block": (8, SlotState.BLOCKED_TASK, []),
}


@pytest.mark.parametrize("waits", WAITING)
def test_a_slot_that_waits_says_for_what(waits: str) -> None:
    slot, state, operations = WAITING[waits]
    assert waiting(operations).of(0, 0)[slot, state] > 300


def test_a_state_of_a_queue_is_named_by_its_number_and_the_queue_by_its_color() -> None:
    account = waiting([RECEIVE])
    assert account.states[SlotState.INPUT + 1] == "input 1"
    assert account.states[SlotState.OUTPUT] == "output 0"
    assert len(account.states) == account.cycles.shape[2]
    assert account.colors[0].tolist() == [0, 1 << 3, 0, 0, 0, 0, 0, 0]
