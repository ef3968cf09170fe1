"""What decided the last cycle of a run, as a path without gaps."""

from openwafer.sdk.host import Record
from openwafer.sdk.profile.history import History
from openwafer.sdk.profile.segments import CriticalPath
from openwafer.sdk.profile.way_back import Walk
from openwafer.sdk.program.program import Program


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
    record.require_program(program)
    walk = Walk(History(record), program, first)
    return CriticalPath(walk.segments(last))
