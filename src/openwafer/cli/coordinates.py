"""What ``openwafer coord-check`` tells and draws."""

import math
from pathlib import Path
from typing import Any

from rich.table import Table

from openwafer.atomic_file import replacing
from openwafer.cli.tables import plain_console
from openwafer.diagnostics import error
from openwafer.training.parametrization.slopes import FLAT, Growth, steepest
from openwafer.training.session import CoordinateCheck, check_coordinates, load_config

PICTURE_INCHES = (9.0, 6.0)
# Of the modules in a picture so many are named, the steepest.
NUM_NAMED = 3


def parse_widths(text: str) -> tuple[int, ...]:
    """Widths that are written as in 64,128,256.

    Raises:
        OpenwaferError: ``option-value``.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as cause:
        raise error(
            "option-value", f"--widths: {text!r} is no list of numbers", help="such as 64,128,256"
        ) from cause


def check_widths(
    config: Path, overrides: list[str], widths: str, lengths: tuple[int, int], picture: Path | None
) -> None:
    """Check the coordinates of a config's model, print slopes and verdicts, and draw them.

    Args:
        config: of a run under muP.
        overrides: of the config.
        widths: as written.
        lengths: training steps, and seeds.
        picture: where to draw to.
    """
    asked = parse_widths(widths)
    found = check_coordinates(load_config(config, tuple(overrides)), asked, *lengths)
    _show(found, lengths[0])
    for name, growths in (("muP", found.mup), ("standard", found.standard)):
        print(verdict(name, growths))
    if picture is not None:
        _draw(picture, found)
        print(f"wrote {picture}")


def verdict(name: str, growths: tuple[Growth, ...]) -> str:
    """Whether all modules stay as they are, and which is furthest from that."""
    is_flat = all(growth.is_flat for growth in growths)
    worst = steepest(growths)
    ends = f"{_slope(worst.slopes[0])} at first and {_slope(worst.slopes[-1])} at the end"
    return f"{name}: {'flat' if is_flat else 'not flat'}; the steepest is {worst.module}, {ends}"


def _show(found: CoordinateCheck, num_steps: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("slope of log size against log width", overflow="fold")
    titles = ("muP, step 0", f"step {num_steps}", "standard, step 0", f"step {num_steps}")
    for title in titles:
        table.add_column(title, justify="right")
    for mup, standard in zip(found.mup, found.standard, strict=True):
        slopes = (each.slopes[end] for each in (mup, standard) for end in (0, -1))
        name = f"{mup.module} (output)" if mup.is_output else mup.module
        table.add_row(name, *map(_slope, slopes))
    plain_console().print(table)
    print(f"flat is from {-FLAT:g} to {FLAT:g}; outputs may begin smaller in a wider model")


def _slope(slope: float) -> str:
    return f"{slope:+.2f}" if math.isfinite(slope) else "overflow"


def _draw(path: Path, found: CoordinateCheck) -> None:
    from matplotlib.figure import Figure

    canvas = Figure(figsize=PICTURE_INCHES, layout="constrained")
    grid: Any = canvas.subplots(2, 2, sharex=True, sharey="row")
    for column, (name, growths) in enumerate(
        (("muP", found.mup), ("standard parametrization", found.standard))
    ):
        last = f"after {len(growths[0].slopes) - 1} steps"
        for row, (step, when) in enumerate(((0, "at first"), (-1, last))):
            axes = grid[row][column]
            _draw_sizes(axes, growths, step)
            axes.set_title(f"{name}, {when}", fontsize=10)
    for axes in grid[1]:
        axes.set_xlabel("width")
    for row in grid:
        row[0].set_ylabel("mean absolute activation")
    with replacing(path) as temporary:
        canvas.savefig(temporary, dpi=110, format=path.suffix.removeprefix(".") or "png")


def _draw_sizes(axes: Any, growths: tuple[Growth, ...], step: int) -> None:
    ordered = sorted(growths, key=lambda growth: -abs(growth.slopes[step]))
    for rank, growth in enumerate(ordered):
        sizes = growth.sizes[step]
        color = "#1f5fa8" if not growth.is_output else "#cf5b3f"
        label = f"{growth.module} {_slope(growth.slopes[step])}" if rank < NUM_NAMED else None
        style = ("-", "--", ":")[rank] if rank < NUM_NAMED else "-"
        alpha = 1.0 if rank < NUM_NAMED else 0.35
        axes.plot([*sizes], [*sizes.values()], style, color=color, alpha=alpha, label=label)
    axes.set(xscale="log", yscale="log", xticks=[*growths[0].sizes[step]])
    axes.set_xticks([], minor=True)
    axes.set_xticklabels([*map(str, growths[0].sizes[step])])
    axes.legend(frameon=False, fontsize=7)
