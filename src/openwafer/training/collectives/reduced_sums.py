"""The library's own reduction sums over all ranks, in an order that depends on their number.

Rank 0 says in which order records come, as for ordered sums. Each rank adds its own parts first,
and one reduction for each tensor brings the sum to the rank that owns the record.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import reduce

import torch
from torch import Tensor

from openwafer.training.collectives.ordered_sums import OrderedSums, Sum
from openwafer.training.collectives.sum_wire import END, Tensors


class Reduction(StrEnum):
    """How gradients are added over ranks.

    ``ORDERED`` is the order of a loop on one device, ``FAST`` that of the library, which depends on
    the number of ranks, and so do the bits.
    """

    ORDERED = "ordered"
    FAST = "fast"


class ReducedSums(OrderedSums):
    """Works as :class:`OrderedSums` does, in all but the order of additions."""

    def _tasks(self) -> list[Callable[[], None]]:
        return [self._reduce_all]

    @torch.no_grad()
    def _reduce_all(self) -> None:
        for record in self._order():
            parts = self._take_parts(record)
            if parts is None:
                return
            sums = dict(self._sums_of(record, parts))
            if self._owners[record] == self._group.rank:
                self._arrived.put(Sum(record, sums))

    def _order(self) -> Iterator[str]:
        names = tuple(self._records)
        while True:
            turn = self._turns.get() if self._is_first else None
            number = torch.tensor([END if turn is None else names.index(turn)])
            self._group.broadcast(number, 0, "the next gradients").wait()
            if number.item() == END:
                return
            yield names[int(number.item())]

    def _sums_of(self, record: str, parts: Sequence[Tensors]) -> Iterator[tuple[str, Tensor]]:
        own = {
            name: [part[name] for part in parts if name in part] for name in self._records[record]
        }
        counts = torch.tensor([len(found) for found in own.values()])
        self._group.add_up(counts, f"gradients of {record!r}").wait()
        for name, count in zip(own, counts.tolist(), strict=True):
            if not count:
                continue
            found = own[name] or [torch.zeros_like(self._empty(record, name))]
            total = reduce(Tensor.add_, found[1:], found[0].contiguous())
            if total.numel():
                to = self._owners[record]
                self._group.reduce(total, to, f"the gradient of {name!r}").wait()
            yield name, total
