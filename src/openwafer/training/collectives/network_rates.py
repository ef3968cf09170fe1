"""How fast weights and gradients pass between the ranks of a run, measured with made-up ones."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
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
LEAST_SECONDS: Final = 0.1
LEAST_BYTES: Final = 1 << 21
"""Many of the shortest chunks, so that what they take to begin is little of it."""
MUCH_BYTES: Final = 1 << 25
NUM_TRIALS: Final = 3


@dataclass(frozen=True)
class NetworkRates:
    """How fast a record passes from the rank that has it to all, or from all to that rank.

    Attributes:
        weights: bytes a second of broadcasts.
        gradients: bytes a second of sums in the order of the ranks.
        turn_seconds: pause between two sums, in which a rank asks for the next one; traffic that
            goes the same way as its request makes it longer.
    """

    weights: float
    gradients: float
    turn_seconds: float = 0.0


@dataclass(frozen=True)
class _Trial:
    """A measurement: made-up bytes, and how long they took.

    Attributes:
        num_bytes: bytes of all records.
        ahead_bytes: bytes of the chunks that passed over earlier links while the last one was idle.
        seconds: time until the last rank had ended.
        num_trials: number of trials that this one was chosen from.
    """

    num_bytes: int
    ahead_bytes: int
    seconds: float
    num_trials: int = 1

    @property
    def rate(self) -> float:
        return (self.num_bytes + self.ahead_bytes) / self.seconds


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
        broadcasts.end_pass()

    def sum_all(num_bytes: int, chunk_bytes: int, names: Sequence[str] = RECORDS[:1]) -> None:
        made_up = torch.zeros(num_bytes // len(names) // 4)
        records = {record: {record: made_up} for record in names}
        sums = OrderedSums(gradients, records, dict.fromkeys(names, OWNER), chunk_bytes)
        sums.begin()
        for record in names:
            sums.add(record, [{record: made_up.clone()}])
        for _ in sums.finish():
            pass
        sums.close()

    sent = _long_trial(broadcast, clock, weights.size - 1, median)
    # What goes forth delays the words of what comes back, now and then: that is a turn, no rate.
    summed = _long_trial(sum_all, clock, gradients.size, min)
    all_in_turn = partial(sum_all, summed.num_bytes, chunk_bytes_at(summed.rate), RECORDS)
    in_turn = median(_seconds(all_in_turn, clock) for _ in range(summed.num_trials))
    turn_seconds = max(in_turn - summed.seconds, 0.0) / (len(RECORDS) - 1)
    return NetworkRates(sent.rate, summed.rate, turn_seconds)


def _long_trial(
    attempt: Callable[[int, int], None],
    clock: Group,
    num_links: int,
    choose: Callable[[Iterable[float]], float],
) -> _Trial:
    """Of as many bytes as take long enough to be measured, over links one after the other.

    Chunks are as long as those of a pass at the rate that is known by then. What else the machines
    do makes some trials longer, so one of three is chosen; a network that carries so much in a
    trial is rarely waited for, and is not tried again.
    """
    num_bytes, rate = FIRST_BYTES, 0.0
    attempt(num_bytes, chunk_bytes_at(rate))
    while True:
        chunk_bytes = chunk_bytes_at(rate)
        again = partial(attempt, num_bytes, chunk_bytes)
        ahead_bytes = (num_links - 1) * chunk_bytes
        found = _Trial(num_bytes, ahead_bytes, _seconds(again, clock))
        is_long = found.seconds >= LEAST_SECONDS and num_bytes >= LEAST_BYTES
        if is_long or num_bytes >= MAX_BYTES:
            break
        rate = found.rate
        long_enough = 1 << int(rate * LEAST_SECONDS).bit_length()
        num_bytes = min(max(2 * num_bytes, long_enough), MAX_BYTES)
    if num_bytes > MUCH_BYTES:
        return found
    seconds = (found.seconds, *(_seconds(again, clock) for _ in range(NUM_TRIALS - 1)))
    return replace(found, seconds=choose(seconds), num_trials=NUM_TRIALS)


def _seconds(attempt: Callable[[], None], clock: Group) -> float:
    """Until the last rank has ended."""
    clock.gather(torch.zeros(1), "the beginning of a measurement")
    start = time.perf_counter()
    attempt()
    clock.gather(torch.zeros(1), "the end of a measurement")
    seconds = torch.tensor([time.perf_counter() - start])
    return torch.stack(clock.gather(seconds, "its measurement")).max().item()
