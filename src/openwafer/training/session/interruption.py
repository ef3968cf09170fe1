"""A signal ends a run after its step; a second one ends it at once."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Final, Self

from openwafer.training.collectives.joining import launched_rank

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_PASSED_ON: Final = 5.0
"""A scheduler signals a launcher and its processes, and the launcher signals these once more."""


class Interruption:
    """While the `with` block lasts, SIGINT and SIGTERM set a flag; a second one raises.

    In a process that a launcher has started, what comes in the first seconds is the first signal
    once more. Blocks may lie in each other. Outside the main thread, where Python lets nobody
    handle signals, it does nothing.

    Attributes:
        number: of the signal that came, here or on another system; 0 before.
        has_ended_run: whether the run ended early by it.
    """

    def __init__(self) -> None:
        self.number = 0
        self.has_ended_run = False
        self._came: float | None = None
        self._depth = 0
        self._earlier: dict[signal.Signals, object] = {}

    @property
    def signal_name(self) -> str:
        """Name of the signal that came, such as SIGINT; empty before."""
        return signal.Signals(self.number).name if self.number else ""

    def note(self, number: int) -> None:
        """Another system has got this signal, or none, which is 0."""
        self.number = self.number or number

    def end_now(self) -> None:
        """Raise KeyboardInterrupt if a signal has come, where no step is under way."""
        if self.number:
            self.has_ended_run = True
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if self._depth == 0:
            self.number, self.has_ended_run, self._came = 0, False, None
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._earlier = {each: signal.signal(each, self._receive) for each in _SIGNALS}
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            for each, earlier in self._earlier.items():
                signal.signal(each, earlier)  # type: ignore[arg-type]
            self._earlier = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came is None:
            self._came = now
            self.note(number)
        elif launched_rank() is None or now - self._came > SECONDS_PASSED_ON:
            self.end_now()
