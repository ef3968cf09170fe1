"""A clock that is read and never started."""

from collections.abc import Iterator

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.imports import LIBRARY
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.ir import function as ir


def clock_never_enabled(state: ImageState) -> Iterator[Diagnostic]:
    """A warning where code asks `<time>` for the clock, and nothing in the image starts it."""
    functions = state.module.functions
    code = [one for function in functions.values() for one in function.instructions]
    if state.machine.registers or any(_may_start_clock(one) for one in code):
        return
    reading = tuple(f"{prefix}get_timestamp" for prefix in _clocks(state))
    for one in code:
        if one.op == "call" and one.names[0].startswith(reading):
            file, line, _, where = state.tables.places[one.place].written
            yield Diagnostic(
                Severity.WARNING,
                "csl-clock-stopped",
                "the clock is read and never started: it stays where it is",
                notes=(f"read at {file}:{line} ({where})",),
                help="call enable_tsc() of <time> before the first reading",
            )
            return


def _may_start_clock(one: ir.Instruction) -> bool:
    return one.op == "write_register" or (one.op == "timestamp_control" and "enable" in one.names)


def _clocks(state: ImageState) -> Iterator[str]:
    """Prefixes of the imports of `<time>` in the program's own files."""
    for prefix, module in state.modules.items():
        importer = prefix.rpartition(".")[0].rpartition(".")
        own = state.modules["".join(importer[:2])]
        if module.path == LIBRARY / "time.csl" and not own.path.is_relative_to(LIBRARY):
            yield prefix
