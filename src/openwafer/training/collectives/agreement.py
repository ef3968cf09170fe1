"""Ranks that run one program each say what they do next, before they do it together.

Each tells rank 0, which tells all of them. So a rank that goes another way is known to all before
anybody waits for its tensors, and a rank that does not come is named on all of them.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.training.collectives.group import Group
from openwafer.training.collectives.joining import Meeting
from openwafer.training.collectives.signals import LEADER

MESSAGE_BYTES: Final = 4096
MAX_TEXT: Final = 400
MESSAGES, SIZES, CONTENTS = 0, 1, 2
LOST: Final = "openwafer/lost"
TOLD_SECONDS: Final = 5.0
"""In which rank 0 says who is lost, behind the end of its connections."""

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


class Agreement:
    """What all ranks do, or refuse, together.

    One thread of each rank calls everything.

    Args:
        meeting: of the ranks.
        name: of their connections; each agreement of a meeting has another.

    Attributes:
        is_broken: whether some rank is lost, or went another way.
    """

    def __init__(self, meeting: Meeting, name: str) -> None:
        self.is_broken = False
        self._store: Store = meeting.store
        self._lost = f"{LOST}/{name}"
        if meeting.rank != LEADER:
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
        with self._naming_the_lost():
            said = self._exchange(own)
        if any(one.what != own.what for one in said):
            self.is_broken = True
            raise self._apart(said)
        refusing = [rank for rank, one in enumerate(said) if one.refusal]
        if refusing and not refusal:
            raise self._refused(what, refusing[0], said[refusing[0]].refusal)
        return [one.flag for one in said]

    def _exchange(self, own: _Said) -> list[_Said]:
        group = self._group
        table = torch.zeros(group.size, MESSAGE_BYTES, dtype=torch.uint8)
        content = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        table[group.rank, : len(content)] = content
        if group.rank != LEADER:
            group.send(table[group.rank], LEADER, MESSAGES, f"what it does: {own.what}").wait()
            group.receive(table, LEADER, MESSAGES, f"what all do; here it is {own.what}").wait()
        else:
            others = range(1, group.size)
            what = f"what it does, where this rank does {own.what}"
            coming = [group.receive(table[rank], rank, MESSAGES, what) for rank in others]
            for one in coming:
                one.wait()
            for one in [group.send(table, rank, MESSAGES, "what all do") for rank in others]:
                one.wait()
        return [pickle.loads(row.numpy().tobytes()) for row in table]

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        """Rank 0 knows who is lost, and the others see that it has ended: they learn why."""
        try:
            yield
        except OpenwaferError as found:
            self.is_broken = True
            if self._group.rank == LEADER:
                self._store.set(self._lost, pickle.dumps(found.diagnostics).hex())
                raise
            raise OpenwaferError(*self._told(found.diagnostics)) from found

    def _told(self, own: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
        known: Sequence[Diagnostic] = own
        try:
            self._store.wait([self._lost], timedelta(seconds=TOLD_SECONDS))
            known = pickle.loads(bytes.fromhex(self._store.get(self._lost).decode()))
        except RuntimeError:
            # Rank 0 is lost itself.
            return own
        return known

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
            make: of rank 0. What it raises is raised on all ranks.
        """
        if make is None:
            found: T | Exception = self._take(LEADER)
            if isinstance(found, Exception):
                raise found
            return found
        try:
            made = make()
        except Exception as failure:
            is_own = isinstance(failure, OpenwaferError)
            # Not every exception of others can be sent.
            self._tell_all(failure if is_own else RuntimeError(str(failure)))
            raise
        self._tell_all(made)
        return made

    def collect(self, own: object, ranks: Sequence[int]) -> dict[int, object]:
        """What these ranks give, on rank 0; empty on the others."""
        rank = self._group.rank
        if rank == LEADER:
            return {one: own if one == LEADER else self._take(one) for one in ranks}
        if rank in ranks:
            self._tell(own, LEADER)
        return {}

    def show(self, tensor: Tensor, what: str) -> Tensor:
        """A contiguous tensor of rank 0, in the tensors of the other ranks."""
        with self._naming_the_lost():
            self._group.broadcast(tensor, LEADER, what).wait()
        return tensor

    def _tell_all(self, content: object) -> None:
        for rank in range(1, self._group.size):
            self._tell(content, rank)

    def _tell(self, content: object, rank: int) -> None:
        body = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
        with self._naming_the_lost():
            self._group.send(torch.tensor([len(body)]), rank, SIZES, "the size of a note").wait()
            self._group.send(body, rank, CONTENTS, "a note").wait()

    def _take(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with self._naming_the_lost():
            self._group.receive(size, rank, SIZES, "the size of a note").wait()
            body = torch.empty(int(size), dtype=torch.uint8)
            self._group.receive(body, rank, CONTENTS, "a note").wait()
        return pickle.loads(body.numpy().tobytes())
