"""What this process holds in host memory, read from Linux's `/proc/self/status`.

Anonymous, file-backed and shared pages are kept apart, because only the first and the last count
against a machine's memory for certain: file pages are cache that the kernel takes back.
"""

import os
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from openwafer.diagnostics import error

_STATUS_PATH = "/proc/self/status"
_STATUS_LIMIT_BYTES = 16384


@dataclass(frozen=True)
class HostMemory:
    """Bytes of resident pages by kind, and the kernel's own peak of their sum."""

    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int
    peak_bytes: int

    @property
    def resident_bytes(self) -> int:
        return self.anonymous_bytes + self.file_bytes + self.shared_bytes


def read_host_memory() -> HostMemory:
    """The state of this process now; about 20 microseconds.

    Raises `OpenwaferError` (host-memory-unreadable) where there is no Linux `/proc`.
    """
    descriptor = _open_status()
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


class HostMemorySampler:
    """A thread that reads host memory every `interval_seconds` while the `with` block runs.

    It keeps maxima only, so it may run as long as the process: `most_resident_bytes` and
    `most_anonymous_bytes` over `num_samples` samples. One sample costs about 8 microseconds.
    """

    def __init__(self, interval_seconds: float = 0.05) -> None:
        self.most_resident_bytes = 0
        self.most_anonymous_bytes = 0
        self.num_samples = 0
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-memory", daemon=True)
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = _open_status()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        os.close(self._descriptor)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self._sample()

    def _sample(self) -> None:
        memory = _read(self._descriptor)
        self.most_resident_bytes = max(self.most_resident_bytes, memory.resident_bytes)
        self.most_anonymous_bytes = max(self.most_anonymous_bytes, memory.anonymous_bytes)
        self.num_samples += 1


def _open_status() -> int:
    try:
        return os.open(_STATUS_PATH, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as cause:
        raise error(
            "host-memory-unreadable",
            f"cannot read {_STATUS_PATH}: {cause.strerror}",
            help="host memory is measured on Linux with /proc mounted",
        ) from cause


def _read(descriptor: int) -> HostMemory:
    # pread from 0 makes the kernel write the text anew without another open, half the cost.
    return _parse(os.pread(descriptor, _STATUS_LIMIT_BYTES, 0))


def _parse(status: bytes) -> HostMemory:
    return HostMemory(
        anonymous_bytes=_field_bytes(status, b"RssAnon:"),
        file_bytes=_field_bytes(status, b"RssFile:"),
        shared_bytes=_field_bytes(status, b"RssShmem:"),
        peak_bytes=_field_bytes(status, b"VmHWM:"),
    )


def _field_bytes(status: bytes, name: bytes) -> int:
    start = status.find(name)
    if start < 0:
        raise error(
            "host-memory-unreadable",
            f"{_STATUS_PATH} has no field {name.decode()}",
            help="host memory is measured on Linux 4.5 or later",
        )
    return 1024 * int(status[start + len(name) : status.index(b"kB", start)])
