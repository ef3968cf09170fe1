"""``openwafer csl profile`` and ``cs_python --profile``: where the cycles of a run went."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openwafer.cli.journaled import chosen_run, journaled

if TYPE_CHECKING:
    from openwafer.sdk.host.journal import Journal
    from openwafer.sdk.program.program import Program


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
    _check_names(options)
    with journaled(script, out) as (code, runs):
        if runs is not None:
            _show_run(*chosen_run(runs, options.run), options)
    return code


def _check_names(options: ProfileOptions) -> None:
    """Refuse names of no form before anything runs."""
    from openwafer.sdk.profile.forms import form_of

    for path in options.files:
        form_of(path)


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
