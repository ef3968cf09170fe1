"""The parts of the records: their state, slots, commits, ring and lock.

A version that a manifest names, or is about to name, is pinned: its slot is never written. So the
newest version goes to the other slot, where later ones replace it until a commit pins it. While a
commit is under way both slots may be pinned; then the next write waits for the commit.

A commit takes its place in the order of the borrow calls, while work on the next step goes on.
Loans borrowed before it that may change bytes belong to it, so it waits for their release; loans
borrowed after it may change a part only once the part's bytes of the commit are on disk.
"""

import json
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from types import TracebackType
from typing import Final, TypeAlias

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import KEPT_PARTS, Part, PartKey
from openwafer.training.store.pages import HostBuffer, SparePages

NUM_SLOTS = 2


class Monitor:
    """Guards the store's state; every change of it is announced to all who wait.

    The store does a handful of steps per layer and transfer, so one lock is never contended.

    Attributes:
        changed: the lock, and what is notified of every change.
        has_reads: the same lock; notified where there is something to read, or no more will be.
    """

    def __init__(self, stall_seconds: float) -> None:
        lock = threading.RLock()
        self.changed, self.has_reads = threading.Condition(lock), threading.Condition(lock)
        self.failure: OpenwaferError | None = None
        self.is_closed = False
        self._stall_seconds = stall_seconds
        self._last_progress = time.monotonic()
        self._is_failure_reported = False

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may begin: the store is closed or has failed. The lock is held."""
        return self.is_closed or self.failure is not None

    def note_progress(self) -> None:
        """Restart the clocks of all waits."""
        self._last_progress = time.monotonic()

    def announce(self) -> None:
        """Wake all waits, and restart their clocks. The lock must be held."""
        self.note_progress()
        self.changed.notify_all()
        if self.is_closed:
            self.has_reads.notify_all()

    def fail(self, failure: OpenwaferError) -> None:
        """Stop the store for good; the first failure is kept."""
        with self.changed:
            self.failure = self.failure or failure
            self.announce()

    def stop_on_error(
        self,
        _kind: type[BaseException] | None,
        cause: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        """As the exit of a context: whatever the block raises stops the store, and is handled."""
        if cause is not None:
            self.fail(cause if isinstance(cause, OpenwaferError) else _thread_failed(cause))
        return True

    def require_alive(self) -> None:
        """Raise the failure that stopped the store, or `store-closed`. The lock must be held."""
        if self.failure is not None:
            self._is_failure_reported = True
            raise OpenwaferError(*self.failure.diagnostics) from self.failure.__cause__
        if self.is_closed:
            raise error(
                "store-closed",
                "the parameter store is closed",
                help="close it after its last use, or open its folder again",
            )

    def raise_unreported_failure(self) -> None:
        """Raise the failure unless a call has raised it before. The lock must be held."""
        if self.failure is not None and not self._is_failure_reported:
            self.require_alive()

    def wait_until(self, is_done: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Wait, with the lock held, until `is_done`.

        Raises the store's failure, or `store-stuck` with the text of `describe` when nothing in
        the store has moved for the stall time.
        """
        self.require_alive()
        start = time.monotonic()
        while not is_done():
            idle_seconds = time.monotonic() - max(start, self._last_progress)
            if idle_seconds >= self._stall_seconds:
                raise error(
                    "store-stuck",
                    f"nothing has moved in the parameter store for {idle_seconds:.1f} s",
                    notes=(f"waiting for {describe()}",),
                    help="release loans before waiting for more, or raise ring_bytes",
                )
            self.changed.wait(self._stall_seconds - idle_seconds)
            self.require_alive()


def _thread_failed(cause: BaseException) -> OpenwaferError:
    is_memory = isinstance(cause, MemoryError)
    failure = error(
        "store-thread-failed",
        f"{threading.current_thread().name}, a thread of the parameter store, ended with "
        f"{type(cause).__name__}: {cause}",
        help=("free memory or lower ring_bytes" if is_memory else "mend what raised it")
        + ", then open the store again at its last committed step",
    )
    failure.__cause__ = cause
    return failure


@dataclass(frozen=True)
class Version:
    """Bytes of a part in a slot, with their xxh3_64 checksum in hexadecimal."""

    slot: int
    checksum: str


@dataclass
class Slots:
    """Versions of one part; None stands for a part never written, all of whose bytes are zero.

    `working` is the newest on disk, `committed` the one of the last manifest, `pending` the one of
    the commit under way, where there is one.
    """

    working: Version | None = None
    committed: Version | None = None
    pending: Version | None = None

    def free_slot(self) -> int | None:
        """The slot the next version goes to; None while both are pinned."""
        pinned = {version.slot for version in (self.committed, self.pending) if version}
        if self.working and self.working.slot not in pinned:
            return self.working.slot
        return next((slot for slot in range(NUM_SLOTS) if slot not in pinned), None)

    def pin_working(self) -> None:
        """Make the newest version part of the commit under way."""
        self.pending = self.working

    def settle(self) -> None:
        """The commit is durable: its version replaces the one committed before."""
        self.committed = self.pending
        self.pending = None


class Tier(StrEnum):
    """The home of a part between loans."""

    DRAM = "dram"
    DISK = "disk"


class PartState:
    """Memory, slots and loans of one part. All fields are guarded by the store's monitor.

    A part in DRAM, and one without bytes, keeps its buffer; a part on disk has one only while it is
    in the ring. `offsets` are the places of its slots in the file.
    """

    def __init__(
        self, record: str, part: Part, tier: Tier, num_bytes: int, offsets: tuple[int, ...]
    ) -> None:
        self.record = record
        self.part = part
        self.num_bytes = num_bytes
        self.offsets = offsets
        self.is_resident = tier is Tier.DRAM or num_bytes == 0
        self.is_kept = part in KEPT_PARTS and num_bytes > 0
        self.slots = Slots()
        self.buffer = HostBuffer(num_bytes) if self.is_resident else None
        # Views of the buffer, by name of the array.
        self.arrays: dict[str, torch.Tensor] = {}
        self.is_loaded = self.is_resident
        self.is_reading = False
        self.read_error: OpenwaferError | None = None
        self.num_loans = 0
        # Unreleased loans that may change the bytes; those of them that were waited for; and those
        # that were borrowed before the commit under way, which therefore includes their changes.
        self.num_writable = 0
        self.num_writers = 0
        self.num_owed = 0
        self.is_dirty = False
        self.is_writing = False
        # Place in the order in which parts of the ring were used; those with lower ones go first.
        self.last_use = 0

    def __str__(self) -> str:
        return f"the {self.part} of record {self.record!r}"

    @property
    def is_evictable(self) -> bool:
        """Nobody needs the buffer: it is lent to nobody, and the disk has the same bytes."""
        in_use = self.num_loans or self.is_reading or self.is_dirty or self.is_writing
        return not (self.is_resident or in_use)

    @property
    def is_empty(self) -> bool:
        """Its bytes are not in memory, nobody reads them, and no read has failed."""
        return not (self.is_loaded or self.is_reading or self.read_error)

    @property
    def is_settled(self) -> bool:
        """No change that belongs to the commit under way is still to come or to be written."""
        return not (self.num_owed or self.is_dirty or self.is_writing)

    @property
    def is_changed(self) -> bool:
        """Whether a part that is kept is not what the last commit has, which is durable."""
        return self.is_kept and (self.is_dirty or self.slots.working != self.slots.committed)

    def held_buffer(self) -> HostBuffer:
        """The buffer of a part that is in memory."""
        if self.buffer is None:
            raise AssertionError(f"{self} has no buffer")
        return self.buffer


_LAST_USE: Final = attrgetter("last_use")


class Ring:
    """At most `num_bytes` of buffers: lent, idle (clean, still holding their part), or spare."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.mapped_bytes = 0
        self._spare: list[HostBuffer] = []
        self._spare_pages = SparePages()
        # By their last use, which no two have in common.
        self._idle: list[PartState] = []
        self._idle_bytes = 0
        self._num_uses = 0

    def has_room(self, num_bytes: int, kept: Iterable[PartState]) -> bool:
        """Whether so many bytes can be had while the buffers of `kept` stay."""
        reusable_bytes = self._idle_bytes
        reusable_bytes -= sum(
            part.num_bytes for part in set(kept) if self._place_of(part) is not None
        )
        reusable_bytes += sum(buffer.num_bytes for buffer in self._spare)
        reusable_bytes += self._spare_pages.num_bytes
        return num_bytes <= self.num_bytes - self.mapped_bytes + reusable_bytes

    def take(self, num_bytes: int) -> HostBuffer:
        """Return a buffer, whatever it holds, where `has_room` said there is one."""
        while True:
            for buffer in self._spare:
                if buffer.num_bytes == num_bytes:
                    self._spare.remove(buffer)
                    return buffer
            if self.mapped_bytes - self._spare_pages.num_bytes + num_bytes <= self.num_bytes:
                return self._new_buffer(num_bytes)
            if self._spare:
                buffer = self._spare.pop()
                self._spare_pages.add(buffer)
                self.mapped_bytes -= buffer.num_bytes - buffer.num_huge_bytes
            else:
                self.drop(self._idle[0])

    def _new_buffer(self, num_bytes: int) -> HostBuffer:
        buffer = HostBuffer(num_bytes)
        self.mapped_bytes += num_bytes - self._spare_pages.move_to(buffer)
        while self.mapped_bytes > self.num_bytes:
            self.mapped_bytes -= self._spare_pages.give_back()
        return buffer

    def keep_idle(self, part: PartState) -> None:
        """Keep a clean part until its space is needed, the one used longest ago going first."""
        self.claim(part)
        insort(self._idle, part, key=_LAST_USE)
        self._idle_bytes += part.num_bytes

    def note_use(self, part: PartState) -> None:
        """A part is used now."""
        is_idle = self.claim(part)
        self._num_uses += 1
        part.last_use = self._num_uses
        if is_idle:
            self.keep_idle(part)

    def claim(self, part: PartState) -> bool:
        """Take a part that is about to be lent out of the idle ones; whether it was one."""
        place = self._place_of(part)
        if place is None:
            return False
        del self._idle[place]
        self._idle_bytes -= part.num_bytes
        return True

    def _place_of(self, part: PartState) -> int | None:
        """Place of a part among the idle ones."""
        place = bisect_left(self._idle, part.last_use, key=_LAST_USE)
        return place if part in self._idle[place : place + 1] else None

    def drop(self, part: PartState) -> None:
        """Forget a part's bytes; its buffer becomes spare."""
        self.claim(part)
        self._spare.append(part.held_buffer())
        part.buffer = None
        part.arrays.clear()
        part.is_loaded = False
        part.read_error = None


Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def json_copy(state: Mapping[str, Json]) -> Mapping[str, Json]:
    """A copy of the state as a file would give it back. Raises `store-state-not-json`."""
    try:
        copy: Mapping[str, Json] = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as cause:
        raise error(
            "store-state-not-json",
            f"the state of a commit must be JSON: {cause}",
            help="encode tensors and bytes as text, such as base64",
        ) from cause
    return copy


@dataclass(frozen=True)
class PendingCommit:
    """A commit under way. `unwritten` are the parts whose bytes of this step are not on disk."""

    epoch: int
    step: int
    state: Mapping[str, Json]
    unwritten: set[PartState]


# Makes a commit durable, given the versions it pins. Raises OSError.
Publish = Callable[[PendingCommit, Mapping[PartKey, Version]], None]


class Commits:
    """The last commit, the one under way, and the epoch: the number of commits begun so far.

    All methods want the lock of the store held.
    """

    def __init__(self, parts: Iterable[PartState], publish: Publish) -> None:
        self.publish = publish
        self._kept = [part for part in parts if part.is_kept]
        # Of all parts together.
        self._num_owed = 0
        self.epoch = 0
        self.pending: PendingCommit | None = None
        self.step: int | None = None
        self.state: Mapping[str, Json] = {}

    def begin(self, step: int, state: Mapping[str, Json]) -> list[PartState]:
        """Start a commit; return the parts with changes that are in memory only."""
        unwritten = set()
        for part in self._kept:
            part.num_owed = part.num_writable
            if part.is_settled:
                part.slots.pin_working()
            else:
                unwritten.add(part)
        self._num_owed = sum(part.num_owed for part in unwritten)
        self.pending = PendingCommit(self.epoch, step, state, unwritten)
        self.epoch += 1
        return [part for part in self._kept if part in unwritten and part.is_dirty]

    def is_unwritten(self, part: PartState) -> bool:
        """Whether the commit under way still lacks the part's bytes."""
        return self.pending is not None and part in self.pending.unwritten

    def holds_back(self, part: PartState, epoch: int) -> bool:
        """Whether a loan of that epoch must not change the part yet."""
        pending = self.pending
        return pending is not None and epoch > pending.epoch and part in pending.unwritten

    def note(self, part: PartState) -> None:
        """Take the part's newest version into the commit under way, once there is no later one."""
        if self.pending is not None and part in self.pending.unwritten and part.is_settled:
            part.slots.pin_working()
            self.pending.unwritten.remove(part)

    @property
    def is_ready(self) -> bool:
        """All bytes of the commit under way are written."""
        return self.pending is not None and not self.pending.unwritten

    @property
    def is_owed(self) -> bool:
        """The commit under way waits for loans to be released."""
        return self._num_owed > 0

    def note_returned(self, part: PartState, epoch: int) -> None:
        """A loan of that epoch that might change the part has been released."""
        if part.is_kept and self.pending is not None and epoch <= self.pending.epoch:
            part.num_owed -= 1
            self._num_owed -= 1

    def describe_unwritten(self) -> str:
        """The parts that the commit under way lacks, and which of them are still lent."""
        unwritten = self.pending.unwritten if self.pending else ()
        return ", ".join(f"{part}{' (lent)' * bool(part.num_owed)}" for part in unwritten)

    def versions(self) -> dict[PartKey, Version]:
        """The versions that the commit under way pins."""
        return {
            (part.record, part.part): part.slots.pending
            for part in self._kept
            if part.slots.pending is not None
        }

    def settle(self, pending: PendingCommit) -> None:
        """The commit is durable."""
        for part in self._kept:
            part.slots.settle()
        self.step, self.state = pending.step, pending.state
        self.pending = None
