"""The system calls of the disk tier: direct I/O between page-aligned memory and one file.

Direct I/O leaves the page cache alone, which would otherwise hold every byte a second time and
evict what the rest of the program needs.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openwafer import atomic_file


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
