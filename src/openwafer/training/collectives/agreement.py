"""Ranks that run one program each say what they do next, before they do it together.

Each tells rank 0, which tells all of them. So a rank that goes another way is known to all before
anybody waits for its tensors, and a rank that does not come is named on all of them. What rank 0
asks of a rank is done while that waits for what rank 0 tells all, and before it learns of that.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.group import FIRST_RANK, Group, wait_for
from openwafer.training.collectives.joining import Meeting

MESSAGE_BYTES: Final = 4096
MAX_TEXT: Final = 400
MESSAGES, SIZES, CONTENTS = 0, 1, 2

WHEN_ASKED: Final = (
    "a system does what rank 0 asks for while it waits in the next line that all of them run; a "
    "barrier of the program's own keeps it from that"
)

T = TypeVar("T")


@dataclass(frozen=True)
class _Said:
    """What a rank says.

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
    """What rank 0 asks of a rank that waits for something else.

    Attributes:
        what: one thing after the other, of types that pickle.
    """

    what: Sequence[object]


class Agreement:
    """What all ranks do, or refuse, together.

    One thread of each rank calls everything.

    Args:
        meeting: of the ranks.
        name: of their connections; each agreement of a meeting has another.

    Attributes:
        is_broken: whether some rank is lost, or went another way.
        answer: does what rank 0 asks of this rank, and returns what it is told, or ``None``.
    """

    def __init__(self, meeting: Meeting, name: str) -> None:
        self.is_broken = False
        self.answer: Callable[[Any], object] = _unasked
        # What is to be asked of a rank.
        self._asked: dict[int, list[object]] = {}
        if meeting.rank != FIRST_RANK:
            # Rank 0 may be busy for as long as it is waited for, and then wait for another one.
            meeting = replace(meeting, timeout_seconds=2 * meeting.timeout_seconds)
        (self._group,) = meeting.groups((name,))

    @property
    def group(self) -> Group:
        """The ranks."""
        return self._group

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
        content = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        if self._group.rank != FIRST_RANK:
            with self._naming_the_lost():
                what = f"what it does: {own.what}"
                leaving = self._group.send(_padded(content), FIRST_RANK, MESSAGES, what)
            # Rank 0 takes it when it has asked for all that it wants.
            said: list[_Said] = self._hear(f"what all do; here it is {own.what}")
            leaving.wait()
            return said
        with self._naming_the_lost():
            said = [own, *self._said_by_others(own)]
        self._tell_all(said, "what all do")
        return said

    def _said_by_others(self, own: _Said) -> list[_Said]:
        what = f"what it does, where this rank does {own.what}"
        rows = torch.zeros(self._group.size, MESSAGE_BYTES, dtype=torch.uint8)
        others = range(1, self._group.size)
        coming = [self._group.receive(rows[rank], rank, MESSAGES, what) for rank in others]
        wait_for(coming)
        return [pickle.loads(rows[rank].numpy().tobytes()) for rank in others]

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        try:
            yield
        except OpenwaferError:
            self.is_broken = True
            raise

    def _apart(self, said: Sequence[_Said]) -> OpenwaferError:
        ranks = zip(self._group.ranks, said, strict=True)
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
            f"{self._group.ranks[rank]} refuses {what}, so that no rank does it",
            notes=tuple(refusal.splitlines()[:1]),
            help=f"see what {self._group.ranks[rank]} said",
        )

    def share(self, make: Callable[[], T] | None = None) -> T:
        """What rank 0 makes, of a type that pickles, on all ranks, which have agreed on it.

        Args:
            make: of rank 0, which may :meth:`ask` for something in it. What it raises is raised on
                all ranks.
        """
        if make is None:
            found: T | Exception = self._hear("what it has made")
            if isinstance(found, Exception):
                raise found
            return found
        try:
            made = make()
        except Exception as failure:
            is_own = isinstance(failure, OpenwaferError)
            # Not every exception of others can be sent.
            self._tell_all(failure if is_own else RuntimeError(str(failure)), "its failure")
            raise
        self._tell_all(made, "what rank 0 has made")
        return made

    def collect(self, own: object, ranks: Sequence[int]) -> dict[int, object]:
        """What these ranks give, on rank 0; empty on the others."""
        rank = self._group.rank
        if rank == FIRST_RANK:
            return {one: own if one == FIRST_RANK else self._take(one, "a note") for one in ranks}
        if rank in ranks:
            self._tell(own, [FIRST_RANK], "a note")
        return {}

    def show(self, tensor: Tensor, what: str) -> Tensor:
        """A contiguous tensor of rank 0, in the tensors of the other ranks."""
        with self._naming_the_lost():
            self._group.broadcast(tensor, FIRST_RANK, what).wait()
        return tensor

    def ask(self, what: object, rank: int) -> None:
        """Have a rank do something, on rank 0, before it is told what all do next.

        Args:
            what: of a type that pickles.
            rank: another one.
        """
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
            self._tell(_Asked(asked), [rank], "what it is asked for")
        except OpenwaferError as found:
            told = (replace(one, notes=(*one.notes, WHEN_ASKED)) for one in found.diagnostics)
            raise OpenwaferError(*told) from found

    def answer_of(self, rank: int) -> Any:
        """What a rank answers, on rank 0, to what it was asked last."""
        self.deliver(rank)
        return self._take(rank, "an answer")

    def _hear(self, what: str) -> Any:
        """What rank 0 tells all; what it asks for until then is done."""
        while isinstance(told := self._take(FIRST_RANK, what), _Asked):
            for one in told.what:
                answer = self.answer(one)
                if answer is not None:
                    self._tell(answer, [FIRST_RANK], "an answer")
        return told

    def _tell_all(self, content: object, what: str) -> None:
        for rank in tuple(self._asked):
            self.deliver(rank)
        self._tell(content, range(1, self._group.size), what)

    def _tell(self, content: object, ranks: Sequence[int], what: str) -> None:
        body = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
        size = torch.tensor([len(body)])
        with self._naming_the_lost():
            sizes = [self._group.send(size, rank, SIZES, what) for rank in ranks]
            bodies = [self._group.send(body, rank, CONTENTS, what) for rank in ranks]
            wait_for([*sizes, *bodies])

    def _take(self, rank: int, what: str) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with self._naming_the_lost():
            self._group.receive(size, rank, SIZES, what).wait()
            body = torch.empty(int(size), dtype=torch.uint8)
            self._group.receive(body, rank, CONTENTS, what).wait()
        return pickle.loads(body.numpy().tobytes())


def _unasked(what: object) -> object:
    raise AssertionError(what)


def _padded(content: Tensor) -> Tensor:
    padded = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    padded[: len(content)] = content
    return padded
