"""Measures the disk that a store will be on, before there is a store."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

import torch
import xxhash

from openwafer.training.store.pages import HostBuffer
from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.store.store_file import (
    FileIo,
    TransferError,
    free_bytes_of,
    open_direct,
    transfer_fully,
)

# The file is as long as can be written meanwhile, at most this.
LARGEST_BYTES: Final = 256 << 20
FILL_SECONDS: Final = 0.1
READ_SECONDS: Final = 0.08
BOTH_SECONDS: Final = 0.16
# A disk with less room beside the file is not touched.
SPARE_SHARE: Final = 8
_FILE_IO: Final = FileIo()


@dataclass(frozen=True)
class DiskRates:
    """Bytes a second by direct I/O.

    Attributes:
        read: while nothing is written.
        both: read and written together, while both go on.
        host_seconds_per_byte: time of a processor for a byte read or written, checksum included.
    """

    read: float
    both: float
    host_seconds_per_byte: float = 0.0

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """Time to read and write so much, at once as far as there is both to do."""
        paired = min(read_bytes, written_bytes)
        rest = max(read_bytes, written_bytes) - paired
        return 2 * paired / self.both + rest / (self.read if read_bytes > paired else self.both)


_KNOWN: Final[dict[tuple[int, FileIo], DiskRates | None]] = {}


def measure_disk(folder: Path, file_io: FileIo = _FILE_IO) -> DiskRates | None:
    """Rates of the disk that ``folder`` is on or would be made on, measured once a process.

    A file without a name is written, read and written again for about a third of a second; nothing
    is left of it however the process ends. ``None`` where that cannot be done: the folder may not
    be written to, the disk is nearly full, or its file system has no such files or no direct I/O.
    """
    parent = folder.absolute()
    while not parent.is_dir():
        parent = parent.parent
    key = parent.stat().st_dev, file_io
    if key not in _KNOWN:
        _KNOWN[key] = _measure(parent, file_io)
    return _KNOWN[key]


def _measure(folder: Path, file_io: FileIo) -> DiskRates | None:
    if free_bytes_of(folder) < SPARE_SHARE * LARGEST_BYTES:
        return None
    try:
        descriptor, is_direct = open_direct(file_io, folder, os.O_RDWR | os.O_TMPFILE)
    except OSError:
        return None
    try:
        return _probe(descriptor, file_io) if is_direct else None
    except (OSError, TransferError):
        return None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Thread:
    """Transfers of one kind, one after the other, each of one of these units.

    Attributes:
        transfer: reads or writes a buffer at an offset.
        buffer: one unit.
        offsets: where the units begin; after the last one comes the first again.
    """

    transfer: Callable[[memoryview, int], None]
    buffer: memoryview
    offsets: Sequence[int]

    def run(self, end_seconds: float) -> int:
        """Transfer until then, at least one unit; return how many bytes."""
        num_bytes = 0
        for offset in cycle(self.offsets):
            self.transfer(self.buffer, offset)
            num_bytes += len(self.buffer)
            if time.perf_counter() >= end_seconds:
                break
        return num_bytes


def _probe(descriptor: int, file_io: FileIo) -> DiskRates:
    options = StoreOptions()
    read, write = (
        partial(transfer_fully, call, descriptor) for call in (file_io.read, file_io.write)
    )
    unit_bytes = options.io_unit_bytes
    noise = HostBuffer(unit_bytes)
    # Zeros may be kept without being written.
    noise.tensor.random_(generator=torch.Generator())
    written = noise.window(0, unit_bytes)
    offsets = _fill(write, written)
    middle = len(offsets) // 2
    readers = [
        _Thread(read, HostBuffer(unit_bytes).window(0, unit_bytes), offsets[:middle])
        for _ in range(options.num_readers)
    ]
    writers = [_Thread(write, written, offsets[middle:]) for _ in range(options.num_writers)]
    alone, _ = _rate(readers, READ_SECONDS)
    both, host_seconds = _rate(readers + writers, BOTH_SECONDS)
    return DiskRates(alone, both, host_seconds + _checksum_seconds(written))


def _checksum_seconds(unit: memoryview) -> float:
    start_seconds = time.thread_time()
    xxhash.xxh3_64(unit)
    return (time.thread_time() - start_seconds) / len(unit)


def _fill(write: Callable[[memoryview, int], None], unit: memoryview) -> range:
    """Write a unit, at least twice, until time or length is over; return the offsets.

    Blocks that were never written take longer to write, and need not be read.
    """
    unit_bytes = len(unit)
    end_seconds = time.perf_counter() + FILL_SECONDS
    for offset in range(0, LARGEST_BYTES, unit_bytes):
        write(unit, offset)
        if offset and time.perf_counter() >= end_seconds:
            break
    return range(0, offset + unit_bytes, unit_bytes)


def _rate(threads: Sequence[_Thread], seconds: float) -> tuple[float, float]:
    """Bytes a second of all threads together, and processor seconds of this process a byte."""
    with ThreadPoolExecutor(len(threads)) as pool:
        start_seconds, start_host = time.perf_counter(), time.process_time()
        ends = [pool.submit(thread.run, start_seconds + seconds) for thread in threads]
        num_bytes = sum(end.result() for end in ends)
        wall = time.perf_counter() - start_seconds
        return num_bytes / wall, (time.process_time() - start_host) / num_bytes
