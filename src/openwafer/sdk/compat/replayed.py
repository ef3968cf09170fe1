"""Does runs again from their journals with all books kept, and checks what holds of every run.

``python -m openwafer.sdk.compat.replayed JOURNALS STATES`` looks at the journals of a process, with
their programs beside, and at its final states; it prints what does not hold.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.debug import Debugger, Reason
from openwafer.sdk.fabric import Account, SlotState
from openwafer.sdk.fabric.words import MAIN_SLOT
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host.beside import program_beside
from openwafer.sdk.host.final_state import difference, final_state, read
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.host.line_cycles import CodeCounters
from openwafer.sdk.host.operations import Stop
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.program import file
from openwafer.sdk.program.program import Program

_OUTSIDE_OF_TASKS = [SlotState.NOTHING, SlotState.BLOCKED_TASK, SlotState.SWITCH]


def faults(folder: Path, states: Path) -> Iterator[str]:
    """What does not hold of runs and of their replays; nothing where all does.

    Args:
        folder: has the journals of one process, and their programs beside.
        states: final states of the same process.
    """
    kept = journals.kept_in(folder)
    left = iter(sorted(states.glob("*.npz")))
    if not kept:
        yield "no run kept a journal"
    for number, journal in enumerate(kept):
        state = next(left, None) if _has_stopped(journal) else None
        try:
            program = file.read(program_beside(folder, journal.program))
            found = [*_faults_of_run(program, journal, state)]
        except OpenwaferError as raised:
            found = [one.message for one in raised.diagnostics]
        yield from (f"run {number}: {fault}" for fault in found)


def _has_stopped(journal: Journal) -> bool:
    last = journal.entries[-1] if journal.num_ended and journal.interrupted_at is None else None
    return last is not None and isinstance(last.operation, Stop) and last.failure is None


def _faults_of_run(program: Program, journal: Journal, state: Path | None) -> Iterator[str]:
    plain = replay(program, journal)
    whole = replay(program, journal, has_account=True, has_line_cycles=True)
    debugger = Debugger(program, journal)
    while debugger.go_on().reason is Reason.FAILED:
        pass
    simulators = plain.simulator, whole.simulator, debugger.simulator
    left = [final_state(program, one) for one in simulators]
    names = ["a replay", "a replay with account and line cycles", "a debugger"]
    if state is not None:
        left, names = [read(state), *left], ["the run", *names]
    for name, other in zip(names[1:], left[1:], strict=True):
        found = difference(left[0], other)
        if found:
            yield f"{names[0]} and {name}: {found}"
    assert whole.booked is not None
    yield from faults_of_books(whole.simulator.account(), whole.booked.counters)


def faults_of_books(account: Account, counters: CodeCounters) -> Iterator[str]:
    """Where cycles of a run do not add up: of slots, the datapath, or lines of the source."""
    total = account.num_cycles
    for part, shares in (("slot", account.cycles), ("datapath", account.datapath[:, None])):
        wrong = (shares.sum(axis=2) != total) | (shares < 0).any(axis=2)
        for pe, slot in np.argwhere(wrong)[:1]:
            told = f"{shares[pe, slot].tolist()}, which are no partition of {total} cycles"
            yield f"{part} {slot} of PE {divmod(int(pe), account.height)} has {told}"
    main = account.cycles[:, MAIN_SLOT]
    in_tasks = total - main[:, _OUTSIDE_OF_TASKS].sum(axis=1)
    # The wait for results behind a task's last instruction is of no line.
    drains = main[:, SlotState.DRAIN]
    for pe, (most, drained) in enumerate(zip(in_tasks.tolist(), drains.tolist(), strict=True)):
        lines = counters.lines(np.array([pe]))
        counted = sum(line.cycles + line.operation for line in lines)
        if not most - drained <= counted <= most:
            where = f"PE {divmod(pe, account.height)}"
            waits = f", {drained} of them for results" if drained else ""
            yield f"lines of {where} have {counted} cycles, and its main thread {most}{waits}"
            return


def main() -> None:
    """Print what does not hold of the folders of ``sys.argv``; end with 1 if anything does not."""
    found = list(faults(*map(Path, sys.argv[1:])))
    sys.stdout.write("".join(f"error: {fault}\n" for fault in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
