"""The sparse weights of a run: what they cost, what is kept of them, and how masks change."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean
from typing import Any

from openwafer.training.metrics.report.drawing import (
    Color,
    Figure,
    Key,
    Mark,
    Words,
    draw_figure,
    render,
)
from openwafer.training.metrics.run_record import MaskPicture
from openwafer.training.metrics.step_lines import MaskChange
from openwafer.training.metrics.units import format_bytes, format_count, format_share
from openwafer.training.plan_record import PlanRecord, SparseWeight, StepBytes

_LEVELS = 8
_SIDE, _GAP, _BAR = 180, 24, 22

Row = tuple[str, ...]


@dataclass(frozen=True)
class SparseTables:
    """What sparse weights cost beside dense ones, and what is kept of each."""

    summary: str
    costs: list[Row]
    weights: list[Row]


def describe_sparse(plan: PlanRecord, changes: Sequence[MaskChange]) -> SparseTables | None:
    """The tables of a sparse run, whose masks changed so; none for a dense one."""
    sparse = plan.sparse
    if sparse is None:
        return None
    summary = (
        f"{format_share(sparse.elements / sparse.parameters)} of the "
        f"{format_count(sparse.parameters)} dense parameters are in {len(sparse.weights)} sparse "
        f"weights, of which {format_share(sparse.capacity / sparse.elements)} are kept at most. "
        "What the store keeps of them, and what a step is planned to move, beside the same plan "
        "with dense weights."
    )
    costs = [
        ("values", sparse.values_bytes, sparse.dense_values_bytes),
        ("optimizer states", sparse.states_bytes, sparse.dense_states_bytes),
        ("patterns", sparse.pattern_bytes, 0),
        ("store, in all", sparse.store_bytes, sparse.dense_store_bytes),
        *(
            (f"a step's {way}", *pair)
            for way, pair in _ways(plan.step_bytes, sparse.dense_step_bytes)
        ),
    ]
    of_weight: dict[str, list[MaskChange]] = {}
    for change in changes:
        of_weight.setdefault(change.weight, []).append(change)
    weights = [_weight_row(weight, of_weight.get(weight.name, [])) for weight in sparse.weights]
    return SparseTables(summary, [_cost_row(*row) for row in costs], weights)


def _ways(moved: StepBytes, dense: StepBytes) -> list[tuple[str, tuple[int, int]]]:
    return [
        (way, (getattr(moved, key), getattr(dense, key)))
        for way, key in (
            ("fetch", "fetch"),
            ("push", "push"),
            ("disk read", "disk_read"),
            ("disk write", "disk_write"),
        )
        if getattr(dense, key)
    ]


def _cost_row(name: str, sparse: int, dense: int) -> Row:
    share = format_share(sparse / dense) if dense else ""
    return name, format_bytes(sparse), format_bytes(dense), share


def _weight_row(weight: SparseWeight, changes: Sequence[MaskChange]) -> Row:
    kept = changes[-1].kept if changes else weight.capacity
    churn = (
        (format_share(mean(each.churn for each in changes)), format_share(changes[-1].churn))
        if changes
        else ("", "")
    )
    return (
        weight.name,
        f"{weight.rows} by {weight.columns}",
        format_share(kept / weight.elements),
        format_count(kept),
        format_count(weight.capacity),
        _skips(weight),
        str(len(changes)),
        *churn,
    )


def _skips(weight: SparseWeight) -> str:
    if weight.skips_from_tokens is None:
        return "never"
    return f"from {weight.skips_from_tokens} tokens"


def draw_churn(changes: Sequence[MaskChange]) -> Figure:
    """The mean churn of all masks over the steps, within that of the least and the most changed."""
    by_step = [
        (step, [change.churn for change in group])
        for step, group in groupby(changes, key=lambda change: change.step)
    ]
    steps = [step for step, _ in by_step]

    def paint(canvas: Any, _size: object) -> None:
        axes = canvas.subplots()
        low, high = ([100 * ends(c) for _, c in by_step] for ends in (min, max))
        axes.fill_between(steps, low, high, color=Color.FAINT.value, linewidth=0)
        means = [100 * mean(churn) for _, churn in by_step]
        axes.plot(steps, means, "o-", color=Color.ACCENT.value, markersize=4)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel("kept elements that are dropped, %")

    legend = (Key("mean", Color.ACCENT, Mark.LINE), Key("least to most", Color.FAINT))
    caption = (
        f"Share of kept elements that each of {len(steps)} updates has dropped: the mean of all "
        "sparse weights, between the weight that changes least and the one that changes most."
    )
    words = Words("Churn of masks", caption, legend)
    return draw_figure("churn", words, paint, height=260, narrow_height=220)


def draw_masks(pictures: Sequence[MaskPicture]) -> Figure:
    """Masks from afar, each with the density of its rows and of its columns beside it."""
    step = max(picture.step for picture in pictures)
    empty = sum(picture.empty_rows + picture.empty_columns for picture in pictures)
    caption = (
        f"Where kept elements lie in weights of one layer behind {step} steps, inputs from left to "
        "right: the darker a cell, the more of it is kept, the darkest the most of its weight. "
        "Bars beside it are the density of rows, below it that of columns. "
        f"{format_count(empty)} rows and columns keep nothing."
    )
    words = Words("Where survivors lie", caption)
    wide, narrow = (_masks_svg(pictures, across) for across in (4, 1))
    return Figure("masks", words, wide, narrow)


def _masks_svg(pictures: Sequence[MaskPicture], across: int) -> str:
    cell = _SIDE + _BAR + _GAP
    width, height = (920, cell + _GAP) if across > 1 else (360, (cell + _GAP) * len(pictures))
    placed = [
        (index % across * cell, index // across * (cell + _GAP), _shapes(picture))
        for index, picture in enumerate(pictures)
    ]
    return render("masks.svg", width=width, height=height, placed=placed)


@dataclass(frozen=True)
class MaskShapes:
    """A drawn mask: cells by opacity, and bars of densities, as paths."""

    label: str
    shades: list[tuple[float, str]]
    bars: str


def _shapes(picture: MaskPicture) -> MaskShapes:
    cells = picture.cells
    high, wide = _SIDE / len(cells), _SIDE / len(cells[0])
    most = max(max(row) for row in cells) or 1.0
    paths = [""] * (_LEVELS + 1)
    for y, row in enumerate(cells):
        for x, share in enumerate(row):
            corner = f"M{x * wide:.1f} {_GAP + y * high:.1f}"
            paths[round(_LEVELS * share / most)] += f"{corner}h{wide:.1f}v{high:.1f}h-{wide:.1f}z"
    rows = [mean(row) for row in cells]
    columns = [mean(row[x] for row in cells) for x in range(len(cells[0]))]
    longest = max(*rows, *columns) or 1.0
    bars = "".join(
        f"M{_SIDE + 2} {_GAP + y * high:.1f}h{_BAR * share / longest:.1f}v{high:.1f}H{_SIDE + 2}z"
        for y, share in enumerate(rows)
    )
    bars += "".join(
        f"M{x * wide:.1f} {_GAP + _SIDE + 2}h{wide:.1f}v{_BAR * share / longest:.1f}h-{wide:.1f}z"
        for x, share in enumerate(columns)
    )
    shades = [(level / _LEVELS, path) for level, path in enumerate(paths) if path and level]
    name = ".".join(picture.weight.split(".")[-3:-1])
    kept = format_share(picture.kept / (picture.rows * picture.columns))
    return MaskShapes(f"{name}, {kept}", shades, bars)
