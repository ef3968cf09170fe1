"""Who is woken by what: a thread that reads sleeps through changes that bring nothing to read."""

from threading import Event, Thread

import pytest

from openwafer.training.store.parts import Monitor

LONG_SECONDS = 120.0


def waiting_for_reads(monitor: Monitor, is_woken: Event) -> Thread:
    """A thread that waits, once, as one that reads does."""
    waits = Event()

    def wait() -> None:
        with monitor.has_reads:
            waits.set()
            monitor.has_reads.wait()
        is_woken.set()

    thread = Thread(target=wait)
    thread.start()
    waits.wait(LONG_SECONDS)
    return thread


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_thread_that_reads_is_woken_by_the_end_and_by_no_other_change(is_closed: bool) -> None:
    monitor, is_woken = Monitor(LONG_SECONDS), Event()
    thread = waiting_for_reads(monitor, is_woken)
    with monitor.changed:
        monitor.is_closed = is_closed
        monitor.announce()
    assert is_woken.wait(LONG_SECONDS if is_closed else 0.1) == is_closed
    with monitor.has_reads:
        monitor.has_reads.notify_all()
    thread.join(LONG_SECONDS)
