"""What a PE's machine is at: routes and switches, queues, tasks and operations, a line each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.diagnostics import counted
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import TaskKind
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import Direction

_CONTROL_BIT: Final = 1 << 32
_WORD: Final = _CONTROL_BIT - 1


@dataclass(frozen=True)
class PeState:
    """A PE between two cycles, in words for people; nothing where there is none.

    Attributes:
        routes: of each color that has one: where it goes at which position, and what waits there.
        queues: those that have a color or hold something.
        tasks: what each is bound to, whether it is active and blocked.
        operations: vector operations in flight, with what they wait for.
    """

    routes: tuple[str, ...]
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    operations: tuple[str, ...]


def pe_state(program: Program, state: Array, pe: int, operations: Sequence[str]) -> PeState:
    """Read what a machine is.

    Args:
        program: that it runs.
        state: its array.
        pe: number of the PE.
        operations: in flight there.
    """
    tables = Tables(state)
    depths = state[w.G_DEPTHS : w.G_DEPTHS + 2 * w.QUEUES].tolist()
    return PeState(
        tuple(_routes(tables, pe)),
        tuple(_queues(tables, depths, pe)),
        tuple(_tasks(program, tables, pe)),
        tuple(operations),
    )


def _routes(tables: Tables, pe: int) -> Iterator[str]:
    row = tables.router[pe]
    for color in range(w.COLORS):
        word = int(tables.route[color, pe])
        if not any(_ways(word, number) for number in range(4)):
            continue
        position = word >> route.POSITION_SHIFT & 3
        ends = 1 + max(n for n in range(4) if n == 0 or word >> (route.VALID_SHIFT + n - 1) & 1)
        told = f"color {color}: {_way(word, position)}"
        if ends > 1:
            others = (f"{n}: {_way(word, n)}" for n in range(ends))
            told += f", position {position} of ({'; '.join(others)})"
        told += ", torn down" * bool(word & route.TORN_BIT)
        if int(row[w.R_BUSY]) >> color & 1:
            head = int(row[w.R_HEADS]) >> (2 * color) & (w.CHANNEL_DEPTH - 1)
            is_full = int(row[w.R_BUSY]) >> (w.FULL_SHIFT + color) & 1
            told += f", holds {_wavelet(int(tables.channel[color, pe, head]))}"
            told += ", and is full" * is_full
        yield told


def _ways(word: int, position: int) -> int:
    return word >> (10 * position) & 0x3FF


def _way(word: int, position: int) -> str:
    ways = _ways(word, position)
    return f"{_sides(ways >> route.RECEIVE_SHIFT)} -> {_sides(ways & route.DIRECTIONS_MASK)}"


def _sides(mask: int) -> str:
    names = [one.name.lower() for one in Direction if mask >> one & 1]
    return ", ".join(names) or "nothing"


def _queues(tables: Tables, depths: Sequence[int], pe: int) -> Iterator[str]:
    core = tables.core[pe]
    of_color = core[w.C_QUEUE_OF :].view("u1")[: w.COLORS] & w.QUEUE_MASK
    out_color = tables.processor[pe, w.P_OUT_COLOR : w.P_OUT_COLOR + 1].view("u1")
    for number in range(2 * w.QUEUES):
        is_input, queue = number < w.QUEUES, number % w.QUEUES
        num, head = tables.queued(pe, queue, is_input=is_input)
        if is_input:
            colors = [color for color in range(w.COLORS) if of_color[color] == queue + 1]
        else:
            colors = [int(out_color[queue]) - 1] if out_color[queue] else []
        if not colors and not num:
            continue
        slots = tables.queue[number, pe].reshape(-1, w.SLOT_WORDS)[:, 0]
        held = [int(slots[(head + k) % w.QUEUE_SLOTS]) for k in range(num)]
        # Outputs of WSE-2 have no color of their own; their wavelets do.
        colors = colors or sorted({one >> w.COLOR_SHIFT & 31 for one in held})
        of = f"{'input' if is_input else 'output'} queue {queue} of color"
        told = f"{of} {', '.join(map(str, colors))}: {num} of {counted(depths[number], 'wavelet')}"
        yield ": ".join([told, *filter(None, [", ".join(map(_wavelet, held))])])


def _wavelet(wavelet: int) -> str:
    control = "control " if wavelet & _CONTROL_BIT else ""
    return f"{control}{wavelet & _WORD:#010x}"


def _tasks(program: Program, tables: Tables, pe: int) -> Iterator[str]:
    image, box = program.images[int(tables.processor[pe, w.P_IMAGE])], tables.mailbox[pe]
    for task in image.tasks:
        is_by_queue = task.kind is TaskKind.DATA and program.arch is Arch.WSE3
        blocked = int(box[mb.BLOCKED_QUEUES if is_by_queue else mb.BLOCKED])
        is_active = task.kind is TaskKind.LOCAL and int(box[mb.ACTIVE]) >> task.task_id & 1
        told = f"{task.kind} task '{image.entries[task.entry].function}' (id {task.task_id})"
        marks = ["active"] * bool(is_active) + ["blocked"] * (blocked >> task.task_id & 1)
        yield ", ".join([told, *marks])
