"""The ranks of a run pass tensors from one to another, or from one to all.

A rank may end, be cut off, or say nothing for too long. The ranks that wait for it then raise an
error that names the rank, its host, and the message that was to come. A rank that loses another one
ends, and is lost in turn; so each reports its loss, and errors name the rank that was lost first.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Lock, Thread
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.training.torch_private import Store

KEY: Final = "openwafer/lost"
ASKING_SECONDS: Final = 5.0
"""The store may be gone with the rank that has it."""
SHARE_OF_TIMEOUT: Final = 4
"""Ranks that wait for each other in a row time out within so small a part of the time-out."""


class Loss(NamedTuple):
    """A rank reports that it has lost another one.

    Attributes:
        other: the rank or ranks that it has lost, in words.
        message: text of its error.
    """

    other: str
    message: str


class FirstLoss:
    """Knows the first loss of a meeting; a rank reports its loss before it ends.

    Args:
        store: the meeting's store of keys.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def after(self, here: str, own: Loss, *, patience_seconds: float = 0.0) -> Loss:
        """The first loss, which is one's own where no other was told, or none can be asked.

        Args:
            here: this rank, in words.
            own: what it has lost.
            patience_seconds: how long to wait for what that one has lost, where time was out: ranks
                that wait for each other in a row come to that in any order.
        """
        found: Future[Loss] = Future()

        def ask() -> None:
            try:
                self._store.set(_key(here), _written(own))
                told = _read(self._store.compare_set(KEY, "", _written(own)))
                patient = patience_seconds > 0
                found.set_result(self._behind(here, own, patience_seconds) if patient else told)
            except RuntimeError:
                found.set_result(own)

        Thread(target=ask, name="first-loss", daemon=True).start()
        try:
            return found.result(ASKING_SECONDS + patience_seconds)
        except TimeoutError:
            return own

    def _behind(self, here: str, loss: Loss, patience_seconds: float) -> Loss:
        """The loss of the last one in a row that waited for each other."""
        seen = {here}
        while loss.other not in seen:
            seen.add(loss.other)
            try:
                self._store.wait([_key(loss.other)], timedelta(seconds=patience_seconds))
            except RuntimeError:
                break
            loss = _read(self._store.get(_key(loss.other)))
        return loss


def _key(rank: str) -> str:
    return f"{KEY}/{rank}"


def _written(loss: Loss) -> str:
    return pickle.dumps(loss).hex()


def _read(told: bytes) -> Loss:
    loss: Loss = pickle.loads(bytes.fromhex(told.decode()))
    return loss


GOES_ON: Final = (
    "openwafer resume goes on from the last step that is on disk, else from the last checkpoint"
)
FIRST_RANK: Final = 0
"""It leads a run; it alone knows the state of the run, which is in its store."""
GATHER_TAG: Final = (1 << 31) - 1
"""Of no other message."""
SILENT_SHARE: Final = 0.9
"""Of the time-out: who was waited for longer has said nothing, and may be waiting, too."""


@dataclass(frozen=True)
class Rank:
    """One process of a run.

    Attributes:
        index: from 0.
        host: where it runs.
    """

    index: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.index} on host {self.host!r}"


class Traffic:
    """What has passed so far; several threads may count at once.

    Attributes:
        received_bytes: bytes that came from other ranks.
        waited_seconds: time that threads waited for messages.
    """

    def __init__(self) -> None:
        self.received_bytes = 0
        self.waited_seconds = 0.0
        self._lock = Lock()

    def add(self, received_bytes: int = 0, waited_seconds: float = 0.0) -> None:
        """Count more."""
        with self._lock:
            self.received_bytes += received_bytes
            self.waited_seconds += waited_seconds


class Group:
    """The ranks of a run as one of them sees them.

    Messages between two ranks that carry the same tag arrive in the order in which they were sent.

    Tensors stream from each rank to the next. Messages to an earlier rank, against the stream, have
    connections of their own where possible: a message waits for its receiver's word, and that word
    waits for all that its connection carries the same way.

    Args:
        processes: the connections; a group of its own, since one failure ends all its messages.
        ranks: ranks of the run, all or some of them, in rising order, this one among them; the
            group numbers them from 0.
        timeout_seconds: how long to wait for a message.
        losses: where ranks report whom they have lost; ``None`` where nobody knows more.

    Attributes:
        rank, size: this rank's number in the group, and how many there are.
        ranks: all of them.
        traffic: what this rank has received in this group.
        timeout_seconds: how long it waits for a message.
        connections: the library's process groups.
    """

    def __init__(
        self,
        processes: dist.ProcessGroup,
        ranks: Sequence[Rank],
        timeout_seconds: float,
        losses: FirstLoss | None = None,
    ) -> None:
        self.rank = processes.rank()
        self.size = len(ranks)
        self.connections = processes
        self.ranks = tuple(ranks)
        self.traffic = Traffic()
        self._returning = processes
        self.timeout_seconds = timeout_seconds
        self._losses = losses

    def return_by(self, other: "Group") -> None:
        """What goes against the stream goes by the connections of another group of the ranks."""
        self._returning = other.connections

    def apart(self) -> "Group":
        """The same ranks and connections, with a traffic of its own."""
        other = copy(self)
        other.traffic = Traffic()
        return other

    def send(self, tensor: Tensor, to: int, tag: int, what: str) -> "Pending":
        """Begin to send a contiguous tensor, which stays as it is until that has ended.

        Args:
            tensor: in host memory.
            to: a rank.
            tag: what kind of message it is.
            what: names it in errors.
        """
        return self._begin(tensor, to, tag, f"to take {what}", is_sent=True)

    def send_to_all(self, tensor: Tensor, tag: int, what: str) -> list["Pending"]:
        """Begin to send to all others, by messages that each know whom they wait for."""
        others = (other for other in range(self.size) if other != self.rank)
        return [self.send(tensor, other, tag, what) for other in others]

    def receive(self, tensor: Tensor, source: int, tag: int, what: str) -> "Pending":
        """Begin to receive a contiguous tensor; see :meth:`send`."""
        return self._begin(tensor, source, tag, f"to send {what}", is_sent=False)

    def broadcast(self, tensor: Tensor, source: int, what: str) -> "Pending":
        """Begin to bring a contiguous tensor from one rank to all, each of which calls this.

        All ranks make their broadcasts in one order. See :meth:`send`.
        """
        message = [tensor.view(-1).view(torch.uint8)]
        if source == self.rank:
            waiting = self._waiting("one of the other ranks", f"to take {what}")
        else:
            waiting = self._waiting(str(self.ranks[source]), f"to send {what}")
            self.traffic.add(tensor.nbytes)
        with waiting.naming_the_lost():
            work = self.connections.broadcast(message[0], source)
            return Pending(work, message, waiting, self.traffic)

    def reduce(self, tensor: Tensor, to: int, what: str) -> "Pending":
        """Begin to add a contiguous tensor over all ranks, in an order that the library chooses.

        All ranks call this in one order. The sum is in the tensor of the rank `to`; the others' are
        of no use any more. See :meth:`send`.
        """
        if to == self.rank:
            self.traffic.add(tensor.nbytes)
        return self._add(tensor, partial(self.connections.reduce, root=to), what)

    def add_up(self, tensor: Tensor, what: str) -> "Pending":
        """As :meth:`reduce`; all ranks have the sum."""
        self.traffic.add(tensor.nbytes)
        return self._add(tensor, self.connections.allreduce, what)

    def _add(self, tensor: Tensor, call: Callable[..., dist.Work], what: str) -> "Pending":
        message = [torch.view_as_real(tensor) if tensor.is_complex() else tensor]
        waiting = self._waiting("the other ranks", f"to send {what}")
        with waiting.naming_the_lost():
            return Pending(call(message[0].view(-1)), message, waiting, self.traffic)

    def gather(self, tensor: Tensor, what: str) -> list[Tensor]:
        """What each rank gives, in rising order; all ranks call this, with tensors of one shape.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        gathered = [torch.empty_like(tensor) for _ in self.ranks]
        gathered[self.rank].copy_(tensor)
        others = (other for other in range(self.size) if other != self.rank)
        sent = self.send_to_all(tensor, GATHER_TAG, what)
        coming = [self.receive(gathered[other], other, GATHER_TAG, what) for other in others]
        wait_for([*coming, *sent])
        return gathered

    def _waiting(self, other: str, what: str) -> "Waiting":
        here = self.ranks[self.rank]
        return Waiting(here, other, what, self.timeout_seconds, self._losses)

    def _begin(
        self, tensor: Tensor, other: int, tag: int, what: str, *, is_sent: bool
    ) -> "Pending":
        message = [tensor.view(-1).view(torch.uint8)]
        waiting = self._waiting(str(self.ranks[other]), what)
        is_with_stream = (self.rank < other) == is_sent
        processes = self.connections if is_with_stream else self._returning
        call = processes.send if is_sent else processes.recv
        self.traffic.add(0 if is_sent else tensor.nbytes)
        with waiting.naming_the_lost():
            return Pending(call(message, other, tag), message, waiting, self.traffic)


@dataclass(frozen=True)
class Waiting:
    """A rank waits for others.

    Attributes:
        here: this rank.
        other: one or more, in words.
        what: what the other is to do, in words.
        timeout_seconds: how long at most.
        losses: see :class:`Group`.
    """

    here: Rank
    other: str
    what: str
    timeout_seconds: float
    losses: FirstLoss | None = None

    @contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """Context in which a failure of the connection becomes an error with names.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        other = f"{self.other} {self.what}"
        remedy = f"see what {self.other} said last; {GOES_ON}"
        start = time.monotonic()
        try:
            with telling("rank-lost", str(self.here), other, remedy):
                yield
        except OpenwaferError as found:
            is_silent = time.monotonic() - start > SILENT_SHARE * self.timeout_seconds
            told = self._with_first(found.diagnostics[0], is_silent=is_silent)
            raise OpenwaferError(told) from found

    def _with_first(self, found: Diagnostic, *, is_silent: bool) -> Diagnostic:
        first = Loss(self.other, found.message)
        if self.losses is not None:
            seconds = min(ASKING_SECONDS, self.timeout_seconds / SHARE_OF_TIMEOUT)
            patience_seconds = seconds if is_silent else 0.0
            first = self.losses.after(str(self.here), first, patience_seconds=patience_seconds)
        if first.other in (self.other, str(self.here)) or not first.other.startswith("rank "):
            return found
        return replace(
            found,
            message=f"{found.message}; {first.other} was lost first",
            notes=(*found.notes, first.message),
            help=f"see what {first.other} said last; {GOES_ON}",
        )


@dataclass(frozen=True)
class Pending:
    """A message under way, whose memory is in use until :meth:`wait` returns."""

    _work: dist.Work
    _message: list[Tensor]
    _waiting: Waiting
    _traffic: Traffic

    def wait(self) -> None:
        """Return when the message has been sent or received.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        start = time.perf_counter()
        with self._waiting.naming_the_lost():
            self._work.wait(timedelta(seconds=self._waiting.timeout_seconds))
        self._traffic.add(waited_seconds=time.perf_counter() - start)


def wait_for(messages: list[Pending]) -> None:
    """Return when all of them have been sent or received, and forget them.

    Raises:
        OpenwaferError: ``rank-lost``.
    """
    for message in messages:
        message.wait()
    messages.clear()


@contextmanager
def telling(code: str, here: str, other: str, remedy: str) -> Iterator[None]:
    """Context in which a failure of a connection becomes an error: who waited how long for whom.

    Raises:
        OpenwaferError: of that code.
    """
    start = time.monotonic()
    try:
        yield
    except RuntimeError as failure:
        waited = time.monotonic() - start
        raise error(
            code,
            f"{here} waited {waited:.1f} s for {other}",
            notes=(connection_says(failure),),
            help=remedy,
        ) from failure


def connection_says(failure: RuntimeError) -> str:
    """A note of the first sentence of a connection's failure."""
    text = str(failure).partition(". ")[0]
    # The library's own place in its source says nothing to a user.
    sentence = text.partition("] ")[2] if "[/" in text else text
    return f"the connection says: {sentence}"
