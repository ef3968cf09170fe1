"""One process at a time per folder."""

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = "lock"
POLL_SECONDS = 0.05
# Linux's `struct flock`: type, whence, start, length, process.
_RECORD_LOCK = struct.Struct("hhqqi4x")

# A POSIX lock does not exclude its own process, and closing any descriptor of the file would drop
# it; so a process also keeps book of what it holds. Unlike flock, it is not inherited by forked
# data loaders, which may outlive a killed parent.
_held_here: set[tuple[int, int]] = set()
_bookkeeping = threading.Lock()


class FolderInUseError(Exception):
    """A folder is locked by the process `holder`, a number, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"in use by process {holder}")
        self.holder = holder


class FolderLock:
    """Held from construction to `release`, or to the end of the process, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises FolderInUseError, or OSError where there can be no lock."""
        with _bookkeeping:
            self._take(folder / LOCK_NAME)

    def _take(self, path: Path) -> None:
        if not path.exists():
            path.touch()
        status = path.stat()
        self._identity = (status.st_dev, status.st_ino)
        if self._identity in _held_here:
            raise FolderInUseError(str(os.getpid()))
        self._descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            holder = _holder_of(self._descriptor)
            os.close(self._descriptor)
            if not isinstance(cause, BlockingIOError | PermissionError):
                raise
            raise FolderInUseError(holder) from cause
        _held_here.add(self._identity)

    def release(self) -> None:
        """Give the folder free."""
        with _bookkeeping:
            _held_here.remove(self._identity)
            os.close(self._descriptor)


def _holder_of(descriptor: int) -> str:
    """The process that keeps this one from a lock, as the kernel knows it."""
    wanted = _RECORD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, holder = _RECORD_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    # It may have ended meanwhile, or be on another machine or in another container.
    return str(holder) if kind != fcntl.F_UNLCK and holder > 0 else "unknown"


@contextmanager
def folder_to_itself(folder: Path) -> Iterator[None]:
    """Context that holds a folder's lock, after whoever holds it now. Raises OSError."""
    lock = None
    while lock is None:
        try:
            lock = FolderLock(folder)
        except FolderInUseError:
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def standing_still(folder: Path) -> Iterator[bool]:
    """Context in which nobody takes a folder's lock, and nothing is written.

    It gives False, and waits for nobody, where a process holds the lock: then the folder changes.
    """
    try:
        descriptor = _shared(folder / LOCK_NAME)
    except FileNotFoundError:
        # Nobody has ever locked it: a copy without its lock.
        yield True
        return
    if descriptor is None:
        yield False
        return
    status = os.fstat(descriptor)
    identity = status.st_dev, status.st_ino
    _held_here.add(identity)
    try:
        yield True
    finally:
        _held_here.remove(identity)
        os.close(descriptor)


def _shared(path: Path) -> int | None:
    """A descriptor with a lock that readers share; ``None`` where a process holds the folder."""
    status = path.stat()
    if (status.st_dev, status.st_ino) in _held_here:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as cause:
        os.close(descriptor)
        if not isinstance(cause, BlockingIOError | PermissionError):
            raise
        return None
    return descriptor
