"""Ctrl-C ends a run after its step; a second one ends it at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While the `with` block lasts, SIGINT and SIGTERM set a flag; a second one raises.

    Outside the main thread, where Python lets nobody handle signals, it does nothing.

    Attributes:
        signal_name: the signal that came, such as SIGINT; empty before.
    """

    def __init__(self) -> None:
        self.signal_name = ""
        self._earlier: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._earlier = {each: signal.signal(each, self._receive) for each in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each, earlier in self._earlier.items():
            signal.signal(each, earlier)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal_name:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
