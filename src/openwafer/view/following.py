"""A run that goes on: what is shown is made again as its files grow."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.host.beside import program_of_run
from openwafer.sdk.host.record import growing_record, read_growing, read_record
from openwafer.view.opened import NAME_IT, opened
from openwafer.view.server import Viewer
from openwafer.view.shown import Shown
from openwafer.view.wafer import wafer_columns

LEAST_SECONDS: Final = 1.0
"""Between two looks at the files."""
_SHARE: Final = 10
"""What is shown is made again for one part of so many of the time at most."""
_TRIES: Final = 6
"""Of a file that has just begun."""


@dataclass(frozen=True)
class Live:
    """A run that goes on.

    Attributes:
        stamp: gives what differs once its files have grown; nothing while there are none.
        open: gives what there is by now, and whether that is all.
        is_over: says whether no more comes, so that what is left is opened at once.
        doing: says what is done meanwhile, as the begin of a sentence.
    """

    stamp: Callable[[], tuple[object, ...]]
    open: Callable[[], tuple[Shown, bool]]
    is_over: Callable[[], bool] = lambda: False
    doing: Callable[[], str] = lambda: ""


def stamp_of(files: list[Path]) -> tuple[object, ...]:
    """What differs once one of some files has grown."""
    found = []
    for file in files:
        try:
            told = file.stat()
        except OSError:
            # It has got its name meanwhile.
            continue
        found.append((file.name, told.st_size, told.st_mtime_ns))
    return tuple(found)


def live_record(path: Path, program: Path | None) -> Live:
    """A record that is being written.

    Args:
        path: the name that it will have, or a folder: then its newest one.
        program: output folder of cslc, where the program does not lie beside.
    """

    def named() -> Path:
        if not path.is_dir():
            return path
        found = [*path.glob("*.record"), *path.glob(".*.record")]
        if not found:
            return path / "0000.record"
        newest = max(found, key=lambda one: one.stat().st_mtime_ns)
        return path / f"{newest.name.lstrip('.').partition('.')[0]}.record"

    def files() -> list[Path]:
        growing = growing_record(named())
        return [one for one in (named(), growing) if one is not None]

    return Live(
        lambda: stamp_of(files()),
        lambda: _record(named(), program),
        lambda: named().is_file(),
    )


def _record(path: Path, program: Path | None) -> tuple[Shown, bool]:
    growing = growing_record(path)
    if path.is_file() or growing is None:
        record = read_record(path)
        program_of_run(path, record.head.program, program, NAME_IT)
        return opened(path, lambda runs: runs[0], program), True
    record = read_growing(growing)
    own = program_of_run(path, record.head.program, program, NAME_IT)
    return Shown(wafer_columns(own, record, None, title=path.name).content()), False


def first_opened(live: Live) -> tuple[Shown, bool]:
    """What there is of a run once it has begun. Raises OpenwaferError for what is none."""
    while not live.stamp():
        time.sleep(LEAST_SECONDS)
    for _ in range(_TRIES):
        try:
            return live.open()
        except (OpenwaferError, OSError) as found:
            refused = found
            time.sleep(LEAST_SECONDS / 2)
    if isinstance(refused, OpenwaferError):
        raise refused
    raise error("view-nothing", f"it cannot be followed: {refused}") from refused


def follow(viewer: Viewer, live: Live, end: threading.Event) -> None:
    """Show more of a run whenever there is more, until it is over or an event is set."""
    seen, told, next_look = live.stamp(), "", 0.0
    while not end.wait(LEAST_SECONDS):
        viewer.tell(told, live.doing())
        found = live.stamp()
        if found == seen or (time.perf_counter() < next_look and not live.is_over()):
            continue
        begin = time.perf_counter()
        try:
            run, is_over = live.open()
        except (OpenwaferError, OSError) as refused:
            # A file may be cut off where it is written; the next look is at more of it.
            told = str(refused)
            viewer.tell(told, live.doing())
            continue
        seen, told = found, ""
        viewer.show(run, is_over=is_over)
        next_look = time.perf_counter() + (_SHARE - 1) * (time.perf_counter() - begin)
        if is_over:
            return
