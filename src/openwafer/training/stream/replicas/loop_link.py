"""The host side of one rank among several that run a user's own loop.

A loop may call backward several times before a step, and the owner of a record keeps the sum. The
sum over the ranks goes on from what is kept, so gradients are added one after the other, as a loop
on one device adds them, and not by backward. A pass that no backward follows sums nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from openwafer.training.collectives.group import FIRST_RANK, Group
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.replicas.kept_sums import KeptElsewhere, KeptSums
from openwafer.training.stream.replicas.replica_link import ReplicaLink, Replicas


class LoopLink(ReplicaLink):
    """See :class:`ReplicaLink`.

    Args:
        replicas, records, own: see there.
        group: the ranks, as sums that owners keep pass.
        divisor: of every gradient.

    Attributes:
        is_alone: whether passes from now on are of rank 0 only.
        on_summed: called when a backward is over, and its sums are with their owners.
        kept_elsewhere: on rank 0, where other ranks have records.
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
        self._rank, self._owners = replicas.rank, replicas.owners
        self._kept_sums = KeptSums(group, records)
        self.kept_elsewhere = KeptElsewhere()
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
        """See :class:`ReplicaLink`."""
        if self._divisor != 1:
            with torch.no_grad():
                for gradient in chain.from_iterable(part.values() for part in parts):
                    gradient.div_(self._divisor)
        kept = self._take_kept(record)
        super().push(record, [kept, *parts] if kept else parts)

    def _take_kept(self, record: str) -> Mapping[str, Tensor]:
        """What rank 0 goes on from; an owner sends it there, and has it no more."""
        own = self._own_with(record)
        if own is not None:
            with own.host_section():
                kept = own.take_kept(record)
            if kept and self._rank != FIRST_RANK:
                self._kept_sums.send(record, kept)
                return {}
            return kept
        names = self.kept_elsewhere.take(record)
        if not names:
            return {}
        return self._kept_sums.receive(record, self._owners[record], names)

    def _records_kept(self) -> list[str]:
        """Records of which this rank has a sum to begin with, or to send to rank 0."""
        own = filter(self._own.kept.has_bytes, self._own.store.layouts)
        return [*own, *self.kept_elsewhere.records]

    def end_pass(self) -> None:
        """See :class:`ReplicaLink`."""
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
        """See :class:`ReplicaLink`."""
        self._has_backward = False
        super().abandon()

    def close(self) -> None:
        """See :class:`ReplicaLink`."""
        self._kept_sums.close()
        super().close()
