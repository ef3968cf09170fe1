"""The threads that write changed parts, and commit when all parts of a commit are written."""

import threading
import time
from collections.abc import Callable

import xxhash

from openwafer.diagnostics import error
from openwafer.training.store.commits import Commits, PendingCommit, Publish
from openwafer.training.store.direct_io import TransferError
from openwafer.training.store.monitor import Monitor, ThreadGuard
from openwafer.training.store.part_state import PartState
from openwafer.training.store.slots import Version
from openwafer.training.store.store_file import StoreFile
from openwafer.training.store.traffic_meter import TrafficMeter


class WriteBehind:
    """Writes parts in the order of their release, passing over those that may not be written yet.

    A part waits while a loan may be changing it, and while both its slots are pinned. With two
    writers the disk stays busy while one of them computes a checksum, and while the other commits.
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
        self._monitor = monitor
        self._commits = commits
        self._meter = meter
        self._unit_bytes = unit_bytes
        self._on_written = on_written
        self._queue: dict[PartState, None] = {}
        self._is_committing = False
        self.threads: list[threading.Thread] = []

    def start(self, file: StoreFile, publish: Publish, num_writers: int) -> None:
        """Start the threads."""
        for number in range(num_writers):
            thread = threading.Thread(
                target=self._run, args=(file, publish), name=f"store-write-{number}", daemon=True
            )
            thread.start()
            self.threads.append(thread)

    def join(self) -> None:
        """Wait for the threads, which end after their write once the monitor is closed."""
        for thread in self.threads:
            thread.join()

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

    def _run(self, file: StoreFile, publish: Publish) -> None:
        with ThreadGuard(self._monitor):
            while (job := self._next_job()) is not None:
                if isinstance(job, PendingCommit):
                    self._commit(file, publish, job)
                else:
                    self._write(file, *job)

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
        for part in self._queue:
            slot = part.slots.free_slot()
            if slot is not None and part.num_writers == 0:
                del self._queue[part]
                part.is_dirty = False
                part.is_writing = True
                return part, slot
        return None

    def _write(self, file: StoreFile, part: PartState, slot: int) -> None:
        buffer = part.held_buffer()
        checksum = xxhash.xxh3_64()
        for start in range(0, part.num_bytes, self._unit_bytes):
            end = min(start + self._unit_bytes, part.num_bytes)
            window = buffer.window(start, end)
            # A unit that was just read for the checksum is in cache when it is written.
            checksum.update(window)
            self._write_unit(file, part, window, part.offsets[slot] + start)
        with self._monitor.changed:
            part.is_writing = False
            part.slots.working = Version(slot, checksum.hexdigest())
            self._on_written(part)
            self._monitor.announce()

    def _write_unit(
        self, file: StoreFile, part: PartState, window: memoryview, offset: int
    ) -> None:
        start_seconds = time.perf_counter()
        self._meter.begin("write")
        try:
            file.write(window, offset)
        except TransferError as cause:
            raise error(
                "store-write-failed",
                f"cannot write {part} to {file.path} at byte {offset}: {cause}",
                help="check the disk, then open the store again at its last committed step",
            ) from cause
        finally:
            self._meter.end("write", part, len(window), start_seconds)
        self._monitor.note_progress()

    def _commit(self, file: StoreFile, publish: Publish, pending: PendingCommit) -> None:
        with self._monitor.changed:
            versions = self._commits.versions()
        start_seconds = time.perf_counter()
        self._meter.begin("commit")
        try:
            file.sync()
            publish(pending, versions)
        except OSError as cause:
            raise error(
                "store-commit-failed",
                f"cannot commit step {pending.step} to {file.path.parent}: {cause}",
                help="check the disk, then open the store again at its last committed step",
            ) from cause
        finally:
            self._meter.end("commit", None, 0, start_seconds)
        with self._monitor.changed:
            self._is_committing = False
            self._commits.settle(pending)
            self._monitor.announce()
