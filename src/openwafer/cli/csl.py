"""``openwafer csl`` and ``openwafer conform``: programs for the simulated fabric."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from openwafer.sdk.compat.conformance import Outcome

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_NAME_WIDTH = 46

csl_app = typer.Typer(help="Compile programs for the simulated fabric.", no_args_is_help=True)


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
    script: Annotated[
        str, typer.Option(help="Name of the command files, if not commands_ARCH.sh.")
    ] = "",
) -> None:
    """Run public programs by their own command files and report each."""
    from openwafer.atomic_file import write_text
    from openwafer.sdk.compat.conformance import FORMAT, VERSION, SuiteOptions, run_suite, totals

    options = SuiteOptions(arch, name_filter, jobs, timeout, keep, is_compared, script)
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
