"""Which of a PE's microthreads goes on: by priority, and by what is blocked."""

from collections.abc import Generator

import numpy as np

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Start
from tests.sdk.fabric.python_code import Pe, PythonCode, Task, image, mem1d, program

Code = Generator[None, None, None]
ASYNC = int(mb.Option.ASYNC)
LENGTH, FIRST, SECOND = 400, 1000, 2000


def copies(pe: Pe, microthread: int, place: int, length: int = LENGTH, **given: int) -> None:
    """Ask for a microthread that fills memory from `place` on with ones."""
    ones = mem1d(10, length, 0)
    pe.vector("mov16", mem1d(place, length), ones, options=ASYNC, microthread=microthread, **given)


def num_copied(entry: Task, num_cycles: int, **fields: object) -> tuple[int, int]:
    """How many ones lie at FIRST and SECOND some cycles after a WSE-3 PE began an entry."""
    code = PythonCode([entry])
    own = image("code", **fields)
    simulator = code.simulator(program([[0]], [own], arch=Arch.WSE3))
    simulator.write(0, 0, 10, np.ones(1, np.uint16))
    simulator.start_command([0])
    simulator.run_cycles(num_cycles)
    first, second = (simulator.read(0, 0, place, LENGTH) for place in (FIRST, SECOND))
    return int(first.sum()), int(second.sum())


def test_a_microthread_keeps_its_priority_when_the_main_thread_ends_an_operation() -> None:
    def entry(pe: Pe) -> Code:
        copies(pe, 0, FIRST, priority=2)
        yield
        copies(pe, 1, SECOND, priority=0)
        yield
        pe.vector("mov16", mem1d(20, 0), mem1d(10, 0))
        yield

    first, second = num_copied(entry, 60)
    assert first > 0
    assert second == 0


def test_a_blocked_microthread_waits() -> None:
    def entry(pe: Pe) -> Code:
        copies(pe, 2, FIRST)
        yield

    start = Start(blocked_queues=1 << (8 + 2))
    assert num_copied(entry, 1000, start=start) == (0, 0)


def test_the_end_of_an_operation_unblocks_a_microthread() -> None:
    def entry(pe: Pe) -> Code:
        copies(pe, 2, FIRST)
        yield
        copies(pe, 3, SECOND, unblock=int(mb.BlockKind.MICROTHREAD) << 8 | 2)
        yield

    start = Start(blocked_queues=1 << (8 + 2))
    assert num_copied(entry, 2000, start=start) == (LENGTH, LENGTH)
