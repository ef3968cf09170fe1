"""One lock for the whole store, with waits that end in an error instead of a hang."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

from openwafer.diagnostics import OpenwaferError, error


class Monitor:
    """Guards the store's state; every change of it is announced to all who wait.

    The store does a handful of steps per layer and transfer, so one lock is never contended.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.changed = threading.Condition()
        self.failure: OpenwaferError | None = None
        self.is_closed = False
        self._stall_seconds = stall_seconds
        self._last_progress = time.monotonic()
        self._is_failure_reported = False

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may begin: the store is closed or has failed. The lock is held."""
        return self.is_closed or self.failure is not None

    def note_progress(self) -> None:
        """Restart the clocks of all waits."""
        self._last_progress = time.monotonic()

    def announce(self) -> None:
        """Wake all waits, and restart their clocks. The lock must be held."""
        self.note_progress()
        self.changed.notify_all()

    def fail(self, failure: OpenwaferError) -> None:
        """Stop the store for good; the first failure is kept."""
        with self.changed:
            self.failure = self.failure or failure
            self.announce()

    def require_alive(self) -> None:
        """Raise the failure that stopped the store, or `store-closed`. The lock must be held."""
        if self.failure is not None:
            self._is_failure_reported = True
            raise OpenwaferError(*self.failure.diagnostics) from self.failure.__cause__
        if self.is_closed:
            raise error(
                "store-closed",
                "the parameter store is closed",
                help="close it after its last use, or open its folder again",
            )

    def raise_unreported_failure(self) -> None:
        """Raise the failure unless a call has raised it before. The lock must be held."""
        if self.failure is not None and not self._is_failure_reported:
            self.require_alive()

    def wait_until(self, is_done: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Wait, with the lock held, until `is_done`.

        Raises the store's failure, or `store-stuck` with the text of `describe` when nothing in
        the store has moved for the stall time.
        """
        self.require_alive()
        start = time.monotonic()
        while not is_done():
            idle_seconds = time.monotonic() - max(start, self._last_progress)
            if idle_seconds >= self._stall_seconds:
                raise error(
                    "store-stuck",
                    f"nothing has moved in the parameter store for {idle_seconds:.1f} s",
                    notes=(f"waiting for {describe()}",),
                    help="release loans before waiting for more, or raise ring_bytes",
                )
            self.changed.wait(self._stall_seconds - idle_seconds)
            self.require_alive()


class ThreadGuard:
    """Context of a thread's whole work: whatever it raises stops the store, at once and for good.

    Nobody waits for such a thread; those who wait for its work raise its error instead.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if value is not None:
            failure = value if isinstance(value, OpenwaferError) else _thread_failed(value)
            self._monitor.fail(failure)
        return True


def _thread_failed(cause: BaseException) -> OpenwaferError:
    is_memory = isinstance(cause, MemoryError)
    failure = error(
        "store-thread-failed",
        f"{threading.current_thread().name}, a thread of the parameter store, ended with "
        f"{type(cause).__name__}: {cause}",
        help=("free memory or lower ring_bytes" if is_memory else "mend what raised it")
        + ", then open the store again at its last committed step",
    )
    failure.__cause__ = cause
    return failure
