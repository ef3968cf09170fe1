"""What decided the last cycle of a run, as a path without gaps, and as text."""

from collections.abc import Iterator
from typing import Final

from openwafer.diagnostics import counted, error
from openwafer.sdk.host import Record
from openwafer.sdk.profile.history import History
from openwafer.sdk.profile.segments import CriticalPath, Segment
from openwafer.sdk.profile.way_back import Walk
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.program import Program

MOST_LINES: Final = 20
"""Of each list of the text."""
LEAST_SHARE: Final = 5
"""Of the path, in percent: what helps against less is not said."""


def critical_path(
    record: Record, program: Program, *, first: int = 0, last: int | None = None
) -> CriticalPath:
    """What decided when the last task or operation ended, or the last one up to a cycle.

    Args:
        record: of a whole run.
        program: that ran.
        first: cycle at which the path begins, such as that of a command's launch.
        last: what ended behind this cycle is not looked at; None is the end.

    Raises:
        OpenwaferError: the record is of a part of the run, or of another program.
    """
    if record.head.program != digest_of(program):
        raise error(
            "record-of-other-program",
            f"{record.path} is of the program {record.head.program}, not of this one",
            help="give the program that the run was of, compiled in the same way",
        )
    walk = Walk(History(record), program, first)
    return CriticalPath(walk.segments(last))


def path_text(path: CriticalPath) -> str:
    """A critical path as people read it: costs, most first, what helps, and the longest parts."""
    return "\n".join(_lines(path)) + "\n"


def _lines(path: CriticalPath) -> Iterator[str]:
    costs = path.costs()
    num = counted(len(path.segments), "segment")
    yield f"critical path: {counted(path.cycles, 'cycle')}, {num}"
    yield ""
    yield f"{'cycles':>9} {'%':>5} {'waited':>9}  for"
    for cost in costs[:MOST_LINES]:
        share = 100 * cost.cycles / max(1, path.cycles)
        named = _named(cost.reason, cost.where, cost.color)
        yield f"{cost.cycles:>9} {share:>5.1f} {cost.waited:>9}  {named}"
        if cost.remedy and (share >= LEAST_SHARE or cost.waited):
            yield f"{'':>26}= help: {cost.remedy}"
    yield ""
    longest = sorted(path.segments, key=lambda one: -one.cycles)[:MOST_LINES]
    yield f"{'from':>9} {'to':>9}  {'PE':<10} for"
    for one in sorted(longest, key=lambda one: one.begin):
        named = _named(one.reason, one.where, one.color)
        yield f"{one.begin:>9} {one.end:>9}  {_pe(one):<10} {named}"


def _pe(segment: Segment) -> str:
    return "host" if segment.x < 0 else f"({segment.x}, {segment.y})"


def _named(reason: str, where: str, color: int) -> str:
    return reason + (f", color {color}" if color >= 0 else "") + (f": {where}" if where else "")
