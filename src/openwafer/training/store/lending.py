"""Lends records in order, from memory where possible; it reads others ahead."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.commits import Commits
from openwafer.training.store.layout import Part, RecordLayout, gaps
from openwafer.training.store.parts import PartState, Ring
from openwafer.training.store.transfers import Monitor, ReadAhead, TrafficMeter, WriteBehind


@dataclass(eq=False)
class Request:
    """One loan's request and its progress; the store's monitor guards it."""

    layout: RecordLayout
    parts: Mapping[Part, PartState]
    fresh: frozenset[Part]
    is_read_only: bool
    epoch: int
    number: int = 0
    granted: list[PartState] = field(default_factory=list)
    is_waited: bool = False
    is_released: bool = False

    def __str__(self) -> str:
        return f"the {', '.join(self.parts)} of record {self.layout.name!r}"

    @property
    def is_granted(self) -> bool:
        """Whether every part has its room."""
        return len(self.granted) == len(self.parts)

    @property
    def read_error(self) -> OpenwaferError | None:
        """The error of the first part whose read failed."""
        errors = (part.read_error for which, part in self.parts.items() if which not in self.fresh)
        return next((failure for failure in errors if failure is not None), None)


class Lending:
    """Grants requests strictly in order, hits too, and the parts of the first one by one.

    If a later request could take bytes while an earlier one waits for room, the two could wait for
    each other. In order, a request is granted once its bytes and those lent before it fit the ring.
    A part is read as soon as there is room for it alone, so that in a ring of less than two records
    a part of the next one is read while the last one is in use or being written. What is foreseen
    is read behind all requests, into room that a request takes away again.
    All methods want the store's lock held.
    """

    def __init__(
        self, monitor: Monitor, ring: Ring, commits: Commits, meter: TrafficMeter, unit_bytes: int
    ) -> None:
        self._monitor = monitor
        self._ring = ring
        self._commits = commits
        self._meter = meter
        self._waiting: deque[Request] = deque()
        self._foreseen: deque[PartState] = deque()
        self._kept: list[PartState] = []
        # Who has each part on disk, in the order in which they were given it.
        self._lent: dict[PartState, list[Request]] = {}
        self._num_requests = 0
        self.read_ahead = ReadAhead(monitor, meter, unit_bytes, self._settle)
        self.write_behind = WriteBehind(monitor, commits, meter, unit_bytes, self._settle)

    def submit(self, request: Request) -> None:
        """Queue a request and start whatever can start."""
        num_bytes = sum(part.num_bytes for part in request.parts.values() if not part.is_resident)
        if num_bytes > self._ring.num_bytes:
            raise error(
                "store-ring-too-small",
                f"{request} need {num_bytes} bytes of the ring, which has {self._ring.num_bytes}",
                help=f"raise ring_bytes to {num_bytes} or more, or borrow fewer parts at once",
            )
        if not request.is_read_only:
            for part in request.parts.values():
                part.num_writable += 1
        self._num_requests += 1
        request.number = self._num_requests
        self._waiting.append(request)
        self._grant_in_order()

    def foresee(self, parts: Iterable[PartState]) -> None:
        """Read parts into the ring while it has room; forget those foreseen before."""
        self._foreseen, self._kept = deque(parts), []
        self._grant_in_order()

    def share(self, request: Request, which: Part) -> Request:
        """A read-only request of a part that another holds: granted, for it takes no room."""
        part = request.parts[which]
        shared = Request(request.layout, {which: part}, frozenset(), True, request.epoch)
        shared.number, shared.is_waited = request.number, True
        self._give(shared, part)
        return shared

    def want_bytes(self, request: Request, which: Part) -> None:
        """Let a part that was asked for as fresh have the bytes that are in the store."""
        request.fresh -= {which}
        self._read_if_wanted(request.parts[which])
        self._monitor.announce()

    def wait(self, request: Request) -> None:
        """Return when the bytes may be used as asked. Raises the error of a failed read."""
        self._monitor.wait_until(lambda: self.is_ready(request), lambda: self._describe(request))
        if (failure := request.read_error) is not None:
            raise OpenwaferError(*failure.diagnostics)
        request.is_waited = True
        for which, part in request.parts.items():
            if not request.is_read_only:
                part.num_writers += 1
            if which in request.fresh and not part.is_loaded:
                _zero_gaps(request.layout, part)

    def is_ready(self, request: Request) -> bool:
        """Whether `wait` would return, or raise, at once."""
        if request.read_error is not None:
            return True
        return request.is_granted and all(
            self._has_bytes(request, part) and self._may_use(request, part)
            for part in request.parts.values()
        )

    def is_blocked(self, request: Request) -> bool:
        """Whether other loans may have to be released before `wait` can return."""
        is_held_back = self._commits.is_owed and any(
            self._commits.holds_back(part, request.epoch) for part in request.parts.values()
        )
        is_to_be_filled = any(
            part.is_empty and which not in request.fresh for which, part in request.parts.items()
        )
        return (
            not request.is_granted or is_to_be_filled or (is_held_back and not request.is_read_only)
        )

    def release(self, request: Request, dirty: Collection[Part]) -> None:
        """Take the parts back and send changed ones on their way to the disk."""
        request.is_released = True
        changed = frozenset(dirty) | (request.fresh if request.is_waited else frozenset())
        if not request.is_granted:
            self._waiting.remove(request)
        for which, part in request.parts.items():
            if part in request.granted:
                self._take_back(request, part)
            if not request.is_read_only:
                self._end_writing(request, part)
            if which in changed and part.num_bytes:
                part.is_dirty = part.is_loaded = True
                part.read_error = None
            self._read_if_wanted(part)
            self._settle(part)
        self._monitor.announce()

    @property
    def num_waiting(self) -> int:
        """Requests that have no room yet."""
        return len(self._waiting)

    def _grant_in_order(self) -> None:
        while self._waiting:
            self._grant_parts(self._waiting[0])
            if not self._waiting[0].is_granted:
                break
            self._waiting.popleft()
        while self._foreseen and not self._waiting and self._read_foreseen(self._foreseen[0]):
            self._kept.append(self._foreseen.popleft())

    def _read_foreseen(self, part: PartState) -> bool:
        """Have a part read unless it is in memory; False when only parts foreseen make room."""
        if part.buffer is not None:
            return True
        if not self._ring.has_room([part], kept=self._kept):
            return False
        self._keep_foreseen()
        part.buffer = self._ring.take(part.num_bytes)
        self.load(part)
        if part.is_evictable:
            self._ring.keep_idle(part)
        return True

    def _keep_foreseen(self) -> None:
        """Let what is foreseen give way behind all else that is idle, what is wanted last first.

        Were the first to go, its read would send the next away, and so on to the last.
        """
        for kept in reversed(self._kept):
            if kept.is_evictable and kept.buffer is not None:
                self._ring.keep_idle(kept)

    def _grant_parts(self, request: Request) -> None:
        passing = [part for part in request.parts.values() if not part.is_resident]
        # Hits first: making room for the others would drop them. Then the largest that fits.
        wanted = [part for part in request.parts.values() if part not in request.granted]
        for part in sorted(wanted, key=lambda part: (part.buffer is None, -part.num_bytes)):
            if part.buffer is not None or self._ring.has_room([part], kept=passing):
                self._grant(request, part)

    def _grant(self, request: Request, part: PartState) -> None:
        if part.buffer is None:
            part.buffer = self._ring.take(part.num_bytes)
            if part.part not in request.fresh:
                self.load(part)
        elif not part.is_resident:
            self._ring.claim(part)
            if part.part not in request.fresh:
                self._meter.count_hit(part.num_bytes)
        self._give(request, part)

    def _give(self, request: Request, part: PartState) -> None:
        part.num_loans += 1
        if not part.is_resident:
            self._lent.setdefault(part, []).append(request)
        request.granted.append(part)

    def _read_if_wanted(self, part: PartState) -> None:
        """Read a part whose room was asked for as fresh, if nobody is to fill it any more."""
        lent = self._lent.get(part)
        if lent and part.is_empty and part.num_writers == 0 and part.part not in lent[0].fresh:
            self.load(part)

    def load(self, part: PartState) -> None:
        """Bring the newest bytes into the part's buffer; those of a part never written are zero."""
        part.is_loaded = part.slots.working is None
        if part.slots.working is None:
            part.held_buffer().clear()
        else:
            self.read_ahead.enqueue(part, part.slots.working)

    def forget_changes(self, part: PartState) -> None:
        """Let a part that nobody has be again what the last commit has."""
        if part.num_loans:
            raise error(
                "store-loan-misuse",
                f"{part} is lent, so that its changes cannot be forgotten",
                help="release every loan before the store is rolled back",
            )
        part.is_dirty = False
        part.slots.working = part.slots.committed
        if part.is_resident:
            self.load(part)
        elif part.buffer is not None:
            self._ring.drop(part)

    def _has_bytes(self, request: Request, part: PartState) -> bool:
        return part.is_loaded or (part.part in request.fresh and not part.is_reading)

    def _may_use(self, request: Request, part: PartState) -> bool:
        is_held = part.is_writing or self._commits.holds_back(part, request.epoch)
        return request.is_read_only or not is_held

    def _take_back(self, request: Request, part: PartState) -> None:
        part.num_loans -= 1
        if not part.is_resident:
            self._lent[part].remove(request)
        if part.num_loans == 0:
            self._lent.pop(part, None)

    def _end_writing(self, request: Request, part: PartState) -> None:
        part.num_writable -= 1
        if request.is_waited:
            part.num_writers -= 1
        self._commits.note_returned(part, request.epoch)

    def _settle(self, part: PartState) -> None:
        self._commits.note(part)
        if part.is_dirty:
            if not part.is_resident or self._commits.is_unwritten(part):
                self.write_behind.enqueue(part)
        elif part.is_evictable and part.buffer is not None:
            if part.is_loaded:
                self._ring.keep_idle(part)
                if part in self._kept:
                    self._keep_foreseen()
            else:
                self._ring.drop(part)
        self._grant_in_order()

    def _describe(self, request: Request) -> str:
        if request.is_granted:
            return f"{request}: the end of its read, write or commit"
        lent = ", ".join(str(part) for part in self._lent) or "nothing"
        lent_bytes = sum(part.num_bytes for part in self._lent)
        return (
            f"{request}: room in the ring of {self._ring.num_bytes} bytes, of which {lent_bytes} "
            f"are lent: {lent}"
        )


def _zero_gaps(layout: RecordLayout, part: PartState) -> None:
    # Equal arrays make equal parts, and so equal checksums, only when the gaps are equal too.
    for start, end in gaps(layout, part.part):
        part.held_buffer().window(start, end)[:] = bytes(end - start)


class Loan:
    """Parts of one record, in host memory from `wait` to `release`."""

    def __init__(self, monitor: Monitor, lending: Lending, request: Request) -> None:
        self._monitor = monitor
        self._lending = lending
        self._request = request
        self.record = request.layout.name
        self.parts = frozenset(request.parts)

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        with self._monitor.changed:
            return self._lending.is_ready(self._request)

    @property
    def is_blocked(self) -> bool:
        """Whether other loans may have to be released before `wait` can return.

        So it is while the loan has no room in the ring, or may not change bytes that a commit
        wants whose turn comes first.
        """
        with self._monitor.changed:
            return self._lending.is_blocked(self._request)

    @property
    def number(self) -> int:
        """Place in the order in which loans were asked for, and are given room."""
        return self._request.number

    def want_bytes(self, part: Part) -> None:
        """Let a part that was borrowed as fresh be read after all; to be called before `wait`.

        Raises `store-loan-misuse`.
        """
        with self._monitor.changed:
            self._require_unreleased("changed")
            self._require_part(part)
            if self._request.is_waited:
                raise self._misuse("is to be read, but wait() has returned already")
            self._lending.want_bytes(self._request, part)

    def wait(self) -> None:
        """Return when the bytes are in memory and, unless read-only, may be changed.

        Raises the error of the read (`store-read-failed`, `store-corrupt`), `store-stuck` when
        nothing moves, or the failure that stopped the store.
        """
        with self._monitor.changed:
            self._require_unreleased("waited for")
            if not self._request.is_waited:
                self._lending.wait(self._request)

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """View of one array, of its dtype and shape, on host memory, valid until the release."""
        return self._state_of(part).array(self._request.layout.place(array_name, part))

    def part_bytes_view(self, part: Part) -> torch.Tensor:
        """View of all bytes of a part: uint8, one dim of `part_bytes`, valid until the release."""
        return self._state_of(part).held_buffer().tensor

    def share(self, part: Part) -> "Loan":
        """A read-only loan of one part of this one; it may outlive this one, and is ready."""
        with self._monitor.changed:
            self._state_of(part)
            return Loan(self._monitor, self._lending, self._lending.share(self._request, part))

    def release(self, *, dirty: Collection[Part] = ()) -> None:
        """Give the parts back; those in `dirty`, and the fresh ones, were changed. Never blocks."""
        with self._monitor.changed:
            self._require_unreleased("released")
            self._require_changeable(frozenset(dirty))
            self._lending.release(self._request, frozenset(dirty))

    def _state_of(self, part: Part) -> PartState:
        request = self._request
        if request.is_released or not request.is_waited or part not in self.parts:
            self._require_unreleased("used")
            self._require_part(part)
            raise self._misuse("is used before wait() has returned")
        return request.parts[part]

    def _require_part(self, part: Part) -> None:
        if part not in self.parts:
            raise self._misuse(f"does not include the {part}")

    def _require_unreleased(self, what: str) -> None:
        if self._request.is_released:
            raise self._misuse(f"is {what} after its release")

    def _require_changeable(self, dirty: frozenset[Part]) -> None:
        if not dirty:
            return
        if self._request.is_read_only:
            raise self._misuse("is read-only and is released as changed")
        if not self._request.is_waited:
            raise self._misuse("is released as changed, but nobody waited for its bytes")
        if not dirty <= self.parts:
            raise self._misuse(
                f"is released with changed parts it lacks: {', '.join(sorted(dirty))}"
            )

    def _misuse(self, what: str) -> OpenwaferError:
        return error(
            "store-loan-misuse",
            f"the loan of {self._request} {what}",
            help="wait for a loan, use what was borrowed, then release it, once",
        )
