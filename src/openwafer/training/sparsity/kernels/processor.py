"""This processor: its vectors, what they can do, and the threads that enter compiled code.

The threads are those of torch, so that two pools never share the cores.
"""

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numba import carray, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from openwafer.training.sparsity.kernels.entries import COUNTERS, STAMP, entry, record_of, take_item
from openwafer.training.sparsity.kernels.vectors import FLOAT, NARROW, NUMBER, WORD, Emitter

WIDTHS: Final = {16: {"+avx512f"}, 8: {"+avx2", "+fma"}, NARROW: set[str]()}
"""Lanes of the vectors that we write code for, and what a processor must have for them.

The last ones any processor takes, if by several instructions.
"""


@functools.cache
def lanes_here() -> tuple[int, ...]:
    """Lanes that code for this processor may have, the best ones first.

    It is the processor that numba compiles for, which NUMBA_CPU_NAME can say.
    """
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    found = set(features.split(","))
    return tuple(lanes for lanes, needed in WIDTHS.items() if needed <= found)


GRAIN: Final = 1 << 15
"""Least work that is worth a thread; torch's own."""

MOST_SAVED: Final = 0.01
MOST_LOST: Final = 0.1
ALONE_FOR: Final = 40
"""Times as long as several threads lost one computes alone, before several are tried again."""

_start_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_end_type = ctypes.CFUNCTYPE(None)
_entry_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

Start = Callable[[int, int, int], object]
"""Lets threads enter code at an address (the first) with one argument: so many (the third), of
which the caller is one."""
End = Callable[[], object]
"""Waits for them."""


class Gains:
    """Whether several threads are worth it: what they gained on one, in seconds.

    A thread that has to share its core with another program lets all wait where they meet, for as
    long as a turn of that program. So several threads compute as long as they save time, and one
    for a while where they lost some: at most a part in `ALONE_FOR` is lost to trials.
    """

    def __init__(self) -> None:
        self._saved = 0.0
        self._alone_until = 0.0

    def has_several(self, now: float) -> bool:
        """Whether several threads compute at this time."""
        return now >= self._alone_until

    def note(self, gained: float, now: float) -> None:
        """Several threads have just ended, with so many seconds less than one would have taken."""
        self._saved = min(self._saved + max(gained, -MOST_LOST), MOST_SAVED)
        if self._saved < 0:
            self._alone_until = now - ALONE_FOR * self._saved
            self._saved = 0.0


_GAINS: Final = Gains()


class _Process:
    """Whether this process was forked, since torch's pool waits for threads that stayed behind."""

    is_forked = False


def _note_fork() -> None:
    _Process.is_forked = True


os.register_at_fork(after_in_child=_note_fork)


def run(entry: Any, record: NDArray[np.void], num_items: int, num_threads: int) -> None:
    """Let up to so many threads take the items of an entry, whose number changes no result."""
    counters, told = np.zeros(len(COUNTERS), np.int64), np.repeat(record, 2)
    told["counters"], told["num_items"] = counters.ctypes.data, num_items
    own, others = (told[n:].ctypes.data for n in range(2))
    if num_threads == 1 or not _GAINS.has_several(time.perf_counter()):
        _entry_type(entry.address)(own)
        return
    started = time.perf_counter()
    seconds = enter_together(_team(), entry.address, (own, others), num_threads)
    now, taken = time.perf_counter(), int(told["taken"][0]) - 1
    if taken:
        _GAINS.note(seconds * num_items / taken - (now - started), now)


def enter_together(
    team: tuple[Start, End], address: int, arguments: tuple[int, int], num_threads: int
) -> float:
    """Seconds that this thread computed: it has the first argument, the others the second one."""
    (start, end), (own, others), entry = team, arguments, _entry_type(address)
    before = time.thread_time()
    try:
        start(address, others, num_threads)
        entry(own)
        return time.thread_time() - before
    finally:
        end()


def num_threads_of(num_items: int, work: int) -> int:
    """Threads for so many items, and so many numbers that these touch or multiply.

    As many as torch uses, no more than items, and one where there is little work or the process was
    forked.
    """
    most = 1 if _Process.is_forked else torch.get_num_threads()
    return max(1, min(most, num_items, work // GRAIN))


@functools.cache
def _team() -> tuple[Start, End]:
    """The pool of torch's own OpenMP, or one of ours where torch was built on another."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        openmp = ctypes.CDLL(str(library))
        return _start_type(("GOMP_parallel_start", openmp)), _end_type(
            ("GOMP_parallel_end", openmp)
        )
    except (OSError, AttributeError):
        pool = PoolOfOurOwn()
        return pool.start, pool.end


class PoolOfOurOwn(threading.local):
    """Threads of Python, which leave its lock while they are in compiled code."""

    def __init__(self) -> None:
        self._entered: list[Future[None]] = []

    def start(self, address: int, argument: int, num_threads: int) -> None:
        """Let all threads but the caller enter."""
        entry = _entry_type(address)
        self._entered = [_pool().submit(entry, argument) for _ in range(num_threads - 1)]

    def end(self) -> None:
        """Wait for those that have entered; others find nothing left to do."""
        for entered in self._entered:
            if not entered.cancel():
                entered.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="openwafer-sparse")


CHAINS: Final = 12
"""Sums side by side: enough that each is ready when its next product comes."""
TURNS: Final = 1 << 16
TRIES: Final = 5

PEAK: Final = record_of(("turns", "total"))


@functools.cache
def peak_flops() -> float:
    """FLOPs a second of one thread, two for each product of 32-bit floats that is added to a sum.

    The most of some tries of a few milliseconds each, in seconds of the processor.
    """
    lanes, record, total = lanes_here()[0], np.zeros(1, PEAK), np.zeros(1, np.float32)
    record["turns"], record["total"] = TURNS, total.ctypes.data
    made = _peak_entry(lanes)
    seconds = []
    for _ in range(1 + TRIES):
        start = time.thread_time()
        run(made, record, 1, 1)
        seconds.append(time.thread_time() - start)
    return 2 * TURNS * CHAINS * lanes / min(seconds[1:])


def _peak_entry(lanes: int, stamp: str = STAMP) -> Any:
    @entry(PEAK)
    def peak(told: Any) -> None:
        len(stamp)
        if take_item(told) == 0:
            work = carray(told, 1)[0]
            add_to_chains(lanes, work.turns, work.total)

    return peak


@intrinsic(prefer_literal=True)
def add_to_chains(_typing: Any, lanes: Any, _turns: Any, _total: Any) -> Any:
    """Add products to sums in registers, and store what comes out, so that none is left out."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = Emitter(builder, lanes.literal_value)
        factor = emit.splat(FLOAT(0.5))

        def body(_place: Any, held: Any) -> Any:
            return [emit.add_product(each, factor, factor) for each in held]

        begun = [emit.splat(FLOAT(number)) for number in range(CHAINS)]
        _, sums = emit.loop((WORD(0), args[1]), 1, begun, body)
        total = functools.reduce(builder.fadd, sums)
        emit.store(builder.extract_element(total, NUMBER(0)), args[2])
        return context.get_dummy_value()

    return types.void(lanes, types.int64, types.int64), generate
