"""What a PE that stands still has left to do, in words: blocked tasks, wavelets nobody takes."""

from collections.abc import Iterator
from typing import Final

from openwafer.diagnostics import counted
from openwafer.sdk.arch.generation import NUM_TASK_IDS, Arch
from openwafer.sdk.fabric import route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.senders import RAMP
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Image, TaskKind
from openwafer.sdk.program.program import Program

IS_BLOCKED: Final = "is activated, and blocked"
TASK_BLOCKED: Final = " is blocked"
HAS_NO_TASK: Final = "is activated, and no task is bound to it"


def waiting_work(program: Program, tables: Tables, pe: int) -> Iterator[str]:
    """Notes about a PE, without its name: local tasks first, then input and output queues."""
    yield from waiting_tasks(program, tables, pe)
    yield from waiting_wavelets(program, tables, pe)


def waiting_tasks(program: Program, tables: Tables, pe: int) -> Iterator[str]:
    """Notes about local tasks of a PE that are activated, and that nothing is going to run."""
    image = program.images[int(tables.processor[pe, w.P_IMAGE])]
    yield from _blocked_tasks(image, tables.mailbox[pe])
    yield from _activated_without_task(image, tables.mailbox[pe])


def waiting_wavelets(program: Program, tables: Tables, pe: int) -> Iterator[str]:
    """Notes about the wavelets in a PE's queues that nothing is going to take."""
    image = program.images[int(tables.processor[pe, w.P_IMAGE])]
    for queue in range(w.QUEUES):
        found = _first(tables, pe, queue, is_input=True)
        if found is not None and not _is_read(tables, pe, queue):
            taker = _taker(program, image, queue, found[1])
            yield f"input queue {queue} holds {_wavelets(*found)}, {taker}"
    for queue in range(w.QUEUES):
        found = _first(tables, pe, queue, is_input=False)
        reason = "" if found is None else _refusal(int(tables.route[found[1], pe]))
        if found is not None and reason:
            yield f"output queue {queue} holds {_wavelets(*found)}, {reason}"


def _blocked_tasks(image: Image, mailbox: Array) -> Iterator[str]:
    both = int(mailbox[mb.ACTIVE]) & int(mailbox[mb.BLOCKED])
    for task in image.tasks:
        if task.kind is TaskKind.LOCAL and (both >> task.task_id) & 1:
            name = image.entries[task.entry].function
            yield f"local task '{name}' (id {task.task_id}) {IS_BLOCKED}"


def _activated_without_task(image: Image, mailbox: Array) -> Iterator[str]:
    bound = {task.task_id for task in image.tasks if task.kind is TaskKind.LOCAL}
    for task_id in range(NUM_TASK_IDS):
        if (int(mailbox[mb.ACTIVE]) >> task_id) & 1 and task_id not in bound:
            yield f"local task id {task_id} {HAS_NO_TASK}"


def _first(tables: Tables, pe: int, queue: int, *, is_input: bool) -> tuple[int, int] | None:
    """Number of wavelets in a queue and the first one's color; None when it is empty."""
    number, head = tables.queued(pe, queue, is_input=is_input)
    if number == 0:
        return None
    row = tables.queue[queue if is_input else w.QUEUES + queue, pe]
    wavelet = int(row[head * w.SLOT_WORDS])
    return number, (wavelet >> w.COLOR_SHIFT) & 31


def _wavelets(number: int, color: int) -> str:
    return f"{counted(number, 'wavelet')} of color {color}"


def _is_read(tables: Tables, pe: int, queue: int) -> bool:
    """Whether an operation waits for wavelets of an input queue."""
    for slot in range(w.SLOTS):
        if (int(tables.core[pe, w.C_THREADS]) >> slot) & 1:
            operands = tables.job[slot, pe][w.J_OPERANDS :].reshape(-1, w.OPERAND_WORDS)
            if ((operands[:, w.O_KIND] == w.FABIN) & (operands[:, w.O_QUEUE] == queue)).any():
                return True
    return False


def _taker(program: Program, image: Image, queue: int, color: int) -> str:
    own = color if program.arch is Arch.WSE2 else queue
    for task in image.tasks:
        if task.kind is TaskKind.DATA and task.task_id == own:
            return f"whose data task '{image.entries[task.entry].function}'{TASK_BLOCKED}"
    return "which no operation and no data task takes"


def _refusal(word: int) -> str:
    """Why a color's route takes nothing from the core; "" when it does, if there were space."""
    position = (word >> route.POSITION_SHIFT) & 3
    if word & route.TORN_BIT:
        return "which the router has torn down"
    if (word >> (10 * position + route.RECEIVE_SHIFT + RAMP)) & 1:
        return ""
    has_route = (word >> (10 * position)) & 0x3FF
    what = f"takes nothing from the ramp at position {position}" if has_route else "has no route"
    return f"for which the router {what}"
