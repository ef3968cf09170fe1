"""Owners send records to all ranks.

All ranks begin the same broadcasts in the same order, which a schedule gives them. Each record
carries the sender's place in that order, and the receiver compares it with its own: bytes alone do
not say which record they are, and a rank that has gone another way would compute with the weights
of another layer.

Records go from rank to rank in chunks; see :mod:`openwafer.training.collectives.relay`. A message
that takes no longer than a hop, such as the number of a record, goes from the owner to each rank.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import xxhash
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.chunks import CHUNK_BYTES
from openwafer.training.collectives.group import Group, Pending, wait_for
from openwafer.training.collectives.relay import Named, Relay

UNKNOWN: Final = -1
SMALL_BYTES: Final = 1 << 16
"""The longest record that its owner sends to each rank: 5 us at 12.5 GB/s, less than a hop."""
TAGS: Final = 1 << 30
"""Until they begin anew; far more than there are records under way."""
LABEL_TAG: Final = TAGS
"""Of no record."""


@dataclass(frozen=True)
class _Label:
    """What a broadcast is on this rank, and on its owner.

    Attributes:
        expected: this rank's order, number of the record, and bytes.
        found: the owner's, once they have come.
        message: brings the owner's; ``None`` on the owner.
    """

    expected: tuple[int, ...]
    found: Tensor
    message: Pending | None


@dataclass(frozen=True)
class _UnderWay:
    """A record that this rank waits for; ``None`` if all of it has left."""

    weights: Tensor
    label: _Label
    way: Pending | Relay | None


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
        # Threads beside compute's own wait, too: what is counted is the time that compute loses.
        self._group, self._traffic = group.apart(), group.traffic
        self._records = tuple(records)
        self._numbers = {record: number for number, record in enumerate(records)}
        self._owners = owners
        self._chunk_bytes = chunk_bytes
        self._num_begun = 0
        self.digest: int | None = None
        self._under_way: dict[str, _UnderWay] = {}
        # Labels and short records of this rank, which ranks far down the way take late.
        self._leaving: list[Pending] = []

    def begin(self, record: str, weights: Tensor) -> None:
        """Begin to bring a record; several may be under way.

        Args:
            record: its name.
            weights: contiguous, in host memory, as long on all ranks; on the owner they are there.
        """
        owner = self._owners[record]
        expected = (self._num_begun, self._numbers[record], weights.nbytes)
        self._num_begun += 1
        found = torch.tensor(expected)
        if owner != self._group.rank:
            found.fill_(UNKNOWN)
            self._traffic.add(found.nbytes + weights.nbytes)
        label = _Label(expected, found, self._from_owner(found, record, LABEL_TAG))
        self._under_way[record] = _UnderWay(weights, label, self._begun(record, weights, label))

    def _begun(self, record: str, weights: Tensor, label: _Label) -> Pending | Relay | None:
        order, number, _ = label.expected
        tag = (order * len(self._records) + number) % TAGS
        if weights.nbytes <= SMALL_BYTES:
            return self._from_owner(weights, record, tag)
        agree = partial(self._agree, record, label)
        named = Named(tag, _what(record))
        owner = self._owners[record]
        return Relay(self._group, owner, weights, named, agree, self._chunk_bytes)

    def _from_owner(self, tensor: Tensor, record: str, tag: int) -> Pending | None:
        owner = self._owners[record]
        if owner != self._group.rank:
            return self._group.receive(tensor, owner, tag, _what(record))
        self._leaving += self._group.send_to_all(tensor.clone(), tag, _what(record))
        return None

    def wait(self, record: str) -> None:
        """Return when a record has come, or may change here.

        Raises:
            OpenwaferError: ``ranks-differ`` where the owner sends another record; ``rank-lost``,
                also where this rank waits for one owner and others wait for another.
        """
        one, start = self._under_way.pop(record), time.perf_counter()
        if isinstance(one.way, Pending):
            self._agree(record, one.label)
        if one.way is not None:
            one.way.wait()
        self._traffic.add(waited_seconds=time.perf_counter() - start)
        if self.digest is not None:
            own = xxhash.xxh3_64_intdigest(one.weights.numpy().data, one.label.expected[0])
            self.digest = (self.digest + own) % 2**64

    def end_pass(self) -> None:
        """Return when all ranks have begun all broadcasts of this rank.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        wait_for(self._leaving)

    def _agree(self, record: str, label: _Label) -> None:
        if label.message is not None:
            label.message.wait()
        found = tuple(label.found.tolist())
        if found != label.expected:
            raise self._differ(record, label.expected, found)

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


def _what(record: str) -> str:
    return f"the weights of {record!r}"
