"""``openwafer csl debug``: stop a run, look at it, go back."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openwafer.cli.journaled import chosen_run, journaled

if TYPE_CHECKING:
    from openwafer.sdk.debug import Debugger


def debug(
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

    given = {"out": out, "script": script, "replay": replay, "run": run}
    if is_served or port is not None:
        _serve({name: one for name, one in given.items() if one is not None}, port)
        return
    debugger, code = _opened(given)
    if debugger is not None:
        Console(debugger).cmdloop()
    raise typer.Exit(code)


def _opened(given: Mapping[str, Any]) -> "tuple[Debugger | None, int]":
    """The debugger of a run, None where its script failed before it; and the script's exit code."""
    from openwafer.diagnostics import error
    from openwafer.sdk.debug import Debugger
    from openwafer.sdk.host import read_program
    from openwafer.sdk.host.journal import read

    out, replay = given.get("out"), given.get("replay")
    script = [str(word) for word in given.get("script") or ()]
    if out is None or (replay is None) == (not script):
        raise error(
            "debug-of-what",
            f"the run of a script or of a journal is debugged, and of {out} neither or both are"
            " given",
            help="write: openwafer csl debug OUT -- run.py ..., or --replay JOURNAL",
        )
    if replay is not None:
        return Debugger(read_program(Path(out)), read(Path(replay))), 0
    with journaled(script, Path(out)) as (code, runs):
        return (None if runs is None else Debugger(*chosen_run(runs, given.get("run")))), code


def _serve(given: Mapping[str, Any], port: int | None) -> None:
    """Serve one client, on standard input and output or on a port."""
    from openwafer.diagnostics import error
    from openwafer.sdk.debug import Adapter, Messages

    def open_run(asked: Mapping[str, Any]) -> "Debugger":
        known = ("out", "script", "replay", "run")
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
