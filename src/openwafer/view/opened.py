"""What a path names: a run of the fabric, a program, a trace, or columns that were exported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host import read_program, read_record
from openwafer.sdk.host.beside import program_of_run
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.profile import profile_of_journal
from openwafer.sdk.program.program import Program
from openwafer.view import columns, traces
from openwafer.view.wafer import wafer_columns

NAME_IT: Final = "name its folder: --program OUT"
Choose = Callable[[Sequence[tuple[Program, Journal]]], tuple[Program, Journal]]


@dataclass(frozen=True)
class Opened:
    """What is shown.

    Attributes:
        content: of the file of columns, or that file.
        run: program and journal, where a PE's memory at a cycle can be computed.
        report: a page of its own, as HTML.
    """

    content: bytes | Path
    run: tuple[Program, Journal] | None = None
    report: str | None = None


def opened(path: Path, choose: Choose, program: Path | None = None) -> Opened:
    """Open a run by its path.

    Args:
        path: a journal, a record, a folder of journals, an output folder of cslc, a trace, or a
            file that was exported.
        choose: one of the runs of a folder.
        program: output folder of cslc, where the program does not lie beside the run.

    Raises OpenwaferError for what is none of these, is damaged, or does not belong together.
    """
    if path.is_dir():
        return _folder(path, choose)
    match path.suffix:
        case ".view":
            columns.check(path)
            return Opened(path)
        case ".json" if path.exists():
            return Opened(traces.columns_of_trace(path).content())
        case ".journal":
            journal = journals.read(path)
            own = program_of_run(path, journal.program, program, NAME_IT)
            return opened_journal(own, journal, path.name)
        case _:
            return _recorded(path, program)


def opened_journal(program: Program, journal: Journal, title: str) -> Opened:
    """Do a run again with all that the page shows. Raises OpenwaferError as a replay does."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.record"
        profile = profile_of_journal(program, journal, record=file)
        made = wafer_columns(program, read_record(file), profile, title=title)
    return Opened(made.content(), (program, journal))


def _recorded(path: Path, folder: Path | None) -> Opened:
    """A record, with the journal of the same run where that lies beside it."""
    if not path.exists():
        raise error(
            "view-nothing",
            f"there is nothing at {path}",
            help="name a journal, a record, a folder of these, a program, or a training run",
        )
    record = read_record(path)
    program = program_of_run(path, record.head.program, folder, NAME_IT)
    made = wafer_columns(program, record, None, title=path.name)
    beside = path.with_suffix(".journal")
    journal = journals.read(beside) if beside.is_file() else None
    is_same = journal is not None and journal.program == record.head.program
    return Opened(made.content(), (program, journal) if journal and is_same else None)


def _folder(path: Path, choose: Choose) -> Opened:
    if any(path.glob("*.journal")):
        program, journal = choose(journals.runs_in(path))
        return opened_journal(program, journal, path.name)
    records = sorted(path.glob("*.record"))
    if records:
        raise error(
            "view-no-journal",
            f"{path} has records and no journal, so nothing says which of them is meant",
            help=f"name one: openwafer view {records[0]} --program OUT",
        )
    try:
        program = read_program(path)
    except OpenwaferError as cause:
        raise error(
            "view-nothing",
            f"{path} is no run and no program: no journal, and {cause.diagnostics[0].message}",
            help="keep one: OPENWAFER_JOURNAL=FOLDER; or write: openwafer view OUT -- run.py",
        ) from cause
    return Opened(wafer_columns(program, None, None, title=path.name).content())
