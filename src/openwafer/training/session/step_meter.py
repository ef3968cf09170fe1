"""What a step costs: time, bytes over the link and the disk, memory, and the disk in its trace."""

import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from openwafer.training.host_memory import read_host_memory
from openwafer.training.metrics import StepMetrics
from openwafer.training.metrics.step_trace import Track
from openwafer.training.session.systems import SystemStep
from openwafer.training.store import Part
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.device.device import ALWAYS_METERED, Recorder
from openwafer.training.stream.execute.execution import Execution

NUM_FIRST_STEPS: Final = 3
"""How many steps correct the time that was predicted: another program may hold one of them up."""
_TRACKS = {"read": Track.DISK_READ, "write": Track.DISK_WRITE}


class StepMeter:
    """Measures one step after the other, from one :meth:`start` to the next :meth:`stop`.

    Args:
        execution: runs the steps.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.start()

    def start(self) -> None:
        """A step begins."""
        self._execution.device.reset_peak()
        self._moved = self._moved_bytes()
        self._start_seconds = time.perf_counter()

    def stop(
        self,
        step: int,
        *,
        loss: float,
        learning_rate: float,
        grad_norm: float | None,
        num_tokens: int,
        systems: Sequence[SystemStep] = (),
    ) -> StepMetrics:
        """The step has ended; its row of metrics.jsonl."""
        seconds = time.perf_counter() - self._start_seconds
        before, after = self._moved, self._moved_bytes()
        fetched, pushed, read, written = (b - a for a, b in zip(before, after, strict=True))
        return StepMetrics(
            step=step,
            loss=loss,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            tokens=num_tokens,
            tokens_per_second=num_tokens / seconds,
            seconds=seconds,
            fetch_bytes=fetched,
            push_bytes=pushed,
            disk_read_bytes=read,
            disk_write_bytes=written,
            device_bytes_peak=self._execution.device.peak_bytes,
            host_bytes=read_host_memory().resident_bytes,
            expert_bytes=self._expert_bytes(),
            system_seconds=_each(systems, "seconds"),
            system_waiting_seconds=_each(systems, "waiting_seconds"),
            system_received_bytes=_each(systems, "received_bytes"),
            layer_calls=self._execution.layer_calls,
            flops=self._execution.device.flops,
        )

    def _expert_bytes(self) -> int | None:
        used = self._execution.experts_used
        if used is None:
            return None
        layouts = self._execution.store.layouts
        return sum(layouts[record].part_bytes(Part.WEIGHTS) for record in used)

    def _moved_bytes(self) -> tuple[int, int, int, int]:
        link, disk = self._execution.traffic, self._execution.store.traffic
        return link.fetch_bytes, link.push_bytes, disk.read_bytes, disk.written_bytes


class FirstSteps:
    """Finds what a step takes from the first that nothing meters.

    Args:
        most_samples: of a step: a smaller one says nothing of the step that was planned.
    """

    def __init__(self, most_samples: int) -> None:
        self._most_samples = most_samples
        self._num_metered = 0
        self._seconds: list[float] = []

    def note(self, seconds: float, num_samples: int) -> float | None:
        """A step has ended; returns the median of the first steps when the last of them has."""
        if self._num_metered < ALWAYS_METERED:
            self._num_metered += 1
        elif len(self._seconds) < NUM_FIRST_STEPS and num_samples == self._most_samples:
            self._seconds.append(seconds)
            if len(self._seconds) == NUM_FIRST_STEPS:
                return median(self._seconds)
        return None


def _each(systems: Sequence[SystemStep], key: str) -> tuple[Any, ...] | None:
    return tuple(getattr(one, key) for one in systems) or None


class DiskTracks:
    """Adds the store's transfers to whatever trace a recorder fills.

    The store wants its listener before there is a recorder, so the recorder is set afterwards.

    Attributes:
        recorder: of the execution; ``None`` drops transfers.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._busy_until = dict.fromkeys(_TRACKS, 0.0)
        self._lock = threading.Lock()

    def add(self, transfer: DiskTransfer) -> None:
        """Listen to the store; called from its I/O threads."""
        recorder = self.recorder
        # Asked for once: the step ends, and its trace with it, while transfers go on.
        trace = None if recorder is None else recorder.trace
        if recorder is None or trace is None or transfer.kind not in _TRACKS:
            return
        with self._lock:
            # Viewers drop a span that overlaps another in part, and two readers do overlap: each
            # span shows the time by which it makes the disk's work longer.
            start = max(transfer.start_seconds, self._busy_until[transfer.kind])
            end = max(transfer.end_seconds, start)
            self._busy_until[transfer.kind] = end
        trace.span(
            f"{transfer.kind} {transfer.record}",
            _TRACKS[transfer.kind],
            start,
            end,
            layer=transfer.record,
            kind=transfer.kind,
            step=recorder.step,
            part=str(transfer.part),
            bytes=transfer.num_bytes,
        )
