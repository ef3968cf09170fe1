"""Splits a step's time: the device computes for a share of it and waits for the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

from openwafer.training.metrics.intervals import Intervals, clip, subtract, total_seconds, union
from openwafer.training.metrics.step_trace import StepTrace, Track

# Nearest to compute first: while a fetch copies, compute waits for it, not for a read beside it.
_CAUSES = (Track.FETCH, Track.PUSH, Track.UPDATE, Track.DISK_READ, Track.DISK_WRITE)


@dataclass(frozen=True)
class ComputeShare:
    """One step's wall time, split without a rest.

    `exposed_seconds` is the time in which the device does not compute, by what went on
    meanwhile: each moment counts for the first busy track of fetch, push, update, disk read and
    disk write. `unexplained_seconds` is time in which no track was busy.
    """

    window_seconds: float
    compute_seconds: float
    exposed_seconds: Mapping[Track, float]
    unexplained_seconds: float

    @property
    def share(self) -> float:
        return self.compute_seconds / self.window_seconds


def compute_share(trace: StepTrace) -> ComputeShare:
    """Split the wall time of one traced step."""
    busy = {track: busy_intervals(trace, track) for track in Track}
    idle = subtract((trace.window,), busy[Track.COMPUTE])
    exposed = {}
    for cause in _CAUSES:
        rest = subtract(idle, busy[cause])
        exposed[cause] = total_seconds(idle) - total_seconds(rest)
        idle = rest
    compute_seconds = total_seconds(busy[Track.COMPUTE])
    return ComputeShare(trace.window_seconds, compute_seconds, exposed, total_seconds(idle))


def busy_intervals(trace: StepTrace, track: Track) -> Intervals:
    """The union of a track's spans within the step's window."""
    spans = (span.interval for span in trace.spans if span.track is track)
    return union(clip(spans, trace.window))
