"""Why the machine stopped, in words."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, counted, error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.alike import Remark, alike_together
from openwafer.sdk.fabric.events import EventKind
from openwafer.sdk.fabric.operations import Operations
from openwafer.sdk.fabric.pe_state import PeState, pe_state
from openwafer.sdk.fabric.senders import RAMP, neighbour
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.fabric.waiting import (
    HAS_NO_TASK,
    IS_BLOCKED,
    TASK_BLOCKED,
    waiting_tasks,
    waiting_wavelets,
    waiting_work,
)
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.descriptor import ENDLESS_EXTENT
from openwafer.sdk.program.image import TaskKind
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import OPPOSITE, Direction

DIRECTION_NAMES = ("West", "East", "South", "North", "Ramp")
MAX_NOTES = 12
MAX_TASKS = 2
"""Data tasks of a PE that are named."""
_TRAPS = {
    mb.Trap.ASSERTION: "an assertion failed",
    mb.Trap.OUT_OF_BOUNDS: "word {value:#06x} lies outside of the PE's memory",
    mb.Trap.MISALIGNED: "a value of whole words cannot begin at the odd byte {value:#06x}",
    mb.Trap.STACK_OVERFLOW: "the stack outgrew the PE's memory",
    mb.Trap.UNREACHABLE: "code that cannot be reached was reached",
    mb.Trap.ENDLESS_LOOP: f"a loop ran for more than {mb.MOST_CYCLES} cycles without an end",
}

_FOLLOW = "follow a wavelet from its sender: each hop needs a route, a queue and a reader"
_NOT_OPENED = (
    "end the command with unblock_cmd_stream(): in the function that was launched, or in the last"
    " task that it leads to"
)
_SHARED_MICROTHREAD = (
    "input queue n and output queue n share microthread n: give operations that wait for each other"
    " queues of different numbers, or on wse3 a .ut_id"
)
_BIND = "bind a task to that id with @bind_local_task, or activate the id of the one that is meant"
_UNBLOCK = "unblock the task with @unblock, or by .unblock of the operation that it waits for"
_LOST = "let the last PE of a way route the color to its core alone, not beyond the edge"
_NOWHERE = "give both colors of a pair the same swaps, and each route a .tx"
_LEFT = "send as many wavelets as are taken: compare the extents of sender and receiver"
_UNFINISHED = (
    f"{_LEFT}; an operation that is to pass on whatever comes has an extent of {ENDLESS_EXTENT}"
)
_READY = "leave it where PEs are to be ready for more"
_CIRCLING = "give each color a PE where its way ends: one that routes it to its core alone"
_IS_FULL = " is full"
_NO_QUEUE = "no input queue has that color"
_TRAP_REMEDIES = {
    mb.Trap.ASSERTION: "look at what it compares: openwafer csl debug stops before that line",
    mb.Trap.OUT_OF_BOUNDS: "check the pointer, or the descriptor's base address, stride and extent",
    mb.Trap.MISALIGNED: "go through a pointer to u8, byte by byte",
    mb.Trap.STACK_OVERFLOW: "end the recursion, or keep local arrays in variables of the file",
    mb.Trap.ENDLESS_LOOP: "check what ends the loop; no other task runs until this one has ended",
    mb.Trap.UNREACHABLE: "a number that its enumeration does not have may have come to a switch",
}


class Lost(NamedTuple):
    """How wavelets were lost at a router.

    Attributes:
        side: to which they left the rectangle, or from which they came.
        kind: that of their events.
        why: of those that went nowhere.
    """

    pe: int
    color: int
    side: int
    kind: EventKind
    why: int

    def text(self) -> str:
        """What became of them."""
        side = DIRECTION_NAMES[self.side].lower()
        if self.kind == EventKind.LOST:
            return f"left the rectangle {side}ward"
        came = f"from the {'core' if self.side == RAMP else side}"
        if self.why == w.NO_OUTPUT:
            return f"{came} landed where its route has no output"
        other = self.color ^ 1
        return f"{came} landed on no color: color {self.color} swaps there, color {other} does not"


class Report:
    """What a stopped machine tells."""

    def __init__(self, program: Program, state: Array, lost: Mapping[Lost, int]) -> None:
        self._program = program
        self._lost = lost
        self._state = state
        self._tables = Tables(state)
        self._operations = Operations(program, state)

    def is_trapped(self, pe: int) -> bool:
        """Whether the code of a PE has ended the run."""
        g = self._state
        return int(g[w.G_ERROR]) == w.ERROR_TRAP and int(g[w.G_ERROR_PE]) == pe

    def last_cycle(self) -> int:
        """The present; after a trap the cycle of the PE, whose code runs ahead of the fabric."""
        pe = int(self._state[w.G_ERROR_PE])
        own = int(self._tables.mailbox[pe, mb.CYCLE]) if self.is_trapped(pe) else 0
        return max(own, int(self._state[w.G_NOW]))

    def stopped(self) -> OpenwaferError:
        """The error that the compiled core recorded."""
        g = self._state
        code, pe, a, b = (int(g[k]) for k in (w.G_ERROR, w.G_ERROR_PE, w.G_ERROR_A, w.G_ERROR_B))
        who, cycle = self._program.pe_name(pe), int(g[w.G_NOW])
        notes = tuple(f"at {place}" for place in (self._place(pe),) if place)
        if code == w.ERROR_CONFLICT:
            sides = f"{DIRECTION_NAMES[b & 7]} and {DIRECTION_NAMES[b >> 3]}"
            return error(
                "fabric-route-conflict",
                f"wavelets of color {a} arrived from {sides} on the same cycle at {who},"
                f" cycle {cycle}; this violates architecture rules",
                notes=tuple(self._operations.senders(a)[:MAX_NOTES]),
                help="let one direction send after the other, with a switch or on two colors",
            )
        if code == w.ERROR_TRAP:
            # Code runs ahead of the fabric: its clock is the PE's own.
            at, reason = self._tables.mailbox[pe, mb.CYCLE], _TRAPS[mb.Trap(a)].format(value=b)
            return error(
                "fabric-trap",
                f"{who} stopped at cycle {at}: {reason}",
                notes=notes,
                help=_TRAP_REMEDIES.get(mb.Trap(a), ""),
            )
        if code == w.ERROR_BOUNDS:
            verb = "wrote" if b else "read"
            return error(
                "fabric-out-of-bounds",
                f"a vector operation of {who} {verb} word {a:#06x}, outside of its memory,"
                f" at cycle {cycle}",
                notes=notes,
                help="check the descriptor's base address, stride and extent",
            )
        if code == w.ERROR_UNBOUND_CONTROL:
            notes = tuple(self._operations.control_senders(pe, b)[:MAX_NOTES])
        return _misuse(code, who, (a, b), notes)

    def deadlock(self, awaited: str) -> OpenwaferError:
        """Everything waits for each other while the host waits for something."""
        remarks = self._remarks()
        return error(
            "fabric-deadlock",
            f"nothing moves any more at cycle {int(self._state[w.G_NOW])}, while the host waits"
            f" for {awaited}",
            notes=tuple(self._in_short(remarks)),
            help=self._remedy(remarks),
        )

    def waiting(self) -> list[str]:
        """What PEs and wavelets wait for."""
        return self._in_short(self._remarks())

    def pe_state(self, pe: int) -> PeState:
        """What a PE's machine is at."""
        operations = [note.removeprefix(", ") for _, note in self._operations.waiting(pe)]
        return pe_state(self._program, self._state, pe, operations)

    def _in_short(self, remarks: list[Remark]) -> list[str]:
        notes = alike_together([*self._filtered(), *remarks], self._program.pe_name)
        hidden = len(notes) - MAX_NOTES
        return [*notes[:MAX_NOTES], f"and {hidden} more"] if hidden > 0 else notes

    def _filtered(self) -> list[Remark]:
        """What filters of PEs that have not ended the command kept out of their cores."""
        notes: list[Remark] = []
        for pe in self._with_command():
            first = int(self._tables.router[pe, w.R_FLAGS]) >> w.FILTERS_SHIFT
            for color in range(w.COLORS):
                number = int(self._tables.route[color, pe]) >> route.FILTER_SHIFT
                number &= route.FILTER_MASK
                row = self._tables.filter[first + number - 1] if number else None
                if row is not None and row[w.L_DROPPED]:
                    passed, dropped = int(row[w.L_PASSED]), int(row[w.L_DROPPED])
                    of = counted(passed + dropped, "wavelet")
                    notes.append((pe, f": the filter of color {color} let {passed} of {of} pass"))
        return notes

    def lacks_open_streams_only(self) -> bool:
        """Whether all PEs rest, and some have not opened the command stream again."""
        return self._lacks_commands_only(self._remarks())

    def _remarks(self) -> list[Remark]:
        """What a machine waits for of which nothing moves any more, causes first."""
        core, busy = self._tables.core, self._tables.router[:, w.R_BUSY]
        with_wavelet = np.flatnonzero(busy).tolist()
        mailbox = self._tables.mailbox
        has_work = (core[:, w.C_IN] | core[:, w.C_OUT]) & w.COUNTS
        has_work |= mailbox[:, mb.ACTIVE]
        stuck = [remark for pe in with_wavelet for remark in self._stuck_wavelets(pe)]
        # Wavelets behind others that are stuck tell least of the cause.
        causes = [remark for remark in stuck if not remark[1].endswith(_IS_FULL)]
        work = [
            (pe, f": {note}")
            for pe in np.flatnonzero(has_work).tolist()
            for note in waiting_work(self._program, self._tables, pe)
        ]
        return [
            *causes,
            *self._lost_wavelets(EventKind.LOST, EventKind.NOWHERE),
            *self._unread_streams(),
            *self._at_ports(),
            *work,
            *(remark for pe in self._operations.pes() for remark in self._operations.waiting(pe)),
            *self._operations.awaited(),
            *((pe, self._waiting_command(pe)) for pe in self._with_command()),
            *self._missing_words(),
            *(remark for remark in stuck if remark not in causes),
        ]

    def _with_command(self) -> list[int]:
        """PEs that have not ended the host's command."""
        found: list[int] = np.flatnonzero(self._tables.processor[:, w.P_COMMAND]).tolist()
        return found

    def left_over(self, *, is_at_rest: bool) -> list[Diagnostic]:
        """A warning for each kind of wavelets that no PE took, at the end of a run."""
        with_wavelet = np.flatnonzero(self._tables.router[:, w.R_BUSY]).tolist()
        if not is_at_rest:
            is_idle = np.isin(self._tables.core[:, w.C_MAIN], (w.MAIN_IDLE, w.MAIN_REST)).all()
            circling = [(pe, self._circling(pe)) for pe in with_wavelet]
            return self._told("fabric-circling", circling if is_idle else [], _CIRCLING)
        stuck = [remark for pe in with_wavelet for remark in self._stuck_wavelets(pe)]
        causes = [remark for remark in stuck if not remark[1].endswith(_IS_FULL)]
        has_queued = (self._tables.core[:, w.C_IN] | self._tables.core[:, w.C_OUT]) & w.COUNTS
        queued = [
            (pe, f": {note}")
            for pe in np.flatnonzero(has_queued).tolist()
            for note in waiting_wavelets(self._program, self._tables, pe)
        ]
        blocked = [remark for remark in queued if remark[1].endswith(TASK_BLOCKED)]
        others = [remark for remark in queued if remark not in blocked]
        return [
            *self._told("fabric-lost", self._lost_wavelets(EventKind.LOST), _LOST),
            *self._told("fabric-lost", self._lost_wavelets(EventKind.NOWHERE), _NOWHERE),
            *self._told("fabric-left", [*(causes or stuck), *self._at_ports(), *others], _LEFT),
            *self._told("fabric-left", blocked, _UNBLOCK),
            *self._unfinished(),
        ]

    def _unfinished(self) -> list[Diagnostic]:
        """What PEs have not ended, though nothing moves: a warning where an operation has begun.

        Else it is a note, as programs that are right end so: with receives that are ready for more
        work, and tasks that are ready for the next one.
        """
        tasks = [
            (pe, f": {note}")
            for pe in np.flatnonzero(self._tables.mailbox[:, mb.ACTIVE]).tolist()
            for note in waiting_tasks(self._program, self._tables, pe)
        ]
        operations, has_begun = self._operations.unfinished()
        if not tasks and not operations:
            return []
        is_mistake = has_begun or any(note.endswith(HAS_NO_TASK) for _, note in tasks)
        counts = ((len(operations), "operation"), (len(tasks), "task"))
        told = " and ".join(counted(num, what) for num, what in counts if num)
        remedy = _UNFINISHED if has_begun else f"{_READY}; else {_UNFINISHED}"
        waits = "waits" if len(tasks) + len(operations) == 1 else "wait"
        cycle = int(self._state[w.G_NOW])
        return [
            Diagnostic(
                Severity.WARNING if is_mistake else Severity.NOTE,
                "fabric-unfinished",
                f"{told} still {waits} at the end of the run, cycle {cycle}",
                notes=tuple(self._in_short([*operations, *self._operations.awaited(), *tasks])),
                help=self._remedy(tasks) if not operations else remedy,
            )
        ]

    def _told(self, code: str, remarks: list[Remark], remedy: str) -> list[Diagnostic]:
        cycle = f"at the end of the run, cycle {int(self._state[w.G_NOW])}"
        return [
            Diagnostic(Severity.WARNING, code, text, notes=(cycle,), help=remedy)
            for text in alike_together(remarks, self._program.pe_name)
        ]

    def _circling(self, pe: int) -> str:
        busy = int(self._tables.router[pe, w.R_BUSY])
        colors = ", ".join(str(color) for color in range(w.COLORS) if (busy >> color) & 1)
        return f", router: wavelets of color {colors} still move, and no PE sends or takes any"

    def _remedy(self, remarks: list[Remark]) -> str:
        """What to do about a deadlock: of tasks, of commands that do not end, or of wavelets."""
        if (self._tables.core[self._with_command(), w.C_MAIN] == w.MAIN_REQUEST).any():
            return _SHARED_MICROTHREAD
        if any(note.endswith(HAS_NO_TASK) for _, note in remarks):
            return _BIND
        others = [remark for remark in remarks if not remark[1].endswith(IS_BLOCKED)]
        if not self._lacks_commands_only(others):
            return _FOLLOW
        return _NOT_OPENED if len(others) == len(remarks) else _UNBLOCK

    def _lacks_commands_only(self, remarks: list[Remark]) -> bool:
        """Whether the ends of commands are all that is waited for, on PEs that run no code."""
        with_command = self._with_command()
        main = self._tables.core[with_command, w.C_MAIN]
        is_idle = bool(np.isin(main, (w.MAIN_IDLE, w.MAIN_REST)).all())
        return is_idle and len(remarks) == len(with_command)

    def busy(self) -> list[str]:
        """Where PEs that have not ended the host's command are."""
        is_at_work = self._tables.processor[:, w.P_COMMAND] != w.COMMAND_NONE
        is_at_work &= self._tables.core[:, w.C_MAIN] != w.MAIN_REST
        remarks = [
            (pe, f" is at work in '{self._entry(pe)}', last at {self._place(pe) or 'no request'}")
            for pe in np.flatnonzero(is_at_work).tolist()
        ]
        return alike_together(remarks, self._program.pe_name)[:MAX_NOTES]

    def _entry(self, pe: int) -> str:
        """The function or task that a PE runs, or ran last."""
        row = self._tables.processor[pe]
        return self._program.images[int(row[w.P_IMAGE])].entries[int(row[w.P_ENTRY])].function

    def _unread_streams(self) -> list[Remark]:
        """What the host streams, and a PE has no queue for."""
        return [
            (pe, f": {waiting} of color {color} from the host wait, {_NO_QUEUE}")
            for pe, color, waiting, link in self._waiting_words()
            if link == w.FROM_HOST and self._queue_of(pe, color) < 0
        ]

    def _waiting_words(self) -> Iterator[tuple[int, int, str, int]]:
        """What the host streams and no PE has taken: PE, color, how many words, link."""
        rows = self._tables.source[: int(self._state[w.G_SOURCE_ROWS])].tolist()
        for pe, color, start, end, _, link, *_ in rows:
            if end > start:
                yield pe, color, counted(end - start, "word"), link

    def _at_ports(self) -> list[Remark]:
        """What waits in ports, and why."""
        return [
            (pe, f", {DIRECTION_NAMES[link].lower()} port: {waiting} of color {color} wait{why}")
            for pe, color, waiting, link in self._waiting_words()
            if link != w.FROM_HOST
            for reason in (self._refused(pe, color, link),)
            for why in (f", as {reason}" if reason else "",)
        ]

    def _missing_words(self) -> list[Remark]:
        """What PEs owe the host's streams, and what they have sent there unasked."""
        counts = self._tables.sink.reshape(-1, w.SINKS, w.SINK_WORDS)
        slots = self._state[w.G_SINK_SLOT : w.G_SINK_SLOT + w.COLORS]
        colors = [c for c in range(w.COLORS) if (int(self._state[w.G_SINK_COLORS]) >> c) & 1]
        notes: list[Remark] = []
        for color in colors:
            sent, wanted, _ = counts[:, int(slots[color])].T
            for pe in np.flatnonzero(wanted > sent).tolist():
                missing = counted(int(wanted[pe] - sent[pe]), "word")
                notes.append((pe, f" has {missing} of color {color} still to send"))
            for pe in np.flatnonzero((wanted < 0) & (sent > 0)).tolist():
                unasked = counted(int(sent[pe]), "word")
                notes.append((pe, f" has sent {unasked} of color {color}, and is not waited for"))
        of_ports = self._tables.port[:, :, w.N_WANTED]
        for link, pe in np.argwhere(of_ports > 0).tolist():
            missing = counted(int(of_ports[link, pe]), "word")
            notes.append((pe, f", {DIRECTION_NAMES[link].lower()} port: {missing} missing"))
        return notes

    def _place(self, pe: int, number: int | None = None) -> str:
        """`file:line (function)` of a request in the source, or nothing."""
        index = int(self._tables.mailbox[pe, mb.PLACE]) if number is None else number
        return self._program.text_of_place(index)

    def _lost_wavelets(self, *kinds: EventKind) -> list[Remark]:
        return [
            (one.pe, f": {counted(count, 'wavelet')} of color {one.color} {one.text()}")
            for one, count in sorted(self._lost.items())
            if one.kind in kinds
        ]

    def _waiting_command(self, pe: int) -> str:
        main = self._tables.core[pe, w.C_MAIN]
        if self.is_trapped(pe):
            return f" trapped at {self._place(pe) or 'an unknown place'}"
        if self._tables.processor[pe, w.P_COMMAND] == w.COMMAND_WAITS:
            return " has not begun the host's command: it is busy, or its stream is closed"
        if main in (w.MAIN_IDLE, w.MAIN_REST):
            past = self._operations.led_nowhere(pe) + self._taken(pe)
            return f" is idle and has not called unblock_cmd_stream{past}"
        why = f", {self._operations.taken_microthread(pe)}" if main == w.MAIN_REQUEST else ""
        return f" waits at {self._place(pe) or 'an unknown place'}{why}"

    def _taken(self, pe: int) -> str:
        """How many wavelets the data tasks of a PE took."""
        image, texts = self._program.images[int(self._tables.processor[pe, w.P_IMAGE])], []
        is_by_color = self._program.arch is Arch.WSE2
        for task in image.tasks:
            queue = self._queue_of(pe, task.task_id) if is_by_color else task.task_id
            if task.kind is TaskKind.DATA and queue >= 0:
                num = counted(int(self._tables.taken[queue, pe]), "wavelet")
                texts.append(f", task '{image.entries[task.entry].function}' has taken {num}")
        return "".join(texts[:MAX_TASKS])

    def _stuck_wavelets(self, pe: int) -> list[Remark]:
        notes: list[Remark] = []
        row = self._tables.router[pe]
        for color in range(w.COLORS):
            if (int(row[w.R_BUSY]) >> color) & 1:
                head = (int(row[w.R_HEADS]) >> (2 * color)) & 3
                wavelet = int(self._tables.channel[color, pe, head])
                out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
                reasons = [self._blocked(pe, color, d) for d in range(5) if (out >> d) & 1]
                notes += [(pe, f", router: color {color} {r}") for r in reasons if r]
        return notes

    def _blocked(self, pe: int, color: int, direction: int) -> str:
        if direction == RAMP:
            queue = self._queue_of(pe, color)
            if queue < 0:
                return f"goes to the core, but {_NO_QUEUE}"
            is_full = self._operations.is_full(pe, queue, is_input=True)
            return f"goes to the core, whose input queue {queue} is full" if is_full else ""
        other = neighbour(self._program, pe, direction)
        reason = (
            "" if other is None else self._refused(other, color, OPPOSITE[Direction(direction)])
        )
        where = DIRECTION_NAMES[direction].lower()
        return f"goes {where}, where {reason}" if reason else ""

    def _queue_of(self, pe: int, color: int) -> int:
        """The input queue that takes a color; -1 where none does."""
        bound = int(self._tables.core[pe, w.C_QUEUE_OF :].view(np.uint8)[color])
        return (bound & w.QUEUE_MASK) - 1

    def _refused(self, pe: int, color: int, direction: int) -> str:
        row = self._tables.router[pe]
        word = int(self._tables.route[color, pe])
        position = (word >> route.POSITION_SHIFT) & 3
        if word & route.TORN_BIT:
            return f"{self._program.pe_name(pe)} has torn the color down"
        if not (word >> (10 * position + 5 + direction)) & 1:
            return f"{self._program.pe_name(pe)} receives nothing from there at position {position}"
        is_full = (int(row[w.R_BUSY]) >> (w.FULL_SHIFT + color)) & 1
        return f"{self._program.pe_name(pe)}{_IS_FULL}" if is_full else ""


def _misuse(code: int, who: str, values: tuple[int, int], notes: tuple[str, ...]) -> OpenwaferError:
    first, second = values
    if code == w.ERROR_UNBOUND_CONTROL:
        return error(
            "fabric-unbound-control-task",
            f"a control wavelet of color {second} at {who} names task {first},"
            " which is bound to nothing",
            notes=notes,
            help="bind a control task to that id, or send the id 31 for none",
        )
    if code == w.ERROR_FIFO:
        verb, state = ("pushed to", "full") if second else ("popped", "empty")
        return error(
            "fabric-fifo-fault",
            f"{who} {verb} FIFO {first} when it was {state}, which it has as a fault",
            notes=notes,
            help=f"let the operation wait, without .{state}_action = .{{ .fault = true }}, or push"
            " as many elements as are popped",
        )
    if code == w.ERROR_REGISTER:
        verb = "writes" if second else "reads"
        return error(
            "fabric-unknown-register",
            f"{who} {verb} register {first:#06x}, which has no meaning here",
            notes=notes,
            help="docs/design/wafer-model.md lists the registers that have one; <tile_config> has"
            " functions for them",
        )
    return error(
        "fabric-bad-operand",
        f"{who} started an operation on a descriptor without a kind, color or bound queue",
        notes=notes,
        help="load the DSR, or initialize the queue with its color, before the operation",
    )
