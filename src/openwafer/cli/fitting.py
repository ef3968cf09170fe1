"""What ``openwafer fit`` reads, tells, writes and draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from openwafer.atomic_file import replacing
from openwafer.cli.tables import plain_console
from openwafer.diagnostics import Diagnostic, tell
from openwafer.planning.laws import (
    Answer,
    ComparedPoint,
    Figure,
    FitRecord,
    Fitted,
    Law,
    TrainedPoint,
    expected_loss,
    fit_compute_law,
    propose,
    read_points,
    require_near,
    write_fit,
)

PICTURE_INCHES = (7.5, 4.5)
NUM_DRAWN = 200


@dataclass(frozen=True)
class Question:
    """What is asked of the fitted law: losses at `flops`, proposals for `budgets`."""

    flops: tuple[float, ...]
    budgets: tuple[float, ...]
    batch_tokens: float | None
    seed: int


@dataclass(frozen=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None
    picture: Path | None


def fit_points(sources: list[Path], question: Question, outputs: Outputs) -> None:
    """Fit a law to the points of `sources`, tell it and what follows, and write it down."""
    points = [point for source in sources for point in read_points(source)]
    fitted = fit_compute_law(points, seed=question.seed)
    warnings, record = _answer(fitted, question)
    tell(warnings)
    _show(record)
    if outputs.json is not None:
        write_fit(outputs.json, record)
        print(f"wrote {outputs.json}")
    if outputs.picture is not None:
        _draw(outputs.picture, fitted, record)
        print(f"wrote {outputs.picture}")


def _answer(fitted: Fitted[Law], question: Question) -> tuple[list[Diagnostic], FitRecord]:
    asked = dict.fromkeys((*question.flops, *question.budgets))
    warnings = [warning for flops in asked for warning in require_near(fitted, flops)]
    record = FitRecord(
        law="loss by compute",
        constants=fitted.constants(),
        scatter=fitted.scatter,
        points=tuple(ComparedPoint(point, _at(fitted, point)) for point in fitted.points),
        expectations=tuple(Answer(f, (expected_loss(fitted, f),)) for f in question.flops),
        proposals=tuple(
            Answer(f, propose(fitted, f, question.batch_tokens)) for f in question.budgets
        ),
    )
    return warnings, record


def _at(fitted: Fitted[Law], point: TrainedPoint) -> Figure:
    return fitted.figure("loss", "nats/token", "the fitted law", lambda law: law.expected(point))


def _show(record: FitRecord) -> None:
    console = plain_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(("point", "FLOPs", "loss", "law", "95% interval", "off", "is")):
        table.add_column(title, justify="right" if 0 < column < 6 else "left", overflow="fold")
    for compared in record.points:
        table.add_row(*_point_row(compared))
    console.print(table)
    told = [(record.law, record.constants)]
    told += [(f"{a.flops:.3g} FLOPs", a.figures) for a in record.expectations]
    told += [(f"a budget of {a.flops:.3g} FLOPs", a.figures) for a in record.proposals]
    for title, figures in told:
        console.print()
        console.print(_figures(title, figures))
    console.print()
    console.print(f"points scatter by {record.scatter:.2%} about the law", highlight=False)


def _point_row(compared: ComparedPoint) -> tuple[str, ...]:
    point, expected = compared.point, compared.expected
    return (
        point.name,
        f"{point.flops:.3g}",
        f"{point.loss:.4f}",
        f"{expected.value:.4f}",
        _interval(expected),
        f"{point.loss / expected.value - 1:+.2%}",
        str(point.origin),
    )


def _figures(title: str, figures: tuple[Figure, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, head in enumerate((title, "value", "95% interval", "is", "from")):
        table.add_column(head, justify="right" if column in (1, 2) else "left")
    for figure in figures:
        value = f"{figure.value:.4g} {figure.unit}".strip()
        name = figure.name.replace("_", " ")
        table.add_row(name, value, _interval(figure), str(figure.origin), figure.source)
    return table


def _interval(figure: Figure) -> str:
    known = figure.low is not None and figure.high is not None
    return f"{figure.low:.4g} to {figure.high:.4g}" if known else ""


def _draw(path: Path, fitted: Fitted[Law], record: FitRecord) -> None:
    from matplotlib.figure import Figure as Canvas

    least, most = fitted.flops_range
    asked = [answer.flops for answer in (*record.expectations, *record.proposals)]
    flops = np.geomspace(min([least, *asked]) / 1.5, max([most, *asked]) * 1.5, NUM_DRAWN)
    curve = [expected_loss(fitted, float(f)) for f in flops]
    canvas = Canvas(figsize=PICTURE_INCHES, layout="constrained")
    axes: Any = canvas.subplots()
    axes.fill_between(
        flops,
        [figure.low for figure in curve],
        [figure.high for figure in curve],
        color="#a9c4e4",
        alpha=0.6,
        linewidth=0,
        label="95% interval of the law",
    )
    axes.plot(flops, [figure.value for figure in curve], color="#1f5fa8", label="fitted law")
    points = fitted.points
    axes.plot([p.flops for p in points], [p.loss for p in points], "o", color="#1f2328", ms=5)
    answers = [(a.flops, a.figures[-1].value) for a in (*record.expectations, *record.proposals)]
    axes.plot(*zip(*answers, strict=True) if answers else ([], []), "D", color="#cf5b3f", ms=6)
    axes.set(xscale="log", xlabel="training FLOPs", ylabel="loss, nats a token")
    axes.legend(frameon=False)
    with replacing(path) as temporary:
        canvas.savefig(temporary, dpi=150)
