"""The runs of a sweep or an ablation, told one by one."""

import sys

import typer

from openwafer.cli import EXIT_INTERRUPTED
from openwafer.diagnostics import counted
from openwafer.training.sweep import Sweep, SweptRun
from openwafer.training.sweep.sweep import Progress


def run_sweep(sweep: Sweep) -> None:
    """Train what is left of a sweep and tell of each run.

    Raises:
        typer.Exit: 130 where a signal ended it early; what `Sweep.run` raises.
    """
    total = len([*sweep.choice.settings]) * len(sweep.choice.seeds)
    if sweep.num_left < total:
        print(f"{total - sweep.num_left} of {counted(total, 'run')} have ended before")
    interrupted_by = sweep.run(_tell_begin, _tell_end)
    if interrupted_by:
        print(
            f"{interrupted_by}: ended early, {counted(sweep.num_left, 'run')} left; go on with the "
            "same command",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_INTERRUPTED)


def _tell_begin(progress: Progress) -> None:
    left = progress.seconds_left
    time = "" if left is None else f", about {_duration(left)} left"
    print(f"run {progress.number} of {progress.total}: {progress.name}{time}", flush=True)


def _tell_end(run: SweptRun) -> None:
    found = f"loss {run.loss:.4f} on held-out documents"
    if run.validation_loss is None:
        found = f"diverged after {counted(run.steps, 'step')}"
    print(f"  {found}, in {_duration(run.seconds)}", flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
