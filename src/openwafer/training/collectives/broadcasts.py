"""Records on their way from the ranks that own them to all ranks.

All ranks begin the same broadcasts in the same order, which a schedule gives them. What the order
was on the rank that sends comes with each record and is compared, since bytes alone do not say what
they are of: a rank that has gone another way would compute with the weights of another layer.

Records go from rank to rank in chunks; see :mod:`openwafer.training.collectives.relay`. What takes
no longer than a hop, as the number of a record does, goes by the library's tree of few hops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import xxhash
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.chunks import CHUNK_BYTES
from openwafer.training.collectives.group import Group, Pending
from openwafer.training.collectives.relay import Relay

UNKNOWN: Final = -1
SMALL_BYTES: Final = 1 << 16
"""The longest record that goes by a tree: 5 us at 12.5 GB/s, less than a hop."""
TAGS: Final = 1 << 30
"""Until they begin anew; far more than there are records under way."""


@dataclass(frozen=True)
class _UnderWay:
    expected: tuple[int, ...]
    label: Tensor
    weights: Tensor
    label_message: Pending
    weights_message: Pending | Relay


class Broadcasts:
    """Brings records from their owners to all ranks.

    Args:
        group: the ranks; nobody else sends in it.
        records: the names of all records, in an order that all ranks know.
        owners: the rank that has a record.
        chunk_bytes: what a message from rank to rank carries at most.

    Attributes:
        digest: 64 bits of all bytes that came or left since it was set to 0; ``None`` is not taken.
    """

    def __init__(
        self,
        group: Group,
        records: Sequence[str],
        owners: Mapping[str, int],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._group = group
        self._records = tuple(records)
        self._numbers = {record: number for number, record in enumerate(records)}
        self._owners = owners
        self._chunk_bytes = chunk_bytes
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
            self._send_out(weights, owner, what, expected),
        )

    def _send_out(
        self, weights: Tensor, owner: int, what: str, expected: tuple[int, ...]
    ) -> Pending | Relay:
        if weights.nbytes <= SMALL_BYTES:
            return self._group.broadcast(weights, owner, what)
        order, number, _ = expected
        # A rank that expects another record asks under another tag, and gets no byte of this one.
        tag = (order * len(self._records) + number) % TAGS
        return Relay(self._group, owner, weights, tag, what, self._chunk_bytes)

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
