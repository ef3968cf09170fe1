"""The host side over a parameter store: fetches come from its records, gradients go to them.

Reads run ahead of the schedule in its order, as far as the store's ring allows. Updates are
applied where the schedule's timing says: when a record's gradients arrive, or just before the
record's next fetch. On a device that copies by itself the host work runs on threads of its own.

A gradient arrives in :meth:`StoreLink.push`, which shows it to the watchers. :class:`Pushes` brings
it to the host and applies it, or keeps it in the store, where :class:`KeptGradients` knows of it.
When its step is complete, the record's next fetch (:class:`Fetches`), or a flush, applies it. All
three apply it by :class:`RecordUpdates`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch

from openwafer.training.store.layout import (
    KEPT_PARTS,
    Part,
    RecordLayout,
    laid_out_like,
    slice_of,
    whole_name,
)
from openwafer.training.store.parameter_store import Loan, ParameterStore
from openwafer.training.stream.device.device import Device, Recorder
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.link.fetches import READ_AHEAD, Fetches, IdleLoans
from openwafer.training.stream.link.host_link import HostLink
from openwafer.training.stream.link.pushes import Arrived, Pushes
from openwafer.training.stream.link.updates import KeptGradients, RecordUpdates, Updater
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming


@dataclass(frozen=True)
class JoinedGradient:
    """The gradient of a weight, all slices of which were pushed.

    Attributes:
        name: of the weight.
        whole: in host memory.
        slices: views of it by the names of the slices, which are those of their records, too.
        zeros: the slices that came as zeros.
    """

    name: str
    whole: torch.Tensor
    slices: dict[str, torch.Tensor] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)

    def gradient_of(self, name: str) -> torch.Tensor | None:
        """A slice as watchers have left it; ``None`` for one that is zero still."""
        part = self.slices[name]
        # By its bits: a watcher may have made negative zeros.
        is_zero = name in self.zeros and not part.view(torch.uint8).any()
        return None if is_zero else part


class JoinedGradients:
    """Collects slices in host memory until they are complete, one weight at a time or several.

    Args:
        layouts: records, of which those of slices hold one array.
        device: where gradients come from.
    """

    def __init__(self, layouts: Iterable[RecordLayout], device: Device) -> None:
        self._specs = {
            layout.name: layout.parts[Part.WEIGHTS][0].spec
            for layout in layouts
            if slice_of(layout.name) is not None
        }
        self._num_slices = Counter(map(whole_name, self._specs))
        self._device = device
        self._begun: dict[str, JoinedGradient] = {}

    def add(self, name: str, gradient: torch.Tensor | None) -> JoinedGradient | None:
        """Take the gradient of a slice; returns that of its weight when it was the last.

        Args:
            name: of the slice.
            gradient: on the device; ``None`` is zeros.
        """
        found = slice_of(name)
        assert found is not None
        joined = self._begun.get(found.whole)
        if joined is None:
            spec = self._specs[name]
            whole = torch.empty((self._num_slices[found.whole], *spec.shape), dtype=spec.dtype)
            joined = self._begun[found.whole] = JoinedGradient(found.whole, whole)
        place = joined.slices[name] = joined.whole[found.index]
        if gradient is None:
            joined.zeros.add(name)
            place.zero_()
        else:
            self._device.download(gradient, place, self._device.submitted()).wait()
        return self._begun.pop(found.whole) if len(joined.slices) == len(joined.whole) else None

    def forget(self) -> None:
        """Drop what is not complete."""
        self._begun.clear()


KEPT = frozenset(KEPT_PARTS)
ALL = frozenset(Part)
FORESEEN = frozenset({Kind.FETCH, Kind.READ})


@dataclass
class LinkTraffic:
    """Bytes over the link since it was made."""

    fetch_bytes: int = 0
    push_bytes: int = 0


class StoreLink(HostLink):
    """See :class:`HostLink`.

    Args:
        store: holds the records.
        updater: applies the update rules.
        device: where weights go.
        timing: when records are updated.
        recorder: receives the spans of fetch, push and update.

    Attributes:
        timing: when records are updated.
        kept: the gradients that the store keeps.
        traffic: bytes so far.
        watchers: called with the gradients of every push, on the device, before they leave; the
            place for unscaling, norms and checks. A weight that is pushed in slices comes whole,
            in host memory.
    """

    def __init__(
        self,
        store: ParameterStore,
        updater: Updater,
        device: Device,
        timing: UpdateTiming,
        recorder: Recorder,
    ) -> None:
        self.store = store
        super().__init__()
        self.lends_memory = not device.is_asynchronous
        self.traffic = LinkTraffic()
        self.watchers: list[Callable[[Mapping[str, torch.Tensor]], None]] = []
        self.kept = kept = KeptGradients()
        self._device = device
        # Where all is in memory, nothing is won by asking for it before.
        self._reads_ahead = store.has_disk_parts
        self._strided = {
            record: specs
            for record, layout in store.layouts.items()
            if (specs := [p.spec for p in layout.parts[Part.WEIGHTS] if p.spec.strides])
        }
        self._next_fetches: Sequence[str] = ()
        self._foreseen_parts: frozenset[Part] = frozenset()
        self._idle = idle = IdleLoans(self._borrow)
        self._updates = updates = RecordUpdates(updater, recorder, self._tell)
        self._fetches = Fetches(idle, kept, updates, device, recorder)
        self._joined = JoinedGradients(store.layouts.values(), device)
        self._pushes = Pushes(idle, kept, updates, self._fetches, device, recorder)
        self.update_on(timing)

    def update_on(self, timing: UpdateTiming, coefficient: float = 1.0) -> None:
        """From the next pass on, update at that time; no update may be due.

        Args:
            timing: when records are updated.
            coefficient: what gradients are multiplied by in updates on push.
        """
        self.timing = self._pushes.timing = timing
        self._pushes.coefficient = coefficient
        if self._reads_ahead:
            keeps_gradients = timing is UpdateTiming.ON_FETCH
            self._idle.foresees = FORESEEN | {Kind.PUSH} if keeps_gradients else FORESEEN

    def _tell(self, record: str) -> None:
        self.on_update(record)

    # What a pass borrows, and when.

    def begin_pass(self, actions: Sequence[Action]) -> None:
        self._pushes.begin_pass()
        if not self._reads_ahead:
            return
        self._idle.begin_pass(actions)
        fetches = [action.target for action in actions if action.kind is Kind.FETCH]
        self._next_fetches = fetches[:READ_AHEAD]
        is_updated = any(action.kind is Kind.UPDATE for action in actions)
        wants_states = is_updated and self.timing is UpdateTiming.ON_FETCH
        self._foreseen_parts = ALL if wants_states else frozenset((Part.WEIGHTS,))
        # What was foreseen and is not read yet is about to be borrowed; later it would be in vain.
        self.store.foresee(())
        self.advance(0)

    def go_on(self, actions: Sequence[Action]) -> None:
        # What is given back makes room for loans that wait, whose memory is the host's.
        with self._device.host_section():
            if self._reads_ahead:
                self._idle.go_on(actions)

    def advance(self, position: int) -> None:
        with self._device.host_section():
            if self._reads_ahead:
                self._idle.drop_passed(position)
                self._idle.read_ahead(self._must_wait)
            self._fetches.serve_ready()
            if self._next_fetches and self._idle.has_asked_for_all:
                self._foresee_next_pass()

    def _foresee_next_pass(self) -> None:
        """The disk has nothing left to read for this pass: let it begin with the next."""
        wanted = [(record, self._foreseen_parts) for record in self._next_fetches]
        if PINNED in self.store.layouts:
            # Wanted before all others; its gradients of this pass are still to come.
            wanted.insert(0, (PINNED, self._foreseen_parts - {Part.GRADIENTS}))
        self.store.foresee(wanted)
        self._next_fetches = ()

    def _must_wait(self, action: Action) -> bool:
        """Whether a loan for the record's update is out, so that the next one is to follow it."""
        record = action.target
        if not self.kept.is_due(record):
            return False
        is_begun = self._fetches.is_begun(record)
        return action.kind is Kind.PUSH or is_begun or self._idle.is_lent(record)

    def _borrow(self, action: Action) -> Loan:
        record = action.target
        if action.kind is Kind.PUSH:
            parts = (Part.GRADIENTS,)
            fresh = () if self.kept.has_bytes(record) else parts
            return self.store.borrow(record, parts, fresh=fresh)
        if self.kept.is_due(record):
            return self.store.borrow(record, self.kept.due_parts(record))
        if action.keeps_loan:
            return self.store.borrow(record, KEPT)
        return self.store.borrow(record, (Part.WEIGHTS,), read_only=True)

    # Weights.

    def fetch(self, record: str, slot: torch.Tensor | None, *, keeps_loan: bool) -> None:
        self.traffic.fetch_bytes += self.store.layouts[record].part_bytes(Part.WEIGHTS)
        self._fetches.begin(record, slot, keeps_loan=keeps_loan)

    def complete(self, record: str) -> torch.Tensor | None:
        return self._fetches.complete(record)

    def is_fetching(self, record: str) -> bool:
        """Whether a fetch of the record has begun and is not served."""
        return self._fetches.is_begun(record)

    def release(self, record: str) -> None:
        """See :class:`HostLink`. An update that waited for the weights to be free is made now."""
        self._fetches.release(record)
        self._pushes.release(record)

    # Gradients.

    def push(self, record: str, parts: Sequence[Mapping[str, torch.Tensor]]) -> None:
        (gradients,) = parts
        self.traffic.push_bytes += sum(gradient.nbytes for gradient in gradients.values())
        gradients = self._laid_out(record, gradients)
        if self.watchers and slice_of(record) is not None:
            self._join(record, gradients[record])
        else:
            self.show(gradients)
            self._pushes.take(record, Arrived(gradients))

    def push_seen(self, record: str, gradient: torch.Tensor | None) -> None:
        """Take the gradient of a slice whose weight the watchers have seen whole, if any watch.

        Args:
            record: of the slice.
            gradient: in host memory; ``None`` is zeros.
        """
        self.traffic.push_bytes += 0 if gradient is None else gradient.nbytes
        self._pushes.take(record, Arrived({record: gradient}, is_on_host=True))

    def host_section(self) -> AbstractContextManager[object]:
        """Context in which tensors made, and sums that have come, belong to the host."""
        return self._device.host_section()

    def push_zeros(self, records: Sequence[str]) -> None:
        if self.watchers:
            for record in records:
                self._join(record, None)
        else:
            for record in self._expecting(records):
                self._pushes.take(record, Arrived({record: None}))

    def expect_pushes(self, records: Sequence[str]) -> None:
        if self._reads_ahead and not self.watchers:
            self._pushes.expect(records)

    def _expecting(self, records: Sequence[str]) -> Iterator[str]:
        """Records whose gradients are taken one after the other: reads for them run ahead."""
        for place, record in enumerate(records):
            if self._reads_ahead:
                self._pushes.expect(records[place : place + READ_AHEAD])
            yield record

    def _join(self, name: str, gradient: torch.Tensor | None) -> None:
        """Take the gradient of a slice once its weight is whole, and the watchers have seen it."""
        joined = self._joined.add(name, gradient)
        if joined is not None:
            self.show({joined.name: joined.whole})
            for one in self._expecting(tuple(joined.slices)):
                self._pushes.take(one, Arrived({one: joined.gradient_of(one)}, is_on_host=True))

    def show(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Let the watchers see gradients, by parameter name."""
        for watcher in self.watchers:
            watcher(gradients)

    def _laid_out(
        self, record: str, gradients: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """The gradients with the strides of their weights, which autograd gives them only there."""
        strided = self._strided.get(record)
        if strided is None:
            return gradients
        wanted = {spec.name: spec.empty("meta") for spec in strided if spec.name in gradients}
        with torch.no_grad():
            return {
                **gradients,
                **{name: laid_out_like(gradients[name], like) for name, like in wanted.items()},
            }

    def flush(self) -> None:
        """Apply every update that is due."""
        self._pushes.finish()
        # A fetch under way applies the update of its record itself.
        self._fetches.await_threads()
        due = self.kept.due_records
        asked: dict[str, Loan] = {}
        try:
            for place, record in enumerate(due):
                for ahead in filter(self.kept.is_due, due[place : place + READ_AHEAD]):
                    if ahead not in asked:
                        asked[ahead] = self.store.borrow(ahead, self.kept.due_parts(ahead))
                if record in asked:
                    self._update(record, asked.pop(record))
        finally:
            for loan in asked.values():
                loan.release()

    def _update(self, record: str, loan: Loan) -> None:
        self._fetches.wait(loan)
        # Making room may have served a fetch of this very record.
        is_due = self.kept.is_due(record)
        try:
            if is_due:
                self._updates.apply(record, loan, *self.kept.take_due(record, loan))
        finally:
            loan.release(dirty=self._updates.changed_parts if is_due else ())

    def keep_gradient(self, record: str, name: str, gradient: torch.Tensor) -> None:
        """Keep a gradient in the place of the one that is kept, if one is; no update is due."""
        with self.lent(record, Part.GRADIENTS, changes=True) as loan, torch.no_grad():
            loan.tensor(name, Part.GRADIENTS).copy_(gradient)
        self.kept.add(record, [name])

    def take_kept(self, record: str) -> dict[str, torch.Tensor]:
        """Copies of the gradients of a record that wait for their step, and are kept no more."""
        self._pushes.finish()
        names = self.kept.take(record)
        if not names:
            return {}
        with self.lent(record, Part.GRADIENTS) as loan:
            return {name: loan.tensor(name, Part.GRADIENTS).clone() for name in names}

    def hold(self, record: str) -> Loan:
        """The weights of a record, up to date, until the caller gives them back."""
        if self.kept.is_due(record):
            self._update(record, self.store.borrow(record, self.kept.due_parts(record)))
        loan = self.store.borrow(record, (Part.WEIGHTS,), read_only=True)
        self._fetches.wait(loan)
        return loan

    @contextmanager
    def lent(self, record: str, *parts: Part, changes: bool = False) -> Iterator[Loan]:
        """Context in which compute's own thread has parts of a record, in a pass or between two.

        Args:
            changes: whether the parts count as changed at the end; weights must not be, while the
                device has them.
        """
        loan = self.store.borrow(record, parts, read_only=not changes)
        self._fetches.wait(loan)
        try:
            yield loan
        finally:
            loan.release(dirty=parts if changes else ())

    # The end.

    def end_pass(self) -> None:
        self._pushes.finish()
        self._idle.give_up()
        self._fetches.end_pass()

    def abandon(self) -> None:
        """Give back every loan and forget the gradients of the pass under way."""
        self._idle.give_up()
        self._fetches.abandon()
        self._pushes.abandon()
        self._joined.forget()
        self._idle.give_up()
        self.kept.discard()

    def close(self) -> None:
        """Give every loan back and end the threads."""
        self.abandon()
        self._fetches.close()
        self._pushes.close()
