"""A profile is made from a simulation that has booked time and counted code."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, NUM_COLORS, WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.compiler.memory_map import MemoryUse
from openwafer.sdk.fabric import SlotState
from openwafer.sdk.fabric.account import KINDS, STATES
from openwafer.sdk.host.line_cycles import BookedRun
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.suspension import call_graph, reachable
from openwafer.sdk.profile import model
from openwafer.sdk.profile.course import course_of
from openwafer.sdk.profile.folding import GroupTimes, group_times
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.program import Program

MAX_CELLS: Final = 128
"""Most columns, and rows, of the map of the fabric."""
MAX_GROUPS: Final = 1 << 14
"""Most groups of single PEs."""

Pes: TypeAlias = NDArray[np.int64]
"""Numbers of PEs."""


class Grouping(StrEnum):
    """Which PEs are one group of a profile."""

    FILE = "file"
    """Those with code of the same file."""
    IMAGE = "image"
    """Those with the same code and parameters."""
    PE = "pe"
    """Each by itself."""


def profile_of(
    run: BookedRun, pes: Sequence[int] | Pes | None = None, by: Grouping = Grouping.FILE
) -> model.Profile:
    """The profile of a run up to now.

    Args:
        run: as far as it has come.
        pes: numbers of those whose time is looked at; None for all.
        by: how they are grouped.

    Raises OpenwaferError for more groups than a profile may have.
    """
    program, counts = run.program, run.simulator.statistics()
    num_pes = program.width * program.height
    chosen = np.arange(num_pes) if pes is None else np.array(pes)
    check_groups(chosen.size, by)
    grouped = _grouped(program, chosen, by)
    group_of = np.full(num_pes, -1)
    for number, own in enumerate(grouped.values()):
        group_of[own] = number
    times = group_times(run.simulator, group_of, len(grouped))
    groups = tuple(
        _group(run, times, number, name, own) for number, (name, own) in enumerate(grouped.items())
    )
    modules = run.counters.modules
    used = {model.line_of(one) for group in groups for one in group.lines}
    return model.Profile(
        program=digest_of(program),
        arch=program.arch,
        width=program.width,
        height=program.height,
        cycles=run.simulator.cycle,
        failure=run.failure,
        groups=groups,
        images=tuple(_images(program)),
        tasks=_tasks(program, modules),
        operations=tuple(
            one for one in _operations(program, modules) if model.line_of(one) in used
        ),
        kinds=tuple(
            model.OperationKind(name, VECTOR_OPS[name].rates[program.arch], number)
            for name, number in run.counters.elements(chosen).items()
        ),
        memory_bytes=run.counters.memory_bytes(chosen),
        sources=_sources(program, {file for file, _, _ in used}),
        fabric_map=_fabric_map(program, times.kinds),
        totals=model.Totals(
            counts.wavelets, counts.landings, counts.elements, counts.tasks, counts.switch_changes
        ),
        course=None if run.bins is None else course_of(run.bins, by_file=by is not Grouping.IMAGE),
    )


def _grouped(program: Program, pes: Pes, by: Grouping) -> dict[str, Pes]:
    """PEs by the name of their group, which are in the order of their first ones."""
    if by is Grouping.PE:
        places = map(program.place_of, pes.tolist())
        return {f"PE ({x}, {y})": pes[n : n + 1] for n, (x, y) in enumerate(places)}
    numbers = program.images_by_number[pes]
    parts: dict[str, list[Pes]] = defaultdict(list)
    for number in np.unique(numbers):
        image = program.images[number]
        name = image.file if by is Grouping.FILE else program.label_of(int(number))
        parts[name].append(pes[numbers == number])
    groups = {name: np.sort(np.concatenate(own)) for name, own in parts.items()}
    return dict(sorted(groups.items(), key=lambda item: item[1][0]))


def check_groups(num_pes: int, by: Grouping) -> None:
    """Refuse more groups than tables, and memory, have room for."""
    if by is Grouping.PE and num_pes > MAX_GROUPS:
        raise error(
            "profile-too-many-groups",
            f"{num_pes:,} PEs, each a group of its own: a profile has at most {MAX_GROUPS:,}",
            help="look at fewer PEs (--rectangle X Y COLUMNS ROWS, or rows and columns), or group"
            " them by file or image",
        )


def _group(run: BookedRun, times: GroupTimes, number: int, name: str, pes: Pes) -> model.PeGroup:
    x, y = np.divmod(pes, run.program.height)
    return model.PeGroup(
        name=name,
        num_pes=len(pes),
        x=int(x.min()),
        y=int(y.min()),
        width=int(np.ptp(x)) + 1,
        height=int(np.ptp(y)) + 1,
        times=tuple(_times(run.program, times, number, pes)),
        lines=run.counters.lines(pes),
    )


def _times(program: Program, times: GroupTimes, number: int, pes: Pes) -> Iterator[model.SlotTime]:
    cycles, inputs = times.cycles[number], times.colors[number]
    outputs = _output_colors(program, pes)
    for slot, state in zip(*np.nonzero(cycles), strict=True):
        colors: tuple[int, ...] = ()
        if SlotState.INPUT <= state < SlotState.OUTPUT:
            colors = _bits(int(inputs[state - SlotState.INPUT]))
        elif state >= SlotState.OUTPUT:
            colors = outputs.get(int(state) - SlotState.OUTPUT, ())
        yield model.SlotTime(model.slot_name(slot), STATES[state], colors, int(cycles[slot, state]))


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(color for color in range(NUM_COLORS) if mask >> color & 1)


def _output_colors(program: Program, pes: Pes) -> dict[int, tuple[int, ...]]:
    """Colors of output queues from the start on."""
    found: dict[int, set[int]] = defaultdict(set)
    for number in np.unique(program.images_by_number[pes]):
        for queue in program.images[number].queues:
            if not queue.is_input:
                found[queue.queue].add(queue.color)
    return {queue: tuple(sorted(colors)) for queue, colors in found.items()}


def _images(program: Program) -> Iterator[model.ImageInfo]:
    """One for each file and size in memory."""
    sizes: dict[tuple[str, MemoryUse], int] = defaultdict(int)
    counts = np.bincount(program.image_of.ravel(), minlength=len(program.images)).tolist()
    for image, num_pes in zip(program.images, counts, strict=True):
        sizes[image.file, MemoryUse.of(image)] += num_pes
    for (name, use), num_pes in sizes.items():
        words = use.data_words, use.code_words, use.left_words
        yield model.ImageInfo(name, num_pes, *(WORD_BYTES * number for number in words))


def _tasks(program: Program, modules: Sequence[Module]) -> tuple[model.TaskInfo, ...]:
    started: dict[str, set[str]] = defaultdict(set)
    reached: dict[str, set[str]] = defaultdict(set)
    for image, module in zip(program.images, modules, strict=True):
        graph = call_graph(module)
        for number, label in _starts(image):
            function = image.entries[number].function
            started[function].add(label)
            reached[function] |= {function} | reachable(graph, function)
    return tuple(
        model.TaskInfo(name, tuple(sorted(labels)), tuple(sorted(reached[name])))
        for name, labels in sorted(started.items())
    )


def _starts(image: Image) -> Iterator[tuple[int, str]]:
    """Entries, and what starts each."""
    for task in image.tasks:
        yield task.entry, f"{task.kind} task {task.task_id}"
    for name, entry in image.exported_functions:
        yield entry, f"command {name}"
    for rotation in image.rotations:
        yield rotation.entry, f"in turns with the task of queue {rotation.queue}"
    for color, entry in image.teardown_handlers:
        yield entry, f"teardown of color {color}"
    for queue, entry in image.empty_queue_handlers:
        yield entry, f"empty queue {queue}"


def _operations(program: Program, modules: Sequence[Module]) -> Iterator[model.LineOperation]:
    found = {
        (one.place, one.names[0])
        for module in modules
        for function in module.functions.values()
        for one in function.instructions
        if one.op == "vector"
    }
    lines = {
        model.LineOperation(
            place.file,
            place.line,
            place.function,
            name,
            VECTOR_OPS[name].rates[GENERATIONS[program.arch].arch],
        )
        for place, name in ((program.places[number], name) for number, name in found)
    }
    yield from sorted(lines, key=lambda one: (one.file, one.line, one.function, one.name))


def _sources(program: Program, files: set[str]) -> tuple[model.SourceText, ...]:
    return tuple(
        model.SourceText(source.name, source.digest, source.text)
        for source in program.debug.sources
        if source.name in files
    )


def _fabric_map(program: Program, kinds: NDArray[np.int64]) -> model.FabricMap:
    """Of the cycles of kinds, shape (kinds, PEs)."""
    side = -(-max(program.width, program.height) // MAX_CELLS)
    size = program.width, program.height
    return model.FabricMap(
        columns=-(-program.width // side),
        rows=-(-program.height // side),
        pes=side,
        layers=tuple(
            model.MapLayer(name, cells_of(cycles.reshape(size).T, side))
            for name, cycles in zip(KINDS, kinds, strict=True)
            if cycles.any()
        ),
    )


def cells_of(cycles: NDArray[np.int64], side: int) -> tuple[int, ...]:
    """Means of squares of PEs, rows by columns."""
    starts = [np.arange(0, length, side) for length in cycles.shape]
    sums = reduce(
        lambda array, axis: np.add.reduceat(array, starts[axis], axis=axis), (0, 1), cycles
    )
    heights, widths = (
        np.diff(np.append(start, length))
        for start, length in zip(starts, cycles.shape, strict=True)
    )
    means = sums // np.outer(heights, widths)
    return tuple(map(int, means.ravel()))
