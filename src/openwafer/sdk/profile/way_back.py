"""The way back from the last cycle of a recorded run, from what ended to what it waited for.

Code goes back to the step of its thread before it; an operation's beat to the beat before, to the
wavelet that it takes, or to the reader that made space for what it sends; a task to what made it
ready, or to the task before. Each goes on with what came last.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from openwafer.sdk.fabric import EventKind, SlotState
from openwafer.sdk.fabric.words import MAIN_SLOT
from openwafer.sdk.ir import text
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.suspension import call_graph, reachable
from openwafer.sdk.profile.history import History, Operation, Pe, Step
from openwafer.sdk.profile.model import slot_name
from openwafer.sdk.profile.segments import Reason, Segment, merged
from openwafer.sdk.program.program import Program

_LAUNCH: Final = 2
_FIRST_LOCAL, _COMMAND = 8, 72
_CODE, _OPERATION = 0, 1
_EACH_BEAT: Final = 1 << 20
_SPACE_CYCLES: Final = 2
"""From the taking of a wavelet to the coming of one that waited for its space, at most."""


@dataclass(frozen=True)
class _AtStep:
    """The main thread of a PE at one of its steps."""

    pe: int
    number: int


@dataclass(frozen=True)
class _AtBeat:
    """An operation at a beat."""

    pe: int
    operation: Operation
    cycle: int


@dataclass(frozen=True)
class _AtWavelet:
    """A wavelet in a core's input queue."""

    branch: int


@dataclass(frozen=True)
class _AtHost:
    """The host at a cycle."""

    cycle: int


@dataclass(frozen=True)
class _Taking:
    """Who took a wavelet, when, and the queue."""

    state: "_State"
    cycle: int
    where: str


_State: TypeAlias = _AtStep | _AtBeat | _AtWavelet | _AtHost


class Walk:
    """The way back from the last cycle."""

    def __init__(self, history: History, program: Program, first: int) -> None:
        self._history = history
        self._program = program
        self._first = first
        self._now = 0
        self._segments: list[Segment] = []
        self._launches = _launches(history)
        self._image_of = program.images_by_number
        self._modules: dict[int, Module] = {}
        self._own_lines: dict[tuple[int, int], str] = {}

    def segments(self, last: int | None) -> tuple[Segment, ...]:
        """All of them, in the order of time."""
        ends = [one for one in self._history.ends if last is None or one[0] <= last]
        if not ends:
            return ()
        self._now = ends[-1][0] + 1
        state: _State | None = self._at_end(ends[-1])
        while state is not None and self._now > self._first:
            state = self._next(state)
        self._add(self._first, -1, Reason.HOST)
        return tuple(merged(reversed(self._segments)))

    def _next(self, state: _State) -> _State | None:
        match state:
            case _AtStep(pe, number):
                return self._from_step(pe, number)
            case _AtBeat():
                return self._from_beat(state)
            case _AtWavelet(branch):
                return self._from_wavelet(branch)
            case _AtHost(cycle):
                return self._from_host(cycle)

    def _at_end(self, end: tuple[int, int, bool, int]) -> _State:
        cycle, pe, is_operation, number = end
        if is_operation:
            return _AtBeat(pe, self._history.pes[pe].operations[number], cycle)
        return _AtStep(pe, number)

    def _add(
        self, begin: int, pe: int, reason: Reason, where: str = "", color: int = -1, waited: int = 0
    ) -> None:
        """The path goes back to a cycle; what lies behind it already stays as it is."""
        begin = max(begin, self._first)
        if begin < self._now:
            x, y = self._xy(pe)
            self._segments.append(Segment(begin, self._now, x, y, reason, where, color, waited))
            self._now = begin
        elif waited:
            # It has cost the path no time of its own, but others more.
            x, y = self._xy(pe)
            own = Segment(self._now, self._now, x, y, reason, where, color, waited)
            self._segments.append(own)

    def _xy(self, pe: int) -> tuple[int, int]:
        return divmod(pe, self._history.height) if pe >= 0 else (-1, -1)

    # The main thread.

    def _from_step(self, pe: int, number: int) -> _State | None:
        own = self._history.pes[pe]
        step = own.steps[number]
        if step.kind == EventKind.OPERATION_END and step.operation is not None:
            return _AtBeat(pe, step.operation, step.operation.end or step.at)
        if step.kind == EventKind.CHOSEN:
            return self._from_choice(pe, number)
        if number == 0:
            return _AtHost(self._now)
        if step.kind == EventKind.TASK:
            self._add(own.steps[number - 1].at, pe, Reason.SWITCH, self._entry(pe, step.number))
        elif step.kind == EventKind.OPERATION:
            return self._from_issue(pe, number)
        else:
            self._add_code(pe, own, number)
        return _AtStep(pe, number - 1)

    def _from_issue(self, pe: int, number: int) -> _State:
        """An operation is issued once its microthread is free."""
        own = self._history.pes[pe]
        step, asked = own.steps[number], own.steps[number - 1]
        one = step.operation
        assert one is not None
        before = own.ended_at(one.slot, step.at) if one.slot != MAIN_SLOT else None
        if before is not None and asked.at < (before.end or 0) and before is not one:
            waited = step.at - asked.at
            self._add(before.end or 0, pe, Reason.MICROTHREAD, self._place(one), -1, waited)
            return _AtBeat(pe, before, before.end or 0)
        self._add(asked.at, pe, Reason.ISSUE, self._place(one))
        return _AtStep(pe, number - 1)

    def _add_code(self, pe: int, own: Pe, number: int) -> None:
        """Code from the step before up to this one, with what it says that it did by itself."""
        begin, end = own.steps[number - 1].at, own.steps[number].at
        entry = self._entry_at(own, number)
        where = self._entry(pe, entry)
        later = next((one.at for one in islice(own.steps, number + 1, None) if one.at > end), None)
        low = bisect_left(own.own, (end,))
        high = len(own.own) if later is None else bisect_left(own.own, (later,))
        for _, state, cycles in own.own[low:high]:
            reason = _OWN.get(SlotState(state), Reason.CODE)
            line = self._line_of_own(pe, entry)
            self._add(max(begin, self._now - cycles), pe, reason, line)
        self._add(begin, pe, Reason.CODE, where)

    def _from_choice(self, pe: int, number: int) -> _State | None:
        """A task was chosen: once the one before had ended, and once it could run."""
        own, task_cycles = self._history.pes[pe], self._history.timing.task_cycles
        step = own.steps[number]
        ended = own.steps[number - 1].at if number else -1
        cause, cycle = self._cause_of(pe, own, step)
        freed, slot = _last(own.unblocked, step.at) or (-1, MAIN_SLOT)
        where = self._entry(pe, step.number)
        if number and step.data != _COMMAND and own.began(number) > step.at + task_cycles:
            # It began as long behind the one before as any does, whenever it was chosen.
            self._add(ended, pe, Reason.SWITCH, where)
            return _AtStep(pe, number - 1)
        if freed > max(ended, cycle) and step.at > max(ended, cycle) + task_cycles:
            could = max(cycle + task_cycles, self._could_follow(own, number))
            self._add(freed, pe, Reason.BLOCKED, where, -1, max(0, own.began(number) - could))
            one = own.ended_at(slot, freed)
            return None if one is None else _AtBeat(pe, one, freed)
        if number and ended >= cycle:
            self._add(ended, pe, Reason.SWITCH, where)
            return _AtStep(pe, number - 1)
        self._add(cycle, pe, Reason.SWITCH, where)
        return cause

    def _could_follow(self, own: Pe, number: int) -> int:
        """When a task that is chosen at a step could have begun for the one before."""
        if number == 0:
            return 0
        timing, ended = self._history.timing, own.steps[number - 1].at
        did_vectors = own.did_vectors(number - 1)
        return ended + (timing.switch_cycles if did_vectors else timing.wavelet_switch_cycles)

    def _cause_of(self, pe: int, own: Pe, step: Step) -> tuple[_State | None, int]:
        """What made a task ready to run, and when."""
        history = self._history
        if step.queue >= 0:
            branch = _at_cycle(own.taken[step.queue], step.at)
            assert branch is not None
            return _AtWavelet(branch), int(history.wavelets.arrived[branch]) + history.ramp_in
        if step.data == _COMMAND:
            launch = max((at for at in self._launches if at <= step.at), default=0)
            return _AtHost(launch), launch
        known = [one for one in own.ready[step.data - _FIRST_LOCAL] if one[0] <= step.at]
        if not known or known[-1][1] == _CODE:
            return None, -1
        cycle, cause, slot = known[-1]
        one = own.ended_at(slot, cycle) if cause == _OPERATION else self._busy(own, cycle)
        return (None, -1) if one is None else (_AtBeat(pe, one, cycle), cycle)

    def _busy(self, own: Pe, cycle: int) -> Operation | None:
        """An operation that is in flight at a cycle, of which a FIFO has heard."""
        return next((o for o in own.operations if o.begin <= cycle <= (o.end or cycle)), None)

    # Operations.

    def _from_beat(self, state: _AtBeat) -> _State | None:
        """A beat goes once the one before has, its wavelet is there, and there is space."""
        pe, one, cycle = state.pe, state.operation, state.cycle
        own = self._history.pes[pe]
        beats = self._beats(own, one, cycle)
        where = self._place(one)
        if not beats:
            self._add_memory(pe, one, where)
            return _AtStep(pe, one.step)
        beat = beats[-1]
        before = (
            beats[-2] + one.gap if len(beats) > 1 else one.begin + self._history.timing.beat_cycles
        )
        self._add(beat, pe, Reason.BEATS, where)
        arrived, branch = self._came(own, one, beat)
        space, receiver = self._space(own, one, beat)
        latest = max(before, arrived, space)
        if branch is not None and arrived == latest and arrived > before:
            if arrived < self._now:
                self._add(arrived, pe, Reason.LOST_BEAT, self._behind(pe, one, arrived, beat))
            return _AtWavelet(branch)
        if receiver is not None and space == latest and space > before:
            color, begin = self._color(one, own, beat), min(receiver.cycle, beat - 1)
            self._add(begin, pe, Reason.FULL, receiver.where, color, space - before)
            return receiver.state
        if space > before:
            self._add(before, pe, Reason.LINK, where, self._color(one, own, beat))
        elif before < self._now:
            self._add(before, pe, Reason.LOST_BEAT, self._behind(pe, one, before, beat))
        return self._before_beat(state, beats, where)

    def _before_beat(self, state: _AtBeat, beats: Sequence[int], where: str) -> _State:
        """The beat before, or the operation's issue."""
        pe, one = state.pe, state.operation
        if len(beats) == 1:
            self._add(one.begin, pe, Reason.ISSUE, where)
            return _AtStep(pe, one.step)
        paused = one.gap > 1 and one.turns < _EACH_BEAT - 1
        reason = Reason.BANK if one.turns >= _EACH_BEAT - 1 else Reason.PAUSES
        if paused or one.gap > 1:
            self._add(beats[-2] + 1, pe, reason, where)
        self._add(beats[-2], pe, Reason.BEATS, where)
        return _AtBeat(pe, one, beats[-2])

    def _beats(self, own: Pe, one: Operation, cycle: int) -> list[int]:
        """The last beats on the fabric of an operation up to a cycle, two at most."""
        lists = [own.taken[one.input]] if one.input >= 0 else []
        if one.output >= 0:
            lists.append(own.sent[one.output])
        found = {at for known in lists for at in _last_two(known, one.begin, cycle)}
        return sorted(found)[-2:]

    def _came(self, own: Pe, one: Operation, beat: int) -> tuple[int, int | None]:
        """When the wavelet of a beat was there, and its branch."""
        branch = _at_cycle(own.taken[one.input], beat) if one.input >= 0 else None
        if branch is None:
            return -1, None
        return int(self._history.wavelets.arrived[branch]) + self._history.ramp_in, branch

    def _space(self, own: Pe, one: Operation, beat: int) -> tuple[int, _Taking | None]:
        """When the output queue had space for a beat, and who made it."""
        history = self._history
        if one.output < 0:
            return -1, None
        sent = own.sent[one.output]
        number, depth = bisect_left(sent, (beat, -1)), own.most_out[one.output]
        if _at_cycle(sent, beat) is None or number < depth:
            return -1, None
        left = own.left[one.output][number - depth]
        return left + history.timing.place_known_cycles, self._reader(sent[number - depth][1], left)

    def _reader(self, wavelet: int, left: int) -> _Taking | None:
        """Who takes from a queue that is full, which is why a wavelet left no earlier."""
        history, ways = self._history, self._history.wavelets
        for branch in history.branch_of_wavelet(wavelet):
            pe, queue = self._pe_of(branch), int(history.queue_of[branch])
            own = history.pes[pe]
            number = bisect_right(own.taken[queue], (left, len(ways)))
            if number:
                cycle = own.taken[queue][number - 1][0]
                if own.held(queue, cycle) >= own.most_in[queue]:
                    return self._taking(pe, queue, cycle)
        return None

    def _freed(self, pe: int, queue: int, arrived: int) -> _Taking | None:
        """Who made space in an input queue that was full, so that a wavelet could come."""
        own = self._history.pes[pe]
        number = bisect_left(own.taken[queue], (arrived, -1))
        if number == 0:
            return None
        cycle = own.taken[queue][number - 1][0]
        if arrived - cycle > _SPACE_CYCLES or own.held(queue, cycle) < own.most_in[queue]:
            return None
        return self._taking(pe, queue, cycle)

    def _taking(self, pe: int, queue: int, cycle: int) -> _Taking | None:
        """Who took a wavelet: a task, or an operation."""
        own, (x, y) = self._history.pes[pe], self._xy(pe)
        where, number = f"input queue {queue} of PE ({x}, {y})", own.chosen_by(queue, cycle)
        if number is not None:
            return _Taking(_AtStep(pe, number), cycle, where)
        one = own.receiving(queue, cycle)
        return None if one is None else _Taking(_AtBeat(pe, one, cycle), cycle, where)

    def _pe_of(self, branch: int) -> int:
        ways = self._history.wavelets
        return int(ways.x[branch] * self._history.height + ways.y[branch])

    def _add_memory(self, pe: int, one: Operation, where: str) -> None:
        """An operation without wavelets."""
        if 0 < one.turns < _EACH_BEAT - 1:
            self._add(self._now - one.turns, pe, Reason.BANK, where)
        begin = one.begin + self._history.timing.beat_cycles
        self._add(begin, pe, Reason.BEATS, where)
        self._add(one.begin, pe, Reason.ISSUE, where)

    # Wavelets and the host.

    def _from_wavelet(self, branch: int) -> _State | None:
        """A wavelet came when it had been sent, and its way was free."""
        history, ways = self._history, self._history.wavelets
        pe, color = self._pe_of(branch), int(ways.color[branch])
        arrived, left = int(ways.arrived[branch]), int(ways.left[branch])
        if left < 0:
            entered = int(ways.sent[branch])
            if entered < arrived:
                self._add(entered, pe, Reason.HOPS, "", color)
            self._add(entered, -1, Reason.HOST, "words from the host", color)
            return _AtHost(entered)
        late = arrived - left - history.transit[int(ways.hops[branch])]
        taken = self._freed(pe, int(history.queue_of[branch]), arrived) if late else None
        if taken is not None:
            self._add(taken.cycle, pe, Reason.FULL, taken.where, color, late)
            return taken.state
        self._add(left + late, pe, Reason.HOPS, "", color)
        self._add(left, pe, Reason.LINK, "", color)
        sender = int(ways.from_x[branch] * history.height + ways.from_y[branch])
        sent, wavelet = int(ways.sent[branch]), int(ways.wavelet[branch])
        self._add(sent + history.timing.ramp_cycles, sender, Reason.LINK, "", color)
        self._add(sent, sender, Reason.HOPS, "", color)
        queue, _ = history.send_of[wavelet]
        own = history.pes[sender]
        one = own.sending(queue, sent)
        return _AtHost(sent) if one is None else _AtBeat(sender, one, sent)

    def _from_host(self, cycle: int) -> _State | None:
        """The host goes on once what it asked for before has ended."""
        number = bisect_left(self._history.ends, (min(cycle, self._now),))
        if number == 0:
            return None
        before = self._history.ends[number - 1]
        self._add(before[0] + 1, -1, Reason.HOST)
        return self._at_end(before)

    # Names.

    def _line_of_own(self, pe: int, entry: int) -> str:
        """The line of the only vector operation that a task may run by itself, else its name."""
        number, name = int(self._image_of[pe]), self._entry(pe, entry)
        key = number, entry
        if key not in self._own_lines:
            image = self._program.images[number]
            # Programs that are made by hand may have no code that could be read.
            places = _places_of_vectors(self._module(number), name) if image.code else set()
            self._own_lines[key] = (
                self._program.text_of_place(places.pop()) if len(places) == 1 else name
            )
        return self._own_lines[key]

    def _module(self, number: int) -> Module:
        if number not in self._modules:
            image = self._program.images[number]
            self._modules[number] = text.parse(image.code, image.name)
        return self._modules[number]

    def _place(self, one: Operation) -> str:
        return self._program.text_of_place(one.place)

    def _behind(self, pe: int, one: Operation, begin: int, end: int) -> str:
        """The place of an operation, and who else had the datapath in some cycles."""
        others = self._history.pes[pe].beside(one, begin, end)
        names = sorted({f"{slot_name(other.slot)} at {self._place(other)}" for other in others})
        # What code runs by itself has no events of its own.
        return f"{self._place(one)}, behind {', '.join(names) or 'code'}"

    def _entry(self, pe: int, number: int) -> str:
        image = self._program.images[int(self._image_of[pe])]
        return image.entries[number].function if 0 <= number < len(image.entries) else ""

    def _entry_at(self, own: Pe, number: int) -> int:
        """The entry of the task that a step belongs to, -1 for none."""
        for before in range(number, -1, -1):
            if own.steps[before].kind == EventKind.TASK:
                return own.steps[before].number
        return -1

    def _color(self, one: Operation, own: Pe, beat: int) -> int:
        sent = _at_cycle(own.sent[one.output], beat)
        return -1 if sent is None else int(self._history.color_sent[sent])


_OWN: Final = {
    SlotState.BEAT: Reason.BEATS,
    SlotState.PAUSE: Reason.PAUSES,
    SlotState.TURN: Reason.BANK,
    SlotState.DRAIN: Reason.DRAIN,
}


def _launches(history: History) -> list[int]:
    hosts = history.events.of(EventKind.HOST)
    return sorted(hosts.cycle[hosts.data == _LAUNCH].tolist())


def _last_two(events: Sequence[tuple[int, int]], begin: int, end: int) -> Iterator[int]:
    number = bisect_left(events, (end + 1, -1))
    return (at for at, _ in events[max(0, number - 3) : number] if begin <= at)


def _last(events: Sequence[tuple[int, int]], cycle: int) -> tuple[int, int] | None:
    """The last one up to a cycle."""
    number = bisect_left(events, (cycle + 1, -1))
    return events[number - 1] if number else None


def _at_cycle(events: Sequence[tuple[int, int]], cycle: int) -> int | None:
    """What stands beside a cycle."""
    number = bisect_left(events, (cycle, -1))
    return events[number][1] if number < len(events) and events[number][0] == cycle else None


def _places_of_vectors(module: Module, name: str) -> set[int]:
    """Places of vector operations of a function and of those that it calls."""
    if name not in module.functions:
        return set()
    return {
        instruction.place
        for function in {name} | reachable(call_graph(module), name)
        for instruction in module.functions[function].instructions
        if instruction.op == "vector"
    }
