"""The host side over a parameter store: fetches come from its records, gradients go to them.

Reads run ahead of the schedule in its order, as far as the store's ring allows. Updates are
applied where the schedule's timing says: when a record's gradients arrive, or just before the
record's next fetch. On a device that copies by itself the host work runs on threads of its own.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import KEPT_PARTS, Part, laid_out_like
from openwafer.training.store.parameter_store import Loan, ParameterStore
from openwafer.training.stream.device.device import NO_TRANSFER, Device, Submitted, Transfer
from openwafer.training.stream.device.recorder import Recorder
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.link.idle_loans import READ_AHEAD, IdleLoans
from openwafer.training.stream.link.pending_updates import PendingUpdates
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming

KEPT = frozenset(KEPT_PARTS)
ALL = frozenset(Part)
FORESEEN = frozenset({Kind.FETCH, Kind.READ})

_Take = Callable[[str, Mapping[str, torch.Tensor], Submitted], None]


@dataclass
class _Fetch:
    record: str
    slot: torch.Tensor | None
    loan: Loan
    keeps_loan: bool
    after: Submitted
    served: "Future[Transfer] | None" = None


@dataclass(frozen=True)
class _Lent:
    loan: Loan
    memory: torch.Tensor


@dataclass(frozen=True)
class _Push:
    loan: Loan
    ended: "Future[None]"


@dataclass
class LinkTraffic:
    """Bytes over the link since it was made."""

    fetch_bytes: int = 0
    push_bytes: int = 0


class StoreLink:
    """See :class:`~openwafer.training.stream.link.host_link.HostLink`.

    Args:
        store: holds the records.
        updater: applies the update rules.
        device: where weights go.
        timing: when records are updated.
        recorder: receives the spans of fetch, push and update.

    Attributes:
        timing: when records are updated.
        traffic: bytes so far.
        watchers: called with the gradients of every push, on the device, before they leave; the
            place for unscaling, norms and checks.
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
        self.lends_memory = not device.is_asynchronous
        self.traffic = LinkTraffic()
        self.watchers: list[Callable[[Mapping[str, torch.Tensor]], None]] = []
        self._device = device
        self._recorder = recorder
        self.on_update: Callable[[str], None] = lambda record: None
        self._updates = PendingUpdates(updater, recorder, self._has_updated)
        self._idle = IdleLoans(self._borrow)
        self.update_on(timing)
        self._next_fetches: Sequence[str] = ()
        self._foreseen_parts: frozenset[Part] = frozenset()
        self._queue: deque[_Fetch] = deque()
        self._threads = (
            {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("fetch", "push")}
            if device.is_asynchronous
            else {}
        )
        self._pushes: deque[_Push] = deque()
        self._lent: dict[str, _Lent] = {}
        self._held_back: dict[str, Mapping[str, torch.Tensor]] = {}

    def update_on(self, timing: UpdateTiming, coefficient: float = 1.0) -> None:
        """From the next pass on, update at that time; no update may be due.

        Args:
            timing: when records are updated.
            coefficient: what gradients are multiplied by in updates on push.
        """
        self.timing = timing
        self._coefficient = coefficient
        keeps_gradients = timing is UpdateTiming.ON_FETCH
        self._idle.foresees = FORESEEN | {Kind.PUSH} if keeps_gradients else FORESEEN

    def _has_updated(self, record: str) -> None:
        self.on_update(record)

    # Reads ahead.

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """See :class:`HostLink`."""
        self._idle.begin_pass(actions)
        fetches = [action.target for action in actions if action.kind is Kind.FETCH]
        self._next_fetches = fetches[:READ_AHEAD]
        is_updated = any(action.kind is Kind.UPDATE for action in actions)
        wants_states = is_updated and self.timing is UpdateTiming.ON_FETCH
        self._foreseen_parts = ALL if wants_states else frozenset((Part.WEIGHTS,))
        # What was foreseen and is not read yet is about to be borrowed; later it would be in vain.
        self.store.foresee(())
        self.advance(0)

    def advance(self, position: int) -> None:
        """See :class:`HostLink`."""
        with self._device.host_section():
            self._idle.drop_passed(position)
            self._idle.read_ahead(self._must_wait)
            self._serve_ready()
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
        if not self._updates.is_due(record):
            return False
        is_queued = any(fetch.record == record for fetch in self._queue)
        return action.kind is Kind.PUSH or is_queued or self._idle.is_lent(record)

    def _borrow(self, action: Action) -> Loan:
        record = action.target
        if action.kind is Kind.PUSH:
            parts = (Part.GRADIENTS,)
            fresh = () if self._updates.has_any(record) else parts
            return self.store.borrow(record, parts, fresh=fresh)
        if self._updates.is_due(record):
            return self.store.borrow(record, ALL)
        if action.keeps_loan:
            return self.store.borrow(record, KEPT)
        return self.store.borrow(record, (Part.WEIGHTS,), read_only=True)

    def _wait(self, loan: Loan) -> None:
        """Wait for a loan in the compute thread; give it back when its read fails."""
        if not self._threads:
            self._serve_before(loan)
        with self._idle.awaiting(loan):
            _wait_for(loan)

    def _wait_in_lane(self, loan: Loan) -> None:
        """Wait for a loan in the thread that serves or updates, be it compute's or its own."""
        if self._threads:
            _wait_for(loan)
        else:
            self._wait(loan)

    # Fetches.

    def fetch(self, record: str, slot: torch.Tensor | None, *, keeps_loan: bool) -> None:
        """See :class:`HostLink`."""
        loan = self._idle.take_fetch(record, keeps_loan=keeps_loan)
        fetch = _Fetch(record, slot, loan, keeps_loan, self._device.submitted())
        self.traffic.fetch_bytes += self._weights_bytes(record)
        self._queue.append(fetch)
        if self._threads:
            fetch.served = self._threads["fetch"].submit(self._serve, fetch)
        else:
            self._serve_ready()

    def _weights_bytes(self, record: str) -> int:
        return self.store.layouts[record].part_bytes(Part.WEIGHTS)

    def _serve_ready(self) -> None:
        while self._queue and not self._threads and self._queue[0].loan.is_ready:
            self._serve(self._queue.popleft())

    def _serve_before(self, loan: Loan) -> None:
        """Serve the fetches whose room a blocked loan may wait for."""
        while self._queue and loan.is_blocked and self._queue[0].loan.number < loan.number:
            self._serve(self._queue.popleft())

    def complete(self, record: str) -> torch.Tensor | None:
        """See :class:`HostLink`."""
        while any(fetch.record == record for fetch in self._queue):
            fetch = self._queue.popleft()
            if fetch.served is None:
                with self._device.host_section():
                    self._serve(fetch)
            else:
                with self._idle.awaiting(fetch.loan):
                    fetch.served.result().wait()
        lent = self._lent.get(record)
        return None if lent is None else lent.memory

    def _serve(self, fetch: _Fetch) -> Transfer:
        """Begin the copy and give the loan back; compute waits for the transfer returned."""
        self._wait_in_lane(fetch.loan)
        is_due = self._updates.is_due(fetch.record)
        if is_due:
            self._updates.apply_due(fetch.record, fetch.loan)
        with self._recorder.host("fetch", fetch.record, self._weights_bytes(fetch.record)):
            transfer = self._lend(fetch) if fetch.slot is None else self._upload(fetch, fetch.slot)
        if fetch.keeps_loan and not is_due:
            self._idle.keep(fetch.record, fetch.loan)
        else:
            fetch.loan.release(dirty=self._updates.changed_parts if is_due else ())
        return transfer

    def _upload(self, fetch: _Fetch, slot: torch.Tensor) -> Transfer:
        source = fetch.loan.part_bytes_view(Part.WEIGHTS)
        transfer = self._device.upload(slot, source, fetch.after)
        transfer.wait_until_read()
        return transfer

    def _lend(self, fetch: _Fetch) -> Transfer:
        loan = fetch.loan.share(Part.WEIGHTS)
        # A storage that lives as long as the device has the weights, so that a meter can count it.
        memory = torch.from_numpy(loan.part_bytes_view(Part.WEIGHTS).numpy())
        self._lent[fetch.record] = _Lent(loan, memory)
        return NO_TRANSFER

    def release(self, record: str) -> None:
        """See :class:`HostLink`. An update that waited for the weights to be free is made now."""
        lent = self._lent.pop(record, None)
        if lent is not None:
            lent.loan.release()
        gradients = self._held_back.pop(record, None)
        if gradients is not None:
            self._take(record, gradients)

    # Gradients.

    def push(self, record: str, gradients: Mapping[str, torch.Tensor]) -> None:
        """See :class:`HostLink`."""
        gradients = self._laid_out(record, gradients)
        for watcher in self.watchers:
            watcher(gradients)
        self.traffic.push_bytes += _num_bytes(gradients)
        if self.timing is UpdateTiming.ON_PUSH and record in self._lent:
            # The rest of the backward pass sees the weights as they were.
            self._held_back[record] = gradients
        else:
            self._take(record, gradients)

    def _laid_out(
        self, record: str, gradients: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """The gradients with the strides of their weights, which autograd gives them only there."""
        strided = [p.spec for p in self.store.layouts[record].parts[Part.WEIGHTS] if p.spec.strides]
        wanted = {spec.name: spec.empty("meta") for spec in strided if spec.name in gradients}
        if not wanted:
            return gradients
        with torch.no_grad():
            return {
                **gradients,
                **{name: laid_out_like(gradients[name], like) for name, like in wanted.items()},
            }

    def _take(self, record: str, gradients: Mapping[str, torch.Tensor]) -> None:
        # One push under way at a time bounds the gradients that wait on the device.
        self._finish_pushes()
        if self.timing is UpdateTiming.ON_PUSH:
            loan = self._idle.take_kept(record)
            take: _Take = partial(self._update_now, loan)
        else:
            loan = self._idle.take_push(record)
            if self._updates.has_any(record):
                # When room was asked for, ahead of the push, there may have been none.
                loan.want_bytes(Part.GRADIENTS)
            take = partial(self._keep, loan)
        after = self._device.submitted()
        if not self._threads:
            take(record, gradients, after)
            return
        push = partial(self._push_behind, take, record, dict(gradients), after)
        self._pushes.append(_Push(loan, self._threads["push"].submit(push)))

    @staticmethod
    def _push_behind(
        take: _Take, record: str, gradients: dict[str, torch.Tensor], after: Submitted
    ) -> None:
        take(record, gradients, after)
        # Off the device before anybody learns that the push has ended.
        gradients.clear()

    def _finish_pushes(self) -> None:
        while self._pushes:
            push = self._pushes.popleft()
            with self._idle.awaiting(push.loan):
                push.ended.result()

    def _update_now(
        self, loan: Loan, record: str, gradients: Mapping[str, torch.Tensor], after: Submitted
    ) -> None:
        self._wait_in_lane(loan)
        on_host = gradients
        if self._threads:
            with self._recorder.host("push", record, _num_bytes(gradients)):
                on_host = {name: self._on_host(gradients[name], after) for name in gradients}
        self._updates.apply_now(record, loan, on_host, self._coefficient)
        loan.release(dirty=KEPT)

    def _on_host(self, gradient: torch.Tensor, after: Submitted) -> torch.Tensor:
        on_host = torch.empty_like(gradient, device="cpu")
        self._device.download(gradient, on_host, after).wait()
        return on_host

    def _keep(
        self, loan: Loan, record: str, gradients: Mapping[str, torch.Tensor], after: Submitted
    ) -> None:
        names = self._updates.names(record)
        self._wait_in_lane(loan)
        with self._recorder.host("push", record, _num_bytes(gradients)), torch.no_grad():
            for name, gradient in gradients.items():
                kept = loan.tensor(name, Part.GRADIENTS)
                if name in names:
                    kept.add_(self._on_host(gradient, after))
                else:
                    names.append(name)
                    self._device.download(gradient, kept, after).wait()
        loan.release(dirty=(Part.GRADIENTS,))

    def end_pass(self) -> None:
        """See :class:`HostLink`."""
        self._finish_pushes()
        self._idle.give_up()

    def abandon(self) -> None:
        """Give back every loan and forget the gradients of the pass under way."""
        self._idle.give_up()
        while self._queue:
            fetch = self._queue.popleft()
            if fetch.served is None:
                fetch.loan.release()
            else:
                self._await_quietly(fetch.loan, fetch.served)
                if fetch.served.exception() is None:
                    fetch.served.result().wait()
        while self._pushes:
            push = self._pushes.popleft()
            self._await_quietly(push.loan, push.ended)
        self._idle.give_up()
        for lent in self._lent.values():
            lent.loan.release()
        self._lent.clear()
        self._held_back.clear()
        self.discard_gradients()

    def _await_quietly(self, loan: Loan, work: "Future[Any]") -> None:
        """Return when a thread is done, whether or not it failed."""
        with self._idle.awaiting(loan):
            wait([work])

    # Updates.

    @property
    def has_gradients(self) -> bool:
        """Whether gradients wait for their step to be completed."""
        return self._updates.has_gradients

    def complete_step(self, coefficient: float = 1.0) -> None:
        """The gradients kept are those of a whole step: apply them from now on.

        Each record is updated just before its next fetch, or by :meth:`flush`.

        Args:
            coefficient: what gradients are multiplied by before they are applied.
        """
        self._updates.complete_step(coefficient)

    def keeps_gradient(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter waits for its step to be completed."""
        return self._updates.keeps(record, name)

    @property
    def kept_names(self) -> set[str]:
        """Parameters whose gradients wait for their step to be completed."""
        return self._updates.kept_names

    def discard_gradients(self, names: Collection[str] | None = None) -> None:
        """Forget the gradients kept since the last step, of all parameters or of some."""
        self._updates.discard(names)

    def flush(self) -> None:
        """Apply every update that is due."""
        self._finish_pushes()
        # A fetch under way applies the update of its record itself.
        for fetch in self._queue:
            if fetch.served is not None:
                self._await_quietly(fetch.loan, fetch.served)
        for record in filter(self._updates.is_due, self._updates.records):
            loan = self.store.borrow(record, ALL)
            self._wait(loan)
            # Making room may have served a fetch of this very record.
            is_due = self._updates.is_due(record)
            if is_due:
                self._updates.apply_due(record, loan)
            loan.release(dirty=self._updates.changed_parts if is_due else ())

    @contextmanager
    def lent(self, record: str, part: Part, *, changes: bool = False) -> Iterator[Loan]:
        """Context in which compute's own thread has a part of a record, in a pass or between two.

        Args:
            changes: whether the part counts as changed at the end; weights must not be, while the
                device has them.
        """
        loan = self.store.borrow(record, (part,), read_only=not changes)
        self._wait(loan)
        try:
            yield loan
        finally:
            loan.release(dirty=(part,) if changes else ())

    def kept_gradients(self, record: str) -> Mapping[str, torch.Tensor]:
        """Copies of the gradients kept for a record, by parameter name."""
        with self.lent(record, Part.GRADIENTS) as loan:
            kept = self._updates.gradients(record, loan)
            return {name: gradient.clone() for name, gradient in kept.items()}

    def keep_gradient(self, record: str, name: str, gradient: torch.Tensor) -> None:
        """Keep a gradient in the place of the one that is kept, if one is; no update is due."""
        names = self._updates.names(record)
        with self.lent(record, Part.GRADIENTS, changes=True) as loan, torch.no_grad():
            loan.tensor(name, Part.GRADIENTS).copy_(gradient)
        if name not in names:
            names.append(name)

    def keep_again(self, record: str, name: str) -> None:
        """A gradient that was applied, and is not overwritten yet, is one to be applied."""
        self._updates.names(record).append(name)

    def close(self) -> None:
        """Give every loan back and end the threads."""
        self.abandon()
        for thread in self._threads.values():
            thread.shutdown()


def _wait_for(loan: Loan) -> None:
    """Wait for a loan; give it back when its read fails."""
    try:
        loan.wait()
    except OpenwaferError:
        loan.release()
        raise


def _num_bytes(gradients: Mapping[str, torch.Tensor]) -> int:
    return sum(gradient.nbytes for gradient in gradients.values())
