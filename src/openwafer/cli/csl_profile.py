"""``openwafer csl profile`` and ``cs_python --profile``: where the cycles of a run went."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from openwafer.cli import commands_beside

if TYPE_CHECKING:
    from openwafer.sdk.host.journal import Journal
    from openwafer.sdk.program.program import Program

_ENDED_BY_SIGNAL: Final = 128
_MODULE: Final = "openwafer.cli.cs_python"


class By(StrEnum):
    """How PEs are grouped."""

    FILE = "file"
    IMAGE = "image"
    PE = "pe"


@dataclass(frozen=True)
class ProfileOptions:
    """What is shown of a script's runs.

    Attributes:
        files: to write the profile to, each in the form that its name asks for.
        by: how PEs are grouped.
        rows: most rows of a table.
        run: which of the script's runs, from 1 on; None for the one with most cycles.
        has_record: the critical path, and loads of links and colors, too.
        rectangle: column, row, columns and rows of the PEs; None for all.
    """

    files: tuple[Path, ...] = ()
    by: By = By.FILE
    rows: int = 20
    run: int | None = None
    has_record: bool = False
    rectangle: tuple[int, int, int, int] | None = None


def profile(  # noqa: PLR0913 - a command takes one for each option
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder of cslc.")],
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SCRIPT [ARGUMENT ...]", help="What cs_python would run."),
    ] = None,
    write: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Write it there, too: .html, .json, .speedscope.json, .txt."
        ),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Profile the run of a journal instead.")
    ] = None,
    by: Annotated[By, typer.Option(help="Which PEs are a group.")] = By.FILE,
    rows: Annotated[int, typer.Option(min=1, help="Most rows of a table.")] = 20,
    run: Annotated[
        int | None,
        typer.Option(min=1, help="Which run of the script; by default that with most cycles."),
    ] = None,
    has_record: Annotated[
        bool, typer.Option("--path", help="The critical path and loads of links, too.")
    ] = False,
    rectangle: Annotated[
        tuple[int, int, int, int] | None,
        typer.Option(metavar="X Y COLUMNS ROWS", help="Only these PEs."),
    ] = None,
) -> None:
    """Run a host script, and say where the cycles of the program in OUT went.

    The script runs once, as by cs_python, and its run is done again with counters. Exit code: that
    of the script.
    """
    from openwafer.diagnostics import error
    from openwafer.sdk.host import read_program
    from openwafer.sdk.host.journal import read

    options = ProfileOptions(tuple(write or ()), by, rows, run, has_record, rectangle)
    program = read_program(out)
    if journal is None and script:
        raise typer.Exit(profile_script(script, options, out))
    if journal is None or script:
        raise error(
            "profile-of-what",
            f"a profile of {out} is of the run of a script or of a journal",
            help="write: openwafer csl profile OUT -- run.py ..., or --journal FILE",
        )
    _check_names(options)
    _show_run(program, read(journal), options)


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A profile as JSON.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    rows: Annotated[int, typer.Option(min=1, help="Most rows of the table of lines.")] = 20,
) -> None:
    """Compare two profiles, state by state and line by line.

    A line is the same in both where the texts of their sources have it in common.
    """
    from openwafer.sdk.profile import difference_text, read_profile

    print(difference_text(read_profile(before), read_profile(after), rows), end="")


def timeline(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="What a run has kept.")],
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="Output folder of cslc.")],
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help=".vcd for Surfer and GTKWave, .json for Perfetto."),
    ],
) -> None:
    """Write what a record says along the cycles: tasks, operations, queues, colors."""
    from openwafer.sdk.host import read_program
    from openwafer.sdk.profile import write_timeline

    write_timeline(record, read_program(program), file)
    print(f"written: {file}")


def profile_script(script: Sequence[str], options: ProfileOptions, out: Path | None = None) -> int:
    """Run a script in a process of its own, and show where its cycles went.

    Args:
        script: and its arguments.
        options: what is shown.
        out: folder of the program whose runs are looked at; None for those of all programs.

    Returns:
        The exit code of the script.
    """
    from openwafer.sdk.host import read_program
    from openwafer.sdk.host.journal import JOURNAL_VARIABLE
    from openwafer.sdk.profile.recorded import runs_in

    _check_names(options)
    with TemporaryDirectory() as folder:
        environment = {**os.environ, **_commands(), JOURNAL_VARIABLE: folder}
        code = _ended([sys.executable, "-m", _MODULE, *script], environment)
        # What it was compiled to when the script ran, which may have done that.
        program = None if out is None else read_program(out)
        if not code or any(Path(folder).glob("*.journal")):
            _show_one(runs_in(Path(folder), program), options)
    return code


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


def _check_names(options: ProfileOptions) -> None:
    """Refuse names of no form before anything runs."""
    from openwafer.sdk.profile.forms import form_of

    for path in options.files:
        form_of(path)


def _show_one(runs: "Sequence[tuple[Program, Journal]]", options: ProfileOptions) -> None:
    """Show the run that is asked for."""
    from openwafer.diagnostics import counted, error

    lengths = [journal.last_cycle for _, journal in runs]
    number = options.run or 1 + lengths.index(max(lengths))
    if number > len(runs):
        raise error(
            "profile-no-such-run",
            f"there is no run {number}: the script has {counted(len(runs), 'run')} of the program",
            help=f"give --run a number from 1 to {len(runs)}",
        )
    if len(runs) > 1:
        print(f"run {number} of {len(runs)}; --run N shows another one\n")
    program, journal = runs[number - 1]
    _show_run(program, journal, options)


def _show_run(program: "Program", journal: "Journal", options: ProfileOptions) -> None:
    """Show the profile of a run, and write its files."""
    from openwafer.sdk.host import Region
    from openwafer.sdk.profile import Grouping, profile_of_journal, profile_text, write_profile

    region = None if options.rectangle is None else Region(*options.rectangle, num_elements=1)
    profile = profile_of_journal(
        program, journal, Grouping(options.by), region=region, has_record=options.has_record
    )
    print(profile_text(profile, options.rows), end="")
    for path in options.files:
        write_profile(profile, path)
        print(f"written: {path}")
