"""A training run for the page: its report, and its trace where steps were traced."""

from pathlib import Path

from openwafer.training.metrics.report import render_report
from openwafer.training.metrics.run_record import load_run
from openwafer.view.columns import Columns
from openwafer.view.following import Live, stamp_of
from openwafer.view.shown import Shown
from openwafer.view.traces import columns_of_trace


def live_training(folder: Path) -> Live:
    """A training run that may go on."""

    def files() -> list[Path]:
        return sorted(one for one in folder.glob("*.json*") if one.is_file())

    return Live(lambda: stamp_of(files()), lambda: (opened_training(folder), False))


def opened_training(folder: Path) -> Shown:
    """Open a training run. Raises OpenwaferError as a report of it does."""
    report = render_report(load_run(folder))
    trace = folder / "trace.json"
    if trace.is_file():
        return Shown(columns_of_trace(trace, folder.name).content(), report=report)
    head = {"kind": "trace", "title": folder.name, "cycles": 0, "tracks": [], "names": []}
    return Shown(Columns(head | {"width": 0, "height": 1}, {}).content(), report=report)
