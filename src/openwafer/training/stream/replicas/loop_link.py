"""The host side of one rank among several that run a user's own loop.

A loop may call backward several times before a step, and the owner of a record keeps the sum. The
sum over the ranks goes on from what is kept, so gradients are added one after the other, as a loop
on one device adds them, and not by backward. A pass that no backward follows sums nothing.

The chain that adds begins on rank 0. So what is kept goes there first, record by record, while
backward runs (:class:`KeptSums`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Final

import torch
from torch import Tensor

from openwafer.training.collectives.chunks import run_beside
from openwafer.training.collectives.group import FIRST_RANK, Group, Pending
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.link.updates import KeptGradients
from openwafer.training.stream.replicas.replica_link import ReplicaLink, Replicas

FIRST_TAG: Final = 1
"""That of the first record; what carries a lower one is something else."""


class KeptSums:
    """Brings sums of earlier backwards from their owners to rank 0, which goes on from them.

    An owner sends that of a record when it has its own gradients of it, from a thread of its own,
    for rank 0 may be far behind.

    Args:
        group: the ranks; nobody else sends in it with these tags.
        records: the tensors of each record by name, of which shapes and dtypes count; the same on
            all ranks, in the same order.
    """

    def __init__(self, group: Group, records: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._group = group
        self._records = records
        self._tags = {record: FIRST_TAG + number for number, record in enumerate(records)}
        self._leaving: SimpleQueue[tuple[str, Mapping[str, Tensor]] | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._is_sending = False

    def receive(self, record: str, owner: int, names: Collection[str]) -> Mapping[str, Tensor]:
        """Begin to take the sums of a record on rank 0; who looks one up waits for it."""
        sums = {
            name: torch.empty(like.shape, dtype=like.dtype)
            for name, like in self._records[record].items()
            if name in names
        }
        messages = {
            name: self._group.receive(total, owner, self._tags[record], _what(name))
            for name, total in sums.items()
        }
        return _Coming(sums, messages)

    def send(self, record: str, sums: Mapping[str, Tensor]) -> None:
        """Begin to send the sums of a record that this rank owns; they are kept until they left."""
        if not self._is_sending:
            self._is_sending = True
            run_beside(self._send_all, "kept-sums", self._ended.put)
        self._leaving.put((record, sums))

    def _send_all(self) -> None:
        while (leaving := self._leaving.get()) is not None:
            record, sums = leaving
            for name in filter(sums.__contains__, self._records[record]):
                total, tag = sums[name].contiguous(), self._tags[record]
                self._group.send(total, FIRST_RANK, tag, _what(name)).wait()

    def finish(self) -> None:
        """Return when all sums have left.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        if not self._is_sending:
            return
        self._leaving.put(None)
        failure = self._ended.get()
        self._is_sending = False
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the thread, or leave it to itself where it waits for a lost rank."""
        self._leaving.put(None)


def _what(name: str) -> str:
    return f"what is kept of the gradient of {name!r}"


class _Coming(Mapping[str, Tensor]):
    """Tensors by name, each of which is waited for when it is looked up first."""

    def __init__(self, tensors: Mapping[str, Tensor], messages: dict[str, Pending]) -> None:
        self._tensors = tensors
        self._messages = messages

    def __getitem__(self, name: str) -> Tensor:
        message = self._messages.pop(name, None)
        if message is not None:
            message.wait()
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class LoopLink(ReplicaLink):
    """See :class:`ReplicaLink`.

    Args:
        replicas, records, own: see there.
        group: the ranks, as sums that owners keep pass.
        divisor: of every gradient.

    Attributes:
        is_alone: whether passes from now on are of rank 0 only.
        on_summed: called when a backward is over, and its sums are with their owners.
        kept_elsewhere: on rank 0, those that other ranks keep.
    """

    def __init__(
        self,
        replicas: Replicas,
        records: Mapping[str, Mapping[str, Tensor]],
        own: StoreLink,
        *,
        group: Group,
        divisor: int = 1,
    ) -> None:
        super().__init__(replicas, records, own)
        self._divisor = divisor
        self._rank, self._ownership = replicas.rank, replicas.ownership
        self._kept_sums = KeptSums(group, records)
        self.kept_elsewhere = KeptGradients()
        self.is_alone = False
        self.on_summed: Callable[[], None] = lambda: None
        self._has_backward = False

    def _open(self) -> None:
        if not self._is_open:
            super()._open()
            self._is_joint = not self.is_alone

    def begin_backward(self) -> None:
        """All ranks begin a backward."""
        self._has_backward = True

    def push(self, record: str, parts: Sequence[Mapping[str, Tensor]]) -> None:
        if self._divisor != 1:
            with torch.no_grad():
                for gradient in chain.from_iterable(part.values() for part in parts):
                    gradient.div_(self._divisor)
        kept = self._take_kept(record)
        super().push(record, [kept, *parts] if kept else parts)

    def _take_kept(self, record: str) -> Mapping[str, Tensor]:
        """What rank 0 goes on from; an owner sends it there, and has it no more."""
        own = self._own_with(record)
        if own is None:
            names = self.kept_elsewhere.take(record)
            owner = self._ownership.owner(record)
            return self._kept_sums.receive(record, owner, names) if names else {}
        with own.host_section():
            kept = own.take_kept(record)
        if kept and self._rank != FIRST_RANK:
            self._kept_sums.send(record, kept)
            return {}
        return kept

    def _records_kept(self) -> list[str]:
        """Records of which this rank has a sum to begin with, or to send to rank 0."""
        own = filter(self._own.kept.has_bytes, self._own.store.layouts)
        return [*own, *filter(self.kept_elsewhere.has_bytes, self._ownership.owners)]

    def end_pass(self) -> None:
        has_sums, self._has_backward = self._has_backward, False
        self._is_joint = self._is_joint and has_sums
        if has_sums:
            # Of these the other ranks may have gradients, which are added to what is kept.
            for record in self._records_kept():
                if record not in self._pushed:
                    self.push(record, ())
        super().end_pass()
        if has_sums:
            self._kept_sums.finish()
            self.on_summed()

    def abandon(self) -> None:
        self._has_backward = False
        super().abandon()

    def close(self) -> None:
        self._kept_sums.close()
        super().close()
