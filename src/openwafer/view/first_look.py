"""A run before its events are read: which it is, its program, the host; loads no simulator."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import openwafer.sdk.host as host
from openwafer import view
from openwafer.diagnostics import error
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host.beside import program_of_run
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.program.program import Program
from openwafer.view.kept import journal_of
from openwafer.view.programs import program_columns
from openwafer.view.shown import Shown

if TYPE_CHECKING:
    from openwafer.sdk.host import Record
    from openwafer.view.symbols import Symbols

NAME_IT: Final = "name its folder: --program OUT"
Choose = Callable[[Sequence[tuple[Program, Journal]]], tuple[Program, Journal]]


def file_of_run(path: Path, choose: Choose) -> Path:
    """The journal of a folder's run, of several the chosen one; else the path itself."""
    files = sorted(path.glob("*.journal")) if path.is_dir() else []
    if not files:
        return path
    runs = journals.runs_in(path)
    chosen = choose(runs)
    return files[next(number for number, one in enumerate(runs) if one is chosen)]


def first_look(path: Path, program: Program, run: "Journal | Record") -> Shown:
    """What a run shows before its columns are made: routes, source, and of a journal the host."""
    journal = run if isinstance(run, Journal) else None
    made = program_columns(program, path.name, journal)
    return Shown(made.content(), symbols_of(path, program, run))


def program_and_run(path: Path, folder: Path | None) -> "tuple[Program, Journal | Record]":
    """The program of a run, and its journal or its record, by the path's suffix.

    Raises OpenwaferError for what is damaged, or does not belong together.
    """
    if path.suffix == ".journal":
        journal = journals.read(path)
        program = program_of_run(path, journal.program, folder, NAME_IT)
        journal.require_program(program)
        return program, journal
    if not path.exists():
        raise error(
            "view-nothing",
            f"there is nothing at {path}",
            help="name a journal, a record, a folder of these, a program, or a training run",
        )
    record = host.read_record(path)
    program = program_of_run(path, record.head.program, folder, NAME_IT)
    record.require_program(program)
    return program, record


def symbols_of(
    path: Path, program: Program, run: "Journal | Record"
) -> "Callable[[], Symbols] | None":
    """What looks at memory of a run; None for a record without its journal beside."""
    if not isinstance(run, Journal):
        file = journal_of(path)
        journal = None if file is None else journals.read(file)
        if journal is None or journal.program != run.head.program:
            return None
        run = journal
    journal = run
    return lambda: view.Symbols(program, journal)


def symbols_of_file(path: Path) -> "Symbols":
    """The same of a journal, or of one beside a record, with the program beside it.

    Raises OpenwaferError where that is missing, damaged, or of something else.
    """
    journal = journals.read(journal_of(path) or path)
    return view.Symbols(program_of_run(path, journal.program, None, NAME_IT), journal)
