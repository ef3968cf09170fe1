"""Cycles by line of the source: what the code of PEs has counted, and what that stands for.

The counters of a PE (:mod:`openwafer.sdk.ir.counters`) say how often the cycles of each point of
its code have passed; of which lines those are, the code itself says.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.generation import GENERATIONS, WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.time_bins import TimeBins
from openwafer.sdk.ir import text
from openwafer.sdk.ir.counters import Counter, counters_of
from openwafer.sdk.program.mailbox import KIND_COUNTS
from openwafer.sdk.program.program import Program

Line: TypeAlias = tuple[str, int, str]
"""File, line and function."""
_COUNTS_AT_A_TIME: Final = 1 << 15
"""So many counts of PEs are read at a time."""


@dataclass(frozen=True)
class LineCycles:
    """Cycles of a line of the source, in a function, summed over PEs.

    A cycle of scalar code belongs to the instruction that is issued in it, or to the one whose
    result is awaited in it. So `taken` and `waited` of all lines add up to the cycles of scalar
    code; with `operation` to the time from the begin of each task to its last instruction.

    Attributes:
        file: as the compiler was given it, or imported it.
        line: number of the line, from 1 on.
        function: whose code it is; that of the caller where the source has it inlined.
        executions: how often code came by, at the point of the line that it passed most.
        taken: cycles in which its instructions were issued.
        waited: cycles in which nothing was issued, because a result of the line was awaited.
        operation: cycles in which its vector operations, or other requests, held the code up
            until they had ended; of one in flight none yet.
    """

    file: str
    line: int
    function: str
    executions: int
    taken: int
    waited: int
    operation: int

    @property
    def cycles(self) -> int:
        """Of its scalar code."""
        return self.taken + self.waited


class CodeCounters:
    """The counters of all PEs of a simulation that has not begun yet.

    Attributes:
        modules: the code of each image.
    """

    def __init__(self, program: Program, simulator: Simulator) -> None:
        self._program = program
        generation = GENERATIONS[program.arch]
        self.modules = [text.parse(image.code, image.name) for image in program.images]
        self._counters = [tuple(counters_of(module, generation)) for module in self.modules]
        sizes = np.array([len(counters) for counters in self._counters])
        ends = np.cumsum(sizes[program.images_by_number] + KIND_COUNTS)
        self._first = ends - sizes[program.images_by_number]
        self._counts = np.zeros(int(ends[-1]), np.int64)
        simulator.count_code(self._counts, self._first)

    def lines(self, pes: NDArray[np.int64]) -> tuple[LineCycles, ...]:
        """What PEs, given by number, have counted: by file and line, those without cycles not."""
        whole: dict[Line, NDArray[np.int64]] = {}
        images = self._program.images_by_number[pes]
        for image in np.unique(images):
            counters = self._counters[image]
            for counts in self._counts_of(pes[images == image], 0, len(counters)):
                for line, tally in self._tallies(counters, counts).items():
                    whole[line] = whole.get(line, 0) + tally.numbers
        return tuple(
            LineCycles(*line, *map(int, numbers))
            for line, numbers in sorted(whole.items())
            if numbers[1:].any()
        )

    def elements(self, pes: NDArray[np.int64]) -> dict[str, int]:
        """Elements of vector operations that have ended on PEs, given by number, by their names."""
        counts = self._of_kinds(pes)
        return {op.name: int(counts[op.code]) for op in VECTOR_OPS.values() if counts[op.code]}

    def memory_bytes(self, pes: NDArray[np.int64]) -> int:
        """Bytes of the PEs' memory that these operations have read and written."""
        return WORD_BYTES * int(self._of_kinds(pes)[0])

    def _of_kinds(self, pes: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(KIND_COUNTS, np.int64)
        for counts in self._counts_of(pes, -KIND_COUNTS, 0):
            sums += counts.sum(axis=0)
        return sums

    def _counts_of(
        self, pes: NDArray[np.int64], begin: int, end: int
    ) -> Iterator[NDArray[np.int64]]:
        """Counts of PEs from one number up to another, some PEs at a time: (PEs, counters)."""
        step = max(1, _COUNTS_AT_A_TIME // max(1, end - begin))
        for at in range(0, pes.size, step):
            yield self._counts[self._first[pes[at : at + step], None] + np.arange(begin, end)]

    def _tallies(
        self, counters: Sequence[Counter], counts: NDArray[np.int64]
    ) -> dict[Line, "_Tally"]:
        """Of PEs of one image, each of which has a row of counts."""
        tallies: dict[Line, _Tally] = {}
        for counter, own in zip(counters, counts.T, strict=True):
            for line, cycles in self._cycles(counter).items():
                tally = tallies.setdefault(line, _Tally(len(counts)))
                tally.cycles += cycles * own.sum()
                if not counter.is_in_cycles:
                    tally.passed[counter.point] += own
        return tallies

    def _cycles(self, counter: Counter) -> dict[Line, NDArray[np.int64]]:
        """By line: cycles that one of a counter's counts stands for, of each kind."""
        parts = [(share.place, share.taken, share.waited, 0) for share in counter.shares]
        cycles: dict[Line, NDArray[np.int64]] = {}
        for place, *amounts in (*parts, (counter.place, 0, 0, int(counter.is_in_cycles))):
            found = self._program.places[place]
            line = found.file, found.line, found.function
            cycles[line] = cycles.get(line, 0) + np.array(amounts)
        return cycles


@dataclass(frozen=True)
class BookedRun:
    """A run whose PEs' time is booked and whose code counts, as far as it has come.

    Attributes:
        program: the one that runs.
        simulator: the fabric.
        counters: of the code.
        bins: of its time; None where that is not booked.
        failure: the error of the last operation of the host that raised one, as it is shown, or
            that the user interrupted it.
    """

    program: Program
    simulator: Simulator
    counters: CodeCounters
    bins: TimeBins | None
    failure: str | None


def not_counted() -> OpenwaferError:
    """The error for a run whose code does not count."""
    return error(
        "host-not-counted",
        "the code of this run does not count its cycles",
        help="ask for it at the start: program.run(line_cycles=True), or profile=True",
    )


class _Tally:
    """What was counted of a line: cycles of each kind, and how often each PE passed each point."""

    def __init__(self, num_pes: int) -> None:
        self.cycles = np.zeros(3, np.int64)
        self.passed: dict[int, NDArray[np.int64]] = defaultdict(lambda: np.zeros(num_pes, np.int64))

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Executions, then cycles of each kind."""
        executions = np.max([*self.passed.values()], axis=0).sum()
        return np.array([executions, *self.cycles])
