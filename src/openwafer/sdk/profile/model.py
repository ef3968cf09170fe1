"""What a profile holds; every form of it is drawn from here."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric.words import MAIN_SLOT
from openwafer.sdk.host import LineCycles
from openwafer.sdk.host.line_cycles import Line
from openwafer.sdk.profile.segments import CriticalPath

MAIN: Final = "main"
"""The slot of the main thread; the others are `microthread 0` to `microthread 7`."""


def slot_name(slot: int) -> str:
    """The name of a slot by its number."""
    return MAIN if slot == MAIN_SLOT else f"microthread {slot}"


@dataclass(frozen=True)
class SlotTime:
    """Cycles of one slot in one state, summed over the PEs of a group.

    Attributes:
        slot: :data:`MAIN`, or a microthread.
        state: name of a :class:`~openwafer.sdk.fabric.SlotState`, with the queue's number.
        colors: those of the queue that is waited for, at the run's end.
        cycles: more than none.
    """

    slot: str
    state: str
    colors: tuple[int, ...]
    cycles: int

    @property
    def is_main(self) -> bool:
        """Whether it is of the main thread."""
        return self.slot == MAIN


@dataclass(frozen=True)
class PeGroup:
    """PEs whose time is added up.

    Attributes:
        name: for people.
        num_pes: how many.
        x: first column of the least rectangle that holds them.
        y: its first row.
        width: its columns.
        height: its rows.
        times: of their slots; those of a slot sum up to the run's cycles times the PEs.
        lines: cycles by line of what their main threads ran.
    """

    name: str
    num_pes: int
    x: int
    y: int
    width: int
    height: int
    times: tuple[SlotTime, ...]
    lines: tuple[LineCycles, ...] = field(repr=False)


@dataclass(frozen=True)
class TaskInfo:
    """What the machine starts, and the functions that its code reaches.

    Attributes:
        function: its own.
        started_by: what starts it, such as `local task 9`.
        reaches: it and all that it calls, directly or not.
    """

    function: str
    started_by: tuple[str, ...]
    reaches: tuple[str, ...]


@dataclass(frozen=True)
class ImageInfo:
    """A program of PEs, and what it takes of their memory; the code's size is an estimate."""

    name: str
    num_pes: int
    data_bytes: int
    code_bytes: int
    left_bytes: int


@dataclass(frozen=True)
class LineOperation:
    """A vector operation of a line.

    Attributes:
        name: the builtin's name without ``@``.
        best: documented elements a cycle of this generation, for neighbours in memory.
    """

    file: str
    line: int
    function: str
    name: str
    best: int


def line_of(one: LineOperation | LineCycles) -> Line:
    """Which line it is of."""
    return one.file, one.line, one.function


@dataclass(frozen=True)
class OperationKind:
    """Vector operations of one name, of all groups.

    Attributes:
        name: the builtin's name without ``@``.
        best: as a :class:`LineOperation` has it.
        elements: of those that have ended.
    """

    name: str
    best: int
    elements: int


@dataclass(frozen=True)
class SourceText:
    """A file of which lines have cycles."""

    name: str
    digest: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class MapLayer:
    """Cycles of one kind a PE, by cell of the map, row by row from the north-west."""

    name: str
    cycles: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class FabricMap:
    """The rectangle as a picture.

    Attributes:
        columns: of cells.
        rows: of cells.
        pes: sides of a cell, in PEs; a cell has the mean of its PEs.
    """

    columns: int
    rows: int
    pes: int
    layers: tuple[MapLayer, ...]


@dataclass(frozen=True)
class LaneKind:
    """Cycles of one kind, as layers of the map have them, by bin."""

    name: str
    cycles: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class Lane:
    """PEs whose time is shown along the run.

    Attributes:
        name: such as `pe.csl`, `columns 0 to 3`.
        num_pes: how many; the states of their main threads have that many times a bin's cycles.
        kinds: those with cycles.
    """

    name: str
    num_pes: int
    kinds: tuple[LaneKind, ...]


@dataclass(frozen=True)
class Course:
    """What PEs did along the run, added up over equal stretches of cycles, the bins.

    Each list of lanes has all PEs, also those that no group has.

    Attributes:
        bin_cycles: how long a bin is; the last one may be shorter.
        codes: PEs with the same file, or image.
        columns: stripes of the fabric; none where it has one column.
        rows: likewise.
    """

    bin_cycles: int
    codes: tuple[Lane, ...]
    columns: tuple[Lane, ...]
    rows: tuple[Lane, ...]


@dataclass(frozen=True)
class Totals:
    """Counts of the whole run, as :class:`~openwafer.sdk.fabric.machine.Statistics` has them."""

    wavelets: int
    landings: int
    elements: int
    tasks: int
    switch_changes: int


@dataclass(frozen=True)
class LinkLoad:
    """What passed over all links of one kind, such as `from west`: into a router, or a core.

    Attributes:
        wavelets: of all PEs.
        most: of one PE.
        x: column of that PE.
        y: its row.
    """

    link: str
    wavelets: int
    most: int
    x: int
    y: int


@dataclass(frozen=True)
class ColorLoad:
    """Wavelets of a color that cores sent, and how often any came to a next router."""

    color: int
    sent: int
    hops: int


@dataclass(frozen=True)
class Traffic:
    """What passed over the fabric, in the whole run."""

    links: tuple[LinkLoad, ...]
    colors: tuple[ColorLoad, ...]


@dataclass(frozen=True)
class Profile:
    """Where the cycles of a run went.

    Attributes:
        program: its digest.
        arch: its generation.
        width: columns of PEs.
        height: rows of PEs.
        cycles: from the run's begin to its end, or to where it failed.
        failure: the error that ended it; None where none did.
        groups: of PEs, each PE in one; a profile of a part has no others.
        images: programs of PEs.
        tasks: what the machine starts.
        operations: vector operations of the lines.
        kinds: vector operations by name.
        memory_bytes: of the PEs' memory, that these have read and written.
        sources: of the lines.
        fabric_map: cycles by place on the fabric.
        totals: of all PEs.
        traffic: of links and colors, where the run was recorded.
        critical_path: of the whole run, likewise.
        course: of time along the run; None in files from before there was one.
    """

    program: str
    arch: Arch
    width: int
    height: int
    cycles: int
    failure: str | None
    groups: tuple[PeGroup, ...]
    images: tuple[ImageInfo, ...]
    tasks: tuple[TaskInfo, ...]
    operations: tuple[LineOperation, ...]
    kinds: tuple[OperationKind, ...]
    memory_bytes: int
    sources: tuple[SourceText, ...]
    fabric_map: FabricMap
    totals: Totals
    traffic: Traffic | None = None
    critical_path: CriticalPath | None = None
    course: Course | None = None

    @property
    def num_pes(self) -> int:
        """Of all groups."""
        return sum(group.num_pes for group in self.groups)

    @property
    def pe_cycles(self) -> int:
        """Cycles times PEs: what the states of each slot sum up to."""
        return self.cycles * self.num_pes

    def times(self) -> Iterator[SlotTime]:
        """Of all groups."""
        for group in self.groups:
            yield from group.times

    def lines(self) -> Iterator[LineCycles]:
        """Of all groups."""
        for group in self.groups:
            yield from group.lines
