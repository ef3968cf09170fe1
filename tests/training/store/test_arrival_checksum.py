"""The checksum of a part that arrives in pieces is that of the whole."""

import threading
from collections.abc import Sequence

import pytest
import torch
import xxhash

from openwafer.training.store.pages import HostBuffer
from openwafer.training.store.transfers import ArrivalChecksum

NUM_BYTES, UNIT_BYTES = 20 * 4096, 3 * 4096
STARTS = tuple(range(0, NUM_BYTES, UNIT_BYTES))


@pytest.fixture
def buffer() -> HostBuffer:
    made = HostBuffer(NUM_BYTES)
    made.tensor.random_(generator=torch.Generator().manual_seed(0))
    return made


def whole(buffer: HostBuffer) -> str:
    return xxhash.xxh3_64_hexdigest(buffer.window(0, NUM_BYTES))


@pytest.mark.parametrize("order", [STARTS, STARTS[::-1], STARTS[1::2] + STARTS[::2]])
def test_any_order_gives_the_checksum_of_the_whole(
    buffer: HostBuffer, order: Sequence[int]
) -> None:
    checksum = ArrivalChecksum(buffer, UNIT_BYTES)
    ends = [checksum.take(start) for start in order]
    assert (ends[-1], any(ends[:-1]), checksum.hexadecimal) == (True, False, whole(buffer))


def test_threads_share_the_work_and_one_of_them_hears_of_the_end(buffer: HostBuffer) -> None:
    checksum = ArrivalChecksum(buffer, UNIT_BYTES)
    ends: list[bool] = []

    def take(starts: Sequence[int]) -> None:
        ends.extend(checksum.take(start) for start in starts)

    threads = [threading.Thread(target=take, args=(STARTS[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(ends), checksum.hexadecimal) == (1, whole(buffer))
