"""What one rank tells all others between their steps: what to do next.

While it is busy otherwise, it tells them so every few seconds. A rank that hears nothing for longer
than the group's timeout knows that the one that leads is gone, however long evaluations take.
"""

import pickle
from enum import IntEnum
from threading import Condition, Thread
from typing import Final

import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import FIRST_RANK, Group, wait_for

TICK_SECONDS: Final = 5.0
SIGNAL_TAG: Final = 0


class Signal(IntEnum):
    """What a rank is to do."""

    WAIT = 0
    BEGIN = 1
    STEP = 2
    END = 3
    MEASURE = 4
    ASK = 5


class Leading:
    """The rank that tells the others.

    Args:
        group: the ranks; nobody else sends in it.
        tick_seconds: how often it says that it is there.
    """

    def __init__(self, group: Group, tick_seconds: float = TICK_SECONDS) -> None:
        self._group = group
        self._tick_seconds = tick_seconds
        self._changed = Condition()
        self._is_quiet = self._is_closed = False
        # A rank that says nothing: its timeout ends the connections to all.
        self._lost: OpenwaferError | None = None
        # A message to a lost rank cannot be called off: it must not keep the process.
        Thread(target=self._tick, name="signals", daemon=True).start()

    def tell(self, signal: Signal, content: object = None) -> None:
        """Tell all others; until :meth:`go_on` they hear nothing more.

        Args:
            signal: what to do.
            content: what it takes, of types that pickle.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        with self._changed:
            self._is_quiet = True
            if self._lost is not None:
                raise self._lost
            self._send(signal, pickle.dumps(content))

    def go_on(self) -> None:
        """The others have done what they were told, and wait."""
        with self._changed:
            self._is_quiet = False

    def end(self, content: object = None) -> None:
        """Tell the others to end, if they wait, with this content, and say nothing more."""
        with self._changed:
            are_waiting, self._is_closed = not self._is_quiet, True
            self._changed.notify_all()
        if are_waiting:
            self.tell(Signal.END, content)

    def _send(self, signal: Signal, content: bytes) -> None:
        parts = [torch.tensor([signal, len(content)])]
        if content:
            parts.append(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        what = f"the signal {signal.name}"
        wait_for([one for part in parts for one in self._group.send_to_all(part, SIGNAL_TAG, what)])

    def _tick(self) -> None:
        with self._changed:
            while not self._is_closed:
                if not self._is_quiet and not self._told():
                    return
                self._changed.wait(self._tick_seconds)

    def _told(self) -> bool:
        try:
            self._send(Signal.WAIT, b"")
        except OpenwaferError as found:
            self._lost = found
            return False
        return True


def heard(group: Group) -> tuple[Signal, object]:
    """Wait for what this rank is to do; returns it with its content.

    Raises:
        OpenwaferError: ``rank-lost``.
    """
    while True:
        header = torch.empty(2, dtype=torch.int64)
        group.receive(header, FIRST_RANK, SIGNAL_TAG, "what to do next").wait()
        number, num_bytes = header.tolist()
        if number != Signal.WAIT:
            break
    body = torch.empty(num_bytes, dtype=torch.uint8)
    group.receive(body, FIRST_RANK, SIGNAL_TAG, f"the signal {Signal(number).name}").wait()
    return Signal(number), pickle.loads(body.numpy().tobytes())


def gathered(group: Group, content: object, what: str) -> list[object]:
    """What each rank gives, of types that pickle, in rising order; all ranks call this.

    Raises:
        OpenwaferError: ``rank-lost``.
    """
    own = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
    sizes = [int(size.item()) for size in group.gather(torch.tensor([len(own)]), what)]
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(own)] = own
    tables = group.gather(padded, what)
    return [
        pickle.loads(table[:size].numpy().tobytes())
        for table, size in zip(tables, sizes, strict=True)
    ]
