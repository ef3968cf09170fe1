"""The disk's tracks in the trace of a step: one for reads, one for writes."""

import threading

from openwafer.training.metrics.step_trace import Track
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.device.recorder import Recorder

_TRACKS = {"read": Track.DISK_READ, "write": Track.DISK_WRITE}


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
