"""Checks whether a law fits its points, and says in words what speaks against it."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from openwafer.diagnostics import Diagnostic, Severity, counted, error
from openwafer.planning.laws.compute_law import ComputeLaw, solve_again
from openwafer.planning.laws.fitted import Fitted, Law
from openwafer.planning.laws.points import TrainedPoint

LARGEST_VOCABULARY: Final = 2**18
"""Token ids of the largest vocabularies in use."""

LEAST_FALL: Final = 0.01
"""Share by which a law's loss falls among its points, at least."""

MOST_SCATTER: Final = 0.05
MOST_UNEXPLAINED: Final = 0.5
"""Scatter about a law: as a share of a loss, and of how much the losses themselves differ."""

FAR_OFF: Final = 0.03
TIMES_OFF: Final = 8.0
"""A point is far off its law by this share, if that is so many times what the others are."""

LEAST_USUAL: Final = 1e-4
LEAST_POINTS: Final = 6
"""Of a law by least squares: those that are left have to tell how far they are off themselves."""

ODD_FLOPS: Final = 3.0
"""Factor between FLOPs for each parameter and token of a point, and those of most points."""

LEAST_TOKENS: Final = 0.5
"""For each parameter; a run of less is hardly begun."""


def check_losses(points: Sequence[TrainedPoint]) -> None:
    """Raise ``points-rise`` where losses do not fall with compute."""
    flops, losses = np.log([(point.flops, point.loss) for point in points]).T
    slope = float(np.cov(flops, losses)[0, 1]) if len(points) > 1 else -1.0
    if slope >= 0:
        least, most = points[int(flops.argmin())], points[int(flops.argmax())]
        raise error(
            "points-rise",
            f"losses do not fall with compute, from {least.loss:.4g} at {least.flops:.3g} FLOPs to "
            f"{most.loss:.4g} at {most.flops:.3g}, and every law here does",
            help="see that the loss column holds losses, and that its runs did not diverge",
        )


def check_fit(fitted: Fitted[Law]) -> tuple[Diagnostic, ...]:
    """Warnings of points and of a law that do not look as if they belonged together."""
    runs = fitted.runs or fitted.points
    return (*_of_losses(runs), *_of_sizes(runs), *_of_law(fitted))


def _warning(code: str, message: str, remedy: str) -> Diagnostic:
    return Diagnostic(Severity.WARNING, code, message, help=remedy)


def _of_losses(runs: Sequence[TrainedPoint]) -> Iterator[Diagnostic]:
    most = math.log(LARGEST_VOCABULARY)
    large = [run for run in runs if run.loss > most]
    if large:
        yield _warning(
            "points-loss",
            f"the loss of {large[0].name} is {large[0].loss:.4g}, above {most:.4g} nats a token, "
            f"which guessing among {LARGEST_VOCABULARY:,} tokens has",
            "give losses in nats a token: of a perplexity its natural logarithm",
        )


def _of_sizes(runs: Sequence[TrainedPoint]) -> Iterator[Diagnostic]:
    known = [(run, run.parameters, run.tokens) for run in runs]
    both = [(run, n, d) for run, n, d in known if n is not None and d is not None]
    if not both:
        return
    ratios = np.array([run.flops / (n * d) for run, n, d in both])
    usual = float(np.median(ratios))
    for (run, n, d), ratio in zip(both, ratios, strict=True):
        if max(ratio / usual, usual / ratio) > ODD_FLOPS:
            yield _warning(
                "points-flops",
                f"{run.name} has {ratio:.3g} FLOPs for each parameter and token, most points have "
                f"{usual:.3g}",
                f"check its {run.flops:.3g} FLOPs, {n:.3g} parameters and {d:.3g} tokens",
            )
    short = [run for run, n, d in both if d < LEAST_TOKENS * n]
    if short:
        yield _warning(
            "points-short",
            f"{counted(len(short), 'run')} had less than {LEAST_TOKENS:g} tokens a parameter, such "
            f"as {short[0].name}: their losses tell of a beginning",
            "train them longer, or leave them out; check that tokens are counted in ones",
        )


def _of_law(fitted: Fitted[Law]) -> Iterator[Diagnostic]:
    points, law = fitted.points, fitted.law
    expected = [law.expected(point) for point in points]
    fall = 1 - min(expected) / max(expected)
    if fall < LEAST_FALL or _is_at_bound(law):
        yield _warning(
            "law-flat",
            f"the law falls by {fall:.2%} among its points, with the constants "
            + ", ".join(f"{name} {value:.3g}" for name, value in law.constants().items())
            + ": a constant is at its bound, and says nothing beyond the points",
            "train models that differ more, or fit another --law",
        )
    logs = np.log([point.loss for point in points])
    spread = float(logs.std())
    if fitted.scatter > MOST_SCATTER or fitted.scatter > MOST_UNEXPLAINED * spread:
        yield _warning(
            "law-scatter",
            f"points scatter by {fitted.scatter:.2%} about the law, and losses differ by "
            f"{spread:.2%} themselves: the law explains little of them",
            "look for runs under other conditions, or that diverged",
        )
    yield from _far_off(fitted)


def _is_at_bound(law: Law) -> bool:
    """Whether an exponent is so small or so large that its term says nothing."""
    names = ("exponent", "a", "b", "a_N", "a_D")
    exponents = [value for name, value in law.constants().items() if name in names]
    return not all(0.011 < value < 4.9 for value in exponents)


def _far_off(fitted: Fitted[Law]) -> Iterator[Diagnostic]:
    """The point that lies farthest from a law of the others, which least squares need."""
    points, law = fitted.points, fitted.law
    laws: list[Law] = [law] * len(points)
    if isinstance(law, ComputeLaw):
        if len(points) < LEAST_POINTS:
            return
        laws = [solve_again([*points[:n], *points[n + 1 :]], law) for n in range(len(points))]
    offs = [[math.log(p.loss / own.expected(p)) for p in points] for own in laws]
    usual = [float(np.median(np.abs(np.delete(off, n)))) for n, off in enumerate(offs)]
    far = max(range(len(points)), key=lambda n: abs(offs[n][n]) / max(usual[n], LEAST_USUAL))
    if abs(offs[far][far]) > max(FAR_OFF, TIMES_OFF * usual[far]):
        yield _warning(
            "point-off",
            f"the loss of {points[far].name}, {points[far].loss:.4g}, is "
            f"{math.expm1(offs[far][far]):+.1%} off the law of the others, which are off by "
            f"{usual[far]:.2%} in the middle",
            "check its row for a slip of the pen, and its run for a divergence",
        )
