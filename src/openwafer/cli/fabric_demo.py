"""The demonstration of the wafer: a transformer is trained on it, with cycles and a picture."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from openwafer.cli.places import free_name
from openwafer.training.metrics import load_run
from openwafer.training.metrics.report import write_report
from openwafer.training.session import Session

NAME = "fabric-demo"


def run_fabric_demo(folder: Path, overrides: Sequence[str] = ()) -> None:
    """Train on a simulated wafer, and write the report."""
    console = Console()
    with as_file(files("openwafer.cli") / "fabric_demo.yaml") as path:
        own = [f"folder={folder}", f"name={free_name(folder, NAME)}"]
        session = Session(path, [*own, *overrides])
    run, size = session.folder.path, session.config.fabric
    console.print(
        f"training a transformer on {size.rows} x {size.columns} PEs of a simulated "
        f"{size.generation}, into which its weights stream\n",
        highlight=False,
    )
    result = session.train()
    if not result.is_complete:
        console.print(f"ended early; go on with: openwafer resume {run}", highlight=False)
        return
    rows = load_run(run).metrics.rows
    seconds = sum(row.seconds for row in rows)
    console.print(
        f"\nloss {rows[0].loss:.3f} at first, {rows[-1].loss:.3f} at last; {len(rows)} steps, "
        f"{seconds:.0f} s of simulation",
        highlight=False,
    )
    for name, place in (("report", write_report(run)), ("cycles", run / "fabric.json")):
        console.print(f"{name:<12} {place}", highlight=False, soft_wrap=True)
