"""The host side over a parameter store: fetches come from its records, gradients go to them.

Reads run ahead of the schedule in its order, as far as the store's ring allows. Updates are
applied where the schedule's timing says: when a record's gradients arrive, or just before the
record's next fetch. On a device that copies by itself the host work runs on threads of its own.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

import torch

from openwafer.diagnostics import error
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import Loan, ParameterStore
from openwafer.training.store.update_rules import UpdateRule
from openwafer.training.stream.device import Device, Submitted, Transfer
from openwafer.training.stream.recorder import Recorder
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming
from openwafer.training.stream.updates import Updater

KEPT = frozenset({Part.WEIGHTS, Part.STATES})
ALL = frozenset(Part)
READ_AHEAD = 8

_Take = Callable[[str, Mapping[str, torch.Tensor], Submitted], None]


@dataclass
class _Fetch:
    record: str
    slot: torch.Tensor
    loan: Loan
    keeps_loan: bool
    after: Submitted
    served: "Future[Transfer] | None" = None


@dataclass
class LinkTraffic:
    """Bytes over the link, and seconds spent on host work, since the link was made."""

    fetch_bytes: int = 0
    push_bytes: int = 0
    update_seconds: float = 0.0


@dataclass
class PendingUpdate:
    """Gradients kept in the store until their update.

    Attributes:
        names: parameters of a record that have a gradient, by record.
        is_due: whether the step that made them is complete, so that they may be applied.
        coefficient: what the gradients are multiplied by first (the clip coefficient).
        rules: the groups' rules at that step.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    is_due: bool = False
    coefficient: float = 1.0
    rules: Sequence[UpdateRule] = ()


class StoreLink:
    """See :class:`~openwafer.training.stream.link.HostLink`.

    Args:
        store: holds the records.
        updater: applies the update rules.
        device: where weights go.
        timing: when records are updated.
        recorder: receives the spans of fetch, push and update.

    Attributes:
        traffic: bytes and seconds so far.
        watch_gradients: called with the gradients of every push, on the device, before they leave;
            the place for unscaling, norms and checks.
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
        self.traffic = LinkTraffic()
        self.watch_gradients: Callable[[Mapping[str, torch.Tensor]], None] = lambda gradients: None
        self._updater = updater
        self._device = device
        self._timing = timing
        self._recorder = recorder
        self._pending = PendingUpdate()
        self._reads: Sequence[Action] = ()
        self._num_issued = 0
        self._num_taken = 0
        self._lent: dict[str, deque[Loan]] = {}
        self._held: dict[str, Loan] = {}
        self._queue: deque[_Fetch] = deque()
        self._threads = (
            {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("fetch", "push")}
            if device.is_asynchronous
            else {}
        )
        self._pushes: deque[Future[None]] = deque()

    # Reads ahead.

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """See :class:`HostLink`."""
        self._reads = [action for action in actions if action.kind in (Kind.FETCH, Kind.READ)]
        self._num_issued = 0
        self._num_taken = 0
        self.advance(0)

    def advance(self, position: int) -> None:
        """See :class:`HostLink`."""
        with self._device.host_section():
            self._read_ahead()
            self._serve_ready()

    def _read_ahead(self) -> None:
        window = self._num_taken + READ_AHEAD
        while self._num_issued < min(window, len(self._reads)):
            action = self._reads[self._num_issued]
            if self._lent.get(action.target) and self._is_due(action.target):
                break
            loan = self._borrow(action.target, keeps_loan=action.keeps_loan)
            self._lent.setdefault(action.target, deque()).append(loan)
            self._num_issued += 1

    def _is_due(self, record: str) -> bool:
        return self._pending.is_due and record in self._pending.names

    def _borrow(self, record: str, *, keeps_loan: bool) -> Loan:
        if self._is_due(record):
            return self.store.borrow(record, ALL)
        if keeps_loan:
            return self.store.borrow(record, KEPT)
        return self.store.borrow(record, (Part.WEIGHTS,), read_only=True)

    def _take_loan(self, record: str, *, keeps_loan: bool) -> Loan:
        lent = self._lent.get(record)
        if not lent:
            if self._next_read() == record:
                self._num_issued += 1
                self._num_taken += 1
            else:
                # Out of the schedule's order: what was read ahead must not hold the ring.
                self._withdraw_reads()
            return self._borrow(record, keeps_loan=keeps_loan)
        self._num_taken += 1
        loan = lent.popleft()
        if not lent:
            del self._lent[record]
        return loan

    def _next_read(self) -> str | None:
        if self._num_issued >= len(self._reads):
            return None
        return self._reads[self._num_issued].target

    def _withdraw_reads(self) -> None:
        for lent in self._lent.values():
            for loan in lent:
                loan.release()
        self._lent.clear()
        self._num_issued = self._num_taken

    # Fetches.

    def fetch(self, record: str, slot: torch.Tensor, *, keeps_loan: bool) -> None:
        """See :class:`HostLink`."""
        loan = self._take_loan(record, keeps_loan=keeps_loan)
        fetch = _Fetch(record, slot, loan, keeps_loan, self._device.submitted())
        self.traffic.fetch_bytes += slot.numel()
        self._queue.append(fetch)
        if self._threads:
            fetch.served = self._threads["fetch"].submit(self._serve, fetch)
        else:
            self._serve_ready()

    def _serve_ready(self) -> None:
        while self._queue and not self._threads and self._queue[0].loan.is_ready:
            self._serve(self._queue.popleft())

    def complete(self, record: str) -> None:
        """See :class:`HostLink`."""
        while any(fetch.record == record for fetch in self._queue):
            fetch = self._queue.popleft()
            if fetch.served is not None:
                fetch.served.result().wait()
            else:
                with self._device.host_section():
                    self._serve(fetch)

    def _serve(self, fetch: _Fetch) -> Transfer:
        """Begin the copy and give the loan back; compute waits for the transfer returned."""
        fetch.loan.wait()
        dirty: frozenset[Part] = frozenset()
        if self._is_due(fetch.record):
            dirty = self._apply_pending(fetch.record, fetch.loan)
        with self._recorder.host("fetch", fetch.record, fetch.slot.numel()):
            source = fetch.loan.part_bytes_view(Part.WEIGHTS)
            transfer = self._device.upload(fetch.slot, source, fetch.after)
            transfer.wait_until_read()
        if fetch.keeps_loan and not dirty:
            self._held[fetch.record] = fetch.loan
        else:
            fetch.loan.release(dirty=dirty)
        return transfer

    # Gradients.

    def push(self, record: str, gradients: Mapping[str, torch.Tensor]) -> None:
        """See :class:`HostLink`."""
        self.watch_gradients(gradients)
        self.traffic.push_bytes += _num_bytes(gradients)
        if self._timing is UpdateTiming.ON_PUSH:
            loan = self._held.pop(record, None) or self._take_loan(record, keeps_loan=True)
            take: _Take = partial(self._update_now, loan)
        else:
            take = self._keep
        after = self._device.submitted()
        if not self._threads:
            take(record, gradients, after)
            return
        # One push under way at a time bounds the gradients that wait on the device.
        self._finish_pushes()
        push = partial(self._push_behind, take, record, dict(gradients), after)
        self._pushes.append(self._threads["push"].submit(push))

    @staticmethod
    def _push_behind(
        take: _Take, record: str, gradients: dict[str, torch.Tensor], after: Submitted
    ) -> None:
        take(record, gradients, after)
        # Off the device before anybody learns that the push has ended.
        gradients.clear()

    def _finish_pushes(self) -> None:
        while self._pushes:
            self._pushes.popleft().result()

    def _update_now(
        self, loan: Loan, record: str, gradients: Mapping[str, torch.Tensor], after: Submitted
    ) -> None:
        loan.wait()
        on_host = gradients
        if self._threads:
            with self._recorder.host("push", record, _num_bytes(gradients)):
                on_host = {name: self._on_host(gradients[name], after) for name in gradients}
        rules = self._updater.rules()
        loan.release(dirty=self._apply(record, loan, on_host, rules, 1.0))

    def _on_host(self, gradient: torch.Tensor, after: Submitted) -> torch.Tensor:
        on_host = torch.empty(gradient.shape, dtype=gradient.dtype)
        self._device.download(gradient, on_host, after).wait()
        return on_host

    def _keep(self, record: str, gradients: Mapping[str, torch.Tensor], after: Submitted) -> None:
        names = self._pending.names.setdefault(record, [])
        is_first = not names
        loan = self.store.borrow(
            record, (Part.GRADIENTS,), fresh=(Part.GRADIENTS,) if is_first else ()
        )
        loan.wait()
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
        self._withdraw_reads()
        for loan in self._held.values():
            loan.release()
        self._held.clear()
        self._reads = ()

    def abandon(self) -> None:
        """Give back every loan and forget the gradients of the pass under way."""
        while self._queue:
            fetch = self._queue.popleft()
            if fetch.served is None:
                fetch.loan.release()
            elif fetch.served.exception() is None:
                fetch.served.result().wait()
        self.end_pass()
        self.discard_gradients()

    # Updates.

    @property
    def has_gradients(self) -> bool:
        """Whether gradients wait for their step to be completed."""
        return bool(self._pending.names) and not self._pending.is_due

    def complete_step(self, coefficient: float = 1.0) -> None:
        """The gradients kept are those of a whole step: apply them from now on.

        Each record is updated just before its next fetch, or by :meth:`flush`.

        Args:
            coefficient: what gradients are multiplied by before they are applied.
        """
        if self._pending.is_due:
            raise error(
                "step-without-gradients",
                "a step was completed before the updates of the one before were applied",
                help="call backward between two optimizer steps",
            )
        self._pending.is_due = True
        self._pending.coefficient = coefficient
        self._pending.rules = self._updater.rules()

    def discard_gradients(self) -> None:
        """Forget the gradients kept since the last step."""
        if not self._pending.is_due:
            self._pending = PendingUpdate()

    def flush(self) -> None:
        """Apply every update that is due."""
        self._finish_pushes()
        # A fetch under way applies the update of its record itself.
        wait([fetch.served for fetch in self._queue if fetch.served is not None])
        for record in list(self._pending.names) if self._pending.is_due else ():
            loan = self.store.borrow(record, ALL)
            loan.wait()
            loan.release(dirty=self._apply_pending(record, loan))

    def kept_gradients(self, record: str) -> Mapping[str, torch.Tensor]:
        """Copies of the gradients kept for a record, by parameter name."""
        loan = self.store.borrow(record, (Part.GRADIENTS,), read_only=True)
        loan.wait()
        try:
            return {
                name: loan.tensor(name, Part.GRADIENTS).clone()
                for name in self._pending.names.get(record, ())
            }
        finally:
            loan.release()

    def _apply_pending(self, record: str, loan: Loan) -> frozenset[Part]:
        pending = self._pending
        names = pending.names.pop(record)
        gradients = {name: loan.tensor(name, Part.GRADIENTS) for name in names}
        dirty = self._apply(record, loan, gradients, pending.rules, pending.coefficient)
        if not pending.names:
            self._pending = PendingUpdate()
        return dirty

    def _apply(
        self,
        record: str,
        loan: Loan,
        gradients: Mapping[str, torch.Tensor],
        rules: Sequence[UpdateRule],
        coefficient: float,
    ) -> frozenset[Part]:
        start = time.perf_counter()
        with self._recorder.host("update", record, 0), torch.no_grad():
            self._updater.apply(loan, gradients, rules, coefficient)
        self.traffic.update_seconds += time.perf_counter() - start
        return KEPT

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads.values():
            thread.shutdown()


def _num_bytes(gradients: Mapping[str, torch.Tensor]) -> int:
    return sum(gradient.nbytes for gradient in gradients.values())
