"""Rank 0 asks, tells and shares; all ranks agree before they do something together.

A rank that is not rank 0 listens (:meth:`Control.hear`) until rank 0 tells all of them something,
and does what rank 0 asks of it meanwhile. A loop listens in each line that all ranks run; a run
listens once, from its beginning to its end.

A rank that is silent for longer than the group's timeout is lost, and named by who waits for it.
Rank 0 is not silent while it works for all or waits for another rank: it says every few seconds
that it is there. So nobody is lost because somebody else is late.
"""

import pickle
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.group import FIRST_RANK, Group, Pending, wait_for

TICK_SECONDS: Final = 5.0
TICKS_PER_TIMEOUT: Final = 4
FRAME_BYTES: Final = 4096
"""A message that is no longer arrives at once; what is left of a longer one follows."""
SIZE_BYTES: Final = 8
SAID_TAG, FRAME_TAG, REST_TAG = (1 << 31) - 4, (1 << 31) - 3, (1 << 31) - 2
"""Of what ranks say before they do something, which is short; of all else; of no other messages."""
MAX_TEXT: Final = 400

T = TypeVar("T")


@dataclass(frozen=True)
class _Said:
    """What a rank says before it does something.

    Attributes:
        what: it does next.
        flag: means what the caller wants it to mean.
        refusal: why it does not do that; empty if it does.
    """

    what: str
    flag: bool
    refusal: str = ""


@dataclass(frozen=True)
class _Asked:
    """What rank 0 asks of a rank that listens, one thing after the other."""

    what: Sequence[object]


class Control:
    """One rank's end, which one thread calls. Whatever is said is of types that pickle.

    What waits for a rank raises ``rank-lost``.

    Args:
        group: the ranks; nobody else sends objects in it.
        tick_seconds: how often rank 0 says that it is there.
        asked_note: told where a rank does not take what it is asked for.

    Attributes:
        group: see above.
        presence: told by rank 0 while the others may listen.
        is_broken: whether some rank is lost, or went another way.
        answer: does what rank 0 asks of this rank, and returns what it is told, or ``None``.
    """

    def __init__(
        self, group: Group, tick_seconds: float = TICK_SECONDS, asked_note: str = ""
    ) -> None:
        self.group = group
        self.is_broken = False
        self.answer: Callable[[Any], object] = _unasked
        self._asked_note = (asked_note,) if asked_note else ()
        # What is to be asked of a rank.
        self._asked: dict[int, list[object]] = {}
        self._others = [rank for rank in range(group.size) if rank != group.rank]
        self.presence = Presence(group, tick_seconds)
        weakref.finalize(self, self.presence.end)

    # All ranks, before they do something.

    @contextmanager
    def reaching(self, what: str) -> Iterator[None]:
        """Context of checks before something that all ranks do; see :meth:`reach`.

        What the block raises, the others learn.
        """
        try:
            yield
        except Exception as failure:
            self.reach(what, refusal=str(failure) or type(failure).__name__)
            raise
        self.reach(what)

    def reach(self, what: str, *, flag: bool = False, refusal: str = "") -> list[bool]:
        """Return when all ranks are about to do this.

        Args:
            what: is done, the same words on all ranks.
            flag: told to all ranks.
            refusal: why this rank does not do it; it raises by itself.

        Returns:
            The flags in rising order.

        Raises:
            OpenwaferError: ``ranks-apart`` where a rank does something else, ``ranks-refuse`` where
                another one refuses, ``rank-lost``.
        """
        own = _Said(what[:MAX_TEXT], flag, refusal[:MAX_TEXT])
        said = self._exchange(own)
        if any(one.what != own.what for one in said):
            self.is_broken = True
            raise self._apart(said)
        refusing = [rank for rank, one in enumerate(said) if one.refusal]
        if refusing and not refusal:
            raise self._refused(what, refusing[0], said[refusing[0]].refusal)
        return [one.flag for one in said]

    def _exchange(self, own: _Said) -> list[_Said]:
        if self.group.rank != FIRST_RANK:
            with self._naming_the_lost():
                what = f"what it does: {own.what}"
                leaving = _sent(self.group, own, [FIRST_RANK], what, SAID_TAG)
            # Rank 0 takes it when it has asked for all that it wants.
            said: list[_Said] = self.hear(f"what all do; here it is {own.what}")
            wait_for(leaving)
            return said
        what = f"what it does, where this rank does {own.what}"
        with self.waited_for(), self._naming_the_lost():
            said = [own, *_taken(self.group, self._others, what, SAID_TAG)]
        self.tell_all(said, "what all do")
        return said

    def _apart(self, said: Sequence[_Said]) -> OpenwaferError:
        ranks = zip(self.group.ranks, said, strict=True)
        return error(
            "ranks-apart",
            "the systems of a loop do different things: "
            + ", ".join(f"{rank} does {one.what}" for rank, one in ranks),
            help="let all of them run the same lines on their own batches, as many on each; what "
            "rank 0 does by itself stands under streamed.alone()",
        )

    def _refused(self, what: str, rank: int, refusal: str) -> OpenwaferError:
        return error(
            "ranks-refuse",
            f"{self.group.ranks[rank]} refuses {what}, so that no rank does it",
            notes=tuple(refusal.splitlines()[:1]),
            help=f"see what {self.group.ranks[rank]} said",
        )

    # All ranks, which have agreed.

    def share(self, make: Callable[[], T] | None = None) -> T:
        """What rank 0 makes, on all ranks.

        Args:
            make: called on rank 0, which may :meth:`ask` for something in it; other ranks need
                none. What it raises is raised on all ranks.
        """
        if make is None or self.group.rank != FIRST_RANK:
            found: T | Exception = self.hear("what it has made")
            if isinstance(found, Exception):
                raise found
            return found
        try:
            with self.waited_for():
                made = make()
        except Exception as failure:
            is_own = isinstance(failure, OpenwaferError)
            # Not every exception of others can be sent.
            self.tell_all(failure if is_own else RuntimeError(str(failure)), "its failure")
            raise
        self.tell_all(made, "what rank 0 has made")
        return made

    def collect(self, own: object, ranks: Sequence[int]) -> dict[int, Any]:
        """What these ranks give, on rank 0; empty on the others."""
        rank = self.group.rank
        if rank == FIRST_RANK:
            return {one: own if one == FIRST_RANK else self._take(one, "a note") for one in ranks}
        if rank in ranks:
            self._send(own, [FIRST_RANK], "a note")
        return {}

    def gather(self, own: object, what: str) -> list[object]:
        """What each rank gives, in rising order."""
        with self._naming_the_lost():
            leaving = _sent(self.group, own, self._others, what)
            found = _taken(self.group, self._others, what)
            wait_for(leaving)
        found.insert(self.group.rank, own)
        return found

    def show(self, tensor: Tensor, what: str) -> Tensor:
        """A contiguous tensor of rank 0, in the tensors of the other ranks."""
        with self._naming_the_lost():
            self.group.broadcast(tensor, FIRST_RANK, what).wait()
        return tensor

    # Rank 0.

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Context in which the others may listen, so that rank 0 tells its presence."""
        before, self.presence.is_told = self.presence.is_told, True
        try:
            yield
        finally:
            self.presence.is_told = before

    @contextmanager
    def doing(
        self, what: object, called: str, met_by_all: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Context in which the others, who listened, do something with rank 0.

        They listen again at its end, but for an end in an error that they may not have met.
        """
        self.ask_all(what, called)
        self.presence.is_told = False
        try:
            yield
        except met_by_all:
            self.presence.is_told = True
            raise
        self.presence.is_told = True

    def ask_all(self, what: object, called: str) -> None:
        """Have all others, who listen, do something at once; it is called so in errors."""
        self.presence.finish()
        self._send(_Asked((what,)), self._others, called)

    def answers(self, what: object, called: str) -> list[Any]:
        """What each of the others, who listen, answers to this; the answer is called so."""
        self.ask_all(what, "what it is asked for")
        return [self._take(rank, called) for rank in self._others]

    def ask(self, what: object, rank: int) -> None:
        """Have another rank do something before it is told what all do next."""
        self._asked.setdefault(rank, []).append(what)

    def asked(self, rank: int) -> Sequence[object]:
        """What a rank has not been told yet."""
        return self._asked.get(rank, ())

    def deliver(self, rank: int) -> None:
        """Return when a rank has been told what is asked of it; it may have to come to that first.

        Raises:
            OpenwaferError: ``rank-lost``, also where that rank waits for something else too long.
        """
        asked = self._asked.pop(rank, None)
        if asked is None:
            return
        try:
            with self.waited_for():
                self._send(_Asked(asked), [rank], "what it is asked for")
        except OpenwaferError as found:
            told = (
                replace(one, notes=(*one.notes, *self._asked_note)) for one in found.diagnostics
            )
            raise OpenwaferError(*told) from found

    def answer_of(self, rank: int) -> Any:
        """What a rank answers to what it was asked last."""
        self.deliver(rank)
        with self.waited_for():
            return self._take(rank, "an answer")

    def tell_all(self, content: object, called: str) -> None:
        """End the listening of all others."""
        self.presence.finish()
        for rank in tuple(self._asked):
            self.deliver(rank)
        self._send(content, self._others, called)

    # The others.

    def hear(self, what: str) -> Any:
        """What rank 0 tells all, called so in errors; what it asks for until then is done."""
        while isinstance(told := self._take(FIRST_RANK, what), _Asked):
            for one in told.what:
                answer = self.answer(one)
                if answer is not None:
                    self._send(answer, [FIRST_RANK], "an answer")
        return told

    # Messages.

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        try:
            yield
        except OpenwaferError:
            self.is_broken = True
            raise

    def _send(self, content: object, ranks: Sequence[int], what: str) -> None:
        with self._naming_the_lost():
            wait_for(_sent(self.group, content, ranks, what))

    def _take(self, rank: int, what: str) -> Any:
        with self._naming_the_lost():
            (found,) = _taken(self.group, [rank], what)
        return found


class Presence:
    """Rank 0 says that it is there.

    Nobody waits for these messages when they are sent, so who is late in taking one is not lost.

    Args:
        group: the ranks.
        tick_seconds: how often.

    Attributes:
        is_told: whether it says so.
    """

    def __init__(self, group: Group, tick_seconds: float) -> None:
        self.is_told = False
        self._group = group
        self._tick_seconds = min(tick_seconds, group.timeout_seconds / TICKS_PER_TIMEOUT)
        self._leaving: deque[Pending] = deque()
        self._lock = Lock()
        self._has_ended = Event()
        if group.rank == FIRST_RANK:
            # A message to a lost rank cannot be called off: it must not keep the process.
            Thread(target=self._tick, name="control", daemon=True).start()

    def _tick(self) -> None:
        # What it fails by, the next word to that rank fails by, too.
        with suppress(OpenwaferError):
            while not self._has_ended.wait(self._tick_seconds):
                if self.is_told:
                    self.tell()

    def tell(self) -> None:
        """Say it once, and wait for nobody to take that."""
        tick = torch.zeros(FRAME_BYTES, dtype=torch.uint8)
        with self._lock:
            self._leaving.extend(self._group.send_to_all(tick, FRAME_TAG, "the signal WAIT"))

    def finish(self) -> None:
        """Return when those have been taken that were sent to ranks who listen.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        while (leaving := self._next_leaving()) is not None:
            leaving.wait()

    def _next_leaving(self) -> Pending | None:
        # What is just being sent leaves first.
        with self._lock:
            return self._leaving.popleft() if self._leaving else None

    def end(self) -> None:
        """Say nothing more."""
        self._has_ended.set()


def _unasked(what: object) -> object:
    raise AssertionError(what)


def _sent(
    group: Group, content: object, ranks: Sequence[int], what: str, tag: int = FRAME_TAG
) -> list[Pending]:
    """Begin to send an object."""
    body = pickle.dumps(content)
    sized = len(body).to_bytes(SIZE_BYTES, sys.byteorder) + body
    frame = torch.frombuffer(bytearray(sized[:FRAME_BYTES].ljust(FRAME_BYTES)), dtype=torch.uint8)
    leaving = [group.send(frame, rank, tag, what) for rank in ranks]
    if len(sized) > FRAME_BYTES:
        rest = torch.frombuffer(bytearray(sized[FRAME_BYTES:]), dtype=torch.uint8)
        leaving += [group.send(rest, rank, REST_TAG, what) for rank in ranks]
    return leaving


def _taken(group: Group, ranks: Sequence[int], what: str, tag: int = FRAME_TAG) -> list[Any]:
    """An object of each of these ranks; where rank 0 only says that it is there, the next one."""
    frames = [torch.empty(FRAME_BYTES, dtype=torch.uint8) for _ in ranks]
    pairs = list(zip(ranks, frames, strict=True))
    coming = [group.receive(frame, rank, tag, what) for rank, frame in pairs]
    wait_for(coming)
    return [_read(group, rank, frame, what) for rank, frame in pairs]


def _read(group: Group, rank: int, frame: Tensor, what: str) -> Any:
    while not (num_bytes := frame[:SIZE_BYTES].view(torch.int64).item()):
        group.receive(frame, rank, FRAME_TAG, what).wait()
    body = frame[SIZE_BYTES : SIZE_BYTES + int(num_bytes)]
    rest = torch.empty(int(num_bytes) - len(body), dtype=torch.uint8)
    if len(rest):
        group.receive(rest, rank, REST_TAG, what).wait()
        body = torch.cat([body, rest])
    return pickle.loads(body.numpy().tobytes())
