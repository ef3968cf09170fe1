"""Tables that no law fits: each is warned of or refused in words, and sound ones stay silent."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.laws import LawKind, Resampling, TrainedPoint, check_fit, fit_law
from tests.planning.laws.made_points import HOFFMANN, KAPLAN, curves, equal_computes, grid_points
from tests.planning.laws.pile_models import POINTS

NONE = Resampling(num_replicas=0)
STUDY = {2.72e11: 2.603, 1.00e12: 2.160, 2.65e12: 1.897, 1.10e13: 1.620, 3.13e13: 1.451}
"""The means of the scaling study in the guide, by FLOPs."""


def of_compute(losses: Sequence[float]) -> list[TrainedPoint]:
    flops = np.geomspace(1e18, 1e21, len(losses))
    return [
        TrainedPoint(x, float(f), name=f"run{n}")
        for n, (f, x) in enumerate(zip(flops, losses, strict=False))
    ]


def changed(at: int, **factors: float) -> list[TrainedPoint]:
    points = grid_points(HOFFMANN)
    new = {name: factor * getattr(points[at], name) for name, factor in factors.items()}
    points[at] = replace(points[at], **new)
    return points


def told(points: Sequence[TrainedPoint], kind: LawKind) -> list[str]:
    try:
        return [remark.code for remark in check_fit(fit_law(points, kind, NONE))]
    except OpenwaferError as refused:
        return [diagnostic.code for diagnostic in refused.diagnostics]


def noise() -> list[TrainedPoint]:
    return of_compute([float(x) for x in np.random.default_rng(3).uniform(2, 4, 8)][::-1])


NONSENSE: dict[str, tuple[str, LawKind, Callable[[], list[TrainedPoint]]]] = {
    "losses that rise": ("points-rise", LawKind.COMPUTE, lambda: of_compute([2, 2.2, 2.4, 2.75])),
    "accuracies": ("points-rise", LawKind.COMPUTE, lambda: of_compute([0.2, 0.4, 0.5, 0.6, 0.65])),
    "perplexities": (
        "points-loss",
        LawKind.COMPUTE,
        lambda: [replace(point, loss=float(np.exp(point.loss))) for point in POINTS],
    ),
    "one loss": ("points-rise", LawKind.COMPUTE, lambda: of_compute([3.0] * 6)),
    "a loss ten times as large": ("point-off", LawKind.PARAMETRIC, lambda: changed(9, loss=10)),
    "a point slipped in a loss": (
        "point-off",
        LawKind.COMPUTE,
        lambda: [*POINTS[:3], replace(POINTS[3], loss=19.97), *POINTS[4:]],
    ),
    "FLOPs of ten times": (
        "point-off",
        LawKind.COMPUTE,
        lambda: [*POINTS[:4], replace(POINTS[4], flops=1.1e22), *POINTS[5:]],
    ),
    "parameters of ten times": ("points-flops", LawKind.KAPLAN, lambda: changed(5, parameters=10)),
    "tokens of a tenth": ("points-flops", LawKind.PARAMETRIC, lambda: changed(5, tokens=0.1)),
    "runs hardly begun": (
        "points-short",
        LawKind.PARAMETRIC,
        lambda: [replace(p, tokens=(p.tokens or 0) / 1e3) for p in grid_points(HOFFMANN)],
    ),
    "chance": ("law-scatter", LawKind.COMPUTE, noise),
    "a run that diverged": ("point-off", LawKind.PARAMETRIC, lambda: changed(20, loss=4)),
    "half of the losses in bits": (
        "law-scatter",
        LawKind.COMPUTE,
        lambda: of_compute([3.0, 4.1, 2.7, 3.7, 2.5, 3.4, 2.3, 3.1]),
    ),
    "losses that hardly fall with tokens": (
        "law-flat",
        LawKind.PARAMETRIC,
        lambda: [replace(p, loss=3 + p.loss / 1e4) for p in grid_points(HOFFMANN)],
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_what_no_law_fits_is_told(name: str) -> None:
    code, kind, points = NONSENSE[name]
    assert code in told(points(), kind)


SOUND = {
    "Cerebras-GPT": (LawKind.COMPUTE, POINTS),
    "the study of the guide": (LawKind.COMPUTE, [TrainedPoint(x, f) for f, x in STUDY.items()]),
    "Hoffmann": (LawKind.PARAMETRIC, grid_points(HOFFMANN)),
    "Kaplan": (LawKind.KAPLAN, grid_points(KAPLAN)),
    "equal computes": (LawKind.ISOFLOP, equal_computes()),
    "curves": (LawKind.ENVELOPE, curves()),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_points_are_fitted_without_a_word(name: str) -> None:
    kind, points = SOUND[name]
    assert told(points, kind) == []


def test_a_slip_of_the_pen_is_told_by_its_row() -> None:
    [remark] = check_fit(fit_law(changed(9, loss=10), LawKind.PARAMETRIC, NONE))[-1:]
    assert remark.message.startswith("the loss of ")
    assert "% off the law of the others, which are off by 0." in remark.message


def test_losses_that_rise_are_refused_with_both_ends() -> None:
    with pytest.raises(
        OpenwaferError, match=r"from 2 at 1e\+18 FLOPs to 2\.75 at 1e\+21"
    ) as caught:
        fit_law(of_compute([2, 2.2, 2.4, 2.75]), LawKind.COMPUTE, NONE)
    assert "help: see that the loss column holds losses" in str(caught.value)
