"""Pictures of time along a run, as levels of detail.

The whole run is one picture of a few hundred bins; where there are more bins, the parts of the run
are pictures of their own, each with more of them. A page shows the parts folded.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric.account import KINDS
from openwafer.sdk.profile.model import Course, FabricMap, Lane, MapLayer

PICTURE_BINS: Final = 256
"""Most bins of a picture."""
PARTS: Final = 8
"""Of a picture with less than all detail."""
MAX_LANES: Final = 8
"""Of those by code, the ones with most PEs."""
MAX_LAYERS: Final = 3
"""Of a map of stripes."""
BEATS, NOTHING = KINDS[:2]
_HEIGHT: Final = 100
Cycles: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Area:
    """A kind of a strip: an SVG path from the ground up to the sum of it and those before it."""

    kind: str
    path: str


@dataclass(frozen=True)
class Strip:
    """What the PEs of a lane did, in hundredths of their time.

    Attributes:
        lane: whose.
        areas: states of main threads, the highest first, so that those after it cover it.
        beats: of all threads, an SVG path.
    """

    lane: Lane
    areas: tuple[Area, ...]
    beats: str


@dataclass(frozen=True)
class Picture:
    """A stretch of the run.

    Attributes:
        begin: its first cycle.
        end: the one behind its last.
        bin_cycles: of its bins.
        width: in bins, the last of which may be a part.
        strips: of lanes.
        parts: of the same stretch, with more detail; none where there is no more.
    """

    begin: int
    end: int
    bin_cycles: int
    width: float
    strips: tuple[Strip, ...]
    parts: tuple["Picture", ...]


def picture_of(course: Course, cycles: int) -> Picture:
    """The whole run, which took so many cycles."""
    lanes = sorted(course.codes, key=lambda lane: -lane.num_pes)[:MAX_LANES]
    return _picture(course.bin_cycles, lanes, 0, cycles)


def _picture(bin_cycles: int, lanes: Sequence[Lane], begin: int, end: int) -> Picture:
    factor = 1
    while factor * bin_cycles * PICTURE_BINS < end - begin:
        factor *= 2
    width = factor * bin_cycles
    step = width * PICTURE_BINS // PARTS
    return Picture(
        begin,
        end,
        width,
        (end - begin) / width,
        tuple(_strip(lane, bin_cycles, factor, begin, end) for lane in lanes),
        tuple(
            _picture(bin_cycles, lanes, at, min(at + step, end)) for at in range(begin, end, step)
        )
        if factor > 1
        else (),
    )


def _strip(lane: Lane, bin_cycles: int, factor: int, begin: int, end: int) -> Strip:
    edges = np.append(np.arange(begin, end, factor * bin_cycles), end)
    whole = lane.num_pes * np.diff(edges)
    first, behind = begin // bin_cycles, -(-end // bin_cycles)
    shares = {
        kind.name: _merged(np.array(kind.cycles[first:behind]), factor) / whole
        for kind in lane.kinds
    }
    sums, areas = np.zeros(whole.size), []
    for name, share in shares.items():
        if name not in (BEATS, NOTHING) and share.any():
            sums = sums + share
            areas.append(Area(name, _path(sums)))
    return Strip(lane, tuple(reversed(areas)), _path(shares.get(BEATS, np.zeros(whole.size))))


def _merged(cycles: Cycles, factor: int) -> Cycles:
    """Sums of so many neighbours each."""
    return np.add.reduceat(cycles, np.arange(0, cycles.size, factor))


def _path(shares: NDArray[np.float64]) -> str:
    """A path along shares of the height from 0 to 1, bin by bin."""
    heights = np.clip(np.rint(_HEIGHT * (1 - shares)), 0, _HEIGHT).astype(int)
    return f"M0 {_HEIGHT}{''.join(_steps(heights))}H{heights.size}V{_HEIGHT}z"


def _steps(heights: NDArray[np.int64]) -> Iterator[str]:
    (changes,) = np.nonzero(np.diff(heights, prepend=-1))
    for at in changes.tolist():
        yield f"H{at}V{heights[at]}"


def stripes_of(course: Course, cycles: int) -> Iterator[tuple[str, FabricMap]]:
    """Stripes of columns, and of rows, along the run of so many cycles: a cell is a bin of one.

    Its layers are the kinds with most cycles; a cell has those of one PE.
    """
    width = course.bin_cycles
    while width * PICTURE_BINS < cycles:
        width *= 2
    for word, lanes in (("columns", course.columns), ("rows", course.rows)):
        if len(lanes) > 1:
            layers = [_layer(lanes, name, width // course.bin_cycles) for name in _most(lanes)]
            layers = [layer for layer in layers if any(layer.cycles)]
            yield word, FabricMap(-(-cycles // width), len(lanes), 1, tuple(layers))


def _most(lanes: Sequence[Lane]) -> list[str]:
    """The kinds with most cycles."""
    sums: dict[str, int] = defaultdict(int)
    for lane in lanes:
        for kind in lane.kinds:
            sums[kind.name] += sum(kind.cycles)
    return sorted(sums.keys() - {NOTHING}, key=lambda name: -sums[name])[:MAX_LAYERS]


def _layer(lanes: Sequence[Lane], name: str, factor: int) -> MapLayer:
    """A row a lane, and so many bins a column."""
    cells: list[int] = []
    for lane in lanes:
        num_bins = len(lane.kinds[0].cycles)
        found = (kind.cycles for kind in lane.kinds if kind.name == name)
        own = _merged(np.array(next(found, (0,) * num_bins)), factor)
        cells += (np.maximum(own, 0) // lane.num_pes).tolist()
    return MapLayer(name, tuple(cells))
