"""The threads between memory and disk, and their accounts."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import Part
from openwafer.training.store.pages import HostBuffer
from openwafer.training.store.parts import Commits, Monitor, PartState, PendingCommit, Version
from openwafer.training.store.store_file import StoreFile, TransferError


@dataclass(frozen=True)
class DiskTransfer:
    """One finished piece of disk work, on the clock of `time.perf_counter`.

    `kind` is "read", "write" or "commit"; a commit has no record and no part.
    """

    kind: str
    record: str
    part: Part | None
    num_bytes: int
    start_seconds: float
    end_seconds: float


TransferListener: TypeAlias = Callable[[DiskTransfer], None]


@dataclass(frozen=True)
class Traffic:
    """Bytes moved since the store was made or opened.

    The seconds are those in which at least one read (or write) was under way. A hit is a part that
    a loan found in the ring, so that it was not read. `is_direct` is False where the file system
    refuses direct I/O and the page cache stands between.
    """

    read_bytes: int
    written_bytes: int
    num_reads: int
    num_writes: int
    read_seconds: float
    write_seconds: float
    num_hits: int
    hit_bytes: int
    is_direct: bool


@dataclass
class _Flow:
    num_bytes: int = 0
    num_transfers: int = 0
    num_active: int = 0
    active_since: float = 0.0
    busy_seconds: float = 0.0


class TrafficMeter:
    """Sums of reads and writes. It has its own lock: I/O threads call it without the store's."""

    def __init__(self, on_transfer: TransferListener | None) -> None:
        self._lock = threading.Lock()
        self._on_transfer = on_transfer
        self._flows = {"read": _Flow(), "write": _Flow(), "commit": _Flow()}
        self._num_hits = 0
        self._hit_bytes = 0

    @contextmanager
    def transfer(
        self, kind: str, part: PartState | None = None, num_bytes: int = 0
    ) -> Iterator[None]:
        """Context of a transfer; one that fails counts like one that goes well."""
        flow, start_seconds = self._flows[kind], time.perf_counter()
        with self._lock:
            if flow.num_active == 0:
                flow.active_since = start_seconds
            flow.num_active += 1
        try:
            yield
        finally:
            end_seconds = time.perf_counter()
            with self._lock:
                flow.num_bytes += num_bytes
                flow.num_transfers += 1
                flow.num_active -= 1
                if flow.num_active == 0:
                    flow.busy_seconds += end_seconds - flow.active_since
            if self._on_transfer is not None:
                record, which = (part.record, part.part) if part else ("", None)
                self._on_transfer(
                    DiskTransfer(kind, record, which, num_bytes, start_seconds, end_seconds)
                )

    def count_hit(self, num_bytes: int) -> None:
        """A loan found a part in the ring."""
        with self._lock:
            self._num_hits += 1
            self._hit_bytes += num_bytes

    def snapshot(self, is_direct: bool) -> Traffic:
        """The sums so far."""
        with self._lock:
            read, write = self._flows["read"], self._flows["write"]
            return Traffic(
                read_bytes=read.num_bytes,
                written_bytes=write.num_bytes,
                num_reads=read.num_transfers,
                num_writes=write.num_transfers,
                read_seconds=read.busy_seconds,
                write_seconds=write.busy_seconds,
                num_hits=self._num_hits,
                hit_bytes=self._hit_bytes,
                is_direct=is_direct,
            )


class ArrivalChecksum:
    """XXH3, 64 bits, of a part whose units of `unit_bytes` come in any order, from any thread."""

    def __init__(self, buffer: HostBuffer, unit_bytes: int) -> None:
        self._buffer = buffer
        self._unit_bytes = unit_bytes
        self._digest = xxhash.xxh3_64()
        self._lock = threading.Lock()
        self._arrived: set[int] = set()
        self._position = 0
        self._is_taken = False

    def take(self, start: int) -> bool:
        """The unit that begins at `start` has come; say, to one caller, when all bytes are taken.

        Bytes are taken in their order: by whoever brings the first that is missing, together with
        those that came behind it meanwhile.
        """
        with self._lock:
            self._arrived.add(start)
            if self._is_taken or self._position not in self._arrived:
                return False
            self._is_taken = True
        while True:
            end = min(self._position + self._unit_bytes, self._buffer.num_bytes)
            self._digest.update(self._buffer.window(self._position, end))
            with self._lock:
                self._position = end
                if end not in self._arrived:
                    self._is_taken = False
                    return end == self._buffer.num_bytes

    @property
    def hexadecimal(self) -> str:
        """The checksum, once all bytes are taken."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class ReadUnit:
    """One read: the bytes from `start` to `end` of a part, of the version that was newest."""

    part: PartState
    version: Version
    checksum: ArrivalChecksum
    start: int
    end: int


class IoThreads(ABC):
    """Threads that move parts between memory and the file, in units of `unit_bytes`.

    With two of a kind the disk stays busy while one of them computes a checksum, or commits.
    Whatever a thread raises stops the store, at once and for good: nobody waits for the thread, and
    those who wait for its work raise its error instead.

    Args:
        name: of the threads.
        monitor: the store's.
        meter: is told of every transfer.
        unit_bytes: of a transfer.
        on_moved: called with each part that is wholly read or written, the lock held.
    """

    def __init__(
        self,
        name: str,
        monitor: Monitor,
        meter: TrafficMeter,
        unit_bytes: int,
        on_moved: Callable[[PartState], None],
    ) -> None:
        self._name = name
        self._monitor = monitor
        self._meter = meter
        self._unit_bytes = unit_bytes
        self._on_moved = on_moved
        self.threads: list[threading.Thread] = []

    def start(self, file: StoreFile, num_threads: int) -> None:
        """Start the threads."""
        self._file = file
        for number in range(num_threads):
            thread = threading.Thread(
                target=self._run_guarded, name=f"store-{self._name}-{number}", daemon=True
            )
            thread.start()
            self.threads.append(thread)

    def join(self) -> None:
        """Wait for the threads, which end after their unit once the monitor is closed."""
        for thread in self.threads:
            thread.join()

    def _run_guarded(self) -> None:
        with ExitStack() as stack:
            stack.push(self._monitor.stop_on_error)
            self._run()

    @abstractmethod
    def _run(self) -> None:
        """All that a thread does."""

    def _units(self, part: PartState) -> Iterator[tuple[int, int]]:
        """Start and end of each unit of a part."""
        for start in range(0, part.num_bytes, self._unit_bytes):
            yield start, min(start + self._unit_bytes, part.num_bytes)


class ReadAhead(IoThreads):
    """Reads units strictly in order; whoever takes a part's last unit verifies its checksum."""

    def __init__(
        self,
        monitor: Monitor,
        meter: TrafficMeter,
        unit_bytes: int,
        on_loaded: Callable[[PartState], None],
    ) -> None:
        super().__init__("read", monitor, meter, unit_bytes, on_loaded)
        self._queue: deque[ReadUnit] = deque()

    def enqueue(self, part: PartState, version: Version) -> None:
        """Read a part into its buffer. The lock must be held."""
        part.is_reading = True
        checksum = ArrivalChecksum(part.held_buffer(), self._unit_bytes)
        for start, end in self._units(part):
            self._queue.append(ReadUnit(part, version, checksum, start, end))
        self._monitor.has_reads.notify_all()

    def _run(self) -> None:
        while (unit := self._next_unit()) is not None:
            failure = self._read(unit)
            self._monitor.note_progress()
            with self._monitor.changed:
                unit.part.read_error = unit.part.read_error or failure
            if unit.checksum.take(unit.start):
                self._finish(unit)

    def _next_unit(self) -> ReadUnit | None:
        with self._monitor.has_reads:
            while not self._queue and not self._monitor.is_closed:
                self._monitor.has_reads.wait()
            return None if self._monitor.is_closed else self._queue.popleft()

    def _read(self, unit: ReadUnit) -> OpenwaferError | None:
        part = unit.part
        if part.read_error is not None:
            return None
        offset = part.offsets[unit.version.slot] + unit.start
        try:
            with self._meter.transfer("read", part, unit.end - unit.start):
                self._file.read(part.held_buffer().window(unit.start, unit.end), offset)
        except TransferError as cause:
            return error(
                "store-read-failed",
                f"cannot read {part} from {self._file.path} at byte {offset}: {cause}",
                help="check the disk; the committed step is in the store, or load a checkpoint",
            )
        return None

    def _finish(self, unit: ReadUnit) -> None:
        part = unit.part
        if part.read_error is None:
            found = unit.checksum.hexadecimal
            if found != unit.version.checksum:
                part.read_error = self._corrupt(unit, found)
        with self._monitor.changed:
            part.is_reading = False
            part.is_loaded = part.read_error is None
            self._on_moved(part)
            self._monitor.announce()

    def _corrupt(self, unit: ReadUnit, found: str) -> OpenwaferError:
        part = unit.part
        offset = part.offsets[unit.version.slot]
        return error(
            "store-corrupt",
            f"{part} at byte {offset} of {self._file.path} has the checksum {found} where "
            f"{unit.version.checksum} was written",
            notes=(f"the part has {part.num_bytes} bytes in slot {unit.version.slot}",),
            help="check the disk, and load the last checkpoint into a new store",
        )


class WriteBehind(IoThreads):
    """Writes parts in the order of their release, passing over those that may not be written yet.

    A part waits while a loan may be changing it, and while both its slots are pinned.
    The first failed write or commit stops the store: no other begins after it.
    """

    def __init__(
        self,
        monitor: Monitor,
        commits: Commits,
        meter: TrafficMeter,
        unit_bytes: int,
        on_written: Callable[[PartState], None],
    ) -> None:
        super().__init__("write", monitor, meter, unit_bytes, on_written)
        self._commits = commits
        self._queue: dict[PartState, None] = {}
        self._is_committing = False

    def enqueue(self, part: PartState) -> None:
        """Have a changed part written. The lock must be held."""
        self._queue[part] = None

    def forget(self, part: PartState) -> None:
        """Leave a kept part unwritten. The lock must be held."""
        if part.is_kept:
            self._queue.pop(part, None)

    @property
    def num_waiting(self) -> int:
        """Parts not yet under way to the disk. The lock must be held."""
        return len(self._queue)

    def next_ready(self) -> tuple[PartState, int] | None:
        """The first part that may be written, and the slot it goes to. The lock must be held."""
        for part in self._queue:
            slot = part.slots.free_slot()
            if slot is not None and part.num_writers == 0:
                return part, slot
        return None

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            if isinstance(job, PendingCommit):
                self._commit(job)
            else:
                self._write(*job)

    def _next_job(self) -> tuple[PartState, int] | PendingCommit | None:
        with self._monitor.changed:
            while not self._monitor.is_stopped:
                if self._commits.is_ready and not self._is_committing:
                    self._is_committing = True
                    return self._commits.pending
                if (write := self._next_write()) is not None:
                    return write
                self._monitor.changed.wait()
            return None

    def _next_write(self) -> tuple[PartState, int] | None:
        ready = self.next_ready()
        if ready is not None:
            part, _ = ready
            del self._queue[part]
            part.is_dirty = False
            part.is_writing = True
        return ready

    def _write(self, part: PartState, slot: int) -> None:
        checksum = xxhash.xxh3_64()
        for start, end in self._units(part):
            window = part.held_buffer().window(start, end)
            # A unit that was just read for the checksum is in cache when it is written.
            checksum.update(window)
            self._write_unit(part, window, part.offsets[slot] + start)
        with self._monitor.changed:
            part.is_writing = False
            part.slots.working = Version(slot, checksum.hexdigest())
            self._on_moved(part)
            self._monitor.announce()

    def _write_unit(self, part: PartState, window: memoryview, offset: int) -> None:
        try:
            with self._meter.transfer("write", part, len(window)):
                self._file.write(window, offset)
        except TransferError as cause:
            raise error(
                "store-write-failed",
                f"cannot write {part} to {self._file.path} at byte {offset}: {cause}",
                help="check the disk, then open the store again at its last committed step",
            ) from cause
        self._monitor.note_progress()

    def _commit(self, pending: PendingCommit) -> None:
        with self._monitor.changed:
            versions = self._commits.versions()
        try:
            with self._meter.transfer("commit"):
                self._file.sync()
                self._commits.publish(pending, versions)
        except OSError as cause:
            raise error(
                "store-commit-failed",
                f"cannot commit step {pending.step} to {self._file.path.parent}: {cause}",
                help="check the disk, then open the store again at its last committed step",
            ) from cause
        with self._monitor.changed:
            self._is_committing = False
            self._commits.settle(pending)
            self._monitor.announce()
