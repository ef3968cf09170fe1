"""``openwafer coord-check`` tells and draws how activations grow."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.tables import plain_console
from openwafer.diagnostics import error
from openwafer.training.methods.coordinates import (
    FLAT,
    CoordinateCheck,
    Growth,
    check_coordinates,
    check_depths,
    steepest,
)
from openwafer.training.session import load_config

PICTURE_INCHES = (9.0, 6.0)
# Of the modules in a picture so many are named, the steepest.
NUM_NAMED = 3


@dataclass(frozen=True)
class Words:
    """The words for a check over widths, or over depths.

    Attributes:
        option: the option that names the sizes.
        size: the size that models differ in.
        later: the quantity that is looked at after some steps.
        exception: the exception to the rule of flatness.
    """

    option: str
    size: str
    later: str
    exception: str


OVER_WIDTHS = Words("--widths", "width", "", "outputs may begin smaller in a wider model")
OVER_DEPTHS = Words(
    "--depths",
    "depth",
    "change by ",
    "what is added to the residual counts as often as there are layers",
)


def parse_sizes(text: str, option: str) -> tuple[int, ...]:
    """Sizes that are written as in 64,128,256.

    Raises:
        OpenwaferError: ``option-value``.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as cause:
        raise error(
            "option-value", f"{option}: {text!r} is no list of numbers", help="such as 64,128,256"
        ) from cause


def check_sizes(
    config: Path,
    overrides: list[str],
    sizes: tuple[str | None, str | None],
    lengths: tuple[int, int],
    picture: Path | None,
) -> None:
    """Check the coordinates of a config's model, print slopes and verdicts, and draw them.

    Args:
        config: of a run under muP.
        overrides: of the config.
        sizes: widths and depths as written, one of both.
        lengths: training steps, and seeds.
        picture: where to draw to.

    Raises:
        OpenwaferError: ``option-value``, and what the check refuses.
    """
    loaded = load_config(config, tuple(overrides))
    match sizes:
        case str(text), None:
            words = OVER_WIDTHS
            found = check_coordinates(loaded, parse_sizes(text, words.option), *lengths)
        case None, str(text):
            words = OVER_DEPTHS
            found = check_depths(loaded, parse_sizes(text, words.option), *lengths)
        case _:
            raise error(
                "option-value",
                "a check is over widths or over depths",
                help="write --widths 64,128,256 or --depths 2,4,8",
            )
    _show(found, lengths[0], words)
    for name, growths in (("muP", found.mup), ("standard", found.standard)):
        print(summary(name, growths))
    if picture is not None:
        _draw(picture, found, words)
        print(f"wrote {picture}")


def summary(name: str, growths: tuple[Growth, ...]) -> str:
    """Whether all modules stay as they are, and which is furthest from that."""
    is_flat = all(growth.is_flat for growth in growths)
    worst = steepest(growths)
    ends = f"{_slope(worst.slopes[0])} at first and {_slope(worst.slopes[-1])} at the end"
    return f"{name}: {'flat' if is_flat else 'not flat'}; the steepest is {worst.module}, {ends}"


def _show(found: CoordinateCheck, num_steps: int, words: Words) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"slope of log size against log {words.size}", overflow="fold")
    last = f"{words.later}step {num_steps}"
    titles = ("muP, step 0", last, "standard, step 0", last)
    for title in titles:
        table.add_column(title, justify="right")
    for mup, standard in zip(found.mup, found.standard, strict=True):
        slopes = (each.slopes[end] for each in (mup, standard) for end in (0, -1))
        name = f"{mup.module} (output)" if mup.is_output else mup.module
        table.add_row(name, *map(_slope, slopes))
    plain_console().print(table)
    print(f"flat is from -{FLAT:g} to {FLAT:g}; {words.exception}")


def _slope(slope: float) -> str:
    return f"{slope:+.2f}" if math.isfinite(slope) else "overflow"


def _draw(path: Path, found: CoordinateCheck, words: Words) -> None:
    shared = {"sharex": True, "sharey": "row"}
    with picture(path, PICTURE_INCHES, dpi=110, nrows=2, ncols=2, **shared) as grid:
        for column, (name, growths) in enumerate(
            (("muP", found.mup), ("standard parametrization", found.standard))
        ):
            last = f"{words.later or 'after '}{len(growths[0].slopes) - 1} steps"
            for axes, step, when in zip(grid[:, column], (0, -1), ("at first", last), strict=True):
                _draw_sizes(axes, growths, step)
                axes.set_title(f"{name}, {when}", fontsize=10)
        for axes in grid[1]:
            axes.set_xlabel(words.size)
        for axes in grid[:, 0]:
            axes.set_ylabel("mean absolute activation")


def _draw_sizes(axes: Any, growths: tuple[Growth, ...], step: int) -> None:
    ordered = sorted(growths, key=lambda growth: -abs(growth.slopes[step]))
    for rank, growth in enumerate(ordered):
        sizes = growth.sizes[step]
        color = RED if growth.is_output else BLUE
        label = f"{growth.module} {_slope(growth.slopes[step])}" if rank < NUM_NAMED else None
        style = ("-", "--", ":")[rank] if rank < NUM_NAMED else "-"
        alpha = 1.0 if rank < NUM_NAMED else 0.35
        axes.plot([*sizes], [*sizes.values()], style, color=color, alpha=alpha, label=label)
    axes.set(xscale="log", yscale="log", xticks=[*growths[0].sizes[step]])
    axes.set_xticks([], minor=True)
    axes.set_xticklabels([*map(str, growths[0].sizes[step])])
    axes.legend(frameon=False, fontsize=7)
