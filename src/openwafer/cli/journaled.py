"""A host script runs once, and its runs of programs are done again from their journals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeAlias

from openwafer.cli import commands_beside

if TYPE_CHECKING:
    from openwafer.sdk.host.journal import Journal
    from openwafer.sdk.program.program import Program

    Run: TypeAlias = tuple[Program, Journal]

_ENDED_BY_SIGNAL: Final = 128
_MODULE: Final = "openwafer.cli.cs_python"


@contextmanager
def journaled(
    script: Sequence[str], out: Path | None
) -> "Iterator[tuple[int, Sequence[Run] | None]]":
    """Run a script in a process of its own; gives its exit code, and its runs in their order.

    Args:
        script: and its arguments.
        out: folder of the program whose runs they are; None for those of all programs.

    There are no runs where the script failed before one. Raises OpenwaferError where it has run no
    program at all, or not that of the folder.
    """
    from openwafer.sdk.host import read_program
    from openwafer.sdk.host.journal import JOURNAL_VARIABLE, runs_in

    with TemporaryDirectory() as folder:
        environment = {**os.environ, **_commands(), JOURNAL_VARIABLE: folder}
        code = _ended([sys.executable, "-m", _MODULE, *script], environment)
        # What it was compiled to when the script ran, which may have done that.
        program = None if out is None else read_program(out)
        has_run = not code or any(Path(folder).glob("*.journal"))
        yield code, runs_in(Path(folder), program) if has_run else None


def chosen_run(runs: "Sequence[Run]", asked: int | None) -> "Run":
    """The run of a number, from 1 on, or that with most cycles; says which of several it is."""
    from openwafer.diagnostics import counted, error

    lengths = [journal.last_cycle for _, journal in runs]
    number = asked or 1 + lengths.index(max(lengths))
    if number > len(runs):
        raise error(
            "profile-no-such-run",
            f"there is no run {number}: the script has {counted(len(runs), 'run')} of the program",
            help=f"give --run a number from 1 to {len(runs)}",
        )
    if len(runs) > 1:
        print(f"run {number} of {len(runs)}; --run N shows another one\n")
    return runs[number - 1]


def _commands() -> dict[str, str]:
    """The PATH by which a script's own processes find the commands beside this one first."""
    here = commands_beside()
    return {} if here is None else {"PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"}


def _ended(command: Sequence[str], environment: dict[str, str]) -> int:
    """The exit code of a command, as a shell has it for one that a signal ended.

    Ctrl-C is for the command, and what it leaves is shown.
    """
    process = subprocess.Popen(command, env=environment)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
        return code if code >= 0 else _ENDED_BY_SIGNAL - code
    finally:
        signal.signal(signal.SIGINT, before)
