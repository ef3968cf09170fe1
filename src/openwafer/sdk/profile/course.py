"""Time of PEs along a run, for a profile."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric.account import KINDS
from openwafer.sdk.host import time_bins
from openwafer.sdk.host.time_bins import TimeBins
from openwafer.sdk.profile.model import Course, Lane, LaneKind


def course_of(bins: TimeBins, *, by_file: bool) -> Course:
    """What the bins of a run have up to now.

    Args:
        bins: of the run.
        by_file: PEs with code of the same file are one lane, whatever their parameters are.
    """
    cycles, lanes, first = bins.cycles(), [], 0
    for part in bins.parts:
        lanes.append(_lanes(part, cycles[first : first + len(part)], by_file=by_file))
        first += len(part)
    return Course(bins.bin_cycles, *lanes)


def _lanes(
    part: Sequence[time_bins.Lane], cycles: NDArray[np.int64], *, by_file: bool
) -> tuple[Lane, ...]:
    """Of the cycles of some lanes, shape (lanes, kinds, bins)."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, lane in enumerate(part):
        numbers[lane.file if by_file else lane.name].append(number)
    return tuple(
        Lane(name, sum(part[one].num_pes for one in own), _kinds(cycles[own].sum(axis=0)))
        for name, own in numbers.items()
    )


def _kinds(cycles: NDArray[np.int64]) -> tuple[LaneKind, ...]:
    """Of the cycles of a lane, shape (kinds, bins)."""
    return tuple(
        LaneKind(name, tuple(own.tolist()))
        for name, own in zip(KINDS, cycles, strict=True)
        if own.any()
    )
