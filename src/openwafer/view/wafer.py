"""A run on the fabric as columns: each table lies by PE and cycle, with an index by PE."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.host import Record
from openwafer.sdk.host.record import HOST_OPERATIONS
from openwafer.sdk.profile import Profile, Wavelets
from openwafer.sdk.profile.page import annotated_sources
from openwafer.sdk.profile.timeline import Spans, end_of, operations_of, senders_of, tasks_of
from openwafer.sdk.profile.wavelets import Passages, followed
from openwafer.sdk.program.program import Program
from openwafer.view.columns import Array, Columns, sorted_by
from openwafer.view.programs import numbers_of_sources, program_columns

TASKS: Final = 9
"""In place of a thread: the tasks of the main thread, whose operations are thread 8."""
_MOST_CELLS: Final = 1 << 23
"""Of the course: bins times PEs."""
_MOST_BINS: Final = 2048
_FULL: Final = 255


def wafer_columns(
    program: Program, record: Record, profile: Profile | None, *, title: str
) -> Columns:
    """A run, as far as its record has it.

    Args:
        program: that ran.
        record: of the run.
        profile: of the run; None where there is none.
        title: for people.

    A record of a part of a run has no wavelets, as nothing says where they come from.

    Raises OpenwaferError for a record of another program, and a damaged one.
    """
    known = program_columns(program, title)
    head, arrays = dict(known.head), dict(known.arrays)
    if profile is not None:
        cells = profile.fabric_map
        head |= _head_of_profile(profile, numbers_of_sources(program))
        arrays["map"] = np.array([one.cycles for one in cells.layers]).reshape(-1)
    record.require_program(program)
    _add_record(program, record, head, arrays)
    return Columns(head, arrays)


def _head_of_profile(profile: Profile, sources: Mapping[str, int]) -> dict[str, Any]:
    return {
        "cycles": profile.cycles,
        "failure": profile.failure,
        "pe_cycles": profile.pe_cycles,
        "lines": [
            (sources[file], line.number, *line.amounts, line.operations)
            for file, lines in annotated_sources(profile).items()
            for line in lines
            if line.cycles
        ],
        "map": {
            "columns": profile.fabric_map.columns,
            "rows": profile.fabric_map.rows,
            "pes": profile.fabric_map.pes,
            "layers": [one.name for one in profile.fabric_map.layers],
        },
    }


def _add_record(
    program: Program, record: Record, head: dict[str, Any], arrays: dict[str, Array]
) -> None:
    end, cycles = record.events(EventKind.END), end_of(record)
    head["cycles"], head["is_cut"] = cycles, not len(end) or bool(end.number[-1])
    head["host"] = list(_host(record, cycles))
    num_pes = program.width * program.height
    tasks, operations = tasks_of(record), operations_of(record)
    names = _Names(program)
    head["names"] = names.texts
    spans = _spans(program, tasks, operations, names)
    order, arrays["span.first"] = sorted_by(spans["pe"], num_pes, spans["begin"], -spans["thread"])
    spans = {name: one[order] for name, one in spans.items()}
    arrays |= {f"span.{name}": one for name, one in spans.items() if name != "pe"}
    if record.head.scope.is_whole:
        found, passages = followed(record)
        # Numbers of spans, in their order; operations stand behind tasks before that.
        placed = np.empty(order.size + 1, np.int64)
        placed[order], placed[-1] = np.arange(order.size), -1
        own = senders_of(operations, found, program.height)
        senders = placed[np.where(own < 0, -1, len(tasks) + own)]
        arrays |= _ways(found, passages, program, senders)
    switched = record.events(EventKind.SWITCH)
    pes = _pes(program, switched.x, switched.y)
    order, arrays["switch.first"] = sorted_by(pes, num_pes, switched.cycle)
    changes: dict[str, Array] = {
        "cycle": switched.cycle,
        "color": switched.color,
        "position": switched.number,
    }
    arrays |= {f"switch.{name}": one[order] for name, one in changes.items()}
    bin_cycles, course = _course(num_pes, cycles, spans, arrays)
    head["course"] = {"bin_cycles": bin_cycles, "layers": list(course)}
    arrays |= {f"course.{name}": one for name, one in course.items()}


def _host(record: Record, cycles: int) -> Iterator[tuple[str, int, int]]:
    """Operations of the host: what each is, its begin and its end."""
    begins, ends = record.events(EventKind.HOST), record.events(EventKind.HOST_END)
    closed = dict(zip(ends.number.tolist(), ends.cycle.tolist(), strict=True))
    for number, data, cycle in zip(begins.number, begins.data, begins.cycle, strict=True):
        name = HOST_OPERATIONS[int(data)].__name__
        yield name, int(cycle), closed.get(int(number), cycles)


def _pes(program: Program, x: Array, y: Array) -> NDArray[np.int64]:
    """Numbers of PEs by their columns and rows, as the program numbers them."""
    return x.astype(np.int64) * program.height + y


class _Names:
    """Names of spans: of vector operations, then of entries, image by image."""

    def __init__(self, program: Program) -> None:
        codes = range(max(VECTOR_OPS_BY_CODE) + 1)
        self.texts = [
            f"@{VECTOR_OPS_BY_CODE[one].name}" if one in VECTOR_OPS_BY_CODE else "" for one in codes
        ]
        firsts = []
        for image in program.images:
            firsts.append(len(self.texts))
            self.texts += [entry.function for entry in image.entries]
        self._firsts = np.array(firsts)[program.images_by_number]

    def of_tasks(self, pes: Array, numbers: Array) -> Array:
        """Numbers of the names of tasks."""
        return self._firsts[pes] + numbers


def _spans(
    program: Program, tasks: Spans, operations: Spans, names: _Names
) -> dict[str, NDArray[np.int64]]:
    """Tasks and operations, one behind the other."""
    started, begun = tasks.events, operations.events
    pes = [_pes(program, one.x, one.y) for one in (started, begun)]
    none = np.full(len(tasks), -1)
    return {
        "pe": np.concatenate(pes),
        "thread": np.concatenate([np.full(len(tasks), TASKS), begun.slot]),
        "begin": np.concatenate([started.cycle, begun.cycle]),
        "end": np.concatenate([tasks.end, operations.end]),
        "name": np.concatenate([names.of_tasks(pes[0], started.number), begun.number]),
        "place": np.concatenate([none, begun.place]),
        "elements": np.concatenate([np.zeros_like(none), begun.data]),
    }


def _ways(
    found: Wavelets, passages: Passages, program: Program, senders: NDArray[np.int64]
) -> dict[str, Array]:
    """Wavelets by number from 0 on, the spans that sent them, and the routers that they pass."""
    known, number = np.unique(found.wavelet, return_inverse=True)
    order, first = sorted_by(number, known.size, found.arrived)
    sender = np.where(found.from_x < 0, -1, _pes(program, found.from_x, found.from_y))
    wave = {
        "number": number,
        "from": sender,
        "to": _pes(program, found.x, found.y),
        "sent": found.sent,
        "left": found.left,
        "arrived": found.arrived,
        "consumed": found.consumed,
        "hops": found.hops,
        "end": found.end,
        "span": senders,
    }
    arrays: dict[str, Array] = {f"wave.{name}": one[order] for name, one in wave.items()}
    pe = _pes(program, passages.x, passages.y)
    own = np.searchsorted(known, passages.wavelet)
    by_wavelet, ways = sorted_by(own, known.size, passages.landed)
    _, by_pe = sorted_by(pe, program.width * program.height)
    rows = {
        "wavelet": own,
        "landed": passages.landed,
        "gone": passages.gone,
        "color": passages.color,
        "link": passages.link,
        "outputs": passages.outputs,
        "stay": passages.stay,
        "control": passages.is_control,
        "data": passages.data,
    }
    arrays |= {f"pass.{name}": one for name, one in rows.items()}
    return arrays | {
        "wave.first": first,
        "pass.first": by_pe,
        "way.first": ways,
        "way.pass": by_wavelet,
        "way.pe": pe[by_wavelet],
    }


def _course(
    num_pes: int, cycles: int, spans: dict[str, NDArray[np.int64]], arrays: dict[str, Array]
) -> tuple[int, dict[str, Array]]:
    """How long a bin is, and in 255ths of it what PEs did, each of the shape (bins, PEs)."""
    most = max(1, min(_MOST_BINS, _MOST_CELLS // num_pes))
    size = max(1, -(-(cycles + 1) // most))
    shape = (-(-(cycles + 1) // size), num_pes)
    is_task = spans["thread"] == TASKS
    found = {
        name: _covered(shape, size, *(spans[one][which] for one in ("pe", "begin", "end")))
        for name, which in (("task", is_task), ("operation", ~is_task))
    }
    if "pass.first" in arrays:
        pes = np.repeat(np.arange(num_pes), np.diff(arrays["pass.first"]))
        found["traffic"] = np.zeros(shape, np.float32)
        np.add.at(found["traffic"], (arrays["pass.landed"] // size, pes), 1)
    return size, {
        name: np.minimum(np.ceil(one * (_FULL / size)), _FULL).astype(np.uint8)
        for name, one in found.items()
    }


def _covered(shape: Sequence[int], size: int, pe: Array, begin: Array, end: Array) -> Array:
    """How many cycles of each bin spans of each PE cover; of spans side by side the sum."""
    cells = np.zeros((shape[0] + 1, shape[1]), np.float32)
    first, last = begin // size, end // size
    np.add.at(cells, (first, pe), (first + 1) * size - begin)
    np.add.at(cells, (last, pe), end - (last + 1) * size)
    edges = np.zeros_like(cells)
    np.add.at(edges, (np.minimum(first + 1, shape[0]), pe), size)
    np.add.at(edges, (np.minimum(last + 1, shape[0]), pe), -size)
    found: Array = (cells + np.cumsum(edges, axis=0))[: shape[0]]
    return found
