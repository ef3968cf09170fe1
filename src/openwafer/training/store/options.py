"""Settings of a store that no run needs to set, and a store's reports of its transfers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from openwafer.config import Bytes, convert_fields
from openwafer.training.store.direct_io import FileIo
from openwafer.training.store.layout import Part


@dataclass(frozen=True)
class DiskTransfer:
    """One finished piece of disk work, on the clock of `time.perf_counter`.

    `kind` is "read", "write" or "commit"; a commit has no record and no part.
    """

    kind: str
    record: str
    part: Part | None
    num_bytes: int
    start_seconds: float
    end_seconds: float


TransferListener: TypeAlias = Callable[[DiskTransfer], None]


@dataclass(frozen=True)
class Traffic:
    """Bytes moved since the store was made or opened.

    The seconds are those in which at least one read (or write) was under way. A hit is a part that
    a loan found in the ring, so that it was not read. `is_direct` is False where the file system
    refuses direct I/O and the page cache stands between.
    """

    read_bytes: int
    written_bytes: int
    num_reads: int
    num_writes: int
    read_seconds: float
    write_seconds: float
    num_hits: int
    hit_bytes: int
    is_direct: bool


@dataclass(frozen=True)
class StoreOptions:
    """How the store talks to the disk.

    `agree`, given a step that is ready to be committed, returns when it may be: for several stores
    that commit as one, each of which can then be opened at that step or the one before. It is
    called from an I/O thread. `io_unit_bytes`, the size of one read or write, is a multiple of
    4096. A wait that sees no transfer end for `stall_seconds` is reported as stuck. `on_transfer`
    is called from the I/O threads; it must return at once and raise nothing.
    """

    io_unit_bytes: Bytes = 8 << 20
    num_readers: int = 2
    num_writers: int = 2
    stall_seconds: float = 120.0
    file_io: FileIo = field(default_factory=FileIo)
    on_transfer: TransferListener | None = None
    agree: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
