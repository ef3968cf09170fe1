"""What PEs did, as lines of ``sim.log`` in the form of an instruction trace, and counts of it.

The simulator runs no instructions of the machine. A vector operation has one line where it is
issued and one where it executes; scalar code is ``CODE`` from the begin of its task on. In place of
an instruction's address stands the line of the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from openwafer.sdk.arch.generation import GENERATIONS
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import EventKind, Simulator, SlotState
from openwafer.sdk.fabric.events import EVENT, Rows, columns_of
from openwafer.sdk.fabric.words import MAIN_SLOT
from openwafer.sdk.host.line_cycles import CodeCounters
from openwafer.sdk.program.program import Program

_KINDS: Final = (
    *(EventKind.TAKEN, EventKind.TASK, EventKind.OPERATION),
    *(EventKind.OPERATION_END, EventKind.TASK_END),
)
_STALLS: Final = [
    state
    for state in range(SlotState.OUTPUT + 8)
    if state not in (SlotState.NOTHING, SlotState.SCALAR, SlotState.BEAT, SlotState.SWITCH)
]
"""States in which a slot has something to do, and waits."""
_NO_TASK: Final = 0
"""Number of a task that has no id: a command of the host, or a handler."""


class TraceCounts(NamedTuple):
    """What PEs did in a run.

    Attributes:
        stalls: cycles in which a slot waited.
        issued: cycles in which scalar code issued instructions, and vector operations.
        executed: the same with a cycle for each beat of an operation.
        idle_cycles: since an instruction was executed.
    """

    stalls: int
    issued: int
    executed: int
    idle_cycles: int


@dataclass
class _Reception:
    """An operation that takes wavelets.

    Attributes:
        queue: from which.
        gap: cycles from beat to beat.
        due: cycle at which it could take the next one.
    """

    queue: int
    gap: int
    due: int


@dataclass
class _Pe:
    """A PE between two events.

    Attributes:
        place: its name in the log.
        number: lines so far.
        task: id of its task; None while it has none.
        code: what its main thread runs.
        active: by slot, the operation that it has.
        receptions: by slot, of those that take wavelets.
        colors: by input queue, of the wavelets that were taken last.
    """

    place: str
    number: int = 0
    task: int | None = None
    code: str = ""
    active: dict[int, str] = field(default_factory=dict)
    receptions: dict[int, _Reception] = field(default_factory=dict)
    colors: dict[int, int] = field(default_factory=dict)

    def line(self, cycle: int, pipe: int, message: str) -> tuple[int, str]:
        """A line of the log, with its cycle."""
        self.number += 1
        task = _NO_TASK if self.task is None else self.task
        told = f"Id: {task}, Instr: {self.number}, Seq: 0, Pipe: {pipe}, Msg: {message}"
        return cycle, f"@{cycle} {self.place}: {told}"

    def executes(self, cycle: int) -> tuple[int, str]:
        """That the PE goes on with what it does now, or with nothing."""
        slot, running = next(reversed(self.active.items()), (MAIN_SLOT, self.code))
        return self.line(cycle, slot, f"[EX OP] {running or 'IDLE'}")


class InstructionTrace:
    """Keeps what the PEs of a simulation do that has an account and counters from its begin on."""

    def __init__(self, program: Program, simulator: Simulator, counters: CodeCounters) -> None:
        self._program = program
        self._simulator = simulator
        self._counters = counters
        self._rows: list[Rows] = [np.zeros(0, EVENT)]
        self._beat_cycles = GENERATIONS[program.arch].timing.beat_cycles
        simulator.record_to(self._rows.append)

    def counts(self) -> TraceCounts:
        """What was done so far."""
        cycles = self._simulator.account().cycles
        rows = self._all_rows()
        pes = np.arange(self._program.width * self._program.height)
        issued = sum(line.taken for line in self._counters.lines(pes))
        issued += int(np.count_nonzero(rows["kind"] == EventKind.OPERATION))
        acts = rows["cycle"][np.isin(rows["kind"], _KINDS)]
        return TraceCounts(
            int(cycles[:, :, _STALLS].sum()),
            issued,
            int(issued + cycles[:, :, SlotState.BEAT].sum()),
            int(self._simulator.cycle - acts.max(initial=0)),
        )

    def _all_rows(self) -> Rows:
        # The list itself takes more.
        self._rows[:] = [np.concatenate(self._rows)]
        return self._rows[0]

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines of the log, each with its cycle, by PE in the order of their cycles."""
        columns = columns_of(self._all_rows(), self._program.height)
        kept = np.isin(columns["kind"], _KINDS)
        names = "cycle", "x", "y", "kind", "number", "slot", "place", "queue", "color", "gap"
        x, y = self._program.offset
        pes: dict[tuple[int, int], _Pe] = {}
        for cycle, *where, kind, number, slot, place, queue, color, gap in zip(
            *(columns[name][kept].tolist() for name in names), strict=True
        ):
            at = where[0], where[1]
            pe = pes.setdefault(at, _Pe(f"P{at[0] + x}.{at[1] + y}"))
            if kind == EventKind.TAKEN:
                pe.colors[queue] = color
                yield from self._taken(pe, cycle, queue)
            elif kind == EventKind.TASK:
                yield from self._begun_task(pe, at, cycle, number)
            elif kind == EventKind.OPERATION:
                pe.active[slot] = self._operation(pe, slot, place, number)
                if queue >= 0:
                    due = cycle + self._beat_cycles
                    pe.receptions[slot] = _Reception(queue, max(1, gap), due)
                yield pe.line(cycle, slot, f"[IS OP] {pe.active[slot]}")
                yield pe.executes(cycle)
            else:
                yield from _ended(pe, cycle, slot, is_task=kind == EventKind.TASK_END)
        for pe in pes.values():
            for slot in pe.receptions:
                yield from _stall(pe, slot, self._simulator.cycle)

    def _begun_task(
        self, pe: _Pe, at: tuple[int, int], cycle: int, entry: int
    ) -> Iterator[tuple[int, str]]:
        image = self._program.images[int(self._program.image_of[at[1], at[0]])]
        ids = (task.task_id for task in image.tasks if task.entry == entry)
        pe.task = next(ids, _NO_TASK)
        pe.code = f"0x0000: T{pe.task}       CODE  {image.entries[entry].function}"
        yield pe.line(cycle, MAIN_SLOT, f"[IS OP] {pe.code}")
        yield pe.executes(cycle)

    def _operation(self, pe: _Pe, slot: int, place: int, number: int) -> str:
        places = self._program.places
        line = places[place].line if 0 <= place < len(places) else 0
        task = _NO_TASK if pe.task is None else pe.task
        thread = f"T{task}    " if slot == MAIN_SLOT else f"T{task}.UT{slot}"
        return f"0x{line:04x}: {thread}   {VECTOR_OPS_BY_CODE[number].name.upper()}"

    def _taken(self, pe: _Pe, cycle: int, queue: int) -> Iterator[tuple[int, str]]:
        """What the operation has waited for that takes a wavelet."""
        for slot, one in pe.receptions.items():
            if one.queue == queue and one.due <= cycle:
                yield from _stall(pe, slot, cycle)
                one.due = cycle + one.gap


def _stall(pe: _Pe, slot: int, cycle: int) -> Iterator[tuple[int, str]]:
    """A line where an operation has waited for a wavelet up to a cycle, if the color is known."""
    one = pe.receptions[slot]
    if one.due < cycle and one.queue in pe.colors:
        missing = f"SRC0 with C{pe.colors[one.queue]}, IN_Q[{one.queue}], SIMD-1"
        yield pe.line(one.due, slot, f"stall: Not enough wavelets (0/1) for {missing}")


def _ended(pe: _Pe, cycle: int, slot: int, *, is_task: bool) -> Iterator[tuple[int, str]]:
    if is_task:
        pe.task, pe.code = None, ""
    else:
        pe.active.pop(slot, None)
        pe.receptions.pop(slot, None)
    yield pe.executes(cycle)
