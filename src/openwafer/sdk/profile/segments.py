"""The parts of a critical path: where its time went, and what helps."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """What the time of a segment went to."""

    CODE = "scalar code"
    BEATS = "beats of an operation"
    PAUSES = "pauses between beats"
    BANK = "reads of one bank take turns"
    DRAIN = "results of an operation are awaited"
    ISSUE = "an operation is issued"
    SWITCH = "a task is chosen and begins"
    MICROTHREAD = "its microthread is busy"
    BLOCKED = "it is blocked"
    LOST_BEAT = "another thread has the datapath"
    HOPS = "a wavelet is on its way"
    LINK = "its way is taken by others"
    FULL = "its receiver's queue is full"
    HOST = "the host"


REMEDIES: Final = {
    Reason.BEATS: "split the vector over two PEs, or take elements of half the size",
    Reason.PAUSES: "a stride of one, or a sum in several parts",
    Reason.BANK: "put the operands into other banks: an offset of some words between the arrays",
    Reason.DRAIN: "do something else before the result is used",
    Reason.ISSUE: "longer vectors, or descriptors that stay in registers",
    Reason.SWITCH: "fewer, longer tasks; an operation in the place of a task for each wavelet",
    Reason.MICROTHREAD: "another microthread",
    Reason.BLOCKED: "unblock earlier",
    Reason.LOST_BEAT: "priorities, or less beside it",
    Reason.LINK: "another color on another way",
    Reason.FULL: "a longer input queue, or a faster reader",
}
"""What helps against each reason, where something is known."""
_OF_VECTORS: Final = (Reason.BEATS, Reason.PAUSES, Reason.BANK)
"""What an operation's elements take, each of them."""


@dataclass(frozen=True)
class Segment:
    """A part of the path.

    Attributes:
        begin: its first cycle.
        end: the one behind its last.
        x: column of the PE whose time it is; -1 for the host.
        y: its row.
        reason: what the time went to.
        where: line of the source, or what runs.
        color: of the wavelets, -1 for none.
        waited: for how long up to its end something could have gone on, if not for it; more than
            its cycles where the path goes on with what else took that time.
    """

    begin: int
    end: int
    x: int
    y: int
    reason: Reason
    where: str = ""
    color: int = -1
    waited: int = 0

    @property
    def cycles(self) -> int:
        """How long it is."""
        return self.end - self.begin


@dataclass(frozen=True)
class Cost:
    """What the path spends for one reason at one place.

    Attributes:
        cycles: of the path.
        waited: cycles in which something waited for it.
        gain: how much shorter the path gets without it, as long as nothing else takes that time; of
            beats, for each PE with half of the vector: half of them, and of what comes between.
        remedy: what helps, empty where nothing is known.
    """

    reason: Reason
    where: str
    color: int
    cycles: int
    waited: int
    gain: int
    remedy: str


@dataclass(frozen=True)
class CriticalPath:
    """The way that decided the last cycle.

    Attributes:
        segments: from the first cycle to the last one.
    """

    segments: tuple[Segment, ...]

    @property
    def cycles(self) -> int:
        """How long it is."""
        return sum(one.cycles for one in self.segments)

    def longest(self, number: int) -> tuple[Segment, ...]:
        """So many of its longest segments, in the order of time."""
        longest = sorted(self.segments, key=lambda one: -one.cycles)[:number]
        return tuple(sorted(longest, key=lambda one: one.begin))

    def costs(self) -> tuple[Cost, ...]:
        """By reason and place, those first that most was spent on, or waited for."""
        parts: dict[tuple[Reason, str, int], list[Segment]] = {}
        for one in self.segments:
            parts.setdefault((one.reason, one.where, one.color), []).append(one)
        cycles = {key: sum(one.cycles for one in own) for key, own in parts.items()}
        of_vectors = Counter[str]()
        for (reason, where, _), number in cycles.items():
            of_vectors[where] += number if reason in _OF_VECTORS else 0
        found = []
        for key, own in parts.items():
            reason, where, _ = key
            waited = _waited(own)
            gain = max(cycles[key], waited)
            if reason is Reason.BEATS:
                gain = of_vectors[where] // 2
            found.append(Cost(*key, cycles[key], waited, gain, REMEDIES.get(reason, "")))
        return tuple(sorted(found, key=lambda one: (-max(one.cycles, one.waited), one.where)))


def _waited(segments: Iterable[Segment]) -> int:
    """In how many cycles something waited for one of some segments in the order of time."""
    total, until = 0, 0
    for one in segments:
        total += max(0, one.end - max(until, one.end - one.waited))
        until = max(until, one.end)
    return total


def merged(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Neighbours of the same PE, reason and place as one."""
    latest: Segment | None = None
    for one in segments:
        is_waited = latest is not None and (latest.waited or one.waited)
        if latest is not None and not is_waited and _key(latest) == _key(one):
            latest = replace(latest, end=one.end)
            continue
        if latest is not None:
            yield latest
        latest = one
    if latest is not None:
        yield latest


def _key(one: Segment) -> tuple[int, int, Reason, str, int]:
    return one.x, one.y, one.reason, one.where, one.color
