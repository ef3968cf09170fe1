"""Fits constants to the logs of losses, by the Huber loss, many fits at once.

Each step is one of weighted least squares, whose weights make a parabola that touches the Huber
loss from above (Huber 1981, Robust Statistics, section 7.8), damped as Levenberg and Marquardt do
where the loss does not fall. All fits of a law go as one array.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from openwafer.planning.laws.fitted import Array

HUBER_DELTA: Final = 1e-3
"""Distance of logs from which on an error counts by its size: Hoffmann et al. 2022, section 3.3."""

WIDER_DELTAS: Final = (0.1, 0.01)
"""Before it: the sum of absolute errors has kinks in which a search from afar stays."""

MOST_STEPS: Final = 500
LEAST_GAIN: Final = 1e-10
"""Of a step, as a share of what is left: a fit that gains less has ended."""

FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-12, 1e8

Form = Callable[[Array], tuple[Array, Array]]
"""From constants (fits, k) to expected logs (fits, n) and their derivatives (fits, n, k)."""


def fit_logs(
    form: Form, logs: Array, starts: Sequence[Array], bounds: Sequence[tuple[float, float]]
) -> Array:
    """The constants (k,) of the least sum of Huber losses, from the best of `starts`, each (k,).

    `logs` (n,) are of the losses, `bounds` of each constant.
    """
    found = np.array(starts)
    for delta in (*WIDER_DELTAS, HUBER_DELTA):
        found = _descend(form, logs, found, bounds, delta)
    best: Array = found[int(_huber(form(found)[0] - logs, HUBER_DELTA).argmin())]
    return best


def fit_again(
    form: Form, logs: Array, start: Array, bounds: Sequence[tuple[float, float]]
) -> Array:
    """The constants (fits, k) of many `logs` (fits, n) of one law, from those of a fit to it."""
    found = np.tile(start, (len(logs), 1))
    for delta in (WIDER_DELTAS[-1], HUBER_DELTA):
        found = _descend(form, logs, found, bounds, delta)
    return found


def _descend(
    form: Form, logs: Array, start: Array, bounds: Sequence[tuple[float, float]], delta: float
) -> Array:
    low, high = np.array(bounds).T
    constants = np.clip(start, low, high)
    logs = np.broadcast_to(logs, (len(constants), logs.shape[-1]))
    damping = np.full(len(constants), FIRST_DAMPING)
    expected, slopes = form(constants)
    errors = expected - logs
    totals = _huber(errors, delta)
    going = np.arange(len(constants))
    for _ in range(MOST_STEPS):
        now = constants[going]
        edges = (now >= high) * 1.0 - (now <= low)
        steps = _steps(errors[going], slopes[going], edges, damping[going], delta)
        others = np.clip(now + steps, low, high)
        expected, other_slopes = form(others)
        other_errors = expected - logs[going]
        other_totals = _huber(other_errors, delta)
        falls = other_totals <= totals[going]
        is_little = totals[going] - other_totals <= LEAST_GAIN * totals[going]
        fell = going[falls]
        constants[fell], errors[fell] = others[falls], other_errors[falls]
        slopes[fell], totals[fell] = other_slopes[falls], other_totals[falls]
        damping[going] *= np.where(falls, 0.2, 10)
        damping = np.clip(damping, LEAST_DAMPING, MOST_DAMPING)
        going = going[~((falls & is_little) | (damping[going] == MOST_DAMPING))]
        if not len(going):
            break
    return constants


def _steps(errors: Array, slopes: Array, edges: Array, damping: Array, delta: float) -> Array:
    """Steps (fits, k); a constant at an edge, where that is 1 or -1, does not go beyond it."""
    weighted = slopes / np.maximum(np.abs(errors), delta)[..., None]
    downhill = -(errors[:, None] @ weighted)[:, 0]
    is_held = edges * downhill > 0
    grams = np.swapaxes(weighted, 1, 2) @ slopes
    grams[is_held[:, :, None] | is_held[:, None]] = 0
    # A constant that is held, or says nothing, stays.
    added = damping[:, None] * np.einsum("fii->fi", grams) + np.finfo(float).tiny
    damped = grams + added[..., None] * np.eye(grams.shape[-1])
    steps: Array = np.linalg.solve(damped, np.where(is_held, 0.0, downhill)[..., None])[..., 0]
    return steps


def _huber(errors: Array, delta: float) -> Array:
    """Sums (fits,) of Huber losses in units of delta."""
    sizes = np.abs(errors)
    losses: Array = np.where(sizes < delta, errors**2 / (2 * delta), sizes - delta / 2).sum(axis=-1)
    return np.where(np.isfinite(losses), losses, np.inf)
