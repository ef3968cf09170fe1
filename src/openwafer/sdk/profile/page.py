"""A profile as one HTML page that needs nothing beside it: pictures are SVG, nothing runs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.fabric.account import KINDS
from openwafer.sdk.profile import tables
from openwafer.sdk.profile.advice import advice
from openwafer.sdk.profile.course_picture import Picture, picture_of, stripes_of
from openwafer.sdk.profile.model import Course, FabricMap, MapLayer, Profile
from openwafer.sdk.profile.segments import CriticalPath, Reason, Segment
from openwafer.sdk.profile.text import pe_of, remedy, share, summary

SHADES: Final = 8
"""Steps of a map's color."""
MAX_ROWS: Final = 100
"""Of a table of groups or functions."""
MAX_SEGMENTS: Final = 500
"""Of a critical path that are drawn, the longest."""
_OPEN_SHARE: Final = 0.05
"""A source whose lines take more of the cycles is shown unfolded."""

_TEMPLATES: Final = Environment(
    loader=PackageLoader("openwafer.sdk.profile"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def profile_page(profile: Profile) -> str:
    """The text of the page."""
    return _TEMPLATES.get_template("profile.html").render(
        profile=profile,
        summary=summary(profile),
        tiles=tuple(_tiles(profile)),
        maps=tuple(_drawn(profile.fabric_map, layer) for layer in profile.fabric_map.layers),
        states=_bars(profile),
        advice=tuple(advice(profile)),
        course=None if profile.course is None else _course(profile.course, profile.cycles),
        path=None if profile.critical_path is None else _path(profile.critical_path),
        roofs=tables.roofline(profile),
        sources=tuple(_sources(profile)),
        tasks=tables.by_task(profile),
        functions=tables.by_function(profile)[:MAX_ROWS],
        groups=profile.groups[:MAX_ROWS],
        memory_bytes=WORD_BYTES * MEMORY_WORDS,
        beats_of=tables.beats_of,
        main_cycles=tables.main_cycles,
        share=share,
        remedy=remedy,
        pe_of=pe_of,
    )


def _tiles(profile: Profile) -> Iterator[tuple[str, str, str]]:
    """Name, number, and what to hold it against."""
    datapath, elements, wavelets = tables.roofline(profile)[:3]
    yield "Cycles", f"{profile.cycles:,}", f"on {profile.num_pes:,} PEs"
    yield "Datapath", f"{100 * datapath.share:.0f}%", "of all cycles with a beat"
    best = "no vector operations" if elements.best is None else f"at most {elements.best:.3g}"
    yield "Elements a PE and cycle", f"{elements.rate:.3f}", best
    yield "Wavelets a PE and cycle", f"{wavelets.rate:.3f}", "at most 1"


@dataclass(frozen=True)
class Shade:
    """Cells of one step of a map's color, as an SVG path, and which cycles those are."""

    opacity: float
    path: str
    least: int
    most: int


@dataclass(frozen=True)
class DrawnMap:
    """A layer of the map of the fabric."""

    layer: MapLayer
    most: int
    mean: int
    shades: tuple[Shade, ...]


def _drawn(cells: FabricMap, layer: MapLayer) -> DrawnMap:
    most = max(layer.cycles)
    steps = [-(-SHADES * cycles // most) for cycles in layer.cycles]
    paths: dict[int, list[str]] = defaultdict(list)
    for row in range(cells.rows):
        own = steps[row * cells.columns : (row + 1) * cells.columns]
        for step, x, length in _runs(own):
            paths[step].append(f"M{x} {row}h{length}v1h-{length}z")
    shades = tuple(_shade(layer, steps, step, paths[step]) for step in sorted(paths) if step)
    return DrawnMap(layer, most, sum(layer.cycles) // len(layer.cycles), shades)


def _runs(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbours in a row that have one color: it, their first column and how many they are."""
    x = 0
    for step, run in groupby(steps):
        length = len(list(run))
        yield step, x, length
        x += length


def _shade(layer: MapLayer, steps: Sequence[int], step: int, paths: Sequence[str]) -> Shade:
    own = [cycles for cycles, other in zip(layer.cycles, steps, strict=True) if other == step]
    return Shade(step / SHADES, "".join(paths), min(own), max(own))


@dataclass(frozen=True)
class DrawnCourse:
    """Time along the run: by code as strips, by columns and rows of the fabric as maps."""

    picture: Picture
    kinds: tuple[str, ...]
    maps: tuple[tuple[str, FabricMap, tuple[DrawnMap, ...]], ...]


def _course(course: Course, cycles: int) -> DrawnCourse | None:
    if cycles == 0:
        return None
    picture = picture_of(course, cycles)
    shown = {area.kind for strip in picture.strips for area in strip.areas}
    maps = (
        (word, cells, tuple(_drawn(cells, layer) for layer in cells.layers))
        for word, cells in stripes_of(course, cycles)
    )
    return DrawnCourse(picture, tuple(kind for kind in KINDS if kind in shown), tuple(maps))


@dataclass(frozen=True)
class DrawnPath:
    """A critical path as a strip, a row a reason.

    Attributes:
        path: the whole.
        rows: reasons, those of most cycles first, each with its segments that are drawn.
    """

    path: CriticalPath
    rows: tuple[tuple[Reason, tuple[Segment, ...]], ...]


def _path(path: CriticalPath) -> DrawnPath:
    drawn = path.longest(MAX_SEGMENTS)
    cycles = Counter[Reason]()
    for one in path.segments:
        cycles[one.reason] += one.cycles
    rows = (
        (reason, tuple(one for one in drawn if one.reason == reason))
        for reason, _ in cycles.most_common()
    )
    return DrawnPath(path, tuple(row for row in rows if row[1]))


@dataclass(frozen=True)
class StateBar:
    """A state with the share of the main threads' cycles."""

    time: tables.StateTime
    percent: float


def _bars(profile: Profile) -> tuple[StateBar, ...]:
    whole = max(1, profile.pe_cycles)
    return tuple(StateBar(one, 100 * one.main / whole) for one in tables.by_state(profile))


@dataclass(frozen=True)
class SourceLine:
    """A line of a source with the cycles of all functions that have code on it."""

    number: int
    text: str
    amounts: tuple[int, int, int, int]
    """Cycles, of these those waited and those in operations, and executions."""
    percent: float
    operations: str

    @property
    def cycles(self) -> int:
        return self.amounts[0]


@dataclass(frozen=True)
class AnnotatedSource:
    """A file with cycles beside its lines."""

    name: str
    cycles: int
    is_open: bool
    lines: tuple[SourceLine, ...]


def annotated_sources(profile: Profile) -> dict[str, tuple[SourceLine, ...]]:
    """The lines of each source by its name."""
    sums: dict[tuple[str, int], tuple[int, int, int, int]] = defaultdict(lambda: (0, 0, 0, 0))
    for one in profile.lines():
        cycles, waited, operation, executions = sums[one.file, one.line]
        sums[one.file, one.line] = (
            cycles + one.cycles + one.operation,
            waited + one.waited,
            operation + one.operation,
            executions + one.executions,
        )
    operations: dict[tuple[str, int], list[str]] = defaultdict(list)
    for vector in profile.operations:
        operations[vector.file, vector.line].append(
            f"@{vector.name}, at most {vector.best} a cycle"
        )
    whole = max(1, profile.pe_cycles)
    return {
        source.name: tuple(
            SourceLine(
                number,
                text,
                sums[source.name, number],
                100 * sums[source.name, number][0] / whole,
                "; ".join(sorted(set(operations[source.name, number]))),
            )
            for number, text in enumerate(source.text.splitlines(), 1)
        )
        for source in profile.sources
    }


def _sources(profile: Profile) -> Iterator[AnnotatedSource]:
    """Files, those with most cycles first."""
    whole, names = max(1, profile.pe_cycles), tables.short_names(profile)
    found_files = []
    for name, lines in annotated_sources(profile).items():
        cycles = sum(one.cycles for one in lines)
        is_open = cycles > _OPEN_SHARE * whole
        found_files.append(AnnotatedSource(names[name], cycles, is_open, lines))
    yield from sorted(found_files, key=lambda one: -one.cycles)
