"""The sparse weights of a run: what they cost, what is kept of them, and how masks change."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from statistics import mean
from typing import Any

from openwafer.training.metrics.mask_record import MaskChange, MaskPicture
from openwafer.training.metrics.report import html
from openwafer.training.metrics.report.drawing import Color, Figure, Key, Mark, Words, draw_figure
from openwafer.training.metrics.run_record import RunRecord
from openwafer.training.metrics.units import format_bytes, format_count, format_share
from openwafer.training.plan_record import PlanRecord, SparseUse, SparseWeight, StepBytes

_HEAD = (
    *("weight", "shape", "density", "kept", "room"),
    *("skips zeros", "updates", "mean churn", "last churn"),
)
_COST_HEAD = ("", "sparse", "dense", "share")
_MOST_OPEN_ROWS = 48
_LEVELS = 8
_SIDE, _GAP, _BAR = 180, 24, 22


def show_sparse(run: RunRecord) -> Iterator[str]:
    """The parts of a sparse run's report; none for a dense one."""
    sparse = run.plan.sparse
    if sparse is None:
        return
    changes = run.masks.rows if run.masks is not None else ()
    yield _show_costs(run.plan, sparse)
    yield _show_weights(sparse, changes)
    if changes:
        yield html.figure(draw_churn(changes))
    else:
        yield html.absent("Churn of masks", "No mask was updated in this run.")
    if run.mask_pictures:
        yield html.figure(draw_masks(run.mask_pictures))


def _show_costs(plan: PlanRecord, sparse: SparseUse) -> str:
    text = (
        f"{format_share(sparse.elements / sparse.parameters)} of the "
        f"{format_count(sparse.parameters)} dense parameters are in {len(sparse.weights)} sparse "
        f"weights, of which {format_share(sparse.capacity / sparse.elements)} are kept at most. "
        "What the store keeps of them, and what a step is planned to move, beside the same plan "
        "with dense weights."
    )
    moved, dense = plan.step_bytes, sparse.dense_step_bytes
    rows = [
        ("values", sparse.values_bytes, sparse.dense_values_bytes),
        ("optimizer states", sparse.states_bytes, sparse.dense_states_bytes),
        ("patterns", sparse.pattern_bytes, 0),
        ("store, in all", sparse.store_bytes, sparse.dense_store_bytes),
        *((f"a step's {way}", *pair) for way, pair in _ways(moved, dense)),
    ]
    table = html.table(_COST_HEAD, [_cost_row(*row) for row in rows], "plan")
    return html.section("Sparse weights", html.caption(text), table)


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


def _cost_row(name: str, sparse: int, dense: int) -> tuple[str, ...]:
    share = format_share(sparse / dense) if dense else ""
    return escape(name), format_bytes(sparse), format_bytes(dense), share


def _show_weights(sparse: SparseUse, changes: Sequence[MaskChange]) -> str:
    text = (
        "Density is the share of a weight that is kept after the last update. Room is the most "
        "that is ever kept. Products skip zeros from so many tokens on. Churn is the share of kept "
        "elements that an update drops."
    )
    of_weight: dict[str, list[MaskChange]] = {}
    for change in changes:
        of_weight.setdefault(change.weight, []).append(change)
    rows = [_weight_row(weight, of_weight.get(weight.name, [])) for weight in sparse.weights]
    table = html.table(_HEAD, rows, "plan")
    if len(rows) > _MOST_OPEN_ROWS:
        table = f"<details><summary>{len(rows)} weights</summary>{table}</details>"
    return html.section("What is kept", html.caption(text), table)


def _weight_row(weight: SparseWeight, changes: Sequence[MaskChange]) -> tuple[str, ...]:
    kept = changes[-1].kept if changes else weight.capacity
    churn = (
        (format_share(mean(each.churn for each in changes)), format_share(changes[-1].churn))
        if changes
        else ("", "")
    )
    return (
        escape(weight.name),
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
    drawn = (
        f'<g transform="translate({index % across * cell} {index // across * (cell + _GAP)})">'
        f"{_mask_shapes(picture)}</g>"
        for index, picture in enumerate(pictures)
    )
    return f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{"".join(drawn)}</svg>'


def _mask_shapes(picture: MaskPicture) -> str:
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
    shades = "".join(
        f'<path d="{path}" fill="{Color.ACCENT.variable}" fill-opacity="{level / _LEVELS:.3f}"/>'
        for level, path in enumerate(paths)
        if path and level
    )
    name = ".".join(picture.weight.split(".")[-3:-1])
    label = f"{name}, {format_share(picture.kept / (picture.rows * picture.columns))}"
    return (
        f'<text x="0" y="16" font-size="12" fill="{Color.INK.variable}">{escape(label)}</text>'
        f'{shades}<path d="{bars}" fill="{Color.MUTED.variable}"/>'
    )
