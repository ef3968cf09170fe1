"""What this process holds in host memory, read from Linux's `/proc/self/status`.

Anonymous, file-backed and shared pages are kept apart, because only the first and the last count
against a machine's memory for certain: file pages are cache that the kernel takes back.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from openwafer.diagnostics import error

OWN_STATUS = Path("/proc/self/status")
_STATUS_LIMIT_BYTES = 16384
_FIELDS = (b"RssAnon", b"RssFile", b"RssShmem", b"VmHWM")


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


def read_host_memory(status: Path = OWN_STATUS) -> HostMemory:
    """The state of this process, or of the one whose status file is given; 20 microseconds.

    Raises `OpenwaferError` (host-memory-unreadable) where there is no Linux `/proc`.
    """
    descriptor = _open(status)
    try:
        return _read(descriptor, status)
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
        self._descriptor = _open(OWN_STATUS)
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        os.close(self._descriptor)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self._sample()

    def _sample(self) -> None:
        memory = _read(self._descriptor, OWN_STATUS)
        self.most_resident_bytes = max(self.most_resident_bytes, memory.resident_bytes)
        self.most_anonymous_bytes = max(self.most_anonymous_bytes, memory.anonymous_bytes)
        self.num_samples += 1


def _open(status: Path) -> int:
    try:
        return os.open(status, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as cause:
        raise error(
            "host-memory-unreadable",
            f"cannot read {status}: {cause.strerror}",
            help="host memory is measured on Linux with /proc mounted",
        ) from cause


def _read(descriptor: int, status: Path) -> HostMemory:
    # pread from 0 makes the kernel write the text anew without another open, half the cost.
    text = os.pread(descriptor, _STATUS_LIMIT_BYTES, 0)
    try:
        return HostMemory(*(_field_bytes(text, name) for name in _FIELDS))
    except ValueError as cause:
        raise error(
            "host-memory-unreadable",
            f"{status} lacks one of the fields {', '.join(name.decode() for name in _FIELDS)}",
            help="host memory is measured on Linux 4.5 or later",
        ) from cause


def _field_bytes(text: bytes, name: bytes) -> int:
    start = text.index(name + b":") + len(name) + 1
    return 1024 * int(text[start : text.index(b"kB", start)])
