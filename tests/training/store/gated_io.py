"""File I/O that stands still until it is let go, to hold the store in the middle of its work."""

import threading

from openwafer.training.store.store_file import FileIo

OPEN_SECONDS = 120


class GatedIo(FileIo):
    """Reads, writes and commits each wait for an event; all are open at first."""

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.writes = threading.Event()
        self.manifest = threading.Event()
        for gate in (self.reads, self.writes, self.manifest):
            gate.set()
        self.offsets_read: list[int] = []
        self.offsets_written: list[int] = []

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self.reads.wait(OPEN_SECONDS)
        self.offsets_read.append(offset)
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self.writes.wait(OPEN_SECONDS)
        self.offsets_written.append(offset)
        return super().write(descriptor, buffer, offset)

    def sync(self, descriptor: int) -> None:
        self.manifest.wait(OPEN_SECONDS)
        super().sync(descriptor)
