"""A power failure, staged: what a killed process had not flushed is undone, in whole or in pages.

A process keeps what it makes durable: with each flush of a file its bytes, with each flush of a
folder its names. After the kill a folder is made anew from what was kept. What was changed since
may have reached the disk or not: of a file each page, of a folder all of its names.
"""

import json
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_BYTES = 4096

# Names with their inodes, and whether each is a folder.
Names = dict[str, tuple[int, bool]]


class Disk:
    """What is durable of a folder, kept in another one, by inode."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        # An inode that is open is given to no other file.
        self._open: dict[int, int] = {}

    def keep_flushes(self) -> None:
        """Have this process keep all that it flushes from now on."""
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._keeping(getattr(os, name)))

    @contextmanager
    def holding(self, folder: Path) -> Iterator[None]:
        """Context that begins with all of a folder durable, as after a start of the machine."""
        for path in (folder, *folder.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self._keep(descriptor)
            os.close(descriptor)
        try:
            yield
        finally:
            while self._open:
                os.close(self._open.popitem()[1])

    def fail(self, folder: Path, chance: random.Random) -> None:
        """Leave of a folder what a power failure might."""
        present = {path.lstat().st_ino: path for path in (folder, *folder.rglob("*"))}
        rebuilt = folder.with_name(f"{folder.name}.rebuilt")
        self._rebuild(folder.stat().st_ino, rebuilt, present, chance)
        shutil.rmtree(folder)
        rebuilt.rename(folder)

    def _keeping(self, flush: Callable[[int], None]) -> Callable[[int], None]:
        def flush_and_keep(descriptor: int) -> None:
            flush(descriptor)
            self._keep(descriptor)

        return flush_and_keep

    def _keep(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_ino not in self._open:
            self._open[status.st_ino] = os.dup(descriptor)
        partial = self._kept / f"{threading.get_ident()}.partial"
        if stat.S_ISDIR(status.st_mode):
            partial.write_text(json.dumps(_names_in(descriptor)))
        else:
            shutil.copyfile(f"/proc/self/fd/{descriptor}", partial)
        partial.replace(self._kept / str(status.st_ino))

    def _rebuild(
        self, inode: int, target: Path, present: dict[int, Path], chance: random.Random
    ) -> None:
        target.mkdir()
        kept = self._kept / str(inode)
        names: Names = json.loads(kept.read_text()) if kept.exists() else {}
        if inode in present and chance.random() < 0.3:
            names = _names_in(present[inode])
        for name, (inside, is_folder) in names.items():
            if is_folder:
                self._rebuild(inside, target / name, present, chance)
            else:
                (target / name).write_bytes(self._bytes_of(inside, present, chance))

    def _bytes_of(self, inode: int, present: dict[int, Path], chance: random.Random) -> bytes:
        kept = self._kept / str(inode)
        durable = kept.read_bytes() if kept.exists() else b""
        latest = present[inode].read_bytes() if inode in present else durable
        size = len(chance.choice((durable, latest)))
        pages = []
        for start in range(0, size, PAGE_BYTES):
            page = chance.choice((durable, latest))[start : start + PAGE_BYTES]
            pages.append(page.ljust(PAGE_BYTES, b"\0"))
        return b"".join(pages)[:size]


def _names_in(folder: int | Path) -> Names:
    names = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            names[entry.name] = (entry.inode(), entry.is_dir(follow_symlinks=False))
    return names
