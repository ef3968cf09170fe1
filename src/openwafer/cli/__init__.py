"""The command line: ``openwafer train``, ``resume``, ``export`` and so on.

Commands import what they need when they run, so that help is quick and loads no torch, and so that
Ctrl-C finds hardly a moment before :func:`loading`.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openwafer.diagnostics import Diagnostic

# A disk that is full or refuses to be used is no fault of the program.
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
REMEDIES = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the link that leads to itself",
}

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130

__all__ = ["main"]


@contextmanager
def loading() -> Iterator[None]:
    """Context of imports, in which Ctrl-C ends the process at once and without a word.

    Some libraries would make an error of their own of it.
    """
    # A command in the background of a shell begins with the signal ignored.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def commands_beside() -> Path | None:
    """The folder of the command that runs, where our other commands lie, too; else None."""
    here = Path(sys.argv[0]).resolve().parent
    return here if (here / "cslc").is_file() else None


def main() -> None:
    """The program ``openwafer``: run its command, and end the process."""
    # Left alone, it ends a process as it stands, with another code and with what lies in /tmp.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _end_at_once_if_others_wait(end.code or 0)
        raise


def _end_at_once_if_others_wait(code: int) -> None:
    """End the process now where threads still wait, such as for systems that are lost.

    One that gets its answer while the interpreter ends would take the process with it: the library
    that it waits in aborts.
    """
    if any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run() -> None:
    """Run the command of ``sys.argv``; a mistake ends with its diagnostics and exit code 2."""
    with loading():
        # Behind cslc and cs_python, whose start is short without a command line's library.
        from openwafer.cli.app import app
        from openwafer.diagnostics import OpenwaferError, render, tell, wants_color
    try:
        if sys.argv[1:2] == ["help"]:
            sys.argv[1:] = [*sys.argv[2:], "--help"]
        app()
    except OpenwaferError as found:
        color = wants_color(sys.stderr)
        text = "\n\n".join(render(diagnostic, color=color) for diagnostic in found.diagnostics)
        print(text, file=sys.stderr)
        sys.exit(EXIT_MISTAKE)
    except OSError as refusal:
        if refusal.errno not in (*REFUSALS, *REMEDIES):
            raise
        tell((_told(refusal),))
        sys.exit(EXIT_MISTAKE)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _told(refusal: OSError) -> "Diagnostic":
    from openwafer.diagnostics import Diagnostic, Severity

    remedy = (
        "make room on that disk, or use a folder that may be read and written; then go on with a "
        "run by openwafer resume"
    )
    return Diagnostic(
        Severity.ERROR,
        "system",
        f"{refusal.filename or 'a file'}: {refusal.strerror}",
        help=REMEDIES.get(refusal.errno or 0, remedy),
    )
