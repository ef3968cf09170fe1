"""Counts the bytes between memory and disk, and the time in which some moved."""

import threading
import time
from dataclasses import dataclass

from openwafer.training.store.options import DiskTransfer, Traffic, TransferListener
from openwafer.training.store.part_state import PartState


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

    def begin(self, kind: str) -> None:
        """A transfer starts."""
        with self._lock:
            flow = self._flows[kind]
            if flow.num_active == 0:
                flow.active_since = time.perf_counter()
            flow.num_active += 1

    def end(self, kind: str, part: PartState | None, num_bytes: int, start_seconds: float) -> None:
        """A transfer ends; one that failed counts like one that went well."""
        end_seconds = time.perf_counter()
        with self._lock:
            flow = self._flows[kind]
            flow.num_bytes += num_bytes
            flow.num_transfers += 1
            flow.num_active -= 1
            if flow.num_active == 0:
                flow.busy_seconds += end_seconds - flow.active_since
        if self._on_transfer is not None:
            record, which = (part.record, part.part) if part else ("", None)
            transfer = DiskTransfer(kind, record, which, num_bytes, start_seconds, end_seconds)
            self._on_transfer(transfer)

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
