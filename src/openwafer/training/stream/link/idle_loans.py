"""Loans that lie ready and that nobody waits for: asked for ahead, or kept for a push.

Room for gradients that the store is to keep is asked for in the schedule's order too. A push that
asked for it only when it comes would stand behind all reads ahead, and have to send them away.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from openwafer.training.store.parameter_store import Loan
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
    """See the module. The compute thread calls everything; other threads only :meth:`keep`.

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

    def drop_passed(self, position: int) -> None:
        """Forget fetches that were not made, because their records were there already."""
        behind = takewhile(lambda read: read.position < position, self._reads)
        for passed in [read for read in behind if read.is_fetch]:
            self._reads.remove(passed)
            if passed.loan is not None:
                passed.loan.release()

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
                read.loan.release()
                read.loan = None

    def _release_kept(self, number: int) -> None:
        """Give back what is kept and was asked for before the loan of that number."""
        for record, loan in list(self._kept.items()):
            if loan.number < number:
                del self._kept[record]
                loan.release()
