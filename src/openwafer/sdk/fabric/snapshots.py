"""A machine's state between two cycles, kept and brought back, also in another process.

What is kept is what the compiled core reads again, as the lines of eight words that are not all
zero; pages that nothing has written to are not even looked at. Native addresses, and what follows
from a run's options, stay the machine's own. So a snapshot goes back to any machine of the same
program, size and version. Code of PEs that waits in its middle is part of it only where the code
keeps its variables in the PE's memory, as native code does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.address_space import PAGE_BYTES, written_pages
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.sources import source_digest

LINE_WORDS: Final = 8
"""Words of a line; every region begins with one."""
_LINES_OF_PAGE: Final = PAGE_BYTES // (8 * LINE_WORDS)
_PAGES: Final = 4096
"""So many pages are looked at at a time."""
_OPTIONS: Final = (
    *(w.G_LOG, w.G_LOG_FIRST, w.G_LOG_END, w.G_LOG_BEGIN, w.G_LOG_LAST),
    *(w.G_EVENT_LIMIT, w.G_STOPS_AT_OVERRUN, w.G_SOURCE_ROOM),
)
_OF_BAND: Final = (
    w.G_ADDRESS,
    w.G_INTERRUPT,
    w.G_EPOCH,
    w.G_STOPS,
    w.G_STOP_PE,
    w.G_STOP_STATEMENT,
    w.G_WATCHED,
)
_NATIVE: Final = MappingProxyType(
    {"mailbox": (mb.PARAMS, mb.MAP, mb.MAP_STATE, mb.UNWRITTEN, mb.COUNTS)}
)
"""Words of a region's rows that are native addresses."""
_LEFT_OUT: Final = frozenset(("vector", "map", "moves", "crossings", "event", "text", "order"))
"""Regions that nothing changes once a program is loaded, and those that hold something within one
cycle alone, or until the host has taken it."""
_LISTS: Final = frozenset(("router_list", "core_list", "calls", "seen", "source", "source_data"))


@dataclass(frozen=True)
class Identity:
    """What a machine and a snapshot of it have in common.

    Attributes:
        program: digest of the program.
        size: columns and rows of PEs, and bands.
        code: how the code of PEs was made.
        edge: its ports.
        version: digest of the sources of the simulator and of what makes code.
    """

    program: str
    size: str
    code: str
    edge: str
    version: str


def version() -> str:
    """A word for the sources that states, and frames of code in them, follow from."""
    return source_digest("arch", "codegen", "fabric", "ir", "program")


@dataclass(frozen=True)
class Lines:
    """Lines of a state that are not all zero.

    Attributes:
        numbers: which ones, ascending, shape (n,).
        words: shape (n, 8).
    """

    numbers: NDArray[np.int64]
    words: Array


@dataclass(frozen=True)
class Snapshot:
    """What a machine was: what each band has of its own, and what all share."""

    machine: Identity
    own: tuple[Lines, ...]
    shared: Lines

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return sum(one.numbers.nbytes + one.words.nbytes for one in (*self.own, self.shared))

    def digest(self) -> str:
        """XXH3, 128 bits, of the present and of what bands share, in hexadecimal.

        Equal states of PEs have equal ones, also in machines with other numbers of bands; one that
        an error has stopped in the middle of a cycle may have another one there.
        """
        numbers, words = self.shared.numbers, self.shared.words.copy()
        # In which order cores sleep follows from the order of the lists of those that are awake.
        sleep = _Stretch(w.SLEEP, w.SHARED["sleep"].end, w.SLEEP_WORDS, (w.Z_NEXT,))
        first, last = np.searchsorted(numbers, (sleep.begin // LINE_WORDS, sleep.last_line))
        words[first:last][sleep.is_kept_out(numbers[first:last])] = 0
        is_kept = words.any(axis=1)
        parts = self.own[0].words[0, w.G_NOW], numbers[is_kept], words[is_kept]
        return xxhash.xxh3_128_hexdigest(b"".join(part.tobytes() for part in parts))


@dataclass(frozen=True)
class _Stretch:
    """Words of a state, the first at the begin of a line.

    Attributes:
        begin: the first one.
        end: the first one behind.
        row: how many make up a row.
        kept_out: words of each row that stay the machine's own.
        is_whole: it is a list as long as a scalar says, behind which lies what nobody reads: all of
            its lines are kept, since in another machine something else may lie there.
    """

    begin: int
    end: int
    row: int
    kept_out: tuple[int, ...] = ()
    is_whole: bool = False

    @property
    def last_line(self) -> int:
        """The first line behind."""
        return -(-self.end // LINE_WORDS)

    def is_kept_out(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which words of some lines stay the machine's own."""
        places = numbers[:, np.newaxis] * LINE_WORDS + np.arange(LINE_WORDS) - self.begin
        return np.isin(places % self.row, self.kept_out)

    def places_kept_out(self) -> NDArray[np.int64]:
        """Where these lie."""
        rows = np.arange(self.begin, self.end, self.row)
        return (rows[:, np.newaxis] + np.array(self.kept_out, np.int64)).ravel()

    def lines_of(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of its lines in some pages."""
        numbers = (pages[:, np.newaxis] * _LINES_OF_PAGE + np.arange(_LINES_OF_PAGE)).ravel()
        return numbers[(numbers >= self.begin // LINE_WORDS) & (numbers < self.last_line)]


def taken(machine: Identity, states: Sequence[Array]) -> Snapshot:
    """Copy what a machine is between two cycles; what bands have recorded was taken before."""
    own = tuple(_kept(state, tuple(_own_stretches(state))) for state in states)
    return Snapshot(machine, own, _kept(states[0], tuple(_shared_stretches(states[0]))))


def put_back(machine: Identity, states: Sequence[Array], snapshot: Snapshot) -> None:
    """Make a machine what another one was. Raises OpenwaferError where the two are not alike."""
    for one in fields(Identity):
        then, now = getattr(snapshot.machine, one.name), getattr(machine, one.name)
        if then != now:
            raise error(
                "snapshot-of-other-machine",
                f"the snapshot was taken of a machine whose {one.name} is {then}, and this one's "
                f"is {now}",
                help=_REMEDIES[one.name],
            )
    for state, lines in zip(states, snapshot.own, strict=True):
        _put(state, tuple(_own_stretches(state)), lines)
    _put(states[0], tuple(_shared_stretches(states[0])), snapshot.shared)


_REMEDIES: Final = MappingProxyType(
    {
        "program": "restore it into a machine of the same program, compiled in the same way",
        "size": "restore it into a machine with as many PEs and threads",
        "code": "restore it into a machine whose code is made in the same way, checks included",
        "edge": "restore it into a machine with the same ports",
        "version": "a snapshot belongs to one version of openwafer; replay the run's journal",
    }
)


def _kept(state: Array, stretches: Sequence[_Stretch]) -> Lines:
    """A copy of all lines that are not zero."""
    parts = [_copied(state, *part) for part in _written(state, stretches)]
    numbers = [numbers for numbers, _ in parts]
    words = [words for _, words in parts]
    return Lines(np.concatenate(numbers), np.concatenate(words))


def _written(
    state: Array, stretches: Sequence[_Stretch]
) -> Iterator[tuple[_Stretch, NDArray[np.int64]]]:
    """Lines that may hold something else than zeros, part by part."""
    extents = [(8 * stretch.begin, 8 * stretch.end) for stretch in stretches]
    for stretch, pages in zip(stretches, written_pages(state, extents), strict=True):
        for start in range(0, pages.size, _PAGES):
            yield stretch, stretch.lines_of(pages[start : start + _PAGES])


def _copied(
    state: Array, stretch: _Stretch, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Array]:
    words = _as_lines(state)[numbers]
    beyond = stretch.last_line * LINE_WORDS - stretch.end
    if beyond:
        words[numbers == stretch.last_line - 1, LINE_WORDS - beyond :] = 0
    if stretch.kept_out:
        words[stretch.is_kept_out(numbers)] = 0
    is_kept = words.any(axis=1) | stretch.is_whole
    return numbers[is_kept], words[is_kept]


def _put(state: Array, stretches: Sequence[_Stretch], lines: Lines) -> None:
    """Write lines, and zeros where there are none; what is kept out stays."""
    places = np.concatenate([one.places_kept_out() for one in stretches if one.kept_out])
    own = state[places]
    for _, numbers in _written(state, stretches):
        _as_lines(state)[numbers] = 0
    _as_lines(state)[lines.numbers] = lines.words
    state[places] = own


def _as_lines(state: Array) -> Array:
    return state[: state.size // LINE_WORDS * LINE_WORDS].reshape(-1, LINE_WORDS)


def _own_stretches(state: Array) -> Iterator[_Stretch]:
    """What a band has of its own, but for addresses of bands; lists as long as scalars say."""
    yield _Stretch(0, w.G_BAND_ADDRESSES, w.G_BAND_ADDRESSES, _OPTIONS)
    kept_out = tuple(place - w.SAME_WORDS for place in _OF_BAND)
    yield _Stretch(w.SAME_WORDS, w.GLOBAL_WORDS, w.GLOBAL_WORDS - w.SAME_WORDS, kept_out)
    used = {
        "router_list": (state[w.G_ROUTERS],),
        "core_list": (state[w.G_CORES],),
        "calls": (state[w.G_CALLS], state[w.G_CALLS + 1]),
        "seen": (state[w.G_SEEN],),
    }
    yield from _stretches(w.OWN, used, 0)


def _shared_stretches(state: Array) -> Iterator[_Stretch]:
    tables = Tables(state)
    sources = tables.source[: state[w.G_SOURCE_ROWS]]
    used = {
        "filter": (state[w.G_FILTERS],),
        "image": (tables.processor[:, w.P_IMAGE].max() + 1,),
        "source": (state[w.G_SOURCE_ROWS],),
        "source_data": (np.max(sources[:, w.S_END], initial=0),),
    }
    yield from _stretches(w.SHARED, used, int(state[w.G_NUM_PES]))


def _stretches(
    regions: Mapping[str, w.Region], used: Mapping[str, tuple[int, ...]], num_pes: int
) -> Iterator[_Stretch]:
    """Each set of rows of each region, as far as they are in use."""
    for name, region in regions.items():
        shape = region.shape
        rows = used.get(name, (num_pes if shape.is_by_pe else shape.rows,) * shape.sets)
        for number in range(shape.sets if name not in _LEFT_OUT else 0):
            begin = region.start + number * shape.rows * shape.words
            end = begin + int(rows[number]) * shape.words
            yield _Stretch(begin, end, shape.words, _NATIVE.get(name, ()), name in _LISTS)
