"""Lends records in order, from memory where possible; it reads others ahead."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import Part, RecordLayout, gaps
from openwafer.training.store.parts import Commits, Monitor, PartState, Ring
from openwafer.training.store.transfers import ReadAhead, TrafficMeter, WriteBehind


@dataclass(eq=False)
class Loan:
    """Parts of one record, in host memory from `wait` to `release`.

    Its fields are the store's to change, with the lock held.

    Attributes:
        epoch: commits begun before it was asked for.
        number: place in the order in which loans were asked for, and are given room.
        missing: parts that have no room yet.
    """

    lending: "Lending"
    layout: RecordLayout
    parts: Mapping[Part, PartState]
    fresh: frozenset[Part]
    is_read_only: bool
    epoch: int
    number: int
    missing: list[PartState]
    is_waited: bool = False
    is_released: bool = False

    def __str__(self) -> str:
        return f"the {', '.join(self.parts)} of record {self.record!r}"

    @property
    def record(self) -> str:
        """Name of the record."""
        return self.layout.name

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        with self.lending.monitor.changed:
            is_ready = not self.missing
            for which, part in self.parts.items():
                is_fresh = which in self.fresh
                if part.read_error is not None and not is_fresh:
                    return True
                has_bytes = part.is_loaded or (is_fresh and not part.is_reading)
                is_held_back = self.lending.commits.holds_back(part, self.epoch)
                may_use = self.is_read_only or not (part.is_writing or is_held_back)
                is_ready = is_ready and has_bytes and may_use
            return is_ready

    @property
    def is_blocked(self) -> bool:
        """Whether other loans may have to be released before `wait` can return.

        So it is while the loan has no room in the ring, or may not change bytes that a commit
        wants whose turn comes first.
        """
        with self.lending.monitor.changed:
            commits = self.lending.commits
            may_be_held_back = commits.is_owed and not self.is_read_only
            return bool(self.missing) or any(
                (part.is_empty and which not in self.fresh)
                or (may_be_held_back and commits.holds_back(part, self.epoch))
                for which, part in self.parts.items()
            )

    def want_bytes(self, part: Part) -> None:
        """Let a part that was borrowed as fresh be read after all; to be called before `wait`.

        Raises `store-loan-misuse`.
        """
        with self.lending.monitor.changed:
            self._require_unreleased("changed")
            self._require_part(part)
            if self.is_waited:
                raise self._misuse("is to be read, but wait() has returned already")
            self.fresh -= {part}
            self.lending.read_if_wanted(self.parts[part])
            self.lending.monitor.announce()

    def wait(self) -> None:
        """Return when the bytes are in memory and, unless read-only, may be changed.

        Raises the error of the read (`store-read-failed`, `store-corrupt`), `store-stuck` when
        nothing moves, or the failure that stopped the store.
        """
        with self.lending.monitor.changed:
            self._require_unreleased("waited for")
            if self.is_waited:
                return
            self.lending.monitor.wait_until(
                lambda: self.is_ready, lambda: self.lending.describe(self)
            )
            for which, part in self.parts.items():
                if part.read_error is not None and which not in self.fresh:
                    raise OpenwaferError(*part.read_error.diagnostics)
            self.is_waited = True
            for which, part in self.parts.items():
                if not self.is_read_only:
                    part.num_writers += 1
                if which in self.fresh and not part.is_loaded:
                    _zero_gaps(self.layout, part)

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """View of one array, of its dtype and shape, on host memory, valid until the release."""
        state = self._usable(part)
        array = state.arrays.get(array_name)
        if array is None:
            place = self.layout.place(array_name, part)
            array = state.arrays[array_name] = place.view_in(state.held_buffer().tensor)
        # A tensor of the caller's own.
        return array.detach()

    def part_bytes_view(self, part: Part) -> torch.Tensor:
        """View of all bytes of a part: uint8, one dim of `part_bytes`, valid until the release."""
        return self._usable(part).held_buffer().tensor

    def share(self, part: Part) -> "Loan":
        """A read-only loan of one part of this one; it may outlive this one, and is ready."""
        with self.lending.monitor.changed:
            self._usable(part)
            return self.lending.share(self, part)

    def release(self, *, dirty: Collection[Part] = ()) -> None:
        """Give the parts back; those in `dirty`, and the fresh ones, were changed. Never blocks."""
        with self.lending.monitor.changed:
            self._require_unreleased("released")
            if dirty:
                self._require_changeable(dirty)
            self.lending.release(self, dirty)

    def _usable(self, part: Part) -> PartState:
        state = self.parts.get(part)
        if state is None or self.is_released or not self.is_waited:
            self._require_unreleased("used")
            self._require_part(part)
            raise self._misuse("is used before wait() has returned")
        return state

    def _require_part(self, part: Part) -> None:
        if part not in self.parts:
            raise self._misuse(f"does not include the {part}")

    def _require_unreleased(self, what: str) -> None:
        if self.is_released:
            raise self._misuse(f"is {what} after its release")

    def _require_changeable(self, dirty: Collection[Part]) -> None:
        if self.is_read_only:
            raise self._misuse("is read-only and is released as changed")
        if not self.is_waited:
            raise self._misuse("is released as changed, but nobody waited for its bytes")
        if not set(dirty) <= self.parts.keys():
            raise self._misuse(
                f"is released with changed parts it lacks: {', '.join(sorted(dirty))}"
            )

    def _misuse(self, what: str) -> OpenwaferError:
        return error(
            "store-loan-misuse",
            f"the loan of {self} {what}",
            help="wait for a loan, use what was borrowed, then release it, once",
        )


class Lending:
    """Grants loans strictly in order, hits too, and the parts of the first one by one.

    If a later loan could take bytes while an earlier one waits for room, the two could wait for
    each other. In order, a loan is granted once its bytes and those lent before it fit the ring.
    A part is read as soon as there is room for it alone, so that in a ring of less than two records
    a part of the next one is read while the last one is in use or being written. What is foreseen
    is read behind all loans, into room that a loan takes away again.
    All methods want the store's lock held.

    Args:
        monitor, ring, commits, meter: the store's.
        unit_bytes: of a transfer.
        keep_pace: called before each loan, release and foresight.
    """

    def __init__(
        self,
        monitor: Monitor,
        ring: Ring,
        commits: Commits,
        meter: TrafficMeter,
        unit_bytes: int,
        keep_pace: Callable[[], None],
    ) -> None:
        self.monitor = monitor
        self._ring = ring
        self.commits = commits
        self._meter = meter
        self._waiting: deque[Loan] = deque()
        self._foreseen: deque[PartState] = deque()
        self._kept: list[PartState] = []
        # Who has each part on disk, in the order in which they were given it.
        self._lent: dict[PartState, list[Loan]] = {}
        self._num_loans = 0
        self._keep_pace = keep_pace
        self.read_ahead = ReadAhead(monitor, meter, unit_bytes, self._settle)
        self.write_behind = WriteBehind(monitor, commits, meter, unit_bytes, self._settle)

    def lend(
        self,
        layout: RecordLayout,
        parts: Mapping[Part, PartState],
        fresh: frozenset[Part],
        *,
        is_read_only: bool,
    ) -> Loan:
        """Queue a loan and start whatever can start."""
        self._keep_pace()
        self._num_loans += 1
        epoch, states = self.commits.epoch, list(parts.values())
        loan = Loan(self, layout, parts, fresh, is_read_only, epoch, self._num_loans, states)
        num_bytes = sum(part.num_bytes for part in states if not part.is_resident)
        if num_bytes > self._ring.num_bytes:
            raise error(
                "store-ring-too-small",
                f"{loan} need {num_bytes} bytes of the ring, which has {self._ring.num_bytes}",
                help=f"raise ring_bytes to {num_bytes} or more, or borrow fewer parts at once",
            )
        if not is_read_only:
            for part in states:
                part.num_writable += 1
        self._waiting.append(loan)
        self._grant_in_order()
        return loan

    def foresee(self, parts: Iterable[PartState]) -> None:
        """Read parts into the ring while it has room; forget those foreseen before."""
        self._keep_pace()
        self._foreseen, self._kept = deque(parts), []
        self._grant_in_order()

    def share(self, loan: Loan, which: Part) -> Loan:
        """A read-only loan of a part that another holds: granted, for it takes no room."""
        part, number = loan.parts[which], loan.number
        shared = Loan(self, loan.layout, {which: part}, frozenset(), True, loan.epoch, number, [])
        shared.is_waited = True
        self._give(shared, part)
        return shared

    def release(self, loan: Loan, dirty: Collection[Part]) -> None:
        """Take the parts back and send changed ones on their way to the disk."""
        self._keep_pace()
        loan.is_released = True
        if loan.missing:
            self._waiting.remove(loan)
        for which, part in loan.parts.items():
            if part not in loan.missing:
                self._take_back(loan, part)
            if not loan.is_read_only:
                part.num_writable -= 1
                part.num_writers -= loan.is_waited
                self.commits.note_returned(part, loan.epoch)
            is_changed = which in dirty or (which in loan.fresh and loan.is_waited)
            if is_changed and part.num_bytes:
                part.is_dirty = part.is_loaded = True
                part.read_error = None
            self.read_if_wanted(part)
            self._settle(part)
        self.monitor.announce()

    @property
    def num_waiting(self) -> int:
        """Loans that have no room yet."""
        return len(self._waiting)

    def _grant_in_order(self) -> None:
        while self._waiting:
            self._grant_parts(self._waiting[0])
            if self._waiting[0].missing:
                break
            self._waiting.popleft()
        while self._foreseen and not self._waiting and self._read_foreseen(self._foreseen[0]):
            self._kept.append(self._foreseen.popleft())

    def _read_foreseen(self, part: PartState) -> bool:
        """Have a part read unless it is in memory; False when only parts foreseen make room."""
        if part.buffer is not None:
            return True
        if not self._ring.has_room(part.num_bytes, kept=self._kept):
            return False
        # They give way behind all else that is idle, what is wanted last first: were the first to
        # go, its read would send the next away, and so on to the last.
        for wanted in (part, *reversed(self._kept)):
            self._ring.note_use(wanted)
        part.buffer = self._ring.take(part.num_bytes)
        self.load(part)
        if part.is_evictable:
            self._ring.keep_idle(part)
        return True

    def _grant_parts(self, loan: Loan) -> None:
        # Hits first: making room for the others would drop them. Then the largest that fits.
        loan.missing.sort(key=lambda part: (part.buffer is None, -part.num_bytes))
        for part in tuple(loan.missing):
            if part.buffer is None:
                if not self._ring.has_room(part.num_bytes, kept=loan.parts.values()):
                    continue
                part.buffer = self._ring.take(part.num_bytes)
                if part.part not in loan.fresh:
                    self.load(part)
            elif not part.is_resident:
                self._ring.claim(part)
                if part.part not in loan.fresh:
                    self._meter.count_hit(part.num_bytes)
            loan.missing.remove(part)
            self._give(loan, part)

    def _give(self, loan: Loan, part: PartState) -> None:
        part.num_loans += 1
        if not part.is_resident:
            self._lent.setdefault(part, []).append(loan)

    def _take_back(self, loan: Loan, part: PartState) -> None:
        part.num_loans -= 1
        if not part.is_resident:
            self._ring.note_use(part)
            self._lent[part].remove(loan)
            if not part.num_loans:
                del self._lent[part]

    def read_if_wanted(self, part: PartState) -> None:
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

    def _settle(self, part: PartState) -> None:
        self.commits.note(part)
        if part.is_dirty:
            if not part.is_resident or self.commits.is_unwritten(part):
                self.write_behind.enqueue(part)
        elif part.is_evictable and part.buffer is not None:
            if part.is_loaded:
                self._ring.keep_idle(part)
            else:
                self._ring.drop(part)
        if self._waiting or self._foreseen:
            self._grant_in_order()

    def describe(self, loan: Loan) -> str:
        """What a loan waits for."""
        if not loan.missing:
            return f"{loan}: the end of its read, write or commit"
        lent = ", ".join(str(part) for part in self._lent) or "nothing"
        lent_bytes = sum(part.num_bytes for part in self._lent)
        return (
            f"{loan}: room in the ring of {self._ring.num_bytes} bytes, of which {lent_bytes} "
            f"are lent: {lent}"
        )


def _zero_gaps(layout: RecordLayout, part: PartState) -> None:
    # Equal arrays make equal parts, and so equal checksums, only when the gaps are equal too.
    for start, end in gaps(layout, part.part):
        part.held_buffer().window(start, end)[:] = bytes(end - start)
