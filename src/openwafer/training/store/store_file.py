"""The one preallocated file of the disk tier, and where each slot of each part lies in it.

Per record: weights and states of slot 0, the same of slot 1, then the gradients. Weights and
states of one slot are contiguous, so that the fetch of an update reads one run of bytes.
"""

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.direct_io import FileIo, open_direct, transfer_fully
from openwafer.training.store.layout import KEPT_PARTS, Part, RecordLayout
from openwafer.training.store.slots import NUM_SLOTS

FILE_NAME = "records.bin"

PartKey = tuple[str, Part]


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
