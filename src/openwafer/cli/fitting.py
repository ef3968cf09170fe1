"""``openwafer fit`` reads points, tells a law and writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from rich.table import Table

from openwafer.cli.budgets import Budget
from openwafer.cli.tables import plain_console
from openwafer.diagnostics import Diagnostic, did_you_mean, error, tell
from openwafer.planning.laws import (
    Answer,
    ComparedPoint,
    Figure,
    FitRecord,
    Fitted,
    Law,
    LawKind,
    Resampling,
    TrainedPoint,
    best_of_rates,
    check_fit,
    check_points,
    conditions_of,
    course_of,
    expected_loss,
    fit_law,
    propose,
    read_points,
    require_near,
    sizes_outside,
    write_fit,
)

WORDS = {
    LawKind.COMPUTE: "loss by compute",
    LawKind.KAPLAN: "loss by parameters and tokens",
    LawKind.ENVELOPE: "loss of the best size by compute",
    LawKind.ISOFLOP: "loss of the best size by compute",
    LawKind.PARAMETRIC: "loss by parameters and tokens",
}


@dataclass(frozen=True)
class Sources:
    """The points to fit: those of files and run folders, without those that `held_out` globs name.

    Runs that did not come to a good end are refused unless `leaves_out`.
    """

    paths: tuple[Path, ...]
    held_out: tuple[str, ...] = ()
    leaves_out: bool = False
    trusts_code: bool = False


@dataclass(frozen=True)
class Question:
    """A question: a law of a kind, losses at `flops`, proposals for `budgets`."""

    kind: LawKind
    resampling: Resampling
    flops: tuple[float, ...]
    budgets: tuple[Budget, ...]
    batch_tokens: float | None


@dataclass(frozen=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None
    picture: Path | None


def fit_points(sources: Sources, question: Question, outputs: Outputs) -> None:
    """Fit a law to the points of `sources`, tell it and what follows, and write it down."""
    points, remarks = _read(sources)
    check_points(points)
    held_out = _named(points, sources.held_out)
    tried = [point for point in points if point not in held_out]
    best, notes = best_of_rates(tried)
    fitted = fit_law(best, question.kind, question.resampling)
    warnings, record = _answer(fitted, held_out, tried, question)
    tell([*remarks, *notes, *fitted.remarks, *check_fit(fitted), *warnings])
    _show(record)
    if outputs.json is not None:
        write_fit(outputs.json, record)
        print(f"wrote {outputs.json}")
    if outputs.picture is not None:
        from openwafer.cli.fit_picture import draw_fit

        draw_fit(outputs.picture, fitted, record)
        print(f"wrote {outputs.picture}")


def _read(sources: Sources) -> tuple[list[TrainedPoint], list[Diagnostic]]:
    if not any(path.is_dir() for path in sources.paths):
        return [point for path in sources.paths for point in read_points(path)], []
    from openwafer.cli.run_points import Reading, read_sources

    return read_sources(sources.paths, Reading(sources.leaves_out, sources.trusts_code))


def _named(points: Sequence[TrainedPoint], globs: Sequence[str]) -> list[TrainedPoint]:
    """The points that globs name, each of which must name one."""
    names = [point.name for point in points]
    for glob in globs:
        if not any(fnmatch(name, glob) for name in names):
            raise error(
                "option-value",
                f"--hold-out {glob} names none of the {len(points)} points",
                help=did_you_mean(glob, names),
            )
    return [p for p in points if any(fnmatch(p.name, glob) for glob in globs)]


def _answer(
    fitted: Fitted[Law],
    held_out: Sequence[TrainedPoint],
    tried: Sequence[TrainedPoint],
    question: Question,
) -> tuple[list[Diagnostic], FitRecord]:
    budgets = question.budgets
    asked = dict.fromkeys((*question.flops, *(budget.flops for budget in budgets)))
    warnings = [warning for flops in asked for warning in require_near(fitted, flops)]
    warnings += [warning for b in budgets for warning in sizes_outside(fitted, b.flops)]
    compared = [ComparedPoint(point, _at(fitted, point)) for point in fitted.points]
    compared += [ComparedPoint(p, _at(fitted, p), is_held_out=True) for p in held_out]
    record = FitRecord(
        law=WORDS[question.kind],
        kind=question.kind,
        constants=fitted.constants(),
        replicas=tuple(law.constants() for law in fitted.replicas),
        conditions=conditions_of(fitted.runs or fitted.points),
        course=course_of(fitted),
        flops_range=fitted.flops_range,
        scatter=fitted.scatter,
        points=tuple(compared),
        runs=fitted.runs,
        expectations=tuple(Answer(f, (expected_loss(fitted, f),)) for f in question.flops),
        proposals=tuple(
            Answer(b.flops, (*b.figures, *propose(fitted, b.flops, question.batch_tokens, tried)))
            for b in budgets
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
        f"{point.name} (held out)" if compared.is_held_out else point.name,
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
