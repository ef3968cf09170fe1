"""Threads take each item once, whichever pool they come from."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from openwafer.training.sparsity.kernels import layout
from openwafer.training.sparsity.kernels.threads import GRAIN, num_threads_of, pool_of_our_own


def moved(num_threads: int) -> NDArray[np.float32]:
    """What threads of our own make of a list whose order they reverse."""
    source = np.arange(3 * layout.PIECE + 5, dtype=np.float32)
    target, order = np.zeros_like(source), np.arange(source.size, dtype=np.int32)[::-1].copy()
    record = np.zeros(1, layout.MOVE)
    record["num_items"], record["count"], record["order"] = 4, source.size, order.ctypes.data
    record["source"], record["target"] = source.ctypes.data, target.ctypes.data
    pool_of_our_own(layout.gather_entry().address, record.ctypes.data, num_threads)
    return target[::-1]


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_of_our_own_leave_nothing_out(num_threads: int) -> None:
    result = moved(num_threads)
    assert np.array_equal(result, np.arange(result.size))


def test_there_are_no_more_threads_than_torch_uses() -> None:
    assert num_threads_of(1000, 1000 * GRAIN) == torch.get_num_threads()
    assert num_threads_of(1, 1000 * GRAIN) == 1
    assert num_threads_of(1000, GRAIN) == 1
