"""The disk tier against the disk: bytes a second of the store beside those of raw direct I/O.

The pattern is that of a training step with Adam in fp32: each parameter's 12 bytes of weights and
states are read, and 12 are written. The raw probe moves the same bytes with one thread a direction
and does nothing else; the store adds checksums, slots, the ring and a commit a step.
"""

import argparse
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from termination import clean_up_when_terminated

from openwafer.training.store import (
    ArraySpec,
    ParameterStore,
    Part,
    RecordLayout,
    StoreOptions,
    Tier,
    lay_out,
)
from openwafer.training.store.store_file import store_file_bytes

KEPT = (Part.WEIGHTS, Part.STATES)
Job = Callable[[], object]
UNIT_BYTES = 8 << 20
READ_AHEAD = 2
NUM_STEPS = 3


def layouts_of(num_records: int, num_parameters: int) -> list[RecordLayout]:
    """Records of fp32 weights with two fp32 states each."""
    shape = (num_parameters,)
    return [
        lay_out(
            f"layer{i}",
            [ArraySpec(f"layer{i}", torch.float32, shape)],
            [ArraySpec(f"{state}/layer{i}", torch.float32, shape) for state in ("m", "v")],
        )
        for i in range(num_records)
    ]


class RawProbe:
    """Two preallocated runs of bytes in one file, read and written with direct I/O."""

    def __init__(self, path: Path, num_bytes: int, num_threads: int) -> None:
        self.num_bytes = num_bytes // UNIT_BYTES * UNIT_BYTES
        self._read_buffers = [random_buffer() for _ in range(num_threads)]
        self._write_buffer = random_buffer()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(self._file, 0, 2 * self.num_bytes)
        for start in (0, self.num_bytes):
            self._write(start)

    def read(self) -> float:
        """Seconds to read the first run with all threads."""
        return seconds_of([lambda: self._read(0)])

    def write(self) -> float:
        """Seconds to write the second run with one thread."""
        return seconds_of([lambda: self._write(self.num_bytes)])

    def both(self, num_bytes: int | None = None, beside: Sequence[Job] = ()) -> float:
        """Seconds to do both at once.

        Args:
            num_bytes: how many in each direction, over and over the same; `None` is each once.
            beside: what else runs meanwhile; the time ends when all have ended.
        """
        size = num_bytes or self.num_bytes
        raw = (lambda: self._read(0, size), lambda: self._write(self.num_bytes, size))
        return seconds_of([*raw, *beside])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _offsets(self, start: int, num_bytes: int | None) -> Iterator[int]:
        units = range(0, num_bytes or self.num_bytes, UNIT_BYTES)
        return iter([start + unit % self.num_bytes for unit in units])

    def _read(self, start: int, num_bytes: int | None = None) -> None:
        offsets = self._offsets(start, num_bytes)
        seconds_of([partial(self._move, os.preadv, to, offsets) for to in self._read_buffers])

    def _write(self, start: int, num_bytes: int | None = None) -> None:
        self._move(os.pwritev, self._write_buffer, self._offsets(start, num_bytes))

    def _move(self, call: Callable[..., int], buffer: mmap.mmap, offsets: Iterator[int]) -> None:
        for offset in offsets:
            call(self._file, [buffer], offset)


def random_buffer() -> mmap.mmap:
    """Memory for one transfer.

    Without huge pages the kernel cuts each transfer into pieces, at half the rate or less.
    """
    buffer = mmap.mmap(-1, UNIT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    buffer.write(os.urandom(UNIT_BYTES))
    return buffer


def seconds_of(jobs: Sequence[Job]) -> float:
    """Seconds until all jobs, each in a thread of its own, are done."""
    threads = [threading.Thread(target=job) for job in jobs]
    start_seconds = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start_seconds


def update_all(store: ParameterStore) -> None:
    """Some steps that read and write every record and change nothing, one after the other."""
    records = list(store.layouts) * NUM_STEPS
    loans = [store.borrow(record, KEPT) for record in records[:READ_AHEAD]]
    for number in range(len(records)):
        loans[number].wait()
        loans[number].release(dirty=KEPT)
        following = records[number + READ_AHEAD : number + READ_AHEAD + 1]
        loans += [store.borrow(record, KEPT) for record in following]
    store.drain()


def fetch_all(store: ParameterStore) -> None:
    """Read every record."""
    loans = [store.borrow(record, KEPT, read_only=True) for record in store.layouts]
    for loan in loans:
        loan.wait()
        loan.release()


def fill(store: ParameterStore) -> None:
    """Write random bytes everywhere and commit, so that both slots have blocks with data."""
    for step in range(2):
        for record in store.layouts:
            loan = store.borrow(record, KEPT, fresh=KEPT)
            loan.wait()
            for part in KEPT:
                loan.part_bytes_view(part).random_()
            loan.release()
        store.commit(step, {})


def rate_of(store: ParameterStore, work: Callable[[ParameterStore], None]) -> float:
    """Bytes read in a second of work; what the ring still held is not counted."""
    bytes_before = store.traffic.read_bytes
    seconds = seconds_of([lambda: work(store)])
    return (store.traffic.read_bytes - bytes_before) / seconds


def measure(folder: Path, layouts: list[RecordLayout], num_rounds: int) -> None:
    """Print the rates of probes and store, alternating, and the median of their ratios."""
    step_bytes = sum(layout.part_bytes(part) for layout in layouts for part in KEPT)
    ring_bytes = 3 * step_bytes // len(layouts)
    placement = {(layout.name, part): Tier.DISK for layout in layouts for part in Part}
    probe = RawProbe(folder / "raw.bin", step_bytes, StoreOptions().num_readers)
    ratios = []
    with ParameterStore.create(
        layouts, placement, folder=folder / "store", ring_bytes=ring_bytes
    ) as store:
        fill(store)
        print("direct I/O" if store.is_direct else "buffered I/O: the file system refuses direct")
        for _ in range(num_rounds):
            rates = {
                "raw read": probe.num_bytes / probe.read(),
                "raw write": probe.num_bytes / probe.write(),
                "raw both": probe.num_bytes / probe.both(),
                "store read": rate_of(store, fetch_all),
                "store both": rate_of(store, update_all),
            }
            ratios.append(rates["store both"] / rates["raw both"])
            texts = [f"{what} {rate / 1e6:.0f}" for what, rate in rates.items()]
            reading = rates["store read"] / rates["raw read"]
            print(f"MB/s: {', '.join(texts)}; store/raw: {reading:.3f}, {ratios[-1]:.3f}")
    probe.close()
    print(f"median store/raw, 24 bytes a parameter: {statistics.median(ratios):.3f}")


def main() -> None:
    """Read the options and measure in a temporary folder, which is removed."""
    clean_up_when_terminated()
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--folder", type=Path, default=Path("build"))
    options.add_argument("--records", type=int, default=8)
    options.add_argument("--parameters", type=int, default=8 << 20, help="in each record")
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    layouts = layouts_of(chosen.records, chosen.parameters)
    chosen.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        print(f"{2 * store_file_bytes(layouts) / 1e9:.1f} GB of disk, {chosen.rounds} rounds")
        measure(Path(folder), layouts, chosen.rounds)


if __name__ == "__main__":
    main()
