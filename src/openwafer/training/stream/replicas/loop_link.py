"""The host side of one rank among several that run a user's own loop.

A loop may call backward several times before a step, and its optimizer's rank keeps the sum. The
sum over the ranks goes on from what is kept, so gradients are added one after the other, as a loop
on one device adds them, and not by backward. A pass that no backward follows sums nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.replicas.replica_link import ReplicaLink, Replicas


class LoopLink(ReplicaLink):
    """See :class:`ReplicaLink`.

    Args:
        replicas, records, own: see there.
        divisor: of every gradient.

    Attributes:
        is_alone: whether passes from now on are of the rank with the store only.
        on_summed: called when a backward is over, and its sums are in the store.
    """

    def __init__(
        self,
        replicas: Replicas,
        records: Mapping[str, Mapping[str, Tensor]],
        own: StoreLink | None,
        *,
        divisor: int = 1,
    ) -> None:
        super().__init__(replicas, records, own)
        self._divisor = divisor
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

    def push_parts(self, record: str, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """See :class:`ReplicaLink`."""
        if self._divisor != 1:
            with torch.no_grad():
                for gradient in chain.from_iterable(part.values() for part in parts):
                    gradient.div_(self._divisor)
        kept: Mapping[str, Tensor] = {}
        if self._own is not None:
            with self._own.host_section():
                kept = self._own.take_kept(record)
        super().push_parts(record, [kept, *parts] if kept else parts)

    def end_pass(self) -> None:
        """See :class:`ReplicaLink`."""
        has_sums, self._has_backward = self._has_backward, False
        self._is_joint = self._is_joint and has_sums
        if has_sums and self._own is not None:
            # Of these the other ranks may have gradients, which are added to what is kept.
            for record in self._own.store.layouts:
                if record not in self._pushed and self._own.kept.has_bytes(record):
                    self.push_parts(record, ())
        super().end_pass()
        if has_sums:
            self.on_summed()

    def abandon(self) -> None:
        """See :class:`ReplicaLink`."""
        self._has_backward = False
        super().abandon()
