"""Sums of earlier backwards, on their way from their owners to the rank that goes on from them.

A loop that calls backward several times before a step adds the gradients of all ranks to what the
backwards before have left. The owner of a record has that sum, and the chain that adds begins on
rank 0. So the sum goes there first, record by record, while backward runs. An owner sends that of a
record when it has its own gradients of it, from a thread of its own, for rank 0 may be far behind.
"""

from collections.abc import Collection, Iterator, Mapping
from queue import SimpleQueue
from typing import Final

import torch
from torch import Tensor

from openwafer.training.collectives.chunks import run_beside
from openwafer.training.collectives.group import FIRST_RANK, Group, Pending

FIRST_TAG: Final = 1
"""That of the first record; what carries a lower one is something else."""


class KeptElsewhere:
    """The gradients that other ranks keep, by name, as rank 0 knows of them."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    @property
    def records(self) -> tuple[str, ...]:
        """Records of which gradients are kept."""
        return tuple(self._names)

    @property
    def names(self) -> set[str]:
        """Parameters whose gradients are kept."""
        return {name for names in self._names.values() for name in names}

    def has(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter is kept."""
        return name in self._names.get(record, ())

    def add(self, record: str, name: str) -> None:
        """The owner of a record keeps the gradient of a parameter."""
        self._names.setdefault(record, set()).add(name)

    def discard(self, record: str, name: str) -> None:
        """The owner keeps it no more."""
        self._names[record].discard(name)
        if not self._names[record]:
            del self._names[record]

    def take(self, record: str) -> set[str]:
        """Names of the gradients of a record, which are kept no more from now on."""
        return self._names.pop(record, set())

    def clear(self) -> None:
        """No gradient is kept."""
        self._names.clear()


class KeptSums:
    """One rank's end of those ways.

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
