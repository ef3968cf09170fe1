"""``openwafer sweep`` trains all combinations, tells, draws and writes."""

import math
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from openwafer.atomic_file import write_text
from openwafer.cli.sweep_picture import draw_sweep
from openwafer.cli.swept_runs import run_sweep
from openwafer.cli.tables import plain_console
from openwafer.config import to_yaml
from openwafer.diagnostics import Diagnostic, Severity, counted, error, tell
from openwafer.training.session import load_config
from openwafer.training.sweep import Grid, Outcome, Setting, Sweep
from openwafer.training.sweep.ablation import parse_axis
from openwafer.training.sweep.sweep import best_of, noise_of, outcomes_of
from openwafer.training.sweep.transfer import parse_widths, transferred


@dataclass(frozen=True)
class Asked:
    """The sweep that was asked for: keys with values as written, and the number of seeds."""

    axes: tuple[str, ...]
    seeds: int


@dataclass(frozen=True)
class Outputs:
    """Files to write; None for none.

    Attributes:
        folder: the sweep's folder.
        picture: shows losses against each key.
        widths: widths of the model to transfer to, as written.
        transfer: the config of that model.
    """

    folder: Path
    picture: Path | None
    widths: str | None
    transfer: Path | None


def sweep_config(config: Path, overrides: list[str], asked: Asked, outputs: Outputs) -> None:
    """Run a sweep to its end, tell what it found, and write the config that follows from it."""
    if (outputs.widths is None) != (outputs.transfer is None):
        given, other = ("--widths", "--transfer")[:: 1 if outputs.widths else -1]
        raise error(
            "option-value",
            f"{given} is given, and {other} is not",
            help="give both: the widths of the model to transfer to, and the file of its config",
        )
    widths = None if outputs.widths is None else parse_widths(outputs.widths)
    first = load_config(config, tuple(overrides)).seed
    axes = tuple(map(parse_axis, asked.axes))
    grid = Grid(axes, tuple(range(first, first + asked.seeds)))
    sweep = Sweep(config, overrides, grid, outputs.folder)
    if widths is not None:
        # What cannot be transferred is told before the sweep, not behind it.
        transferred(sweep.config_of(next(grid.settings)), widths)
    run_sweep(sweep)
    outcomes = outcomes_of(grid, sweep.runs)
    best = _show(outcomes, grid)
    if outputs.picture is not None:
        draw_sweep(outputs.picture, grid, outcomes, best)
        print(f"wrote {outputs.picture}")
    if widths is not None and outputs.transfer is not None:
        overrides = [*overrides, *(f"{key}={value}" for key, value in best.setting.items())]
        wide = transferred(load_config(config, tuple(overrides)), widths)
        write_text(outputs.transfer, to_yaml(wide))
        print(f"wrote {outputs.transfer}: under muP, with the best setting and base {wide.base}")


def _show(outcomes: tuple[Outcome, ...], grid: Grid) -> Outcome:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in grid.keys:
        table.add_column(key)
    for title in ("loss", "over seeds +-", "diverged"):
        table.add_column(title, justify="right")
    for each in outcomes:
        table.add_row(*each.setting.values(), *_told(each))
    print()
    plain_console().print(table)
    best, near = best_of(outcomes)
    noise = noise_of(outcomes)
    print(f"\nbest: {_name(best.setting)}, loss {best.mean:.4f}")
    if noise is None:
        print("noise over seeds is not known: there is one of each setting; see --seeds")
    else:
        others = ", ".join(_name(each.setting) for each in near) or "none"
        print(
            f"noise over {counted(len(grid.seeds), 'seed')}: {noise:.4f} a run; settings that it "
            f"does not tell from the best: {others}"
        )
    tell(_at_edge(grid, best.setting))
    return best


def _told(outcome: Outcome) -> tuple[str, str, str]:
    deviation = outcome.deviation
    return (
        f"{outcome.mean:.4f}" if math.isfinite(outcome.mean) else "diverged",
        "" if deviation is None else f"{deviation:.4f}",
        f"{outcome.num_diverged} of {len(outcome.losses)}" if outcome.num_diverged else "",
    )


def _name(setting: Setting) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items())


def _at_edge(grid: Grid, best: Setting) -> list[Diagnostic]:
    """Warnings for values at the end of a row of numbers: beyond it may be better ones."""
    found = []
    for axis in grid.axes:
        try:
            values = sorted(axis.values, key=float)
        except ValueError:
            continue
        if len(values) > 1 and best[axis.key] in (values[0], values[-1]):
            message = (
                f"{axis.key}={best[axis.key]} is the best, and at the edge of the values tried"
            )
            help = "sweep further to that side, in the same folder: what has ended is not run again"
            found.append(Diagnostic(Severity.WARNING, "sweep-edge", message, help=help))
    return found
