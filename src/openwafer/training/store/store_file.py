"""The one preallocated file of the disk tier, where each slot of each part lies in it, and its I/O.

Per record: weights and states of slot 0, the same of slot 1, then the gradients. Weights and
states of one slot are contiguous, so that the fetch of an update reads one run of bytes. Direct I/O
leaves the page cache alone, which would otherwise hold every byte a second time and evict what the
rest of the program needs.
"""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openwafer import atomic_file
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import KEPT_PARTS, Part, PartKey, RecordLayout
from openwafer.training.store.parts import NUM_SLOTS


class FileIo:
    """The calls the store makes, one method each; a fault test overrides the one that shall fail.

    The interpreter lock is released while a call is in the kernel.
    """

    def open(self, path: Path, flags: int) -> int:
        """Return a descriptor, closed on exec."""
        return os.open(path, flags, 0o644)

    def allocate(self, descriptor: int, num_bytes: int) -> None:
        """Reserve the blocks of a file of `num_bytes`."""
        os.posix_fallocate(descriptor, 0, num_bytes)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Read up to `len(buffer)` bytes from `offset`; return how many."""
        return os.preadv(descriptor, [buffer], offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Write up to `len(buffer)` bytes at `offset`; return how many."""
        return os.pwritev(descriptor, [buffer], offset)

    def sync(self, descriptor: int) -> None:
        """Return when all that was written would survive a power failure."""
        os.fdatasync(descriptor)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a whole small file, atomically and durably."""
        atomic_file.write_bytes(path, data)


@dataclass
class TransferError(Exception):
    """A read or write that did not do all that was asked; `cause` is None at the end of file."""

    num_wanted: int
    num_done: int
    cause: OSError | None

    def __str__(self) -> str:
        reason = str(self.cause) if self.cause else "the file ends there"
        return f"{self.num_wanted} bytes wanted, {self.num_done} done: {reason}"


def open_direct(file_io: FileIo, path: Path, flags: int) -> tuple[int, bool]:
    """Open for direct I/O where the file system allows it; say whether it did."""
    try:
        return file_io.open(path, flags | os.O_DIRECT), True
    except OSError as refusal:
        if refusal.errno != errno.EINVAL:
            raise
    return file_io.open(path, flags), False


def transfer_fully(
    call: Callable[[int, memoryview, int], int], descriptor: int, buffer: memoryview, offset: int
) -> None:
    """Repeat a read or write call until the whole buffer is done. Raises TransferError."""
    num_done = 0
    while num_done < len(buffer):
        try:
            num_now = call(descriptor, buffer[num_done:], offset + num_done)
        except OSError as cause:
            raise TransferError(len(buffer), num_done, cause) from cause
        if num_now == 0:
            raise TransferError(len(buffer), num_done, None)
        num_done += num_now


FILE_NAME = "records.bin"


@dataclass(frozen=True)
class FilePlan:
    """Offsets in bytes of the slots of every part, and the size of the file."""

    offsets: Mapping[PartKey, tuple[int, ...]]
    num_bytes: int


def plan_file(layouts: Iterable[RecordLayout]) -> FilePlan:
    """Place all slots of all records, in the order of the records."""
    offsets: dict[PartKey, tuple[int, ...]] = {}
    end = 0
    for layout in layouts:
        slots: dict[Part, list[int]] = {part: [] for part in Part}
        for part in (*KEPT_PARTS * NUM_SLOTS, Part.GRADIENTS):
            slots[part].append(end)
            end += layout.part_bytes(part)
        offsets.update({(layout.name, part): tuple(places) for part, places in slots.items()})
    return FilePlan(offsets, end)


def store_file_bytes(layouts: Iterable[RecordLayout]) -> int:
    """Disk space a store of these records needs: two slots of weights and states, one gradient."""
    return plan_file(layouts).num_bytes


class StoreFile:
    """An open store file. Offsets and lengths are multiples of 4096; buffers are page-aligned."""

    def __init__(self, path: Path, file_io: FileIo, flags: int = os.O_RDWR) -> None:
        self.path = path
        self.file_io = file_io
        self._descriptor, self.is_direct = open_direct(file_io, path, flags)

    @classmethod
    def create(cls, path: Path, num_bytes: int, file_io: FileIo) -> "StoreFile":
        """Make the file with all its blocks. Raises `store-disk-full` and leaves nothing behind."""
        free_bytes = free_bytes_of(path.parent)
        if num_bytes > free_bytes:
            raise disk_full(path, num_bytes, free_bytes)
        try:
            file = cls(path, file_io, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as cause:
            raise cannot_create(path, num_bytes, cause) from cause
        try:
            if num_bytes:
                file_io.allocate(file._descriptor, num_bytes)
        except OSError as cause:
            file.close()
            path.unlink()
            raise cannot_create(path, num_bytes, cause) from cause
        return file

    @classmethod
    def open(
        cls, path: Path, num_bytes: int, file_io: FileIo, flags: int = os.O_RDWR
    ) -> "StoreFile":
        """Open a file that must have `num_bytes`. Raises `store-file-size` or `store-missing`."""
        try:
            found_bytes = path.stat().st_size
            if found_bytes != num_bytes:
                raise error(
                    "store-file-size",
                    f"{path} has {found_bytes} bytes where its manifest says {num_bytes}",
                    help="the file was cut or replaced; load a checkpoint into a new store",
                )
            return cls(path, file_io, flags)
        except OSError as cause:
            raise error(
                "store-missing",
                f"cannot open the store file {path}: {cause}",
                help="give the folder of a whole store, or load a checkpoint into a new one",
            ) from cause

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer from `offset` on. Raises TransferError."""
        transfer_fully(self.file_io.read, self._descriptor, buffer, offset)

    def write(self, buffer: memoryview, offset: int) -> None:
        """Write the buffer at `offset`. Raises TransferError."""
        transfer_fully(self.file_io.write, self._descriptor, buffer, offset)

    def sync(self) -> None:
        """Make all writes durable. Raises OSError."""
        self.file_io.sync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; no transfer may be under way."""
        os.close(self._descriptor)


def free_bytes_of(folder: Path) -> int:
    """Bytes an unprivileged process can still write to the file system of `folder`."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def cannot_create(path: Path, num_bytes: int, cause: OSError) -> OpenwaferError:
    """The error for a store file that the system refused to make."""
    if cause.errno == errno.ENOSPC:
        return disk_full(path, num_bytes, free_bytes_of(path.parent))
    return error(
        "store-create-failed",
        f"cannot make the store file {path} of {num_bytes} bytes: {cause}",
        help="give a folder that may be written to",
    )


def disk_full(path: Path, num_bytes: int, free_bytes: int) -> OpenwaferError:
    """The error for a disk that is too small, with both numbers."""
    return error(
        "store-disk-full",
        f"the store file {path} needs {num_bytes} bytes, the disk has {free_bytes} bytes free",
        help="free some space, or put the store on another disk",
    )
