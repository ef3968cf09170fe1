"""Which of a PE's microthreads goes on: by priority, and by what is blocked."""

from collections.abc import Generator

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Fifo as ImageFifo
from openwafer.sdk.program.image import QueueBinding, Start
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import (
    Fifo,
    Pe,
    PythonCode,
    Task,
    fabin,
    fabout,
    image,
    mem1d,
    mem4d,
    program,
)

Code = Generator[None, None, None]
ASYNC = int(mb.Option.ASYNC)
LENGTH, FIRST, SECOND = 400, 1000, 2000
LOOP = ((3, ColorConfig(16, 16)),)


def copies(pe: Pe, microthread: int, place: int, length: int = LENGTH, **given: int) -> None:
    """Ask for a microthread that fills memory from `place` on with ones."""
    ones = mem1d(10, length, 0)
    pe.vector("mov16", mem1d(place, length), ones, options=ASYNC, microthread=microthread, **given)


def num_copied(
    entry: Task, num_cycles: int, arch: Arch = Arch.WSE3, **fields: object
) -> tuple[int, int]:
    """How many ones lie at FIRST and SECOND some cycles after a PE began an entry."""
    code = PythonCode([entry])
    own = image("code", **fields)
    simulator = code.simulator(program([[0]], [own], [LOOP], arch))
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


def test_a_microthread_has_the_priority_of_its_fifo() -> None:
    def entry(pe: Pe) -> Code:
        for number in (1, 0):
            ones = mem1d(10, LENGTH, 0)
            pe.vector("mov16", Fifo(number), ones, options=ASYNC, microthread=number)
            yield

    high = ImageFifo("first", FIRST, LENGTH, 1, priority=2)
    fifos = (high, ImageFifo("second", SECOND, LENGTH, 1))
    first, second = num_copied(entry, 60, fifos=fifos)
    assert second < first / 2


@pytest.mark.parametrize(
    ("arch", "of_queue", "of_dsd"), [(Arch.WSE2, 2, 0), (Arch.WSE3, 0, 2)], ids=str
)
def test_a_microthread_has_the_priority_of_its_queue_and_descriptor(
    arch: Arch, of_queue: int, of_dsd: int
) -> None:
    """Four wavelets wait in the queue while a microthread of high priority copies memory."""

    def num_taken(of_queue: int, of_dsd: int) -> int:
        def entry(pe: Pe) -> Code:
            pe.vector("mov16", fabout(3, 4, 2), mem1d(10, 4, 0))
            yield
            copies(pe, 5, SECOND, priority=2)
            yield
            source = (*fabin(3, 4, 1)[:-1], of_dsd)
            pe.vector("mov16", mem1d(FIRST, 4), source, options=ASYNC)
            yield

        queues = (QueueBinding(True, 1, 3, of_queue), QueueBinding(False, 2, 3))
        return num_copied(entry, 60, arch, queues=queues)[0]

    assert (num_taken(of_queue, of_dsd), num_taken(0, 0)) == (4, 0)


@pytest.mark.parametrize("num_words", [0, 30])
def test_words_take_a_running_operation_a_cycle_each(num_words: int) -> None:
    """100 beats of 8 elements, two cycles each. 13 words go before the first, in the cycles of two
    requests, of three registers and up to a beat."""
    notes = []

    def entry(pe: Pe) -> Code:
        if num_words:
            pe.vector("mov16", fabout(3, num_words, 2), mem1d(10, num_words, 0), options=ASYNC)
            yield
            pe.vector("mov16", mem1d(3000, num_words), fabin(3, num_words, 1), options=ASYNC)
            yield
        notes.append(int(pe.mailbox[mb.CYCLE]))
        pe.vector("add16", mem1d(FIRST, 800), mem1d(FIRST, 800), mem1d(SECOND, 800))
        yield
        notes.append(int(pe.mailbox[mb.CYCLE]))

    num_copied(entry, 400, queues=(QueueBinding(True, 1, 3), QueueBinding(False, 2, 3)))
    assert notes[1] - notes[0] - (200 + 6) == max(0, 2 * num_words - 13)


@pytest.mark.parametrize(("columns", "cycles"), [(8, 10), (9, 20)])
def test_a_line_of_several_dimensions_begins_with_a_beat_of_its_own(
    columns: int, cycles: int
) -> None:
    """10 lines of 8 elements a cycle."""
    begun = []

    def entry(pe: Pe) -> Code:
        begun.append(int(pe.mailbox[mb.CYCLE]))
        lines = [mem4d(begin, (columns, 10), (1, 1)) for begin in (FIRST, SECOND)]
        pe.vector("mov16", *lines)
        yield
        begun.append(int(pe.mailbox[mb.CYCLE]))

    num_copied(entry, 300)
    assert begun[1] - begun[0] == pytest.approx(cycles + 5, abs=1)


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
