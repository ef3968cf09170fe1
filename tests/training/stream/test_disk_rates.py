"""The disk is measured before a run, and keeps nothing of it."""

import errno
import os
from pathlib import Path

import pytest

from openwafer.training.store.store_file import FileIo
from openwafer.training.stream.plan.machine import DiskRates, measure_disk


class WithoutNames(FileIo):
    """A file system that has no files without a name."""

    def open(self, path: Path, flags: int) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)


class WithoutDirectIo(FileIo):
    """A file system whose files all go through the page cache."""

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return super().open(path, flags)


class Full(FileIo):
    """A disk that is full after the first write."""

    num_writes = 0

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self.num_writes += 1
        if self.num_writes > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, buffer, offset)


def test_the_disk_of_a_folder_that_does_not_exist_yet_is_measured(tmp_path: Path) -> None:
    rates = measure_disk(tmp_path / "runs" / "new" / "store", FileIo())
    assert rates is not None
    assert min(rates.read, rates.both) > 0


def test_nothing_is_left_of_a_measurement(tmp_path: Path) -> None:
    measure_disk(tmp_path / "store", FileIo())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_is_measured_once(tmp_path: Path) -> None:
    file_io = Full()
    measure_disk(tmp_path / "one", file_io)
    measure_disk(tmp_path / "another", file_io)
    assert file_io.num_writes == 2


@pytest.mark.parametrize("kind", [WithoutNames, WithoutDirectIo, Full])
def test_what_cannot_be_measured_is_not_guessed(tmp_path: Path, kind: type[FileIo]) -> None:
    assert measure_disk(tmp_path, kind()) is None


def test_only_what_is_read_beyond_what_is_written_is_read_alone() -> None:
    rates = DiskRates(read=2.0, both=4.0)
    assert rates.seconds(read_bytes=10, written_bytes=4) == 8 / 4 + 6 / 2
