"""A wire carries the running sum of a record from one rank to another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from openwafer.training.collectives.chunks import receive_chunks
from openwafer.training.collectives.group import Group, Pending, wait_for

END: Final = -1
"""In the place of a record's number: there are no more."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Announced:
    """Announces the next sum on a wire.

    Attributes:
        record: its name.
        names: its tensors that come, in the record's order.
    """

    record: str
    names: tuple[str, ...]


class SumWire:
    """One direction between two ranks, both of which know the records.

    Args:
        group: the ranks.
        other: the rank at the far end.
        tags: mark announcements and chunks; a second wire between the same ranks has other ones.
        records: the tensors of each record, in an order that both ends know.
    """

    def __init__(
        self,
        group: Group,
        other: int,
        tags: tuple[int, int],
        records: Mapping[str, Tensors],
    ) -> None:
        self._group = group
        self._other = other
        self._announcements, self._chunks = tags
        self._records = records
        self._numbers = {record: number for number, record in enumerate(records)}
        self._names = tuple(records)
        self._num_flags = max(map(len, records.values()), default=0)
        self._sent: list[Pending] = []
        self._sent_before: list[Pending] = []
        self._coming: tuple[Tensor, Pending] | None = None

    def announce(self, coming: Announced | None) -> None:
        """Send what comes next, or that nothing does.

        Waits until of what was sent no more than the last record is under way.
        """
        wait_for(self._sent_before)
        self._sent_before, self._sent = self._sent, []
        header = torch.zeros(1 + self._num_flags, dtype=torch.int64)
        header[0] = END if coming is None else self._numbers[coming.record]
        if coming is not None:
            for place, name in enumerate(self._records[coming.record], 1):
                header[place] = name in coming.names
        what = "the end of a pass" if coming is None else f"gradients of {coming.record!r}"
        self._sent.append(self._group.send(header, self._other, self._announcements, what))

    def announced(self) -> Announced | None:
        """Wait for what comes next; nothing does if it is ``None``.

        What comes after it is asked for here: it follows the chunks without a turn between.
        """
        header, coming = self._coming or self._ask()
        coming.wait()
        number, *flags = header.tolist()
        if number == END:
            self._coming = None
            return None
        self._coming = self._ask()
        record = self._names[number]
        names = zip(self._records[record], flags, strict=False)
        return Announced(record, tuple(name for name, comes in names if comes))

    def _ask(self) -> tuple[Tensor, Pending]:
        header = torch.empty(1 + self._num_flags, dtype=torch.int64)
        what = "the next gradients"
        return header, self._group.receive(header, self._other, self._announcements, what)

    def send(self, chunk: Tensor, what: str) -> None:
        """Begin to send one of a tensor's chunks, which nobody changes from here on."""
        self._sent.append(self._group.send(chunk, self._other, self._chunks, what))

    def receive(self, chunks: Sequence[Tensor], what: str) -> Iterator[Tensor]:
        """Ask for all chunks of a tensor at once; each is given when it has come."""
        return receive_chunks(self._group, chunks, self._other, self._chunks, what)

    def flush(self) -> None:
        """Return when everything sent has left."""
        wait_for(self._sent_before)
        wait_for(self._sent)
