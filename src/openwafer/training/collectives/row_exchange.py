"""Ranks send rows to the rank that computes with them, and it sends the results back.

A rank asks when it needs an answer: others need not ask at the same time, or as often. Each rank
has one thread, beside compute's own, for every other rank that may ask; the thread waits for
nothing but rows and the answer. So ranks may ask each other in any order.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from queue import SimpleQueue
from typing import Final

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.chunks import run_beside
from openwafer.training.collectives.group import Group, Pending, wait_for

HEADERS, ROWS, ANSWERS, SHARES = range(4)
"""Tags of messages; of the last kind are those of :meth:`RowExchange.collect`."""


class Asked(IntEnum):
    """A rank asks another for one of these."""

    END = 0
    """Nothing more in this pass."""
    FORWARD = 1
    """Products, of which a backward may follow."""
    AGAIN = 2
    """The same, where a layer runs again: the backward is that of the first time."""
    BACKWARD = 3
    """Gradients of rows, given those of products."""
    LEAVE = 4
    """The backward has left a module behind."""


@dataclass(frozen=True)
class RowCall:
    """The head of a message with rows.

    Attributes:
        asked: what the rows are for.
        module: number of the module that computes with them.
        call: number of the asking call, in the pass of its rank.
        micro_batch: number of the micro-batch that the call belongs to, on that rank.
        operator: how the products are made.
        sizes: rows for each expert of the other rank; empty for none.
    """

    asked: Asked
    module: int = 0
    call: int = 0
    micro_batch: int = 0
    operator: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """All of them."""
        return sum(self.sizes)


NUM_FIELDS: Final = 5


@dataclass(frozen=True)
class Width:
    """Lengths of the rows of a call and of its answer.

    Attributes:
        asked, answered: elements of a row.
        dtype: dtype of both.
    """

    asked: int
    answered: int
    dtype: torch.dtype


Answer = Callable[[int, RowCall, Tensor], Tensor]
"""Of a rank, what it asks, and its rows; called in several threads."""


class RowExchange:
    """Exchanges rows, as the module describes. Compute's own thread calls every method.

    Args:
        group: the ranks; nobody else sends in it.
        most_sizes: largest length of ``sizes`` in a call.
        width_of: gives the lengths of a call's rows.
        answer: computes what this rank is asked for.
    """

    def __init__(
        self,
        group: Group,
        most_sizes: int,
        width_of: Callable[[RowCall], Width],
        answer: Answer,
    ) -> None:
        # Threads beside compute's own wait, too: what is counted is the time that compute loses.
        self._group, self._beside = group, group.apart()
        self._others = [rank for rank in range(group.size) if rank != group.rank]
        self._header_size = NUM_FIELDS + most_sizes
        self._width_of = width_of
        self._answer = answer
        self._num_serving = 0
        self._sent: list[Pending] = []
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def begin(self) -> None:
        """A pass begins on all ranks."""
        # Of a pass that was left before its end.
        self._await_ends()
        for rank in self._others:
            run_beside(partial(self._serve, rank), "rows", self._ended.put)
        self._num_serving = len(self._others)

    def ask(self, rank: int, call: RowCall, rows: Tensor, answer: Tensor) -> list[Pending]:
        """Begin to ask another rank.

        Args:
            rank: another one.
            call: what for.
            rows: contiguous, in host memory, as many as the call says; in use until the end.
            answer: takes what comes back, as many rows.
        """
        what = "rows for the experts of another rank"
        messages = [self._send_header(rank, call)]
        if call.num_rows:
            messages.append(self._group.send(rows, rank, ROWS, what))
            what = "what its experts make of rows"
            messages.append(self._group.receive(answer, rank, ANSWERS, what))
        return messages

    def tell(self, call: RowCall) -> None:
        """Tell all others something without rows."""
        wait_for(self._sent)
        self._sent = [self._send_header(rank, call) for rank in self._others]

    def _send_header(self, rank: int, call: RowCall) -> Pending:
        header = torch.zeros(self._header_size, dtype=torch.int64)
        fields = (call.asked, call.module, call.call, call.micro_batch, call.operator, *call.sizes)
        header[: len(fields)] = torch.tensor(fields)
        return self._group.send(
            header, rank, HEADERS, f"a call of its experts ({call.asked.name.lower()})"
        )

    def collect(self, own: Tensor, taker: int, places: Sequence[Tensor], what: str) -> None:
        """Bring what each rank has to one of them; all ranks call this in one order.

        Args:
            own: contiguous; what this rank has.
            taker: the rank that gets all.
            places: of the taker, one for what each rank has.
            what: names it in errors.
        """
        group = self._group
        if group.rank != taker:
            group.send(own, taker, SHARES, what).wait()
            return
        places[taker].copy_(own)
        coming = [group.receive(places[rank], rank, SHARES, what) for rank in self._others]
        wait_for(coming)

    def check(self) -> None:
        """Raise what has failed in a thread that answers, if one has."""
        while not self._ended.empty():
            self._take_end()

    def finish(self) -> None:
        """This rank asks nothing more in this pass: wait until no other does.

        Raises:
            OpenwaferError: ``rank-lost``, or what answering has raised.
        """
        self.tell(RowCall(Asked.END))
        self._await_ends()
        wait_for(self._sent)

    def _await_ends(self) -> None:
        while self._num_serving:
            self._take_end()

    def _take_end(self) -> None:
        failure = self._ended.get()
        self._num_serving -= 1
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """The pass has failed here: the others learn that nothing more comes, if they listen."""
        if self._num_serving:
            with suppress(OpenwaferError):
                self._sent += [self._send_header(rank, RowCall(Asked.END)) for rank in self._others]

    # The threads that answer.

    def _serve(self, rank: int) -> None:
        while (call := self._next_call(rank)).asked is not Asked.END:
            width = self._width_of(call)
            rows = torch.empty(call.num_rows, width.asked, dtype=width.dtype)
            if call.num_rows:
                self._receive(rows, rank, ROWS, "rows for the experts here")
            answer = self._answer(rank, call, rows)
            if call.num_rows:
                what = "what the experts here make of its rows"
                self._beside.send(answer, rank, ANSWERS, what).wait()

    def _next_call(self, rank: int) -> RowCall:
        header = torch.empty(self._header_size, dtype=torch.int64)
        self._receive(header, rank, HEADERS, "what it asks of the experts here")
        asked, module, call, micro_batch, operator, *sizes = header.tolist()
        return RowCall(Asked(asked), module, call, micro_batch, operator, tuple(sizes))

    def _receive(self, tensor: Tensor, rank: int, tag: int, what: str) -> None:
        self._beside.receive(tensor, rank, tag, what).wait()
        self._group.traffic.add(tensor.nbytes)
