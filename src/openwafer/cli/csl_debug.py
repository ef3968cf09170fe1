"""``openwafer csl debug``: stop a run, look at it, go back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openwafer.cli.journaled import chosen_run, journaled

if TYPE_CHECKING:
    from openwafer.sdk.host.journal import Journal
    from openwafer.sdk.program.program import Program


def debug(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder of cslc.")],
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SCRIPT [ARGUMENT ...]", help="What cs_python would run."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="JOURNAL", help="Debug the run of a journal instead.")
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(min=1, help="Which run of the script; by default that with most cycles."),
    ] = None,
) -> None:
    """Debug a run of the program in OUT, forwards and backwards.

    The script runs once, to its end or to where it fails, as by cs_python; what is debugged is its
    run, done again. Commands come from the terminal or from standard input. Exit code: that of the
    script.
    """
    from openwafer.diagnostics import error
    from openwafer.sdk.host import read_program
    from openwafer.sdk.host.journal import read

    if replay is None and script:
        with journaled(script, out) as (code, runs):
            if runs is not None:
                _converse(*chosen_run(runs, run))
        raise typer.Exit(code)
    if replay is None or script:
        raise error(
            "debug-of-what",
            f"the run of a script or of a journal is debugged, and of {out} neither or both are"
            " given",
            help="write: openwafer csl debug OUT -- run.py ..., or --replay JOURNAL",
        )
    _converse(read_program(out), read(replay))


def _converse(program: "Program", journal: "Journal") -> None:
    """Take commands until there are no more."""
    from openwafer.sdk.debug import Console, Debugger

    Console(Debugger(program, journal)).cmdloop()
