"""Fetches: weights on their way from the store to the device, updated first where that is due.

They are served in the order in which they were begun: on a device that copies by itself by a thread
of their own, otherwise by the compute thread, when their loan is ready or when it waits.
"""

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from openwafer.training.store.layout import Part, slice_of
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.device.device import NO_TRANSFER, Device, Submitted, Transfer
from openwafer.training.stream.device.recorder import Recorder
from openwafer.training.stream.device.weights import is_shared
from openwafer.training.stream.link.idle_loans import IdleLoans
from openwafer.training.stream.link.kept_gradients import KeptGradients
from openwafer.training.stream.link.updates import RecordUpdates


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


class Fetches:
    """Those under way, and the memory lent to the device.

    Compute's own thread calls everything but :meth:`wait_to_serve`.

    Args:
        idle: loans asked for ahead.
        kept: gradients that may be due.
        updates: makes the updates.
        device: where weights go.
        recorder: receives the spans of fetches.
    """

    def __init__(
        self,
        idle: IdleLoans,
        kept: KeptGradients,
        updates: RecordUpdates,
        device: Device,
        recorder: Recorder,
    ) -> None:
        self._idle = idle
        self._kept = kept
        self._updates = updates
        self._device = device
        self._recorder = recorder
        self._queue: deque[_Fetch] = deque()
        self._lent: dict[str, _Lent] = {}
        # Released by the device while the layer's code held views of them.
        self._viewed: list[_Lent] = []
        self._thread = (
            ThreadPoolExecutor(1, thread_name_prefix="fetch") if device.is_asynchronous else None
        )

    def begin(self, record: str, slot: torch.Tensor | None, *, keeps_loan: bool) -> None:
        """See :meth:`HostLink.fetch`."""
        loan = self._idle.take_fetch(record, keeps_loan=keeps_loan)
        fetch = _Fetch(record, slot, loan, keeps_loan, self._device.submitted())
        self._queue.append(fetch)
        if self._thread is not None:
            fetch.served = self._thread.submit(self._serve, fetch)
        else:
            self.serve_ready()

    def is_begun(self, record: str) -> bool:
        """Whether a fetch of the record is not completed yet."""
        return any(fetch.record == record for fetch in self._queue)

    def complete(self, record: str) -> torch.Tensor | None:
        """See :meth:`HostLink.complete`."""
        while self.is_begun(record):
            fetch = self._queue.popleft()
            if fetch.served is None:
                with self._device.host_section():
                    self._serve(fetch)
            else:
                with self._idle.awaiting(fetch.loan):
                    fetch.served.result().wait()
        lent = self._lent.get(record)
        return None if lent is None else lent.memory

    def serve_ready(self) -> None:
        """Serve what needs no waiting, where no thread does."""
        while self._thread is None and self._queue and self._queue[0].loan.is_ready:
            self._serve(self._queue.popleft())

    def wait(self, loan: Loan) -> None:
        """Wait for a loan in the compute thread; where that fails it is given back."""
        with released_on_error(loan):
            if loan.is_ready:
                loan.wait()
                return
            if self._thread is None:
                self._serve_before(loan)
            with self._idle.awaiting(loan):
                loan.wait()

    def wait_to_serve(self, loan: Loan) -> None:
        """The same in the thread that serves, be it compute's or one beside it."""
        if self._thread is None:
            self.wait(loan)
        else:
            with released_on_error(loan):
                loan.wait()

    def _serve_before(self, loan: Loan) -> None:
        """Serve the fetches whose room a blocked loan may wait for."""
        while self._queue and loan.is_blocked and self._queue[0].loan.number < loan.number:
            self._serve(self._queue.popleft())

    def _serve(self, fetch: _Fetch) -> Transfer:
        """Update if due, begin the copy, give the loan back; compute waits for the transfer."""
        record, loan = fetch.record, fetch.loan
        self.wait_to_serve(loan)
        is_due = self._kept.is_due(record)
        changed = self._updates.changed_parts if is_due else ()
        with released_on_error(loan, changed):
            if is_due:
                self._updates.apply(record, loan, *self._kept.take_due(record, loan))
            transfer = self._bring(fetch)
        if fetch.keeps_loan and not is_due:
            self._idle.keep(record, loan)
        else:
            loan.release(dirty=changed)
        return transfer

    def _bring(self, fetch: _Fetch) -> Transfer:
        weights = fetch.loan.part_bytes_view(Part.WEIGHTS)
        with self._recorder.host("fetch", fetch.record, weights.nbytes):
            if fetch.slot is None:
                self._lend(fetch)
                return NO_TRANSFER
            transfer = self._device.upload(fetch.slot, weights, fetch.after)
            transfer.wait_until_read()
            return transfer

    def _lend(self, fetch: _Fetch) -> None:
        loan = fetch.loan.share(Part.WEIGHTS)
        # A storage that lives as long as the device has the weights, so that a meter can count it.
        memory = torch.from_numpy(loan.part_bytes_view(Part.WEIGHTS).numpy())
        self._lent[fetch.record] = _Lent(loan, memory)

    def is_lent(self, record: str) -> bool:
        """Whether the device computes on the store's own memory of the record."""
        return record in self._lent

    def release(self, record: str) -> None:
        """The device does not use the record's weights any more."""
        lent = self._lent.pop(record, None)
        if lent is not None:
            self._viewed.append(lent)
        released, self._viewed = self._viewed, []
        for one in released:
            if _is_viewed(one):
                self._viewed.append(one)
            else:
                one.loan.release()

    def end_pass(self) -> None:
        """The device has released everything."""
        viewed, self._viewed = self._viewed, []
        for one in viewed:
            one.loan.release()

    def await_threads(self) -> None:
        """Return when those that a thread serves are served, or have failed; all stay begun."""
        for fetch in self._queue:
            self._await(fetch)

    def _await(self, fetch: _Fetch) -> None:
        if fetch.served is not None:
            with self._idle.awaiting(fetch.loan):
                wait([fetch.served])

    def abandon(self) -> None:
        """Give every loan back; return when no copy is under way."""
        while self._queue:
            fetch = self._queue.popleft()
            self._await(fetch)
            if fetch.served is None:
                fetch.loan.release()
            elif fetch.served.exception() is None:
                fetch.served.result().wait()
        for record in tuple(self._lent):
            self.release(record)
        self.end_pass()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def _is_viewed(lent: _Lent) -> bool:
    """Whether the layer's code holds on to an expert that it took; to other weights it may not."""
    return slice_of(lent.loan.record) is not None and is_shared(lent.memory)


@contextmanager
def released_on_error(loan: Loan, changed: Collection[Part] = ()) -> Iterator[None]:
    """Context that gives a loan back when it is left by an exception.

    Args:
        changed: parts that may have been written to by then.
    """
    try:
        yield
    except BaseException:
        loan.release(dirty=changed)
        raise
