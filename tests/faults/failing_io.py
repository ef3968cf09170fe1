"""File I/O that fails once, at a call of choice, and then works again."""

import errno
import os
import threading
from enum import StrEnum
from pathlib import Path

from openwafer.training.store.store_file import FileIo


class Call(StrEnum):
    """The kinds of call that can fail."""

    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    REPLACE = "replace"


class Fault(StrEnum):
    """What the failing call does."""

    REFUSE = "does nothing and reports EIO"
    TEAR = "does half of its work and reports ENOSPC"
    STOP_SHORT = "does nothing and reports no bytes done"


class FailingIo(FileIo):
    """Counts the calls of one kind; the call of number `failing` (from 0) fails."""

    def __init__(self, call: Call, failing: int | None, fault: Fault) -> None:
        self.num_calls = 0
        self._call = call
        self._failing = failing
        self._fault = fault
        self._lock = threading.Lock()

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if not self._is_failing(Call.READ):
            return super().read(descriptor, buffer, offset)
        if self._fault is Fault.TEAR:
            super().read(descriptor, buffer[: len(buffer) // 2], offset)
        return self._fail()

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if not self._is_failing(Call.WRITE):
            return super().write(descriptor, buffer, offset)
        if self._fault is Fault.TEAR:
            super().write(descriptor, buffer[: len(buffer) // 8192 * 4096], offset)
        return self._fail()

    def sync(self, descriptor: int) -> None:
        if self._is_failing(Call.SYNC):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)

    def replace(self, path: Path, data: bytes) -> None:
        if self._is_failing(Call.REPLACE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().replace(path, data)

    def _is_failing(self, call: Call) -> bool:
        with self._lock:
            is_failing = call is self._call and self.num_calls == self._failing
            self.num_calls += call is self._call
        return is_failing

    def _fail(self) -> int:
        if self._fault is Fault.STOP_SHORT:
            return 0
        code = errno.EIO if self._fault is Fault.REFUSE else errno.ENOSPC
        raise OSError(code, os.strerror(code))
