"""Threads take each item once, whichever pool they come from, and as long as they gain by it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from openwafer.training.sparsity.kernels import entries
from openwafer.training.sparsity.kernels.entries import COUNTERS
from openwafer.training.sparsity.kernels.processor import (
    ALONE_FOR,
    GRAIN,
    MOST_LOST,
    MOST_SAVED,
    Gains,
    PoolOfOurOwn,
    enter_together,
    num_threads_of,
)

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "bench_sparse_neighbours.py"


def moved(num_threads: int) -> tuple[NDArray[np.float32], int]:
    """What threads of our own make of a list whose order they reverse; items of the first one."""
    source = np.arange(3 * entries.PIECE + 5, dtype=np.float32)
    target, order = np.zeros_like(source), np.arange(source.size, dtype=np.int32)[::-1].copy()
    told, counters = np.zeros(2, entries.MOVE), np.zeros(len(COUNTERS), np.int64)
    told["counters"], told["num_items"] = counters.ctypes.data, 4
    told["count"], told["order"] = source.size, order.ctypes.data
    told["source"], told["target"] = source.ctypes.data, target.ctypes.data
    pool, address = PoolOfOurOwn(), told.ctypes.data
    arguments = address, address + told.itemsize
    entry = entries.move_entry(is_gather=True)
    enter_together((pool.start, pool.end), entry.address, arguments, num_threads)
    return target[::-1], int(told["taken"].sum()) - int(counters[0])


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_of_our_own_leave_nothing_out(num_threads: int) -> None:
    result, uncounted = moved(num_threads)
    assert (np.array_equal(result, np.arange(result.size)), uncounted) == (True, 0)


def test_there_are_no_more_threads_than_torch_uses() -> None:
    assert num_threads_of(1000, 1000 * GRAIN) == torch.get_num_threads()
    assert num_threads_of(1, 1000 * GRAIN) == 1
    assert num_threads_of(1000, GRAIN) == 1


def test_trials_of_threads_that_always_lose_cost_a_twentieth_of_the_time() -> None:
    gains, now, lost = Gains(), 0.0, 0.0
    while now < 100:
        if gains.has_several(now):
            now, lost = now + 0.03, lost + 0.02
            gains.note(-0.02, now)
        now += 0.001  # a product by one thread
    assert lost < 100 / ALONE_FOR


def test_threads_that_gain_more_than_they_now_and_then_lose_go_on() -> None:
    gains = Gains()
    for number in range(100):
        gains.note(-0.9 * MOST_SAVED if number % 20 == 19 else 0.1 * MOST_SAVED, 0.0)
    assert gains.has_several(0.0)


def test_a_program_that_was_stopped_for_an_hour_tries_several_threads_again_soon() -> None:
    gains = Gains()
    gains.note(-3600.0, 3600.0)
    assert gains.has_several(3600.0 + ALONE_FOR * MOST_LOST)


@pytest.mark.slow
def test_two_threads_beside_busy_programs_take_no_longer_than_one() -> None:
    done = subprocess.run([sys.executable, BENCHMARK], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
