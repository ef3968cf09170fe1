"""``openwafer csl`` and ``openwafer conform``: programs for the simulated fabric."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openwafer.cli.csl_debug import debug
from openwafer.cli.csl_profile import diff, profile, timeline

if TYPE_CHECKING:
    from openwafer.sdk.compat.conformance import Outcome

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_NAME_WIDTH = 46

csl_app = typer.Typer(help="Compile programs for the simulated fabric.", no_args_is_help=True)
csl_app.command()(debug)
csl_app.command()(profile)
csl_app.command()(diff)
csl_app.command()(timeline)


@csl_app.command("compile", context_settings=_PASS_ON)
def compile_(context: typer.Context) -> None:
    """Compile a program; the options are those of cslc."""
    from openwafer.cli.cslc import run

    raise typer.Exit(run(context.args))


@csl_app.command(context_settings=_PASS_ON)
def check(context: typer.Context) -> None:
    """Show what is wrong with a program; write nothing."""
    from openwafer.sdk.compiler.command_line import parse_command
    from openwafer.sdk.compiler.pipeline import compile_program

    command = parse_command(context.args)
    program = compile_program(command.layout, command.options)
    for warning in program.warnings:
        print(warning, file=sys.stderr)
    print(
        f"{command.layout}: no errors; {program.width} by {program.height} PEs, "
        f"{len(program.images)} distinct images"
    )


@csl_app.command()
def replay(
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="What a run has kept.")],
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="Output folder of cslc.")],
    until: Annotated[
        int | None, typer.Option(min=0, metavar="CYCLE", help="End with this cycle.")
    ] = None,
) -> None:
    """Do a run again from its journal, and say whether it is the same run.

    Exit code 1, and where they differ, if it is not.
    """
    from openwafer.diagnostics import OpenwaferError, counted, tell
    from openwafer.sdk.host import journal as journals
    from openwafer.sdk.host import read_program
    from openwafer.sdk.host.operations import interruption
    from openwafer.sdk.host.replaying import DIVERGED, replay

    kept = journals.read(journal)
    try:
        again = replay(read_program(program), kept, until=until)
    except OpenwaferError as found:
        if found.diagnostics[0].code != DIVERGED:
            raise
        tell(found.diagnostics)
        raise typer.Exit(1) from found
    num, num_done, cycle = kept.num_ended, len(again.results), again.simulator.cycle
    is_whole = num_done == num
    print(
        f"the same run{'' if is_whole else ' up to here'}: cycle {cycle:,}, "
        f"{num_done} of {counted(num, 'operation')} done, "
        f"state {again.simulator.snapshot().machine.digest()}"
    )
    if is_whole and until is not None and until > cycle:
        print(f"it ended before cycle {until:,}")
    if is_whole and kept.interrupted_at is not None:
        print(f"{interruption(kept.interrupted_at)}; the journal ends there")
    for number, entry in enumerate(kept.entries[:num_done]):
        if entry.failure is not None:
            print(f"operation {number} ({type(entry.operation).__name__}): {entry.failure}")


@csl_app.command()
def demo(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Which; without it all are listed.")
    ] = "",
    folder: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("runs"),
    arch: Annotated[str, typer.Option(help="wse2 or wse3.")] = "wse3",
) -> None:
    """Run a demonstration on the simulated wafer, check its physics and draw it.

    Exit code 1 if a check fails.
    """
    from openwafer.cli.wafer_demos import DEMOS, run_demo

    if not name:
        for each, what in DEMOS.items():
            print(f"{each:<8} {what}")
    elif not run_demo(name, folder, arch):
        raise typer.Exit(1)


def conform(  # noqa: PLR0913 - a command takes one for each option
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="Folder of programs.")],
    arch: Annotated[str, typer.Option(help="wse2 or wse3: whose command files run.")] = "wse3",
    name_filter: Annotated[
        str, typer.Option("--filter", help="Run programs whose name holds this.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Programs at a time.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds for one program.")] = 300.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the outcomes there.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the programs' folders below this one.")
    ] = None,
    is_compared: Annotated[
        bool,
        typer.Option("--compare-engines", help="Native code and interpreter must do the same."),
    ] = False,
    is_replayed: Annotated[
        bool,
        typer.Option(
            "--replay", help="Do each run again from its journal, with the account and all lines."
        ),
    ] = False,
    script: Annotated[
        str, typer.Option(help="Name of the command files, if not commands_ARCH.sh.")
    ] = "",
) -> None:
    """Run public programs by their own command files and report each."""
    from openwafer.atomic_file import write_text
    from openwafer.sdk.compat.conformance import FORMAT, VERSION, SuiteOptions, run_suite, totals

    options = SuiteOptions(arch, name_filter, jobs, timeout, keep, is_compared, is_replayed, script)
    outcomes = run_suite(suite, options, _tell)
    print(totals(outcomes))
    if json_file is not None:
        record = {
            "format": FORMAT,
            "version": VERSION,
            "arch": arch,
            "programs": [asdict(outcome) for outcome in outcomes],
        }
        write_text(json_file, json.dumps(record, indent=2) + "\n")
    if not all(outcome.has_passed for outcome in outcomes):
        raise typer.Exit(1)


def _tell(outcome: "Outcome") -> None:
    cycles = "-" if outcome.cycles is None else f"{outcome.cycles:,}"
    word = "pass" if outcome.has_passed else "FAIL"
    overruns = f"overruns: {outcome.overruns}  " if outcome.overruns else ""
    print(
        f"{word}  {outcome.name:{_NAME_WIDTH}} {outcome.seconds:7.1f} s {cycles:>12} cycles"
        f"  {overruns}{outcome.reason}".rstrip(),
        flush=True,
    )
