"""How fast weights and gradients pass between the ranks of a run, measured with made-up ones."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.training.collectives.broadcasts import Broadcasts
from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.collectives.group import Group
from openwafer.training.collectives.ordered_sums import OrderedSums

RECORDS: Final = tuple(f"made-up {number}" for number in range(8))
"""Behind each other, so that all links are busy, as they are in a pass."""
OWNER: Final = 0
FIRST_BYTES: Final = 1 << 18
MAX_BYTES: Final = 1 << 28
LEAST_SECONDS: Final = 0.25


@dataclass(frozen=True)
class NetworkRates:
    """Bytes a second of a record, from the rank that has it to all, or from all to that rank.

    Attributes:
        weights: of broadcasts.
        gradients: of sums in the order of the ranks.
    """

    weights: float
    gradients: float


def measure_network(weights: Group, gradients: Group, clock: Group) -> NetworkRates:
    """Measure; all ranks call this, and nothing else passes between them meanwhile.

    Args:
        weights, gradients: the ranks as these pass.
        clock: the same ranks, to begin and end together.
    """

    def broadcast(num_bytes: int, chunk_bytes: int) -> None:
        broadcasts = Broadcasts(weights, RECORDS, dict.fromkeys(RECORDS, OWNER), chunk_bytes)
        made_up = torch.zeros(num_bytes // len(RECORDS), dtype=torch.uint8)
        for record in RECORDS:
            broadcasts.begin(record, made_up.clone())
        for record in RECORDS:
            broadcasts.wait(record)

    def sum_all(num_bytes: int, chunk_bytes: int) -> None:
        made_up = torch.zeros(num_bytes // len(RECORDS) // 4)
        records = {record: {record: made_up} for record in RECORDS}
        sums = OrderedSums(gradients, records, dict.fromkeys(RECORDS, OWNER), chunk_bytes)
        sums.begin()
        for record in RECORDS:
            sums.add(record, [{record: made_up.clone()}])
        for _ in sums.finish():
            pass
        sums.close()

    return NetworkRates(_rate(broadcast, clock), _rate(sum_all, clock))


def _rate(trial: Callable[[int, int], None], clock: Group) -> float:
    """Bytes a second, by as many bytes as take long enough to be measured.

    Chunks are as long as those of a pass at the rate that is known by then.
    """
    num_bytes, rate = FIRST_BYTES, 0.0
    trial(num_bytes, chunk_bytes_at(rate))
    while True:
        clock.gather(torch.zeros(1), "the beginning of a measurement")
        start = time.perf_counter()
        trial(num_bytes, chunk_bytes_at(rate))
        clock.gather(torch.zeros(1), "the end of a measurement")
        seconds = torch.tensor([time.perf_counter() - start])
        longest = torch.stack(clock.gather(seconds, "its measurement")).max().item()
        rate = num_bytes / longest
        if longest >= LEAST_SECONDS or num_bytes >= MAX_BYTES:
            return rate
        num_bytes *= 2
