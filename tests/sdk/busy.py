"""What happens in the middle of a computation, however little of the processor others leave it."""

import os
import signal
import threading
import time
from collections.abc import Callable

POLL_SECONDS = 0.01


def once_computed(seconds: float, act: Callable[[], object]) -> threading.Thread:
    """Do something, in a thread, when this process has computed for so long from now on."""
    end = time.process_time() + seconds

    def wait() -> None:
        while time.process_time() < end:
            time.sleep(POLL_SECONDS)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def interrupt() -> None:
    """As Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_soon() -> None:
    """Interrupt the computation that is about to begin."""
    once_computed(0.3, interrupt)
