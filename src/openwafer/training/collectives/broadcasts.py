"""Records on their way from the ranks that own them to all ranks.

All ranks begin the same broadcasts in the same order, which a schedule gives them. What the order
was on the rank that sends comes with each record and is compared, since bytes alone do not say what
they are of: a rank that has gone another way would compute with the weights of another layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import xxhash
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.group import Group, Pending

UNKNOWN: Final = -1


@dataclass(frozen=True)
class _UnderWay:
    expected: tuple[int, ...]
    label: Tensor
    weights: Tensor
    label_message: Pending
    weights_message: Pending


class Broadcasts:
    """Brings records from their owners to all ranks.

    Args:
        group: the ranks; nobody else sends in it.
        records: the names of all records, in an order that all ranks know.
        owners: the rank that has a record.

    Attributes:
        digest: 64 bits of all bytes that came or left since it was set to 0; ``None`` is not taken.
    """

    def __init__(self, group: Group, records: Sequence[str], owners: Mapping[str, int]) -> None:
        self._group = group
        self._records = tuple(records)
        self._numbers = {record: number for number, record in enumerate(records)}
        self._owners = owners
        self._num_begun = 0
        self.digest: int | None = None
        self._under_way: dict[str, _UnderWay] = {}

    def begin(self, record: str, weights: Tensor) -> None:
        """Begin to bring a record; several may be under way.

        Args:
            record: its name.
            weights: contiguous, in host memory, as long on all ranks; on the owner they are there.
        """
        owner, what = self._owners[record], f"the weights of {record!r}"
        expected = (self._num_begun, self._numbers[record], weights.nbytes)
        self._num_begun += 1
        label = torch.tensor(expected)
        if owner != self._group.rank:
            label.fill_(UNKNOWN)
        self._under_way[record] = _UnderWay(
            expected,
            label,
            weights,
            self._group.broadcast(label, owner, what),
            self._group.broadcast(weights, owner, what),
        )

    def wait(self, record: str) -> None:
        """Return when a record has come, or has left.

        Raises:
            OpenwaferError: ``ranks-differ`` where the owner sends another record; ``rank-lost``,
                also where this rank waits for one owner and others wait for another.
        """
        one = self._under_way.pop(record)
        one.label_message.wait()
        found = tuple(one.label.tolist())
        if found != one.expected:
            raise self._differ(record, one.expected, found)
        one.weights_message.wait()
        if self.digest is not None:
            own = xxhash.xxh3_64_intdigest(one.weights.numpy().data, found[0])
            self.digest = (self.digest + own) % 2**64

    def _differ(
        self, record: str, expected: tuple[int, ...], found: tuple[int, ...]
    ) -> OpenwaferError:
        here, owner = self._group.ranks[self._group.rank], self._group.ranks[self._owners[record]]
        order, number, num_bytes = found
        return error(
            "ranks-differ",
            f"{here} expects {record!r} as broadcast {expected[0]}, of {expected[2]:,} bytes, and "
            f"{owner} sends {self._records[number]!r} as broadcast {order}, of {num_bytes:,} bytes",
            help="see that all ranks run the same program with the same config: which layers a "
            "forward calls must not depend on the rank",
        )
