"""Vector operations that PEs have in flight, or had last, in words."""

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from openwafer.diagnostics import counted
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.alike import Remark, alike_together
from openwafer.sdk.fabric.senders import RAMP, entries_of, is_copy, senders_of, sends, sends_control
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program.descriptor import ENDLESS_EXTENT
from openwafer.sdk.program.program import Program

MAX_ENDED: Final = 2
"""Operations of a PE that are named though they have ended."""
MAX_AWAITED: Final = 3
"""Colors that are waited for, and whose senders are named."""
MAX_SENDERS: Final = 2
"""PEs that are named of those that send a color."""


class Thread(NamedTuple):
    """A vector operation of a PE.

    Attributes:
        name: of its thread.
        op: its own name.
        at: its place in the source, behind a comma; nothing where it has none.
        left: elements that are left.
        done: elements that are done.
        job: its row.
    """

    name: str
    op: str
    at: str
    left: int
    done: int
    job: Array

    @property
    def subject(self) -> str:
        """What remarks are about."""
        return f"{self.name}: {self.op}"

    @property
    def remark(self) -> str:
        """How much of it is left."""
        share = f"{self.left} of " if self.done else ""
        return f"{self.subject} has {share}{counted(self.left + self.done, 'element')} left"

    @property
    def is_endless(self) -> bool:
        """Whether its extent says that it forwards for ever."""
        return self.left + self.done == ENDLESS_EXTENT


class Operations:
    """The operations of a machine that stands still."""

    def __init__(self, program: Program, state: Array) -> None:
        self._program = program
        self._state = state
        self._tables = Tables(state)

    def pes(self) -> list[int]:
        """PEs with an operation that is not done."""
        column = self._tables.core[:, w.C_THREADS] & w.ALL_SLOTS
        found: list[int] = np.flatnonzero(column).tolist()
        return found

    def waiting(self, pe: int) -> list[Remark]:
        """What is left of a PE's operations, and why."""
        return [self._remark(pe, thread) for thread in self._threads(pe)]

    def unfinished(self) -> tuple[list[Remark], bool]:
        """The same of all PEs, but for operations that are meant to have no end.

        Also whether one of them has begun: those of which nothing has come may only be ready for
        more, as those of PEs that serve others are.
        """
        found = [
            (pe, thread)
            for pe in self.pes()
            for thread in self._threads(pe)
            if not thread.is_endless
        ]
        has_begun = any(thread.done for _, thread in found)
        return [self._remark(pe, thread) for pe, thread in found], has_begun

    def _remark(self, pe: int, thread: Thread) -> Remark:
        return pe, f", {thread.remark}{self._reasons(pe, thread.job)}{thread.at}"

    def awaited(self) -> list[Remark]:
        """Who sends the colors that operations wait for, of the first few."""
        awaited = dict.fromkeys(
            (pe, color)
            for pe in self.pes()
            for thread in self._threads(pe)
            if not thread.is_endless
            for color in self._awaited_colors(pe, thread.job)
        )
        return [
            (pe, f": color {color} {source}")
            for pe, color in islice(awaited, MAX_AWAITED)
            for source in self._source(pe, color)
        ]

    def senders(self, color: int) -> list[str]:
        """Operations that send on a color now."""
        remarks = [
            (pe, f", {thread.subject} sends{thread.at}")
            for pe in self.pes()
            for thread in self._threads(pe)
            if sends(thread.job, color)
        ]
        return alike_together(remarks, self._program.pe_name)

    def control_senders(self, pe: int, color: int) -> list[str]:
        """The last operations of PEs that sent control wavelets to a PE, nearest first."""
        return [
            f"{self._program.pe_name(sender)}, {thread.subject} sends control wavelets{thread.at}"
            for sender in senders_of(self._tables, self._program, color, pe)
            for slot in range(w.SLOTS)
            if sends_control(self._tables.job[slot, sender], slot, color)
            for thread in (self._thread(sender, slot),)
        ]

    def led_nowhere(self, pe: int) -> str:
        """The last operations of a PE's microthreads that ended and started nothing."""
        ended = [
            f", {thread.subject} has ended and activates nothing{thread.at}"
            for slot in range(w.MAIN_SLOT)
            if self._tables.thread[slot, pe, w.T_DONE]
            for thread in (self._thread(pe, slot),)
            if thread.left == 0 and (thread.job[[w.J_ACTIVATE, w.J_UNBLOCK]] < 0).all()
        ]
        return "".join(ended[:MAX_ENDED])

    def taken_microthread(self, pe: int) -> str:
        """Why a request has not begun: another operation has the microthread of its queue."""
        slot, own = _microthread(self._tables.job[w.MAIN_SLOT, pe])
        if slot < 0:
            return "for an earlier operation of the same microthread"
        _, other = _microthread(self._tables.job[slot, pe])
        what = f"an operation of {other} has it" if other and other != own else "it is not free yet"
        return f"for microthread {slot} of {own or 'the operation'}: {what}"

    def is_full(self, pe: int, queue: int, *, is_input: bool) -> bool:
        """Whether a queue has no room for another wavelet."""
        depth = self._state[w.G_DEPTHS + (0 if is_input else w.QUEUES) + queue]
        number, _ = self._tables.queued(pe, queue, is_input=is_input)
        return bool(number >= depth)

    def _is_empty(self, pe: int, queue: int) -> bool:
        """Whether an input queue has no wavelet."""
        return self._tables.queued(pe, queue, is_input=True)[0] == 0

    def _threads(self, pe: int) -> list[Thread]:
        """Operations of a PE that are not done."""
        active = int(self._tables.core[pe, w.C_THREADS])
        return [self._thread(pe, slot) for slot in range(w.SLOTS) if (active >> slot) & 1]

    def _thread(self, pe: int, slot: int) -> Thread:
        """The operation that a slot had last."""
        thread, job = self._tables.thread[slot, pe], self._tables.job[slot, pe]
        name = "main thread" if slot == w.MAIN_SLOT else f"microthread {slot}"
        op = f"@{VECTOR_OPS_BY_CODE[int(thread[w.T_OP])].name}"
        place = self._program.text_of_place(int(job[w.J_PLACE]))
        at = f", at {place}" if place else ""
        return Thread(name, op, at, int(thread[w.T_LEFT]), int(thread[w.T_DONE]), job)

    def _reasons(self, pe: int, job: Array) -> str:
        reasons = []
        for operand in job[w.J_OPERANDS :].reshape(-1, w.OPERAND_WORDS):
            kind, queue, color = (int(operand[k]) for k in (w.O_KIND, w.O_QUEUE, w.O_COLOR))
            of_color = f" (color {color})" if color < w.COLORS else self._color_of(pe, queue)
            if kind == w.FABIN and self._is_empty(pe, queue):
                reasons.append(f"waits for wavelets in input queue {queue}{of_color}")
            if kind == w.FABOUT and self.is_full(pe, queue, is_input=False):
                reasons.append(f"finds output queue {queue} full{of_color}")
            if kind == w.FIFO:
                reasons.append(f"waits for FIFO {queue}")
        return "".join(f", {reason}" for reason in reasons)

    def _color_of(self, pe: int, queue: int) -> str:
        """Remark about the color of an operand that names none: there may be none at all."""
        return "" if self._colors_of(pe, queue) else ", which has no color"

    def _colors_of(self, pe: int, queue: int) -> list[int]:
        """Colors that an input queue takes."""
        queues = self._tables.core[pe, w.C_QUEUE_OF : w.C_QUEUE_OF + 3].view(np.uint8)
        found: list[int] = np.flatnonzero(queues & w.QUEUE_MASK == queue + 1).tolist()
        return found

    def _awaited_colors(self, pe: int, job: Array) -> Iterator[int]:
        """Colors of the empty input queues that an operation takes from."""
        for operand in job[w.J_OPERANDS :].reshape(-1, w.OPERAND_WORDS):
            kind, queue, color = (int(operand[k]) for k in (w.O_KIND, w.O_QUEUE, w.O_COLOR))
            if kind == w.FABIN and self._is_empty(pe, queue):
                yield from [color] if color < w.COLORS else self._colors_of(pe, queue)

    def _source(self, pe: int, color: int) -> Iterator[str]:
        """Whence a color comes to a PE, and what was sent there last; nothing where it is swapped.

        Routes are those of now, at all positions of switches.
        """
        if any(color == number for _, number in self._program.streams):
            yield "comes from the host"
            return
        found = list(entries_of(self._tables, self._program, color, pe))
        told = [
            f"{self._program.pe_name(one)}{self._sent(one, color)}"
            if direction == RAMP
            else "beyond the edge"
            for one, direction in found
        ]
        swaps = self._tables.route[[color, color ^ 1]] & (route.SWAP_X_BIT | route.SWAP_Y_BIT)
        if told:
            more = f" and {len(told) - MAX_SENDERS} more" if len(told) > MAX_SENDERS else ""
            yield f"comes from {', and '.join(told[:MAX_SENDERS])}{more}"
        elif not swaps.any():
            yield "comes from nowhere: its routes lead from no core to there"

    def _sent(self, pe: int, color: int) -> str:
        """What the operations that a PE's threads had last have sent on a color."""
        return "".join(
            f", whose {thread.op}{thread.at.removeprefix(',')} has sent"
            f" {counted(thread.done, 'element')}"
            for slot in range(w.SLOTS)
            if sends(self._tables.job[slot, pe], color)
            for thread in (self._thread(pe, slot),)
            if thread.done and not is_copy(thread.job, slot)
        )


def _microthread(job: Array) -> tuple[int, str]:
    """Number of the microthread of an operation, -1 where it takes a free one, and its queue."""
    operands = job[w.J_OPERANDS :].reshape(-1, w.OPERAND_WORDS)
    number, name = int(job[w.J_MICROTHREAD]), ""
    for kind, word in ((w.FABIN, "input"), (w.FABOUT, "output")):
        for queue in operands[operands[:, w.O_KIND] == kind, w.O_QUEUE].tolist()[:1]:
            name = f"{word} queue {queue}"
            number = queue if job[w.J_MICROTHREAD] < 0 else number
    return number, name
