"""The host side of one rank among several.

Each record has one owner, in whose store it is. A fetch is the owner's own, and a broadcast of what
it brought; a push gives a rank's gradients to the sum over all ranks, and the sum is pushed to the
owner's store when it is complete. So everything that stands on a push, norms and updates above all,
sees the gradient of the whole step, once.

Fetches of a pass with gradients are made by all ranks in one order, that of their common schedule.
A pass without gradients belongs to the rank that leads, to which owners send what it asks for.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.collectives.broadcasts import Broadcasts
from openwafer.training.collectives.chunks import CHUNK_BYTES
from openwafer.training.collectives.group import FIRST_RANK, Group, Pending, Traffic
from openwafer.training.collectives.ordered_sums import OrderedSums, ReducedSums, Reduction, Sum
from openwafer.training.store.layout import RecordLayout
from openwafer.training.store.record_access import Records
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.forms.expert_modules import expert_modules
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.link.host_link import HostLink
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.replicas.expert_link import ExpertLink
from openwafer.training.stream.replicas.ownership import Ownership
from openwafer.training.stream.schedule import Action, Kind

FORESEEN = frozenset({Kind.FETCH, Kind.UPDATE})
WEIGHTS: Final = "weights"
"""What the digest of all weights that went out in a pass is of."""


@dataclass
class Digests:
    """Whether the next pass takes digests of its weights, and those of the last one that did.

    Attributes:
        is_wanted: set before a pass, on all ranks.
        last: 64 bits each, by the words for what they are of. The lowest rank that has some of a
            name sends those weights to the others that do.
        where: the part of the model that this rank computes, in words; empty for all of it.
    """

    is_wanted: bool = False
    last: Mapping[str, int] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True)
class Replicas:
    """The ranks of a run, joined for a step.

    Attributes:
        weights: the ranks as weights go out to them.
        gradients: the same, as gradients come back.
        waits: of compute's own thread for gradients.
        digests: of the weights that went out; see :class:`Digests`.
        reduction: how gradients are added.
        link: makes the host side of a rank; ``None`` makes a :class:`ReplicaLink`.
        ownership: which rank has a record, and which computes with it.
        over: makes of the records of rank 0, and all layouts, those of all ranks; ``None`` on
            other ranks, and where they have none.
        read_weights: begins to bring the weights of another rank's record into memory, there too.
        chunk_bytes: what a message carries at most; the same on all ranks.
        experts: the ranks as rows pass between them; ``None`` where the weights of experts do.
        stage: makes the execution of this rank's stage; ``None`` where weights are fetched.
    """

    weights: Group
    gradients: Group
    waits: Traffic = field(default_factory=Traffic)
    digests: Digests = field(default_factory=Digests)
    reduction: Reduction = Reduction.ORDERED
    link: "Callable[..., ReplicaLink] | None" = None
    ownership: Ownership = field(default_factory=Ownership)
    over: Callable[[Records, Mapping[str, RecordLayout]], Records] | None = None
    read_weights: Callable[[str, Tensor], Pending] | None = None
    chunk_bytes: int = CHUNK_BYTES
    experts: Group | None = None
    stage: "Callable[..., Any] | None" = None

    @property
    def rank(self) -> int:
        """This rank's index."""
        return self.weights.rank

    @property
    def adds_in_turn(self) -> bool:
        """Whether this rank's gradients wait, micro-batch by micro-batch, for a running sum."""
        return self.reduction is Reduction.ORDERED and self.rank != FIRST_RANK


def records_of(
    own: Records, layouts: Mapping[str, RecordLayout], replicas: Replicas | None
) -> Records:
    """The records of a run, as the rank that has `own` reaches them between two steps."""
    return own if replicas is None or replicas.over is None else replicas.over(own, layouts)


@dataclass(frozen=True)
class _Fetch:
    record: str
    slot: Tensor


class ReplicaLink(HostLink):
    """See :class:`HostLink`.

    Args:
        replicas: the ranks.
        records: by name, the parameters of each record that get a gradient, of which shapes and
            dtypes count; equal on all ranks, in the same order.
        own: over this rank's own records.

    Attributes:
        experts: what this rank computes for others, and they for it; ``None`` where nobody does.
    """

    # Memory is not lent: a broadcast needs some that is there on every rank.
    is_of_several = True

    def __init__(
        self, replicas: Replicas, records: Mapping[str, Mapping[str, Tensor]], own: StoreLink
    ) -> None:
        owners = {record: replicas.ownership.owner(record) for record in records}
        super().__init__()
        self._own, self._digests = own, replicas.digests
        own.on_update = self._note_update
        self.adds_in_turn = replicas.adds_in_turn
        self._owned = frozenset(r for r, owner in owners.items() if owner == replicas.rank)
        self._read_weights = replicas.read_weights
        size = replicas.chunk_bytes
        self._broadcasts = Broadcasts(replicas.weights, tuple(records), owners, size)
        trained = {record: tensors for record, tensors in records.items() if tensors}
        kind = OrderedSums if replicas.reduction is Reduction.ORDERED else ReducedSums
        self._sums = kind(replicas.gradients, trained, owners, size, replicas.waits)
        # Fetches of this pass whose broadcast has not begun.
        self._waiting: deque[_Fetch] = deque()
        # Weights that come for a pass of this rank alone.
        self._coming: dict[str, Pending] = {}
        # Positions of what the store is told of the pass.
        self._foreseen: list[int] = []
        self._is_open = self._is_joint = False
        self._is_summing = False
        self._pushed: set[str] = set()
        self.experts: ExpertLink | None = None

    def _note_update(self, record: str) -> None:
        self.on_update(record)

    def begin_pass(self, actions: Sequence[Action]) -> None:
        self._open()
        # When a sum is complete is nothing that the schedule knows.
        self._foreseen = [
            position
            for position, one in enumerate(actions)
            if one.kind in FORESEEN and one.target in self._owned
        ]
        self._own.begin_pass([replace(actions[n], keeps_loan=False) for n in self._foreseen])

    def _open(self) -> None:
        """A pass begins, if none is open; with gradients switched on, it is one of all ranks."""
        if not self._is_open:
            self._is_open, self._is_joint = True, torch.is_grad_enabled()
            self._pushed.clear()
            wanted = self._is_joint and self._digests.is_wanted
            self._broadcasts.digest = 0 if wanted else None
            if self.experts is not None and self._is_joint:
                self.experts.begin_pass()

    def advance(self, position: int) -> None:
        self._own.advance(bisect_left(self._foreseen, position))
        self._begin_broadcasts()
        if self._is_summing:
            self._take_all(self._sums.ready())
        if self.experts is not None and self._is_joint:
            self.experts.advance()

    # Weights.

    def fetch(self, record: str, slot: Tensor | None, *, keeps_loan: bool) -> None:
        assert slot is not None
        # The pinned weights come before a pass begins.
        self._open()
        own = self._own_with(record)
        if own is not None:
            own.fetch(record, slot, keeps_loan=False)
        if self._is_joint:
            self._waiting.append(_Fetch(record, slot))
            self._begin_broadcasts()
        elif own is None:
            assert self._read_weights is not None
            self._coming[record] = self._read_weights(record, slot)

    def _own_with(self, record: str) -> StoreLink | None:
        """This rank's own link, if the record is in its store."""
        return self._own if record in self._owned else None

    def complete(self, record: str) -> Tensor | None:
        if record in self._coming:
            self._coming.pop(record).wait()
            return None
        if not self._is_joint:
            return self._own.complete(record)
        while any(fetch.record == record for fetch in self._waiting):
            first = self._waiting[0].record
            own = self._own_with(first)
            if own is not None:
                own.complete(first)
            self._begin_broadcasts()
        self._broadcasts.wait(record)
        return None

    def _begin_broadcasts(self) -> None:
        """Begin those whose weights are there, in the order of the fetches."""
        while self._waiting and not self._is_coming(self._waiting[0].record):
            fetch = self._waiting.popleft()
            with self._own.host_section():
                self._broadcasts.begin(fetch.record, fetch.slot)

    def _is_coming(self, record: str) -> bool:
        own = self._own_with(record)
        return own is not None and own.is_fetching(record)

    def release(self, record: str) -> None:
        own = self._own_with(record)
        if own is not None:
            own.release(record)

    # Gradients.

    def push(self, record: str, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """See :class:`HostLink`.

        Raises:
            OpenwaferError: ``gradient-twice``.
        """
        if record in self._pushed:
            raise error(
                "gradient-twice",
                f"{record!r} got a gradient after its gradients had left for the other systems: "
                "a layer uses its weights that does not have them",
                help="train on one system, or name the modules that share these weights as one "
                "layer in streaming.layers",
            )
        self._pushed.add(record)
        self._begin_sums()
        own = self._own_with(record)
        if own is not None:
            own.expect_pushes((record,))
        self._sums.add(record, parts)
        self._take_all(self._sums.ready())

    def _begin_sums(self) -> None:
        if not self._is_summing:
            self._sums.begin()
            self._is_summing = True

    def _take_all(self, sums: Iterable[Sum]) -> None:
        for one in sums:
            if one.tensors:
                with self._own.host_section():
                    self._own.push(one.record, [one.tensors])

    def push_zeros(self, records: Sequence[str]) -> None:
        """See :class:`HostLink`. No expert pushes its gradient by itself here."""
        assert not records

    def end_pass(self) -> None:
        """See :class:`HostLink`. All ranks have pushed all gradients when this returns."""
        if self._is_joint:
            self._begin_sums()
            self._take_all(self._sums.finish())
            self._is_summing = False
            self._broadcasts.end_pass()
            if self.experts is not None:
                self.experts.end_pass()
        if self._broadcasts.digest is not None:
            self._digests.last = {WEIGHTS: self._broadcasts.digest}
        self._is_open = False
        self._own.end_pass()

    def abandon(self) -> None:
        """See :class:`HostLink`. The sums under way are lost, and the ranks with them."""
        self._waiting.clear()
        for one in self._coming.values():
            one.wait()
        self._coming.clear()
        if self.experts is not None and self._is_open:
            self.experts.abandon()
        self._is_open = False
        self._own.abandon()

    def close(self) -> None:
        """End the threads."""
        self._sums.close()
        if self.experts is not None:
            self.experts.close()


def replica_link(
    replicas: Replicas, weights: DeviceWeights, split: Partition, own: StoreLink
) -> ReplicaLink:
    """The link of a rank among others.

    Args:
        replicas: the ranks.
        weights: the model's, as the device has them.
        split: the model's records.
        own: over this rank's own records.
    """
    # Of what one rank computes for all, no other one has gradients.
    staying = replicas.ownership.staying
    records = {
        record: {
            name: torch.empty_like(weights.parameters[name], device="meta")
            for name in names
            if weights.parameters[name].requires_grad and record not in staying
        }
        for record, names in split.records.items()
    }
    return (replicas.link or ReplicaLink)(replicas, records, own)


def expert_link(
    replicas: Replicas | None,
    model: nn.Module,
    split: Partition,
    own: StoreLink,
    casting: Callable[[], AbstractContextManager[object]],
) -> ExpertLink | None:
    """The experts of a rank among others; ``None`` where their weights are fetched.

    Args:
        replicas: the ranks.
        model: has the modules of experts.
        split: its records.
        own: over this rank's own records.
        casting: makes the context that forwards, and nothing else, run in.
    """
    if replicas is None or replicas.experts is None:
        return None
    names = dict.fromkeys(layer.slice_of for layer in split.layers if layer.slice_of is not None)
    modules = expert_modules(model, names)
    return ExpertLink(replicas.experts, modules, replicas.ownership, own, casting)
