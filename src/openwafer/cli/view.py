"""``openwafer view``: a run in the browser."""

import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from openwafer.view.following import Live
    from openwafer.view.server import Viewer
    from openwafer.view.shown import Shown
    from openwafer.view.symbols import Symbols


def view(  # noqa: PLR0913 - a command takes one for each option
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A journal, a record, a folder of them, OUT of cslc, a training run.",
        ),
    ],
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SCRIPT [ARGUMENT ...]", help="What cs_python would run on OUT."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it instead: .html, a page by itself, or .view."),
    ] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="OUT", help="The program, if it lies not beside the run.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--run", min=1, help="Which run; by default that with most cycles."),
    ] = None,
    is_followed: Annotated[
        bool, typer.Option("--follow", help="Show more of a run that goes on, as it does.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 0,
    is_shown: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether a browser is opened.")
    ] = True,
) -> None:
    """Show a run in the browser, on an address that only this machine reaches.

    The page shows the wafer along the cycles, its traces, timelines and source; a training run's
    report and trace.
    """
    from openwafer.diagnostics import error
    from openwafer.view.export import export as write

    if is_followed:
        if script or export is not None or number is not None:
            raise error(
                "view-follow",
                "a run that goes on is followed; a script, --export and --run are for ended ones",
                help="write: openwafer view RUN --follow; export it once it is over",
            )
        _follow(run, program, port, is_shown=is_shown)
        return
    if run.is_file() and (number or 1) > 1:
        raise error(
            "view-no-such-run",
            f"there is no run {number}: {run} is a file of one run",
            help="name the folder of its runs, or leave --run out",
        )
    if export is not None:
        write(_opened(run, script, program, number), export)
        print(f"written: {export}")
    elif script or not _serve_by_columns(run, program, number, port, is_shown=is_shown):
        _serve(_opened(run, script, program, number), port, is_shown=is_shown)


def _serve_by_columns(
    run: Path, program: Path | None, number: int | None, port: int, *, is_shown: bool
) -> bool:
    """Answer with a run's kept columns, or make these meanwhile; false for what has none.

    What simulates is not loaded before it is needed.
    """
    from openwafer.view.kept import RUNS, kept_columns, kept_path
    from openwafer.view.shown import Shown

    inside = sorted(run.glob("*.journal"))
    file = inside[0] if len(inside) == 1 and (number or 1) == 1 else run
    found = None if program else kept_columns(file)
    if found is not None:
        _serve(Shown(found, lambda: _symbols(file)), port, is_shown=is_shown)
        return True
    from openwafer.cli.journaled import chosen_run
    from openwafer.view.first_look import file_of_run

    file = file_of_run(run, lambda runs: chosen_run(runs, number))
    if file.suffix not in RUNS or kept_columns(file) is not None:
        return False
    from openwafer.view.making import made_behind

    with made_behind(file, program) as live:
        _serve_live(live, port, is_shown=is_shown, kept=kept_path(file))
    return True


def _symbols(run: Path) -> "Symbols":
    from openwafer.view.first_look import symbols_of_file

    return symbols_of_file(run)


def _opened(
    run: Path, script: list[str] | None, program: Path | None, number: int | None
) -> "Shown":
    from openwafer.cli.journaled import chosen_run, journaled
    from openwafer.view.opened import opened, opened_journal

    if (run / "metrics.jsonl").is_file():
        from openwafer.view.training_run import opened_training

        return opened_training(run)
    if not script:
        return opened(run, lambda runs: chosen_run(runs, number), program)
    with journaled(script, run) as (code, runs):
        if runs is None:
            raise typer.Exit(code)
        return opened_journal(*chosen_run(runs, number), script[0])


def _follow(run: Path, program: Path | None, port: int, *, is_shown: bool) -> None:
    """Answer until Ctrl-C, and show more of a run as it goes on."""
    from openwafer.view.live_record import live_record

    if (run / "metrics.jsonl").is_file():
        from openwafer.view.training_run import live_training

        live = live_training(run)
    else:
        live = live_record(run, program)
    if not live.stamp():
        print(f"waiting for {run}", flush=True)
    _serve_live(live, port, is_shown=is_shown)


def _serve_live(live: "Live", port: int, *, is_shown: bool, kept: Path | None = None) -> None:
    """Answer until Ctrl-C; say which file was kept, and how large it is."""
    from openwafer.view.following import first_opened, follow
    from openwafer.view.server import Viewer

    def go_on() -> None:
        refused = follow(viewer, live, end)
        if refused:
            print(refused, file=sys.stderr, flush=True)
        elif kept is not None and viewer.run.content == kept:
            told = f"kept for the next time: {kept}, {kept.stat().st_size:,} bytes"
            print(f"{told}; it may be deleted", flush=True)

    found, is_over = first_opened(live)
    viewer, end = Viewer(found, port, is_live=not is_over), threading.Event()
    viewer.tell("", live.doing())
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        _answer(viewer, is_shown=is_shown)
    finally:
        end.set()
        thread.join()


def _serve(run: "Shown", port: int, *, is_shown: bool) -> None:
    """Answer until Ctrl-C."""
    from openwafer.view.server import Viewer

    _answer(Viewer(run, port), is_shown=is_shown)


def _answer(viewer: "Viewer", *, is_shown: bool) -> None:
    print(f"{viewer.url}\nCtrl-C ends it.", flush=True)
    if is_shown:
        webbrowser.open(viewer.url)
    try:
        viewer.serve()
    finally:
        viewer.close()
