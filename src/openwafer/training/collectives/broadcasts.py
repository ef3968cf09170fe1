"""Owners send records to all ranks.

All ranks begin the same broadcasts in the same order, which a schedule gives them. Each record
carries the sender's place in that order, and the receiver compares it with its own: bytes alone do
not say which record they are, and a rank that has gone another way would compute with the weights
of another layer.

Records go from rank to rank in chunks (:class:`Relay`). A message that takes no longer than a hop,
such as the number of a record, goes from the owner to each rank.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Final

import torch
import xxhash
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.replica_steps.joined import way_from
from openwafer.training.collectives.chunks import (
    CHUNK_BYTES,
    chunks_of,
    receive_chunks,
    run_beside,
)
from openwafer.training.collectives.group import Group, Pending, wait_for


@dataclass(frozen=True)
class Named:
    """How ranks know a relay.

    Attributes:
        tag: marks its messages, and those of no other relay under way.
        what: names it in errors.
    """

    tag: int
    what: str


class Relay:
    """Begins to receive a tensor, if this rank is not the owner, and to pass it on.

    The owner sends to the first rank, and so on in the order of ranks, without the owner. A link
    carries each byte once, and while one chunk passes over it, those behind pass over the links
    before. So the last rank has all of the tensor after the time of its bytes on one link, and that
    of one chunk for each rank between. The tensors of all owners go the same way: a rank that is
    far down the way is late for each by the same time, and waits once in a pass. Ways that began
    behind their owners in a ring would make another rank late for each tensor, and all would wait
    for it.

    This cannot deadlock, whatever else is under way. Each relay has a thread and a tag of its own,
    so it waits for no other relay: a chunk needs its memory at both ends, which is there once both
    have begun the relay, and has to be at the end before, which is nearer to the owner. All ranks
    begin relays in one order, and a relay is begun when there is memory for it, which earlier ones
    give back. So the first relay that is not over always ends. Nothing is buffered: what has not
    been asked for stays with the rank before.

    Args:
        group: the ranks.
        owner: the rank that has the tensor.
        tensor: contiguous, in host memory, as long on all ranks; in use until :meth:`wait` returns.
        named: see :class:`Named`.
        agree: returns when the owner is known to send this tensor, or raises; called in the relay's
            thread, when the chunks have been asked for: a link would be idle until they were.
        chunk_bytes: what a message carries at most.
    """

    def __init__(
        self,
        group: Group,
        owner: int,
        tensor: Tensor,
        named: Named,
        agree: Callable[[], None],
        chunk_bytes: int,
    ) -> None:
        self._group, self._owner = group, owner
        way = way_from(owner, group.size)
        place = way.index(group.rank)
        self._before, self._after = ([None, *way, None][place + step] for step in (0, 2))
        self._tag, self._what = named.tag, named.what
        self._agree = agree
        self._chunks = chunks_of(tensor, chunk_bytes)
        self._is_over = Event()
        self._failure: BaseException | None = None
        run_beside(self._pass_on, "relay", self._end)

    def _pass_on(self) -> None:
        arriving = self._arriving()
        self._agree()
        after = self._after
        sent = [
            self._group.send(chunk, after, self._tag, self._what)
            for chunk in arriving
            if after is not None
        ]
        wait_for(sent)

    def _arriving(self) -> Iterable[Tensor]:
        group, before, what = self._group, self._before, self._what
        if before is None:
            return self._chunks
        if before != self._owner:
            what += f", which come from {group.ranks[self._owner]}"
        return receive_chunks(group, self._chunks, before, self._tag, what)

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._is_over.set()

    def wait(self) -> None:
        """Return when the tensor has come, and has left for the next rank.

        Raises:
            OpenwaferError: ``rank-lost``, or what ``agree`` has raised.
        """
        self._is_over.wait()
        if self._failure is not None:
            raise self._failure


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
