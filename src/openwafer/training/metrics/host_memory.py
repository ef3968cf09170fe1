"""Reads this process's host memory from Linux's `/proc/self/status`.

Anonymous, file-backed and shared pages are kept apart, because only the first and the last count
against a machine's memory for certain: file pages are cache that the kernel takes back.
"""

from dataclasses import dataclass
from pathlib import Path

from openwafer.diagnostics import error

OWN_STATUS = Path("/proc/self/status")
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

    Raises:
        OpenwaferError: ``host-memory-unreadable`` where there is no Linux `/proc`.
    """
    try:
        text = status.read_bytes()
    except OSError as cause:
        raise error(
            "host-memory-unreadable",
            f"cannot read {status}: {cause.strerror}",
            help="host memory is measured on Linux with /proc mounted",
        ) from cause
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
