"""What a path names: a run of the fabric, a program, a trace, or columns that were exported."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.host import read_program, read_record
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.profile import profile_of_journal
from openwafer.sdk.program.program import Program
from openwafer.view import columns, traces
from openwafer.view.columns import Columns
from openwafer.view.first_look import Choose, file_of_run, program_and_run, symbols_of
from openwafer.view.kept import kept_columns
from openwafer.view.programs import program_columns
from openwafer.view.shown import Shown
from openwafer.view.symbols import Symbols
from openwafer.view.wafer import wafer_columns


def opened(path: Path, choose: Choose, program: Path | None = None) -> Shown:
    """Open a run by its path.

    Args:
        path: a journal, a record, a folder of journals, an output folder of cslc, a trace, or a
            file that was exported.
        choose: one of the runs of a folder.
        program: output folder of cslc, where the program does not lie beside the run.

    Raises OpenwaferError for what is none of these, is damaged, or does not belong together.
    """
    path = file_of_run(path, choose)
    if path.is_dir():
        return _folder(path)
    match path.suffix:
        case ".view":
            columns.mark_in(path)
            return Shown(path)
        case ".json" if path.exists():
            return Shown(traces.columns_of_trace(path).content())
        case _:
            found = program_and_run(path, program)
            content = kept_columns(path) or columns_of_run(path, program).content()
            return Shown(content, symbols_of(path, *found))


def opened_journal(program: Program, journal: Journal, title: str) -> Shown:
    """Do a run again with all that the page shows. Raises OpenwaferError as a replay does."""
    with TemporaryDirectory() as folder:
        made = _replayed(program, journal, title, Path(folder) / "run.record")
    return Shown(made.content(), partial(Symbols, program, journal))


def columns_of_run(path: Path, program: Path | None, record: Path | None = None) -> Columns:
    """All columns of a journal, whose run is done again, or of a record.

    Args:
        path: the journal, or the record.
        program: output folder of cslc, where the program does not lie beside.
        record: file that gets the events of a journal's run meanwhile; None for none.

    Raises OpenwaferError as :func:`opened`.
    """
    own, run = program_and_run(path, program)
    if not isinstance(run, Journal):
        return wafer_columns(own, run, None, title=path.name)
    with TemporaryDirectory() as folder:
        return _replayed(own, run, path.name, record or Path(folder) / "run.record")


def _replayed(program: Program, journal: Journal, title: str, file: Path) -> Columns:
    profile = profile_of_journal(program, journal, record=file)
    return wafer_columns(program, read_record(file), profile, title=title)


def _folder(path: Path) -> Shown:
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
    return Shown(program_columns(program, path.name).content())
