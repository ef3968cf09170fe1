"""Where wavelets came from: the run is done again with a record, whose events are put together."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import counted, error
from openwafer.sdk.arch.generation import NUM_COLORS
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.host import read_record
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.profile.model import slot_name
from openwafer.sdk.profile.timeline import Spans, operations_of, senders_of
from openwafer.sdk.profile.wavelets import Numbers, Passages, Wavelets, followed
from openwafer.sdk.program.program import Program


@dataclass(frozen=True)
class _Past:
    """The run up to a cycle; `sender` is the number of each wavelet's operation, -1 for none."""

    cycle: int
    wavelets: Wavelets
    passages: Passages
    operations: Spans
    sender: Numbers


class Origins:
    """Wavelets of a run, by its journal."""

    def __init__(self, program: Program, journal: Journal) -> None:
        self._program = program
        self._journal = journal
        self._past: _Past | None = None

    def of_pe(
        self, pe: int, cycle: int, color: int | None = None, number: int | None = None
    ) -> list[str]:
        """Where wavelets of a color, or of each, came from that a PE got up to a cycle.

        Args:
            pe: number of the PE.
            cycle: the last one that counts.
            color: None for each.
            number: of the wavelet among those of its color, from 1 on; None for the last.

        Raises OpenwaferError for no color, and where none of the color, or not so many, came.
        """
        if color is not None and color >= NUM_COLORS:
            none = f"there is no color {color}: a wavelet has one of 0 to {NUM_COLORS - 1}"
            raise error("debug-no-color", none)
        x, y = self._program.place_of(pe)
        colors = range(NUM_COLORS) if color is None else [color]
        told = [
            line
            for past in ([self._until(cycle)] if cycle else [])
            for one in colors
            for line in _told_of_color(self._program, past, (x, y), one, number)
        ]
        if not told and color is not None:
            raise error(
                "debug-no-wavelet",
                f"no wavelet of color {color} has come to PE ({x}, {y}) up to cycle {cycle:,}",
                help="go on, or look where it is: queues, routes, why",
            )
        return told

    def _until(self, cycle: int) -> _Past:
        """The run, done again up to a cycle at least once, and kept."""
        if self._past is None or self._past.cycle != cycle:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "run.record"
                replay(self._program, self._journal, until=cycle, record=file)
                record = read_record(file)
                found, passages = followed(record)
                operations = operations_of(record)
            sender = senders_of(operations, found, self._program.height)
            self._past = _Past(cycle, found, passages, operations, sender)
        return self._past


def _told_of_color(
    program: Program, past: _Past, at: tuple[int, int], color: int, number: int | None
) -> Iterator[str]:
    """A wavelet of a color that came to a PE, its sender and its way; nothing for none."""
    found, way = past.wavelets, past.passages
    ends = _of(found, at, color) & (found.arrived >= 0)
    lands = _of(way, at, color)
    came = [*zip(found.arrived[ends], found.wavelet[ends], strict=True)]
    came += zip(way.landed[lands], way.wavelet[lands], strict=True)
    if not came:
        return
    order = [*dict.fromkeys(int(one) for _, one in sorted(came))]
    if number is not None and not 0 < number <= len(order):
        raise error(
            "debug-no-wavelet",
            f"there is no number {number} of color {color}: {counted(len(order), 'wavelet')} came"
            f" to PE {at} up to cycle {past.cycle:,}",
            help="count them from 1 on, in the order in which they came",
        )
    wavelet = max(came)[1] if number is None else order[number - 1]
    (branches,) = np.nonzero(found.wavelet == wavelet)
    here = [one for one in branches.tolist() if _of(found, at, color)[one]]
    one = (here or branches.tolist())[0]
    control = "a control wavelet, " if found.is_control[one] else ""
    which = "the last" if number is None else f"number {number}"
    yield (
        f"color {color}: {control}{int(found.data[one]):#010x}, "
        f"{which} of {counted(len(order), 'wavelet')} that came"
    )
    yield f"  {_sender(program, past, one)}"
    passed = [*_way(past, int(wavelet))]
    if passed:
        yield f"  by the routers of {', '.join(passed)}"
    if here and found.arrived[one] >= 0:
        taken = int(found.consumed[one])
        told = f"  into the core at cycle {int(found.arrived[one]):,}"
        yield told + (f", taken at {taken:,}" if taken >= 0 else ", and not taken yet")


def _of(rows: Wavelets | Passages, at: tuple[int, int], color: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows.x == at[0]) & (rows.y == at[1]) & (rows.color == color)
    return found


def _sender(program: Program, past: _Past, one: int) -> str:
    found = past.wavelets
    sent = f"at cycle {int(found.sent[one]):,}"
    if found.from_x[one] < 0:
        return f"the host sent it, {sent}"
    who = f"PE ({found.from_x[one]}, {found.from_y[one]}) sent it, {sent}"
    operation = int(past.sender[one])
    if operation < 0:
        return who
    events = past.operations.events
    name = VECTOR_OPS_BY_CODE[int(events.number[operation])].name
    where = program.text_of_place(int(events.place[operation]))
    return f"{who}: {slot_name(int(events.slot[operation]))}, @{name}, at {where}"


def _way(past: _Past, wavelet: int) -> Iterator[str]:
    way = past.passages
    (rows,) = np.nonzero(way.wavelet == wavelet)
    for row in rows[np.argsort(way.landed[rows], kind="stable")].tolist():
        yield f"({way.x[row]}, {way.y[row]}) at {int(way.landed[row]):,}"
