"""A tensor goes from one rank to all others, from each rank to the next, chunk by chunk.

The owner sends to the first rank, and so on in the order of ranks, without the owner. A link
carries each byte once, and while one chunk passes over it, those behind pass over the links before.
So the last rank has all of the tensor after the time of its bytes on one link, and that of one
chunk for each rank between. The tensors of all owners go the same way: a rank that is far down the
way is late for each by the same time, and waits once in a pass. Ways that began behind their owners
in a ring would make another rank late for each tensor, and all would wait for it.

This cannot deadlock, whatever else is under way. Each relay has a thread and a tag of its own, so
it waits for no other relay: a chunk needs its memory at both ends, which is there once both have
begun the relay, and has to be at the end before, which is nearer to the owner. All ranks begin
relays in one order, and a relay is begun when there is memory for it, which earlier ones give back.
So the first relay that is not over always ends. Nothing is buffered: what has not been asked for
stays with the rank before.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Event

from torch import Tensor

from openwafer.replica_steps.joined import way_from
from openwafer.training.collectives.chunks import (
    chunks_of,
    receive_chunks,
    run_beside,
)
from openwafer.training.collectives.group import Group, wait_for


@dataclass(frozen=True)
class Named:
    """How ranks know a relay.

    Attributes:
        tag: marks its messages, and those of no other relay under way.
        what: names it in errors.
    """

    tag: int
    what: str


class Relay:
    """Begins to receive a tensor, if this rank is not the owner, and to pass it on.

    Args:
        group: the ranks.
        owner: the rank that has the tensor.
        tensor: contiguous, in host memory, as long on all ranks; in use until :meth:`wait` returns.
        named: see :class:`Named`.
        agree: returns when the owner is known to send this tensor, or raises; called in the relay's
            thread, when the chunks have been asked for: a link would be idle until they were.
        chunk_bytes: what a message carries at most.
    """

    def __init__(
        self,
        group: Group,
        owner: int,
        tensor: Tensor,
        named: Named,
        agree: Callable[[], None],
        chunk_bytes: int,
    ) -> None:
        self._group, self._owner = group, owner
        way = way_from(owner, group.size)
        place = way.index(group.rank)
        self._before, self._after = ([None, *way, None][place + step] for step in (0, 2))
        self._tag, self._what = named.tag, named.what
        self._agree = agree
        self._chunks = chunks_of(tensor, chunk_bytes)
        self._is_over = Event()
        self._failure: BaseException | None = None
        run_beside(self._pass_on, "relay", self._end)

    def _pass_on(self) -> None:
        arriving = self._arriving()
        self._agree()
        after = self._after
        sent = [
            self._group.send(chunk, after, self._tag, self._what)
            for chunk in arriving
            if after is not None
        ]
        wait_for(sent)

    def _arriving(self) -> Iterable[Tensor]:
        group, before, what = self._group, self._before, self._what
        if before is None:
            return self._chunks
        if before != self._owner:
            what += f", which come from {group.ranks[self._owner]}"
        return receive_chunks(group, self._chunks, before, self._tag, what)

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._is_over.set()

    def wait(self) -> None:
        """Return when the tensor has come, and has left for the next rank.

        Raises:
            OpenwaferError: ``rank-lost``, or what ``agree`` has raised.
        """
        self._is_over.wait()
        if self._failure is not None:
            raise self._failure
