"""Fetches: weights on their way from the store to the device, updated first where that is due.

They are served in the order in which they were begun: on a device that copies by itself by a thread
of their own, otherwise by the compute thread, when their loan is ready or when it waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

import torch

from openwafer.training.store.layout import Part, slice_of
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.device.device import (
    NO_TRANSFER,
    Device,
    Recorder,
    Submitted,
    Transfer,
)
from openwafer.training.stream.device.weights import is_shared
from openwafer.training.stream.link.updates import KeptGradients, RecordUpdates
from openwafer.training.stream.schedule import NEVER, Action, Kind

READ_AHEAD = 8

Borrow = Callable[[Action], Loan]


@dataclass
class _Read:
    """A loan of the pass under way that nobody has taken yet; asked for once it is near."""

    position: int
    action: Action
    loan: Loan | None = None

    @property
    def is_fetch(self) -> bool:
        return self.action.kind is Kind.FETCH


class IdleLoans:
    """Loans that lie ready and that nobody waits for: asked for ahead, or kept for a push.

    Room for gradients that the store is to keep is asked for in the schedule's order too. A push
    that asked for it only when it comes would stand behind all reads ahead, and have to send them
    away.

    The store gives loans room strictly in the order in which they were asked for, so a loan waits
    for those before it. Those in the hands of a thread come back by themselves: a thread that
    serves fetches, or updates, waits for nothing but loans asked for earlier. Idle loans do not;
    only the compute thread can take them up. Hence the rule that rules a deadlock out: whenever the
    compute thread waits for a blocked loan, or for a thread that does, no loan that was asked for
    before that one is idle. It gives those up first, and meanwhile none is added. A loan given up
    is asked for again when its turn comes; that costs a read, and happens only where the order of
    the schedule is left or the store's ring has no room for what the schedule keeps.

    The compute thread calls everything; other threads only :meth:`keep`.

    Args:
        borrow: asks the store for what a fetch, a read or a push needs.

    Attributes:
        foresees: kinds of actions whose loans are asked for ahead.
    """

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self.foresees: Collection[Kind] = ()
        self._reads: list[_Read] = []
        self._kept: dict[str, Loan] = {}
        self._last_number = 0
        self._awaited: Loan | None = None
        # Guards the kept and the awaited loans, which the thread that serves fetches uses too.
        self._lock = threading.Lock()

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """Foresee the loans of these actions; ask for nothing yet."""
        self._reads = [
            _Read(position, action)
            for position, action in enumerate(actions)
            if action.kind in self.foresees
        ]

    def go_on(self, actions: Sequence[Action]) -> None:
        """Foresee these in place of those left; what is read ahead stays as far as it comes first.

        Loans have to be taken in the order in which they were asked for.
        """
        asked = [read for read in self._reads if read.loan is not None]
        self.begin_pass(actions)
        for read in self._reads:
            same = next((one for one in asked if one.action == read.action), None)
            if same is None:
                break
            while asked[0] is not same:
                self._give_back(asked.pop(0))
            read.loan = asked.pop(0).loan
        for one in asked:
            self._give_back(one)

    def drop_passed(self, position: int) -> None:
        """Forget fetches that were not made, because their records were there already."""
        behind = takewhile(lambda read: read.position < position, self._reads)
        for passed in [read for read in behind if read.is_fetch]:
            self._reads.remove(passed)
            self._give_back(passed)

    def read_ahead(self, must_wait: Callable[[Action], bool]) -> None:
        """Ask for the next reads, and pushes among them, up to the first that must wait."""
        num_reads = 0
        for read in self._reads:
            num_reads += read.action.kind is not Kind.PUSH
            if num_reads > READ_AHEAD:
                break
            if read.loan is None:
                if must_wait(read.action):
                    break
                read.loan = self._borrow(read.action)

    @property
    def has_asked_for_all(self) -> bool:
        """Whether no read of the pass is left to ask for."""
        return all(read.loan is not None for read in self._reads)

    def is_lent(self, record: str) -> bool:
        """Whether a record has been read ahead."""
        return any(read.action.target == record and read.loan for read in self._reads)

    def take_fetch(self, record: str, *, keeps_loan: bool) -> Loan:
        """The loan of a fetch, asked for later than those of all fetches before it.

        Fetches are served in their own order, so one may not wait for the loan of a later one.
        """
        action = Action(Kind.FETCH, record, keeps_loan=keeps_loan)
        loan = self._take_asked(action)
        if loan is not None and loan.number < self._last_number:
            loan.release()
            loan = None
        if loan is None:
            # Out of the schedule's order; those read ahead would come before this one.
            self._withdraw_reads(NEVER)
            loan = self._borrow(action)
        self._last_number = loan.number
        return loan

    def take_kept(self, record: str) -> Loan:
        """The loan of a push: kept by its fetch, or read ahead, or borrowed here."""
        with self._lock:
            loan = self._kept.pop(record, None)
        action = Action(Kind.READ, record, keeps_loan=True)
        return loan or self._take_asked(action) or self._borrow(action)

    def ask_kept(self, records: Iterable[str]) -> None:
        """Ask for the loans of pushes that come next, in that order, as far as there is room."""
        with self._lock:
            missing = [record for record in records if record not in self._kept]
        for record in missing:
            loan = self._borrow(Action(Kind.READ, record, keeps_loan=True))
            self.keep(record, loan)
            if loan.is_blocked:
                break

    def take_push(self, record: str) -> Loan:
        """The loan in which a push keeps gradients: asked for ahead, or borrowed here."""
        action = Action(Kind.PUSH, record)
        return self._take_asked(action) or self._borrow(action)

    def _take_asked(self, action: Action) -> Loan | None:
        """The loan of the next fetch, or of a read or push that comes before it."""
        is_push = action.kind is Kind.PUSH
        for index, read in enumerate(self._reads):
            is_push_too = read.action.kind is Kind.PUSH
            if read.action.target == action.target and is_push is is_push_too:
                del self._reads[index]
                return read.loan or self._borrow(action)
            if read.is_fetch:
                break
        return None

    def keep(self, record: str, loan: Loan) -> None:
        """Keep a loan for its push, unless compute may be waiting for the room that it holds."""
        with self._lock:
            self._kept[record] = loan
            if self._awaited is not None and self._awaited.is_blocked:
                self._release_kept(self._awaited.number)

    @contextmanager
    def awaiting(self, loan: Loan) -> Iterator[None]:
        """Context in which the compute thread waits for a loan, or for a thread that does."""
        if loan.is_blocked:
            self._withdraw_reads(loan.number)
        with self._lock:
            self._awaited = loan
            if loan.is_blocked:
                self._release_kept(loan.number)
        try:
            yield
        finally:
            with self._lock:
                self._awaited = None

    def give_up(self) -> None:
        """Give every idle loan back and foresee nothing more."""
        self._withdraw_reads(NEVER)
        self._reads.clear()
        with self._lock:
            self._release_kept(NEVER)

    def _withdraw_reads(self, number: int) -> None:
        """Give back what was read ahead and asked for before the loan of that number."""
        for read in self._reads:
            if read.loan is not None and read.loan.number < number:
                self._give_back(read)

    @staticmethod
    def _give_back(read: _Read) -> None:
        if read.loan is not None:
            read.loan.release()
            read.loan = None

    def _release_kept(self, number: int) -> None:
        """Give back what is kept and was asked for before the loan of that number."""
        for record, loan in list(self._kept.items()):
            if loan.number < number:
                del self._kept[record]
                loan.release()


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

    Compute's own thread calls everything but :meth:`wait` to serve.

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
        # What it refuses leaves no loan behind.
        after = self._device.submitted()
        loan = self._idle.take_fetch(record, keeps_loan=keeps_loan)
        fetch = _Fetch(record, slot, loan, keeps_loan, after)
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

    def wait(self, loan: Loan, *, is_to_serve: bool = False) -> None:
        """Wait for a loan; where that fails it is given back.

        Args:
            is_to_serve: whether in the thread that serves, be it compute's or one beside it, and
                not in compute's in any case.
        """
        try:
            if loan.is_ready or (is_to_serve and self._thread is not None):
                loan.wait()
                return
            if self._thread is None:
                self._serve_before(loan)
            with self._idle.awaiting(loan):
                loan.wait()
        except BaseException:
            loan.release()
            raise

    def _serve_before(self, loan: Loan) -> None:
        """Serve the fetches whose room a blocked loan may wait for."""
        while self._queue and loan.is_blocked and self._queue[0].loan.number < loan.number:
            self._serve(self._queue.popleft())

    def _serve(self, fetch: _Fetch) -> Transfer:
        """Update if due, begin the copy, give the loan back; compute waits for the transfer."""
        record, loan = fetch.record, fetch.loan
        self.wait(loan, is_to_serve=True)
        is_due = self._kept.is_due(record)
        changed = self._updates.changed_parts if is_due else ()
        try:
            if is_due:
                self._updates.apply(record, loan, *self._kept.take_due(record, loan))
            transfer = self._bring(fetch)
        except BaseException:
            loan.release(dirty=changed)
            raise
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
