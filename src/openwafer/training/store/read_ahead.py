"""The threads that read parts from the store file, in the order of the loans."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.arrival_checksum import ArrivalChecksum
from openwafer.training.store.direct_io import TransferError
from openwafer.training.store.monitor import Monitor, ThreadGuard
from openwafer.training.store.part_state import PartState
from openwafer.training.store.slots import Version
from openwafer.training.store.store_file import StoreFile
from openwafer.training.store.traffic_meter import TrafficMeter


@dataclass(frozen=True)
class ReadUnit:
    """One read: the bytes from `start` to `end` of a part, of the version that was newest."""

    part: PartState
    version: Version
    checksum: ArrivalChecksum
    start: int
    end: int


class ReadAhead:
    """Reads units strictly in order; whoever takes a part's last unit verifies its checksum.

    With two readers the disk stays busy while one of them computes a checksum.
    """

    def __init__(
        self,
        monitor: Monitor,
        meter: TrafficMeter,
        unit_bytes: int,
        on_loaded: Callable[[PartState], None],
    ) -> None:
        self._monitor = monitor
        self._meter = meter
        self._unit_bytes = unit_bytes
        self._on_loaded = on_loaded
        self._units: deque[ReadUnit] = deque()
        self.threads: list[threading.Thread] = []

    def start(self, file: StoreFile, num_readers: int) -> None:
        """Start the threads."""
        for number in range(num_readers):
            thread = threading.Thread(
                target=self._run, args=(file,), name=f"store-read-{number}", daemon=True
            )
            thread.start()
            self.threads.append(thread)

    def join(self) -> None:
        """Wait for the threads, which end after their unit once the monitor is closed."""
        for thread in self.threads:
            thread.join()

    def enqueue(self, part: PartState, version: Version) -> None:
        """Read a part into its buffer. The lock must be held."""
        part.is_reading = True
        checksum = ArrivalChecksum(part.held_buffer(), self._unit_bytes)
        for start in range(0, part.num_bytes, self._unit_bytes):
            end = min(start + self._unit_bytes, part.num_bytes)
            self._units.append(ReadUnit(part, version, checksum, start, end))
        self._monitor.changed.notify_all()

    def _run(self, file: StoreFile) -> None:
        with ThreadGuard(self._monitor):
            while (unit := self._next_unit()) is not None:
                failure = self._read(file, unit)
                self._monitor.note_progress()
                with self._monitor.changed:
                    unit.part.read_error = unit.part.read_error or failure
                if unit.checksum.take(unit.start):
                    self._finish(file, unit)

    def _next_unit(self) -> ReadUnit | None:
        with self._monitor.changed:
            while not self._units and not self._monitor.is_closed:
                self._monitor.changed.wait()
            return None if self._monitor.is_closed else self._units.popleft()

    def _read(self, file: StoreFile, unit: ReadUnit) -> OpenwaferError | None:
        part = unit.part
        if part.read_error is not None:
            return None
        offset = part.offsets[unit.version.slot] + unit.start
        start_seconds = time.perf_counter()
        self._meter.begin("read")
        try:
            file.read(part.held_buffer().window(unit.start, unit.end), offset)
        except TransferError as cause:
            return error(
                "store-read-failed",
                f"cannot read {part} from {file.path} at byte {offset}: {cause}",
                help="check the disk; the committed step is in the store, or load a checkpoint",
            )
        finally:
            self._meter.end("read", part, unit.end - unit.start, start_seconds)
        return None

    def _finish(self, file: StoreFile, unit: ReadUnit) -> None:
        part = unit.part
        if part.read_error is None:
            found = unit.checksum.hexadecimal
            if found != unit.version.checksum:
                part.read_error = self._corrupt(file, unit, found)
        with self._monitor.changed:
            part.is_reading = False
            part.is_loaded = part.read_error is None
            self._on_loaded(part)
            self._monitor.announce()

    def _corrupt(self, file: StoreFile, unit: ReadUnit, found: str) -> OpenwaferError:
        part = unit.part
        offset = part.offsets[unit.version.slot]
        return error(
            "store-corrupt",
            f"{part} at byte {offset} of {file.path} has the checksum {found} where "
            f"{unit.version.checksum} was written",
            notes=(f"the part has {part.num_bytes} bytes in slot {unit.version.slot}",),
            help="check the disk, and load the last checkpoint into a new store",
        )
