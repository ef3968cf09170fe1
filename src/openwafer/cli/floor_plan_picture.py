"""A floor plan as a picture: a rectangle for each layer, colored by its place in the model."""

from pathlib import Path
from typing import Any

from openwafer.cli.pictures import picture
from openwafer.cli.tables import value_of
from openwafer.diagnostics import counted
from openwafer.planning.placement import Placement, Rectangle

PICTURE_INCHES = (9.0, 8.0)
# Names are written where a rectangle has room for them, in shares of the fabric.
LEAST_SHARE = 0.035
MOST_IN_LEGEND = 30


def draw_floor_plan(path: Path, placement: Placement) -> None:
    """Replace the picture `path`, .png or .svg by its name. Raises OSError."""
    with picture(path, PICTURE_INCHES) as axes:
        draw_on(axes, placement)


def draw_on(axes: Any, placement: Placement) -> None:
    """Draw rectangles, the way of the activations in each replica, and a legend of the layers."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    plan = placement.chosen
    site, number = plan.site, len(plan.rectangles)
    colors = [colormaps["turbo"](0.08 + 0.84 * (i + 0.5) / number) for i in range(number)]
    names = [demand.name for demand in plan.demands]
    ways: list[list[tuple[float, float]]] = [[] for _ in range(plan.replicas)]
    for each in plan.placed:
        _rectangle(axes, each.rectangle, colors[each.layer])
        ways[each.replica].append(each.rectangle.centre)
        if _has_room(each.rectangle, site.columns, site.rows):
            is_tall = each.rectangle.rows > each.rectangle.columns
            _name(axes, each.rectangle, names[each.layer], 90 if is_tall else 0)
    for way in ways:
        axes.plot(*zip(*way, strict=True), ".-", color="black", alpha=0.5, lw=0.8, ms=3)
    axes.set(xlim=(0, site.columns), ylim=(site.rows, 0), aspect="equal")
    axes.set(xlabel="columns of cores", ylabel="rows of cores")
    told = {figure.name: value_of(figure) for figure in plan.figures}
    shown_figures = ("tokens in a second", "work of the cores", "wire length")
    figures = [f"{name} {told[name]}" for name in shown_figures if name in told]
    title = ", ".join((counted(plan.replicas, "replica"), *figures))
    axes.set_title(f"{placement.system.title}\n{title}", fontsize=9)
    shown = range(number) if number <= MOST_IN_LEGEND else range(0, number, number // 25)
    axes.legend(
        handles=[Patch(color=colors[i], label=names[i]) for i in shown],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=7,
    )


def _rectangle(axes: Any, own: Rectangle, color: Any) -> None:
    from matplotlib.patches import Rectangle as Patch

    axes.add_patch(
        Patch((own.x, own.y), own.columns, own.rows, facecolor=color, edgecolor="white", lw=0.6)
    )


def _has_room(own: Rectangle, columns: int, rows: int) -> bool:
    thin, long = sorted((own.columns / columns, own.rows / rows))
    return thin >= LEAST_SHARE and long >= 3 * LEAST_SHARE


def _name(axes: Any, own: Rectangle, name: str, rotation: int) -> None:
    # Beside the line through the centres.
    x, y = own.x + own.columns / 4, own.y + own.rows / 4
    axes.text(x, y, name, ha="center", va="center", rotation=rotation, fontsize=7, color="black")
