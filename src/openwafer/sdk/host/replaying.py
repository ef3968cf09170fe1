"""A run is done again from its program and its journal, in any process."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.fabric import Simulator, Standing
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host.checks import Warnings
from openwafer.sdk.host.journal import Entry, Journal
from openwafer.sdk.host.line_cycles import BookedRun, CodeCounters
from openwafer.sdk.host.operations import Interpreter, Words
from openwafer.sdk.host.pe_code import MAX_THREADS, Form, PeCode
from openwafer.sdk.host.record import CarryOut, RecordOptions, record_options, recorded, scope_of
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.host.time_bins import bins_of
from openwafer.sdk.program.program import Program

DIVERGED: Final = "journal-diverged"
"""Code of the error where something comes out otherwise than in the run."""
_NO_ERROR: Final = "no error"
Compare: TypeAlias = Callable[[str, object, object], None]
"""Is told what something is, as it was in the run, and as it is now."""


@dataclass(frozen=True)
class Replayed:
    """A run that was done again.

    Attributes:
        simulator: the fabric as the run left it, or as it was at the end of the cycle asked for.
        results: what the host got of each operation that has ended; None where it gets nothing.
        code: of the PEs, which the simulator calls by address.
        booked: the run for its profile, where code counts.
    """

    simulator: Simulator
    results: tuple[Words | None, ...]
    code: PeCode
    booked: BookedRun | None = None


class _CycleReached(Exception):  # noqa: N818 - no mistake: the end that was asked for
    """The fabric is at the cycle at which a replay ends."""


def replay(
    program: Program,
    journal: Journal | PathLike,
    *,
    until: int | None = None,
    has_account: bool = False,
    has_line_cycles: bool = False,
    record: RecordOptions | PathLike | None = None,
) -> Replayed:
    """Do again what a run did; each operation has to begin and to end as it did then.

    One that the user interrupted ends at the same cycle.

    Args:
        program: the one that the run was of.
        journal: of the run, or its file.
        until: end with this cycle, also in the middle of an operation; None does all of them.
        has_account: the time of each PE is booked.
        has_line_cycles: code counts its cycles, too.
        record: file that gets what happens; with options also what of it.

    Raises:
        OpenwaferError: the journal is damaged or of another program, or something came out
            otherwise than in the run.
    """
    options = record_options(record)
    if not isinstance(journal, Journal):
        journal = journals.read(path_of(journal, "journal"))
    journal.require_program(program)
    simulator, code = journal.rules.machine_of(
        program,
        MAX_THREADS,
        has_account=has_account,
        form=Form.COUNTING if has_line_cycles else Form.PLAIN,
        scope=scope_of(options),
    )
    counters, bins = None, None
    if has_line_cycles:
        counters, bins = CodeCounters(program, simulator), bins_of(program, simulator)
    if until is not None:
        simulator.look_at(until, _end)
    interpreter = Interpreter(HostSymbols(program), simulator, Warnings(), journal.rules)
    results: list[Words | None] = []
    with (
        recorded(interpreter.carry_out, program, simulator, options) as carry_out,
        suppress(_CycleReached),
    ):
        for result in redo(journal, simulator, carry_out):
            results.append(result)  # noqa: PERF402 - those before the end, too
    if counters is None:
        return Replayed(simulator, tuple(results), code)
    booked = BookedRun(program, simulator, counters, bins, interpreter.failure)
    return Replayed(simulator, tuple(results), code, booked)


def redo(
    journal: Journal,
    simulator: Simulator,
    carry_out: CarryOut,
    first: int = 0,
    standing: Standing | None = None,
    compares: Compare | None = None,
) -> Iterator[Words | None]:
    """Carry operations out; gives what the host got of each that came to its end.

    Args:
        journal: of the run.
        simulator: that of `carry_out`.
        carry_out: does an operation.
        first: number of the first one.
        standing: where that one stood, which was under way.
        compares: what was then and is now; None raises where the two differ.

    Raises OpenwaferError where something comes out otherwise than in the run.
    """
    check = compares or compare
    for number, entry in enumerate(journal.entries[first:], first):
        goes_on = standing if number == first else None
        simulator.begin_operation(goes_on)
        if goes_on is None:
            check(f"{_named(entry, number)} began at cycle", entry.cycle, simulator.cycle)
        if number >= journal.num_ended:
            assert journal.interrupted_at is not None
            simulator.look_at(journal.interrupted_at, _end)
            # Code that does not come back to the fabric before that cycle goes on to an error.
            with suppress(OpenwaferError, _CycleReached):
                carry_out(entry.operation)
        elif goes_on is None:
            yield _redone(carry_out, entry, number, check)
        else:
            # What it gave was compared when it was done from its begin.
            with suppress(OpenwaferError):
                carry_out(entry.operation)
            yield None


def _end() -> None:
    raise _CycleReached


def _named(entry: Entry, number: int) -> str:
    return f"operation {number} ({type(entry.operation).__name__})"


def _redone(carry_out: CarryOut, entry: Entry, number: int, check: Compare) -> Words | None:
    where = _named(entry, number)
    result, failure = None, None
    try:
        result = carry_out(entry.operation)
    except OpenwaferError as raised:
        failure = str(raised)
    check(f"{where} failed with", entry.failure or _NO_ERROR, failure or _NO_ERROR)
    check(f"{where} gave words with the checksum", entry.result, journals.checksum(result))
    return result


def compare(what: str, before: object, now: object) -> None:
    """Raise OpenwaferError where something is otherwise than in the run."""
    if before != now:
        raise error(
            DIVERGED,
            f"{what} {before} in the run, and {now} now",
            help="replay it with the openwafer that wrote it; tell us if that is this one",
        )
