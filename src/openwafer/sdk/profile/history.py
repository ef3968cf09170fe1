"""A record by PE: what its main thread did, its operations, its queues; and who is whose cause."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.fabric.words import MAIN_SLOT, SLOTS
from openwafer.sdk.host import Events, Record
from openwafer.sdk.profile.wavelets import wavelets

_CONTINUES: Final = (
    *(EventKind.OPERATION_END, EventKind.TASK, EventKind.REQUEST, EventKind.OPERATION),
    *(EventKind.TASK_END, EventKind.CHOSEN),
)
"""What the main thread goes through, in the order in which it does so in a cycle."""


@dataclass
class Operation:
    """A vector operation that the machine served.

    Attributes:
        slot: microthread, or that of the main thread.
        begin: cycle of its issue.
        end: of its last beat; None where it has not ended.
        place: in the source.
        num: elements.
        gap: cycles from beat to beat.
        turns: in how many cycles reads take turns; many where all beats do.
        input: its input queue, -1 for none.
        output: its output queue.
        step: number of its begin among those of the main thread.
    """

    slot: int
    begin: int
    place: int
    num: int
    gap: int
    turns: int
    input: int
    output: int
    end: int | None = None
    step: int = -1


@dataclass(frozen=True)
class Step:
    """Something that the main thread came to.

    Attributes:
        at: cycle on the clock of its code.
        number: entry of a task, code of an operation.
        data: of the event.
        queue: of the event.
        place: of the event.
        operation: the one that begins or ends.
    """

    kind: EventKind
    at: int
    number: int = 0
    data: int = 0
    queue: int = -1
    place: int = -1
    operation: Operation | None = None


@dataclass
class Pe:
    """What happened on a PE.

    Attributes:
        steps: of the main thread, in order.
        operations: in the order of their begin.
        own: what code did by itself: cycle at which it was said, state, cycles.
        ready: by task: cycle, cause, slot.
        unblocked: cycle, slot.
        taken: by input queue: cycles, and the branch of each wavelet.
        sent: by output queue: cycles, and the wavelet of each.
        left: by output queue: cycles.
        entered: by input queue: cycles.
        known: cycles until the core knows that a wavelet has left its output queue.
    """

    known: int
    steps: list[Step] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    own: list[tuple[int, int, int]] = field(default_factory=list)
    ready: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    unblocked: list[tuple[int, int]] = field(default_factory=list)
    taken: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    left: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    entered: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def ended_at(self, slot: int, cycle: int) -> Operation | None:
        """The operation of a slot that ended last, up to a cycle."""
        own = self._by_slot[slot]
        number = bisect_right(own, cycle, key=lambda one: one.end or 0)
        return own[number - 1] if number else None

    def sending(self, queue: int, cycle: int) -> Operation | None:
        """The operation that sends through an output queue at a cycle."""
        return _at(self._by_output[queue], cycle)

    def receiving(self, queue: int, cycle: int) -> Operation | None:
        """The operation that takes from an input queue at a cycle."""
        return _at(self._by_input[queue], cycle)

    def beside(self, one: Operation, begin: int, end: int) -> Iterator[Operation]:
        """Operations of other slots that are in flight between two cycles."""
        for slot, own in self._by_slot.items():
            if slot != one.slot:
                number = bisect_left(own, begin, key=lambda other: other.end or 0)
                yield from takewhile(lambda other: other.begin < end, islice(own, number, None))

    def chosen_by(self, queue: int, cycle: int) -> int | None:
        """The step in which a wavelet of a queue started a task."""
        return self._choices.get((queue, cycle))

    def began(self, chosen: int) -> int:
        """When the task began that was chosen in a step; that of the choice if it has not."""
        following = self.steps[chosen + 1 : chosen + 2]
        return following[0].at if following else self.steps[chosen].at

    def did_vectors(self, number: int) -> bool:
        """Whether the task that a step belongs to has begun a vector operation by then."""
        end = self.steps[number].at
        while number >= 0 and self.steps[number].kind != EventKind.TASK:
            if self.steps[number].kind == EventKind.OPERATION:
                return True
            number -= 1
        begin = self.steps[max(number, 0)].at
        return bisect_left(self.own, (begin,)) < bisect_left(self.own, (end + 1,))

    @cached_property
    def _by_slot(self) -> dict[int, list[Operation]]:
        ended = sorted((one for one in self.operations if one.end), key=lambda one: one.end or 0)
        return _grouped(ended, lambda one: one.slot)

    @cached_property
    def _by_output(self) -> dict[int, list[Operation]]:
        return _grouped(self.operations, lambda one: one.output)

    @cached_property
    def _by_input(self) -> dict[int, list[Operation]]:
        return _grouped(self.operations, lambda one: one.input)

    @cached_property
    def _choices(self) -> dict[tuple[int, int], int]:
        chosen = EventKind.CHOSEN
        return {
            (step.queue, step.at): number
            for number, step in enumerate(self.steps)
            if step.kind == chosen
        }

    @cached_property
    def most_in(self) -> dict[int, int]:
        """How many wavelets each input queue held at most."""
        most = {}
        for queue, entered in self.entered.items():
            changes = [(cycle, 1) for cycle in entered]
            changes += [(cycle, 0) for cycle, _ in self.taken[queue]]
            counts = np.cumsum([1 if is_in else -1 for _, is_in in sorted(changes)])
            most[queue] = int(counts.max(initial=0))
        return most

    @cached_property
    def most_out(self) -> dict[int, int]:
        """The same of output queues, those among them that have left since too short a time."""
        return {
            queue: _most_out(sent, self.left[queue], self.known)
            for queue, sent in self.sent.items()
        }

    def held(self, queue: int, cycle: int) -> int:
        """How many wavelets an input queue held before the takings of a cycle."""
        came = bisect_right(self.entered[queue], cycle)
        return came - bisect_left(self.taken[queue], (cycle, -1))


def _at(operations: Sequence[Operation], cycle: int) -> Operation | None:
    """The last one that has begun by a cycle and not ended before it."""
    number = bisect_right(operations, cycle, key=lambda one: one.begin)
    for one in reversed(operations[max(0, number - SLOTS + 1) : number]):
        if one.end is None or cycle <= one.end:
            return one
    return None


def _most_out(sent: Sequence[tuple[int, int]], left: Sequence[int], known: int) -> int:
    most = 1
    for number, (cycle, _) in enumerate(sent):
        gone = bisect_right(left, cycle - known)
        most = max(most, number + 1 - gone)
    return most


def _grouped(
    operations: Sequence[Operation], key: Callable[[Operation], int]
) -> dict[int, list[Operation]]:
    found: dict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        found[key(one)].append(one)
    return found


class History:
    """A record of a whole run, by PE.

    Raises OpenwaferError where the record is of a part only, or does not fit together.
    """

    def __init__(self, record: Record) -> None:
        self.height = record.head.height
        self.timing = GENERATIONS[Arch(record.head.arch)].timing
        self.wavelets = wavelets(record)
        self.events = record.events()
        self.pes: dict[int, Pe] = defaultdict(lambda: Pe(self.timing.place_known_cycles))
        self.queue_of = np.full(len(self.wavelets), -1)
        """By branch: the input queue that it was taken from."""
        self.color_sent = self.events.of(EventKind.SENT).color
        """By wavelet: the color that it was sent on."""
        self._read_wavelets()
        self._read_steps()

    @cached_property
    def transit(self) -> dict[int, int]:
        """The fewest cycles from an output queue to an input queue, by number of hops."""
        ways = self.wavelets
        came = (ways.arrived >= 0) & (ways.left >= 0)
        fewest: dict[int, int] = {}
        for hops, cycles in zip(ways.hops[came], (ways.arrived - ways.left)[came], strict=True):
            fewest[int(hops)] = min(int(cycles), fewest.get(int(hops), int(cycles)))
        return fewest

    @property
    def ramp_in(self) -> int:
        """Cycles from an input queue to the core."""
        return self.timing.arrival_cycles - self.timing.hop_cycles

    @cached_property
    def ends(self) -> list[tuple[int, int, bool, int]]:
        """Ends of tasks and operations: cycle, PE, whether it is an operation, number."""
        found = []
        for pe, own in self.pes.items():
            for number, step in enumerate(own.steps):
                if step.kind == EventKind.TASK_END:
                    found.append((step.at, pe, False, number))
            for number, one in enumerate(own.operations):
                if one.end is not None:
                    found.append((one.end, pe, True, number))
        return sorted(found)

    def branch_of_wavelet(self, wavelet: int) -> list[int]:
        """Branches of a wavelet that a core has taken."""
        return self._branches_of[wavelet]

    @cached_property
    def _branches_of(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for branch in np.flatnonzero(self.wavelets.consumed >= 0).tolist():
            found[int(self.wavelets.wavelet[branch])].append(branch)
        return found

    @cached_property
    def send_of(self) -> dict[int, tuple[int, int]]:
        """By wavelet: the output queue that it was put into, and its number there."""
        found = {}
        for own in self.pes.values():
            for queue, sent in own.sent.items():
                found.update({wavelet: (queue, at) for at, (_, wavelet) in enumerate(sent)})
        return found

    def _read_wavelets(self) -> None:
        ways, height = self.wavelets, self.height
        came = np.flatnonzero(ways.consumed >= 0)
        pe = ways.x * height + ways.y
        order = came[
            np.lexsort((ways.arrived[came], ways.consumed[came], ways.color[came], pe[came]))
        ]
        taken = self.events.of(EventKind.TAKEN)
        own = _pes(taken, height)
        by_color = np.lexsort((taken.cycle, taken.color, own))
        branch_of = np.empty(len(taken), np.int64)
        branch_of[by_color] = order
        self.queue_of[branch_of] = taken.queue
        for number in range(len(taken)):
            queue = self.pes[int(own[number])].taken[int(taken.queue[number])]
            queue.append((int(taken.cycle[number]), int(branch_of[number])))
        for kind, name in ((EventKind.LEFT, "left"), (EventKind.ENTERED, "entered")):
            part = self.events.of(kind)
            for pe_of, queue_of, cycle in _rows(part, height, part.queue, part.cycle):
                getattr(self.pes[pe_of], name)[queue_of].append(cycle)
        sent = self.events.of(EventKind.SENT)
        numbers = np.arange(len(sent))
        for pe_of, queue_of, cycle, number in _rows(sent, height, sent.queue, sent.cycle, numbers):
            self.pes[pe_of].sent[queue_of].append((cycle, number))

    def _read_steps(self) -> None:
        events = self.events
        kinds = (*_CONTINUES, EventKind.OWN, EventKind.READY, EventKind.UNBLOCKED)
        part = events.of(*kinds)
        begun: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        ended: dict[tuple[int, int], list[int]] = defaultdict(list)
        columns = [getattr(part, name) for name in _COLUMNS]
        for pe, *values in _rows(part, self.height, *columns):
            event = dict(zip(_COLUMNS, values, strict=True))
            if event["kind"] == EventKind.OPERATION:
                begun[pe, event["slot"]].append(self._begun(self.pes[pe], event))
            elif event["kind"] == EventKind.OPERATION_END:
                ended[pe, event["slot"]].append(event["cycle"])
            else:
                _read(self.pes[pe], event)
        for (pe, slot), cycles in ended.items():
            # An operation without elements ends before it would have been issued.
            for one, cycle in zip(begun[pe, slot], cycles, strict=False):
                self._end(self.pes[pe], one, max(cycle, one.begin))
        for own in self.pes.values():
            own.steps.sort(key=lambda step: (step.at, _CONTINUES.index(step.kind)))
            for number, step in enumerate(own.steps):
                if step.kind == EventKind.OPERATION and step.operation is not None:
                    step.operation.step = number

    def _begun(self, own: Pe, event: dict[str, int]) -> Operation:
        one = Operation(
            event["slot"],
            event["cycle"],
            event["place"],
            event["data"],
            event["gap"],
            event["turns"],
            event["queue"],
            event["other_queue"],
        )
        own.operations.append(one)
        own.steps.append(Step(EventKind.OPERATION, one.begin, event["number"], operation=one))
        return one

    def _end(self, own: Pe, one: Operation, cycle: int) -> None:
        one.end = cycle
        if one.slot == MAIN_SLOT:
            # Code goes on with the issue that ends, before the last beat.
            at = max(one.begin + 1, cycle + 1 - self.timing.beat_cycles)
            own.steps.append(Step(EventKind.OPERATION_END, at, operation=one))


def _read(own: Pe, event: dict[str, int]) -> None:
    """Note an event that is no operation's."""
    kind, cycle = EventKind(event["kind"]), event["cycle"]
    number, data = event["number"], event["data"]
    if kind == EventKind.OWN:
        own.own.append((cycle, number, data))
    elif kind == EventKind.READY:
        own.ready[number].append((cycle, data, event["slot"]))
    elif kind == EventKind.UNBLOCKED:
        own.unblocked.append((cycle, event["slot"]))
    else:
        own.steps.append(Step(kind, cycle, number, data, event["queue"], event["place"]))


_COLUMNS: Final = (
    *("kind", "cycle", "number", "data", "slot", "queue", "place"),
    *("other_queue", "gap", "turns"),
)


def _pes(events: Events, height: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = events.x.astype(np.int64) * height + events.y
    return found


def _rows(events: Events, height: int, *columns: NDArray[Any]) -> Iterator[tuple[int, ...]]:
    return zip(_pes(events, height).tolist(), *(column.tolist() for column in columns), strict=True)
