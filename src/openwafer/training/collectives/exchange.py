"""Tensors go to the rank that computes with them, and their gradients come back.

Where weights stay, activations travel. At each end is a node of autograd (:func:`made_elsewhere`),
so the backward of a model passes from rank to rank as its forward did.

A forward that is cut into stages goes on at the next rank, and both ends know what comes
(:class:`Cut`).

Rows of tokens go to the ranks that own their experts, and products come back
(:class:`RowExchange`). A rank asks when it needs an answer: others need not ask at the same time,
or as often. Each rank has one thread, beside compute's own, for every other rank that may ask; the
thread waits for nothing but rows and the answer. So ranks may ask each other in any order.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.chunks import run_beside
from openwafer.training.collectives.group import Group, Pending, wait_for

CROSSING: Final = 1 << 30
"""Tag of what crosses a cut."""
HEADERS, ROWS, ANSWERS, SHARES = range(4)
"""Tags of messages; of the last kind are those of :meth:`RowExchange.collect`."""

Tensors = Sequence[Tensor]


class _MadeElsewhere(torch.autograd.Function):
    """See :func:`made_elsewhere`."""

    @staticmethod
    def forward(
        ctx: Any,
        there: Callable[[Tensors], tuple[Tensor, ...]],
        back: Callable[[Tensors], Sequence[Tensor | None]],
        *given: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.back = back
        return there(given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, *ctx.back(gradients)


def made_elsewhere(
    there: Callable[[Tensors], tuple[Tensor, ...]],
    back: Callable[[Tensors], Sequence[Tensor | None]],
    *given: Tensor,
) -> tuple[Tensor, ...]:
    """Tensors that other ranks make, or have made, as a node of autograd.

    Args:
        there: brings what is made; gets what is given.
        back: brings the gradients of what was given, or ``None``; gets those of what was made.
        given: one wants a gradient, where what is made is to want one.
    """
    made: tuple[Tensor, ...] = _MadeElsewhere.apply(there, back, *given)  # type: ignore[no-untyped-call]
    return made


class Cut:
    """One end of a cut between two stages, for a pass: activations cross it, gradients come back.

    All that comes is asked for when a pass begins: a message leaves when it is made.

    Args:
        group: the stages; nobody else sends in it with this tag.
        other: the stage at the far end.
        passed: what crosses for each micro-batch: shapes, dtypes, and whether gradients come back.
        num_micro_batches: of the pass.
    """

    def __init__(
        self, group: Group, other: int, passed: Sequence[Tensor], num_micro_batches: int
    ) -> None:
        self._group, self._other = group, other
        self._is_graded = [one.requires_grad for one in passed]
        is_behind = other < group.rank
        way = "forward" if is_behind else "backward"
        coming = [one for one in passed if is_behind or one.requires_grad]
        self._coming = [
            [self._ask(one, f"micro-batch {index} of its {way}") for one in coming]
            for index in range(num_micro_batches)
        ]
        self._leaving: list[Pending] = []

    def _ask(self, like: Tensor, what: str) -> tuple[Tensor, Pending]:
        tensor = torch.empty(like.shape, dtype=like.dtype)
        return tensor, self._group.receive(tensor, self._other, CROSSING, what)

    def receive(self, index: int) -> tuple[Tensor, ...]:
        """Of a micro-batch, what the stage before sends; a backward sends its gradients there."""
        tensors = self._arrived(index)
        graded = tuple(
            one for one, is_graded in zip(tensors, self._is_graded, strict=True) if is_graded
        )

        def send_back(gradients: Tensors) -> Sequence[None]:
            self._send(gradients, f"micro-batch {index} of the backward")
            return (None,)

        # That somebody wants its gradient makes a node of it.
        anchor = torch.empty(0, requires_grad=True)
        made = iter(made_elsewhere(lambda _: graded, send_back, anchor))
        pairs = zip(tensors, self._is_graded, strict=True)
        return tuple(next(made) if is_graded else one for one, is_graded in pairs)

    def send(self, index: int, tensors: Tensors) -> Tensor:
        """Send a micro-batch to the next stage; a backward from the scalar takes its gradients."""

        def leave(given: Tensors) -> tuple[Tensor]:
            self._send(given, f"micro-batch {index} of the forward")
            return (torch.zeros(()),)

        def take_back(_: Tensors) -> Sequence[Tensor | None]:
            gradients = iter(self._arrived(index))
            return [next(gradients) if is_graded else None for is_graded in self._is_graded]

        (end,) = made_elsewhere(leave, take_back, *tensors)
        return end

    def _arrived(self, index: int) -> list[Tensor]:
        coming, self._coming[index] = self._coming[index], []
        for _, message in coming:
            message.wait()
        return [tensor for tensor, _ in coming]

    def _send(self, tensors: Tensors, what: str) -> None:
        self.flush()
        self._leaving = [
            self._group.send(one.contiguous(), self._other, CROSSING, what) for one in tensors
        ]

    def flush(self) -> None:
        """Return when all that was sent has left."""
        wait_for(self._leaving)


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
    """Exchanges rows; see the module. Compute's own thread calls every method.

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
