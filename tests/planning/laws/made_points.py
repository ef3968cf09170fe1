"""Points and curves that follow published laws, with noise of a seed."""

from collections.abc import Sequence

import numpy as np

from openwafer.planning.laws import (
    CurvePoint,
    Figure,
    LawKind,
    SizeTokensLaw,
    TrainedPoint,
)

HOFFMANN = SizeTokensLaw(
    LawKind.PARAMETRIC,
    {"E": 1.69, "A": 406.4, "a": 0.34, "B": 410.7, "b": 0.28},
    "Hoffmann et al. 2022, arXiv 2203.15556, eq. 10",
)
KAPLAN = SizeTokensLaw(
    LawKind.KAPLAN,
    {"N_c": 8.8e13, "a_N": 0.076, "D_c": 5.4e13, "a_D": 0.095},
    "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5",
)
SIZE_EXPONENT = 0.28 / (0.34 + 0.28)
"""Of compute, in the best size: Hoffmann et al. 2022, eq. 4."""


def made(
    law: SizeTokensLaw, sizes_and_tokens: Sequence[tuple[float, float]], noise: float, seed: int
) -> list[TrainedPoint]:
    """A point for each size and tokens, its loss off by a share of `noise`."""
    drawn = np.random.default_rng(seed).normal(scale=noise, size=len(sizes_and_tokens))
    return [
        TrainedPoint(law.loss_for(n, d) * float(np.exp(off)), 6 * n * d, n, d, name=f"{n:g} {d:g}")
        for (n, d), off in zip(sizes_and_tokens, drawn, strict=True)
    ]


def grid_points(law: SizeTokensLaw, noise: float = 0.005, seed: int = 0) -> list[TrainedPoint]:
    """Six sizes, each trained on 2 to 200 tokens a parameter."""
    sizes = np.geomspace(4e7, 1e10, 6)
    return made(law, [(n, n * t) for n in sizes for t in (2, 10, 40, 200)], noise, seed)


def equal_computes(noise: float = 0.003, seed: int = 0) -> list[TrainedPoint]:
    """Seven sizes about the best of each of six computes."""
    shapes = []
    for flops in np.geomspace(1e18, 1e21, 6):
        sizes = HOFFMANN.allocation(flops).parameters * np.geomspace(1 / 4, 4, 7)
        shapes += [(float(n), flops / 6 / n) for n in sizes]
    return made(HOFFMANN, shapes, noise, seed)


def curves(noise: float = 0.001, seed: int = 0) -> list[TrainedPoint]:
    """Nine sizes, each with its loss at 60 numbers of tokens."""
    tokens = np.geomspace(1e9, 2e12, 60)
    points = []
    for number, size in enumerate(np.geomspace(5e7, 5e9, 9)):
        along = made(
            HOFFMANN, [(float(size), float(d)) for d in tokens], noise, 100 * seed + number
        )
        curve = tuple(CurvePoint(float(p.tokens or 0), p.loss) for p in along)
        points.append(TrainedPoint(**{**vars(along[-1]), "curve": curve}))
    return points


def holds(figure: Figure, truth: float) -> bool:
    """Whether a figure's interval holds the truth."""
    assert figure.low is not None
    assert figure.high is not None
    return figure.low <= truth <= figure.high
