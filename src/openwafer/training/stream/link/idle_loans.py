"""Loans that lie ready and that nobody waits for: read ahead for the schedule, or kept for a push.

The store gives loans room strictly in the order in which they were asked for, so a loan waits for
those before it. Those in the hands of a thread come back by themselves: a thread that serves
fetches, or updates, waits for nothing but loans asked for earlier. Idle loans do not come back by
themselves; only the compute thread can take them up. Hence the rule that rules a deadlock out:
whenever the compute thread waits for a blocked loan, or for a thread that does, no loan that was
asked for before that one is idle. It gives those up first, and meanwhile none is added. A loan
given up is asked for again when its turn comes; that costs a read, and happens only where the order
of the schedule is left or the store's ring has no room for what the schedule keeps.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.schedule import NEVER, Action, Kind

READ_AHEAD = 8


@dataclass
class _Read:
    """A read of the pass under way that nobody has taken yet; lent once it is near."""

    position: int
    action: Action
    loan: Loan | None = None

    @property
    def is_fetch(self) -> bool:
        return self.action.kind is Kind.FETCH


class IdleLoans:
    """See the module. The compute thread calls everything; other threads only :meth:`keep`.

    Args:
        borrow: asks the store for what a fetch or read needs, given the record and whether the
            loan is kept for a push.
    """

    def __init__(self, borrow: Callable[[str, bool], Loan]) -> None:
        self._borrow = borrow
        self._reads: list[_Read] = []
        self._kept: dict[str, Loan] = {}
        self._last_number = 0
        self._awaited: Loan | None = None
        # Guards the kept and the awaited loans, which the thread that serves fetches uses too.
        self._lock = threading.Lock()

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """Foresee the fetches and reads of these actions; ask for nothing yet."""
        self._reads = [
            _Read(position, action)
            for position, action in enumerate(actions)
            if action.kind in (Kind.FETCH, Kind.READ)
        ]

    def drop_passed(self, position: int) -> None:
        """Forget fetches that were not made, because their records were there already."""
        behind = takewhile(lambda read: read.position < position, self._reads)
        for passed in [read for read in behind if read.is_fetch]:
            self._reads.remove(passed)
            if passed.loan is not None:
                passed.loan.release()

    def read_ahead(self, must_wait: Callable[[str], bool]) -> None:
        """Ask for the next reads, up to the first of a record that must wait."""
        for read in self._reads[:READ_AHEAD]:
            if read.loan is None:
                if must_wait(read.action.target):
                    break
                read.loan = self._borrow(read.action.target, read.action.keeps_loan)

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
        loan = self._take_read(record, keeps_loan)
        if loan is not None and loan.number < self._last_number:
            loan.release()
            loan = None
        if loan is None:
            # Out of the schedule's order; those read ahead would come before this one.
            self._withdraw_reads(NEVER)
            loan = self._borrow(record, keeps_loan)
        self._last_number = loan.number
        return loan

    def take_kept(self, record: str) -> Loan:
        """The loan of a push: kept by its fetch, or read ahead, or borrowed here."""
        with self._lock:
            loan = self._kept.pop(record, None)
        return loan or self._take_read(record, True) or self._borrow(record, True)

    def _take_read(self, record: str, keeps_loan: bool) -> Loan | None:
        for index, read in enumerate(self._reads):
            if read.action.target == record:
                del self._reads[index]
                return read.loan or self._borrow(record, keeps_loan)
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
                read.loan.release()
                read.loan = None

    def _release_kept(self, number: int) -> None:
        """Give back what is kept and was asked for before the loan of that number."""
        for record, loan in list(self._kept.items()):
            if loan.number < number:
                del self._kept[record]
                loan.release()
