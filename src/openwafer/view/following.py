"""A run that goes on: what is shown is made again as its files grow."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.view.server import Viewer
from openwafer.view.shown import Shown

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


def follow(viewer: Viewer, live: Live, end: threading.Event) -> str:
    """Show more of a run whenever there is more, until it is over or an event is set.

    Gives why it cannot be shown whole, nothing where it can or is not over.
    """
    seen, told, next_look = live.stamp(), "", 0.0
    while not end.wait(LEAST_SECONDS):
        viewer.tell(told, live.doing())
        is_last, found = live.is_over(), live.stamp()
        if found == seen or (time.perf_counter() < next_look and not is_last):
            continue
        begin = time.perf_counter()
        try:
            run, is_over = live.open()
        except (OpenwaferError, OSError) as refused:
            # A file may be cut off where it is written; the next look is at more of it.
            told = str(refused)
            viewer.tell(told, live.doing())
            if is_last:
                return told
            continue
        seen, told = found, ""
        viewer.show(run, is_over=is_over)
        next_look = time.perf_counter() + (_SHARE - 1) * (time.perf_counter() - begin)
        if is_over:
            return ""
    return ""
