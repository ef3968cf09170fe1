"""Where the time of PEs goes along a run: sums over equal stretches of cycles, the bins.

They are added up as the run goes, so nothing of single PEs and cycles is kept. Bins get twice as
long whenever there are too many, so what they cost and take does not grow with the run.
"""

import weakref
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric import Simulator
from openwafer.sdk.fabric.account import KINDS, PES_AT_A_TIME
from openwafer.sdk.program.program import Program

MOST_BINS: Final = 1024
FIRST_CYCLES: Final = 32
"""Length of the first bins."""
MOST_IMAGES: Final = 32
"""With more, the time of images is added up by the file of their code."""
_STRIPES: Final = 16
Numbers: TypeAlias = NDArray[np.int64]


class Lane(NamedTuple):
    """PEs whose time is added up.

    Attributes:
        name: of their image, or of a stripe of the fabric.
        file: of the image's code; for a stripe its name.
        num_pes: how many.
    """

    name: str
    file: str
    num_pes: int


class TimeBins:
    """The bins of a simulation that has not begun yet, and whose time is booked.

    Attributes:
        parts: whose time is added up, three times all PEs: by their code, in stripes of columns,
            in stripes of rows.
        bin_cycles: how long a bin is; the last one may be shorter.
    """

    def __init__(self, program: Program, simulator: Simulator) -> None:
        # The simulator has a method of this object, and would live as long as a circle does.
        self._simulator = weakref.proxy(simulator)
        self._num_pes = program.width * program.height
        columns, rows = np.divmod(np.arange(self._num_pes), program.height)
        parts = _codes(program), _stripes("column", columns), _stripes("row", rows)
        self.parts: Final = tuple(lanes for lanes, _ in parts)
        begins = np.cumsum([0, *map(len, self.parts)])
        self._lane_of = [own + begin for (_, own), begin in zip(parts, begins[:-1], strict=True)]
        self.bin_cycles = FIRST_CYCLES
        self._sums = [np.zeros((len(KINDS), int(begins[-1])), np.int64)]
        self._expect()

    def cycles(self) -> Numbers:
        """Cycles in each bin up to now, shape (lanes, kinds, bins), lanes part by part.

        Those of the states of a lane's main threads are its PEs times the bin's length. Their last
        few cycles may still move to another state, which may leave less than none in a bin.
        """
        sums = self._sums[: 1 + self._simulator.cycle // self.bin_cycles]
        if self._simulator.cycle % self.bin_cycles:
            sums = [*sums, self._now()]
        edges: Numbers = np.array(sums).transpose(2, 1, 0)
        return edges[:, :, 1:] - edges[:, :, :-1]

    def _expect(self) -> None:
        self._simulator.look_at(len(self._sums) * self.bin_cycles, self._look)

    def _look(self) -> None:
        self._sums.append(self._now())
        if len(self._sums) > MOST_BINS:
            self._sums, self.bin_cycles = self._sums[::2], 2 * self.bin_cycles
        self._expect()

    def _now(self) -> Numbers:
        """Cycles from the begin up to now, shape (kinds, lanes)."""
        sums = np.zeros(self._sums[0].shape)
        for first in range(0, self._num_pes, PES_AT_A_TIME):
            end = min(first + PES_AT_A_TIME, self._num_pes)
            for kind, cycles in enumerate(self._simulator.main_time(first, end).kinds):
                if cycles.any():
                    for lane_of in self._lane_of:
                        sums[kind] += np.bincount(lane_of[first:end], cycles, sums.shape[1])
        return sums.astype(np.int64)


def bins_of(program: Program, simulator: Simulator) -> TimeBins | None:
    """Those of a simulation whose time is booked; None for another one."""
    return TimeBins(program, simulator) if simulator.has_account else None


def _codes(program: Program) -> tuple[list[Lane], Numbers]:
    """Lanes of images, or of their files where there are many, and the lane of each PE."""
    files = [image.file for image in program.images]
    names = [program.label_of(number) for number in range(len(files))]
    if len(files) > MOST_IMAGES:
        names = files
    distinct = [*dict.fromkeys(zip(names, files, strict=True))]
    lane_of_image = np.array([*map(distinct.index, zip(names, files, strict=True))])
    lane_of = lane_of_image[program.images_by_number]
    counts = np.bincount(lane_of, minlength=len(distinct)).tolist()
    return [Lane(*name, count) for name, count in zip(distinct, counts, strict=True)], lane_of


def _stripes(word: str, places: Numbers) -> tuple[list[Lane], Numbers]:
    """Lanes of columns or rows, and the lane of each PE by its place there."""
    size = int(places.max()) + 1
    step = -(-size // _STRIPES)
    counts = np.bincount(places // step).tolist()
    ends = [min(step * (number + 1), size) for number in range(len(counts))]
    names = [_stretch(word, step * number, end) for number, end in enumerate(ends)]
    lanes = [Lane(name, name, count) for name, count in zip(names, counts, strict=True)]
    return lanes, places // step


def _stretch(word: str, first: int, end: int) -> str:
    return f"{word} {first}" if end == first + 1 else f"{word}s {first} to {end - 1}"
