"""Sums over all ranks in one order: that of the ranks, and within a rank that of its parts.

The running sum of a record goes from rank 0 to rank 1 and so on. Each adds its own parts one by
one, and the last one sends the sum to the rank that owns the record. So the sum is the left fold
over all parts, ``((g0 + g1) + g2) + ...``, which is how a loop on one device adds the gradients of
its micro-batches: the bits do not depend on how many ranks there are.

A link carries each tensor once, in chunks, so that all ranks add at once, each another chunk.
Rank 0 says in which order records come. The others may have their parts in any other.

On each rank one thread adds, one takes the sums that the rank owns, and compute's own thread calls
everything public.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from queue import SimpleQueue
from threading import Condition
from typing import Final

import torch
from torch import Tensor

from openwafer.training.collectives.chunks import CHUNK_BYTES, chunks_of, receive_chunks, run_beside
from openwafer.training.collectives.group import Group, Pending, Traffic, wait_for

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


FOLD_TAGS: Final = (0, 1)
SUM_TAGS: Final = (2, 3)


@dataclass(frozen=True)
class Sum:
    """The sum of a record over all parts of all ranks.

    Attributes:
        record: its name.
        tensors: contiguous tensors by name, without those that no rank has a part of.
    """

    record: str
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class _Ended:
    """A thread has ended its work for a pass.

    Attributes:
        failure: the error that it raised; ``None`` without one.
    """

    failure: BaseException | None


class OrderedSums:
    """Adds what all ranks have of each record, once a pass.

    Args:
        group: the ranks; nobody else sends in it.
        records: the tensors of each record by name, on all ranks the same in the same order; only
            their shapes and dtypes count.
        owners: the rank that gets the sum of a record.
        chunk_bytes: what a message carries at most.
        waits: counts the time that compute's own thread waited for sums.
    """

    def __init__(
        self,
        group: Group,
        records: Mapping[str, Tensors],
        owners: Mapping[str, int],
        chunk_bytes: int = CHUNK_BYTES,
        waits: Traffic | None = None,
    ) -> None:
        self._group = group
        self._waits = waits or Traffic()
        self._records = records
        self._owners = owners
        self._chunk_bytes = chunk_bytes
        last = group.size - 1
        self._is_first, self._is_last = group.rank == 0, group.rank == last

        def running(other: int) -> SumWire:
            return SumWire(group, other, FOLD_TAGS, records)

        def whole(other: int) -> SumWire:
            return SumWire(group, other, SUM_TAGS, records)

        self._from_before = None if self._is_first else running(group.rank - 1)
        self._to_next = None if self._is_last else running(group.rank + 1)
        self._from_last = None if self._is_last else whole(last)
        self._to_owners = {other: whole(other) for other in (range(last) if self._is_last else ())}
        self._changed = Condition()
        self._parts: dict[str, Sequence[Tensors]] = {}
        self._is_closed = False
        # Of compute's own thread.
        self._given: set[str] = set()
        self._num_under_way = 0
        self._turns: SimpleQueue[str | None] = SimpleQueue()
        self._arrived: SimpleQueue[Sum | _Ended] = SimpleQueue()

    def begin(self) -> None:
        """A pass begins, on all ranks."""
        tasks = self._tasks()
        self._num_under_way = len(tasks)
        for task in tasks:
            run_beside(task, "ordered-sums", self._end)

    def _tasks(self) -> list[Callable[[], None]]:
        return [self._fold_all, *([] if self._from_last is None else [self._take_sums])]

    def _end(self, failure: BaseException | None) -> None:
        self._arrived.put(_Ended(failure))

    def add(self, record: str, parts: Sequence[Tensors]) -> None:
        """Give a rank's parts of a record, once a pass; they are changed from here on.

        Args:
            record: its name.
            parts: those of each micro-batch, in rising order; a tensor may be missing.
        """
        assert record not in self._given
        self._given.add(record)
        with self._changed:
            self._parts[record] = parts
            self._changed.notify_all()
        if self._is_first:
            self._turns.put(record)

    def ready(self) -> Iterator[Sum]:
        """Sums that this rank owns and that are complete by now; each comes once.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        while not self._arrived.empty():
            yield from self._next_sum()

    def finish(self) -> Iterator[Sum]:
        """This rank has no more parts: wait for the other ranks, and give the sums that are left.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        for record in [record for record in self._records if record not in self._given]:
            self.add(record, ())
        if self._is_first:
            self._turns.put(None)
        while self._num_under_way:
            yield from self._next_sum()
        self._given.clear()

    def _next_sum(self) -> Iterator[Sum]:
        start = time.perf_counter()
        arrived = self._arrived.get()
        self._waits.add(waited_seconds=time.perf_counter() - start)
        if isinstance(arrived, Sum):
            yield arrived
        else:
            self._num_under_way -= 1
            if arrived.failure is not None:
                raise arrived.failure

    def close(self) -> None:
        """End the threads, or leave those to themselves that wait for a lost rank."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._turns.put(None)

    # The thread that adds.

    @torch.no_grad()
    def _fold_all(self) -> None:
        for turn in self._turns_of_pass():
            own = self._take_parts(turn.record)
            if own is None:
                return
            self._fold_record(turn, own)
        wires = [self._to_next] if self._to_next is not None else self._to_owners.values()
        for wire in wires:
            wire.announce(None)
        for wire in wires:
            wire.flush()

    def _turns_of_pass(self) -> Iterator[Announced]:
        """The records in the order of rank 0, with the names of which a running sum comes."""
        if self._from_before is None:
            while (record := self._turns.get()) is not None:
                yield Announced(record, ())
        else:
            while (announced := self._from_before.announced()) is not None:
                yield announced

    def _take_parts(self, record: str) -> Sequence[Tensors] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or record in self._parts)
            return self._parts.pop(record, None)

    def _fold_record(self, turn: Announced, parts: Sequence[Tensors]) -> None:
        record = turn.record
        own = {
            name: [part[name] for part in parts if name in part] for name in self._records[record]
        }
        names = tuple(name for name in own if own[name] or name in turn.names)
        to = self._to_next or self._to_owners.get(self._owners[record])
        if to is not None:
            to.announce(Announced(record, names))
        sums = {
            name: self._fold(record, name, own.pop(name), is_running=name in turn.names, to=to)
            for name in names
        }
        if to is None:
            self._arrived.put(Sum(record, sums))

    def _fold(
        self, record: str, name: str, parts: list[Tensor], *, is_running: bool, to: SumWire | None
    ) -> Tensor:
        """Add parts to the running sum, if one comes, and hand it on, if another rank wants it."""
        what = f"the gradient of {name!r}"
        if is_running:
            assert self._from_before is not None
            total = self._empty(record, name)
            arriving: Iterable[Tensor] = self._from_before.receive(self._chunks(total), what)
        else:
            total = parts.pop(0).contiguous()
            arriving = self._chunks(total)
        for running, *own in zip(arriving, *map(self._chunks, parts), strict=True):
            for one in own:
                running.add_(one)
            if to is not None:
                to.send(running, what)
        return total

    def _chunks(self, tensor: Tensor) -> Sequence[Tensor]:
        return chunks_of(tensor, self._chunk_bytes)

    def _empty(self, record: str, name: str) -> Tensor:
        like = self._records[record][name]
        return torch.empty(like.shape, dtype=like.dtype)

    # The thread that takes sums.

    def _take_sums(self) -> None:
        assert self._from_last is not None
        while (announced := self._from_last.announced()) is not None:
            sums = {name: self._empty(announced.record, name) for name in announced.names}
            for name, total in sums.items():
                what = f"the sum of the gradient of {name!r}"
                for _ in self._from_last.receive(self._chunks(total), what):
                    pass
            self._arrived.put(Sum(announced.record, sums))


class Reduction(StrEnum):
    """How gradients are added over ranks.

    ``ORDERED`` is the order of a loop on one device, ``FAST`` that of the library, which depends on
    the number of ranks, and so do the bits.
    """

    ORDERED = "ordered"
    FAST = "fast"


class ReducedSums(OrderedSums):
    """Sums by the library's reduction, in an order that depends on the number of ranks.

    Rank 0 says in which order records come, as for ordered sums. Each rank adds its own parts
    first, and one reduction for each tensor brings the sum to the rank that owns the record.
    """

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
