"""How fast weights and gradients pass between the ranks of a run, measured with made-up ones."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
LEAST_SECONDS: Final = 0.25
MUCH_BYTES: Final = 1 << 26


@dataclass(frozen=True)
class NetworkRates:
    """How fast a record passes from the rank that has it to all, or from all to that rank.

    Attributes:
        weights: bytes a second of broadcasts.
        gradients: bytes a second of sums in the order of the ranks.
        turn_seconds: from one sum to the next, in which a rank asks for it, and none passes.
    """

    weights: float
    gradients: float
    turn_seconds: float = 0.0


@dataclass(frozen=True)
class _Trial:
    """So many made-up bytes, and how long they took."""

    num_bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.num_bytes / self.seconds


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

    sent, summed = _long_trial(broadcast, clock), _long_trial(sum_all, clock)
    all_in_turn = partial(sum_all, summed.num_bytes, chunk_bytes_at(summed.rate), RECORDS)
    in_turn = _usual(_trial(all_in_turn, clock, summed.num_bytes), all_in_turn, clock)
    turn_seconds = max(in_turn.seconds - summed.seconds, 0.0) / (len(RECORDS) - 1)
    return NetworkRates(sent.rate, summed.rate, turn_seconds)


def _long_trial(attempt: Callable[[int, int], None], clock: Group) -> _Trial:
    """Of as many bytes as take long enough to be measured.

    Chunks are as long as those of a pass at the rate that is known by then.
    """
    num_bytes, rate = FIRST_BYTES, 0.0
    attempt(num_bytes, chunk_bytes_at(rate))
    while True:
        found = _trial(partial(attempt, num_bytes, chunk_bytes_at(rate)), clock, num_bytes)
        if found.seconds >= LEAST_SECONDS or num_bytes >= MAX_BYTES:
            return _usual(found, partial(attempt, num_bytes, chunk_bytes_at(rate)), clock)
        num_bytes, rate = 2 * num_bytes, found.rate


def _usual(found: _Trial, attempt: Callable[[], None], clock: Group) -> _Trial:
    """The median of a trial and two like it: what else the machines do makes some of them longer.

    A network that carries so much in a trial is rarely waited for, and is not tried again.
    """
    if found.num_bytes > MUCH_BYTES:
        return found
    trials = found, *(_trial(attempt, clock, found.num_bytes) for _ in range(2))
    return _Trial(found.num_bytes, median(trial.seconds for trial in trials))


def _trial(attempt: Callable[[], None], clock: Group, num_bytes: int) -> _Trial:
    """Until the last rank has ended."""
    clock.gather(torch.zeros(1), "the beginning of a measurement")
    start = time.perf_counter()
    attempt()
    clock.gather(torch.zeros(1), "the end of a measurement")
    seconds = torch.tensor([time.perf_counter() - start])
    longest = torch.stack(clock.gather(seconds, "its measurement")).max().item()
    return _Trial(num_bytes, longest)
