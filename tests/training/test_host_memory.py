"""Host memory of this very process."""

import mmap
import os
import time
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.host_memory import read_host_memory

MIB = 1 << 20


def filled(num_bytes: int) -> mmap.mmap:
    """Anonymous pages that go back to the system when closed."""
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(b"\1" * num_bytes)
    return pages


def test_touched_pages_count_as_anonymous() -> None:
    before = read_host_memory().anonymous_bytes
    with filled(64 * MIB):
        grown = read_host_memory().anonymous_bytes - before
    assert 60 * MIB < grown < 80 * MIB


def test_the_resident_set_is_the_sum_of_the_kinds_and_below_the_peak() -> None:
    memory = read_host_memory()
    assert 0 < memory.resident_bytes <= memory.peak_bytes + MIB


def test_a_reading_costs_well_below_a_millisecond() -> None:
    started = time.thread_time()
    for _ in range(200):
        read_host_memory()
    assert (time.thread_time() - started) / 200 < 5e-4


def test_another_process_can_be_measured() -> None:
    assert read_host_memory(Path(f"/proc/{os.getppid()}/status")).resident_bytes > 0


def test_without_proc_the_error_says_where_memory_can_be_measured() -> None:
    expected = r"cannot read /proc/none/status: No such file[^$]*measured on Linux"
    with pytest.raises(OpenwaferError, match=expected):
        read_host_memory(Path("/proc/none/status"))


def test_a_status_without_its_fields_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"/proc/version lacks one of the fields RssAnon, "):
        read_host_memory(Path("/proc/version"))
