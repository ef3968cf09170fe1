"""Draws losses as they could have been, with the noise that distances from a law show.

One point tells nearly nothing of its own noise, and one that draws the law to itself nothing at
all. So the spread of noise is taken to be a power of the expected loss, and of whatever else the
law knows of a point (Carroll and Ruppert 1988, Transformation and Weighting in Regression, chapter
3), and which power is as open as the points leave it.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from openwafer.planning.laws.fitted import Array, Resampling

USUAL_RATIO: Final = 2.0
"""Of spreads at the ends of the points, the standard deviation of the logarithm before a look at
them: one in twenty designs is taken to differ by more than a factor of fifty."""

MOST_NOISE: Final = math.log(10)
"""A chi-square of one degree deals scales without a bound, losses have one."""

LEAST_DIRECTION: Final = 1e-9

RATIOS: Final = USUAL_RATIO * np.linspace(-3, 3, 17)


def resampled_losses(
    losses: Array,
    expected: Array,
    slopes: Array,
    resampling: Resampling,
    beside: Sequence[Array] = (),
) -> Sequence[Array]:
    """Losses as they could have been, (n,) each: the law's, and noise as the points have it.

    For each a spread is dealt from those that go with the points (restricted likelihood, so that
    the constants of the law are counted), and distances from the law, over their spreads, are dealt
    to the points anew, with signs anew: their distribution stays what it is.

    Args:
        losses, expected: of the points and of the law, (n,).
        slopes: of the expected logs by each constant of the law, (n, constants).
        beside: what spreads may follow beside the expected loss, (n,) each.
    """
    residuals = np.log(losses / expected)
    if not resampling.num_replicas or not residuals.any():
        return [expected] * resampling.num_replicas
    dealer = np.random.default_rng(resampling.seed)
    beliefs, spreads = _hypotheses([np.log(expected), *beside])
    logs, sums, freedom = _likelihoods(residuals, spreads, _basis(slopes))
    chances = np.exp(beliefs + logs - (beliefs + logs).max())
    chances /= chances.sum()
    usual = np.exp(chances @ np.log(spreads))
    # A fit by medians goes through as many points as it has constants: these tell of no noise.
    told = np.sort(np.abs(residuals / usual))[-freedom:]
    told /= np.sqrt(np.square(told).mean())
    dealt = dealer.choice(len(spreads), size=resampling.num_replicas, p=chances)
    scales = np.sqrt(sums[dealt] / dealer.chisquare(freedom, size=len(dealt)))
    shares = dealer.choice([*-told, *told], size=(len(dealt), len(losses)))
    noise = np.clip(scales[:, None] * spreads[dealt] * shares, -MOST_NOISE, MOST_NOISE)
    return [*(expected * np.exp(noise))]


def _hypotheses(followed: Sequence[Array]) -> tuple[Array, Array]:
    """Ways in which spreads may follow these: their log chances (h,), and spreads (h, n)."""
    ranges = np.array([(each - each.mean()) / max(np.ptp(each), 1e-9) for each in followed])
    ratios = np.array([*product(RATIOS, repeat=len(ranges))])
    return -np.square(ratios / USUAL_RATIO).sum(axis=1) / 2, np.exp(ratios @ ranges)


def _basis(slopes: Array) -> Array:
    """Orthonormal directions (n, k) in which a law's constants move the expected logs."""
    basis, sizes, _ = np.linalg.svd(slopes / np.abs(slopes).max(axis=0), full_matrices=False)
    found: Array = basis[:, sizes > LEAST_DIRECTION * sizes[0]]
    return found


def _likelihoods(residuals: Array, spreads: Array, basis: Array) -> tuple[Array, Array, int]:
    """Of the hypotheses, with the sums of weighted squares and the degrees of freedom.

    The law's constants and the scale of all spreads are taken out of the likelihood (Harville
    1977), so that it does not matter which fit the residuals are of.
    """
    freedom = len(residuals) - basis.shape[1]
    weights = spreads**-2
    weighted = weights[:, :, None] * basis
    grams = basis.T @ weighted
    pulls = weighted.transpose(0, 2, 1) @ residuals
    moved = np.linalg.solve(grams, pulls[..., None])[..., 0]
    sums = weights @ np.square(residuals) - (pulls * moved).sum(axis=1)
    sums = np.maximum(sums, np.finfo(float).tiny)
    logs = -np.log(spreads).sum(axis=1) - np.linalg.slogdet(grams)[1] / 2
    return logs - freedom * np.log(sums) / 2, sums, freedom
