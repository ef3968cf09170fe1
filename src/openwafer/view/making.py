"""Columns of a run are made behind its page, in a process of its own, and kept beside the run."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from openwafer import view
from openwafer.atomic_file import growing, remove_abandoned, write_bytes
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.view.first_look import first_look, program_and_run
from openwafer.view.following import Live, stamp_of
from openwafer.view.kept import kept_path, mark_of
from openwafer.view.shown import Shown

_ORDERED: Final = "Its events are read and ordered for this page"
_AGAIN: Final = "The run is done again for this page"

_NOT_MADE: Final = Diagnostic(Severity.ERROR, "view-not-made", "")

_START_SECONDS: Final = 1.0
_NICENESS: Final = 10


@contextmanager
def made_behind(run: Path, program: Path | None) -> Iterator[Live]:
    """Context in which the columns of a run are made, and what there is of them by now.

    Args:
        run: a journal or a record; the columns lie beside it in the end, if its folder may be
            written to.
        program: output folder of cslc, where the program does not lie beside.
    """
    with TemporaryDirectory() as folder:
        target = kept_path(run if os.access(run.parent, os.W_OK) else Path(folder) / run.name)
        record = Path(folder) / "run.record"
        ours, theirs = get_context("spawn").Pipe(duplex=False)
        given = run.absolute(), program, record, target.absolute(), theirs
        process = get_context("spawn").Process(target=_make, args=given, daemon=True)

        def start() -> None:
            process.start()
            theirs.close()

        making = _Making(run, program, record, target, ours)
        # By then a page has its processors for itself.
        begin = threading.Timer(_START_SECONDS, start)
        begin.start()
        try:
            yield making.live()
        finally:
            begin.cancel()
            begin.join()
            if process.pid is not None:
                process.terminate()
                process.join()


class _Making:
    """What is known here of the process that makes columns."""

    def __init__(
        self, run: Path, program: Path | None, record: Path, target: Path, told: Connection
    ) -> None:
        self._own, found = program_and_run(run, program)
        self._first = first_look(run, self._own, found)
        self._run, self._record, self._target, self._told = run, record, target, told
        self._failure: tuple[Diagnostic, ...] | None = None

    def live(self) -> Live:
        """The same for who follows it."""
        return Live(self._stamp, self._open, self._has_ended, self._doing)

    def _has_ended(self) -> bool:
        if self._failure is None and self._told.poll():
            try:
                self._failure = self._told.recv()
            except EOFError:
                told = "the process that made them has ended too soon; was memory short?"
                self._failure = _not_made(told)
        return self._failure is not None

    def _stamp(self) -> tuple[object, ...]:
        file = growing(self._record)
        return self._has_ended(), *stamp_of([file] if file else [])

    def _open(self) -> tuple[Shown, bool]:
        if self._has_ended():
            if self._failure:
                raise OpenwaferError(*self._failure)
            return Shown(self._target, self._first.symbols), True
        file = growing(self._record)
        if file is None:
            return self._first, False
        made = view.columns_so_far(self._own, file, self._run.name)
        return Shown(made.content(), self._first.symbols), False

    def _doing(self) -> str:
        is_again = self._run.suffix == ".journal" and not self._record.is_file()
        return _AGAIN if is_again else _ORDERED


def _make(run: Path, program: Path | None, record: Path, target: Path, told: Connection) -> None:
    """Make columns; tells why there are none, or nothing once they lie there."""
    # Ctrl-C is for the process that shows them, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    try:
        remove_abandoned(target)
        mark = mark_of(run)
        content = view.columns_of_run(run, program, record).content(mark)
        _require_room(target, len(content))
        # Who shows them ends this process by the signal; a file that is begun is removed then.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        write_bytes(target, content)
    except OpenwaferError as refused:
        first, *others = refused.diagnostics
        told.send((*_not_made(first.message, first), *others))
    except OSError as refused:
        told.send(_not_made(str(refused)))
    else:
        told.send(())


def _not_made(why: str, found: Diagnostic = _NOT_MADE) -> tuple[Diagnostic, ...]:
    return (replace(found, message=f"the run cannot be shown whole: {why}"),)


def _require_room(target: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if num_bytes > free:
        raise error(
            "view-no-room",
            f"{target} needs {num_bytes:,} bytes, and its disk has {free:,} left",
            help="make room there, or copy the run and its program to another disk",
        )
