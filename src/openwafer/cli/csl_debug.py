"""``openwafer csl debug``: stop a run, look at it, go back."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from openwafer.cli.journaled import chosen_run, journaled

if TYPE_CHECKING:
    from openwafer.sdk.debug import Stand
    from openwafer.sdk.program.program import Program

_PATHS: Final = ("out", "replay", "core")


def debug(  # noqa: PLR0913 - a command takes one for each option
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Output folder of cslc.")
    ] = None,
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SCRIPT [ARGUMENT ...]", help="What cs_python would run."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="JOURNAL", help="Debug the run of a journal instead.")
    ] = None,
    core: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Look at what a run has left by OPENWAFER_CORE."),
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(min=1, help="Which run of the script; by default that with most cycles."),
    ] = None,
    is_served: Annotated[
        bool, typer.Option("--dap", help="Serve an editor, by the Debug Adapter Protocol.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="The same on that port of 127.0.0.1; 0 takes a free one.")
    ] = None,
) -> None:
    """Debug a run of the program in OUT, forwards and backwards.

    The script runs once, to its end or to where it fails, as by cs_python; what is debugged is its
    run, done again. Commands come from the terminal or from standard input, or from an editor,
    whose launch may say what is debugged. Exit code: that of the script.
    """
    from openwafer.sdk.debug import Console

    given = {"out": out, "script": script, "replay": replay, "core": core, "run": run}
    if is_served or port is not None:
        _serve({name: one for name, one in given.items() if one is not None}, port)
        return
    debugger, code = _opened(given)
    if debugger is not None:
        Console(debugger).cmdloop()
    raise typer.Exit(code)


def _opened(given: Mapping[str, Any]) -> "tuple[Stand | None, int]":
    """The debugger of a run, or a core, and the exit code of the script.

    None where the script failed before it ran the program.
    """
    from openwafer.diagnostics import counted, error
    from openwafer.sdk.debug import Debugger
    from openwafer.sdk.host.journal import read

    out, replay, core = (None if given.get(k) is None else Path(given[k]) for k in _PATHS)
    script = [str(word) for word in given.get("script") or ()]
    ways = [one for one in (script, replay, core) if one]
    if len(ways) != 1 or (script and out is None):
        raise error(
            "debug-of-what",
            "the run of a script or of a journal is debugged, or a core is; given are"
            f" {counted(len(ways), 'way')} to one, and {out or 'no'} folder of a program",
            help="write one of: openwafer csl debug OUT -- run.py ..., openwafer csl debug --replay"
            " JOURNAL, openwafer csl debug --core FILE",
        )
    if core is not None:
        return _core(core, out), 0
    if replay is not None:
        journal = read(replay)
        return Debugger(_program_of(replay, journal.program, out, "--replay JOURNAL"), journal), 0
    with journaled(script, out) as (code, runs):
        return (None if runs is None else Debugger(*chosen_run(runs, given.get("run")))), code


def _core(path: Path, out: Path | None) -> "Stand":
    from openwafer.sdk.debug import stand_of
    from openwafer.sdk.host import core_file

    core = core_file.read(path)
    return stand_of(core, _program_of(path, core.head.machine.program, out, "--core FILE"))


def _program_of(path: Path, digest: str, out: Path | None, option: str) -> "Program":
    from openwafer.sdk.host.beside import program_of_run

    return program_of_run(path, digest, out, f"name its folder: openwafer csl debug OUT {option}")


def _serve(given: Mapping[str, Any], port: int | None) -> None:
    """Serve one client, on standard input and output or on a port."""
    from openwafer.diagnostics import error
    from openwafer.sdk.debug import Adapter, Messages

    def open_run(asked: Mapping[str, Any]) -> "Stand":
        known = ("out", "script", "replay", "core", "run")
        debugger, code = _opened(
            {**given, **{name: asked[name] for name in known if name in asked}}
        )
        if debugger is None:
            raise error("debug-no-run", f"the script ended with {code} before a run of the program")
        return debugger

    if port is None:
        # What anything prints must not come between messages.
        sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        source = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
        Adapter(Messages(source, sink), open_run).serve()
        return
    with socket.create_server(("127.0.0.1", port), backlog=0) as server:
        print(f"waiting for an editor on 127.0.0.1:{server.getsockname()[1]}", flush=True)
        client, _ = server.accept()
    # The port is closed now, so that a second client is refused.
    with client, client.makefile("rb") as source, client.makefile("wb") as sink:
        Adapter(Messages(source, sink), open_run).serve()
        # The thread that reads holds the file until there is no more.
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
