"""A timeline as a value change dump (VCD), for Surfer and GTKWave: a nanosecond is a cycle."""

from collections import defaultdict
from collections.abc import Iterator
from io import StringIO
from typing import Any, Final, NamedTuple

from vcd import VCDWriter

from openwafer import __version__
from openwafer.sdk.profile.timeline import Timeline

_NOTHING: Final = ""
"""Of a thread that does nothing."""
_NO_WAVELET: Final = "z"
_WORD_BITS: Final = 32
_DEPTH_BITS: Final = 8


class Change(NamedTuple):
    """A signal of a PE has a value from a cycle on; of two in one cycle the later one counts."""

    x: int
    y: int
    signal: str
    cycle: int
    value: str | int


def vcd_text(found: Timeline) -> str:
    """The text of a dump.

    Each PE is a scope with texts of what threads do, depths of queues, and for each color the
    wavelet that lands at the router in a cycle.
    """
    whole = StringIO()
    changes = _settled(found)
    with VCDWriter(whole, timescale="1 ns", date="", version=f"openwafer {__version__}") as writer:
        variables = {
            key: _registered(writer, *key)
            for key in sorted({(one.x, one.y, one.signal) for one in changes})
        }
        for one in changes:
            writer.change(variables[one.x, one.y, one.signal], one.cycle, one.value)
        writer.close(found.end)
    return whole.getvalue()


def _registered(writer: VCDWriter, x: int, y: int, signal: str) -> Any:
    scope = f"PE_{x}_{y}"
    if signal.startswith("color"):
        return writer.register_var(scope, signal, "wire", size=_WORD_BITS, init=_NO_WAVELET)
    if signal.startswith(("input", "output")):
        return writer.register_var(scope, signal, "integer", size=_DEPTH_BITS, init=0)
    return writer.register_var(scope, signal, "string", init=_NOTHING)


def _settled(found: Timeline) -> list[Change]:
    """All changes by cycle, the last of each signal in a cycle."""
    kept: dict[tuple[int, int, int, str], Change] = {}
    # Sorting keeps the order of equal cycles: an end comes before the next begin.
    for one in sorted((*_of_threads(found), *_of_colors(found)), key=lambda one: one.cycle):
        kept[one.cycle, one.x, one.y, one.signal] = one
    for depth in found.depths:
        signal = depth.queue.replace(" ", "_")
        kept[depth.cycle, depth.x, depth.y, signal] = Change(
            depth.x, depth.y, signal, depth.cycle, depth.depth
        )
    return [kept[key] for key in sorted(kept)]


def _of_threads(found: Timeline) -> Iterator[Change]:
    for one in found.spans:
        signal = one.thread.replace(" ", "_")
        yield Change(one.x, one.y, signal, one.end, _NOTHING)
    for one in found.spans:
        signal = one.thread.replace(" ", "_")
        yield Change(one.x, one.y, signal, one.begin, one.name)


def _of_colors(found: Timeline) -> Iterator[Change]:
    ends: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for x, y, color, cycle, _ in found.landings:
        ends[x, y, color].add(cycle + 1)
    for (x, y, color), cycles in ends.items():
        for cycle in cycles:
            yield Change(x, y, f"color_{color}", cycle, _NO_WAVELET)
    for x, y, color, cycle, word in found.landings:
        yield Change(x, y, f"color_{color}", cycle, word)
