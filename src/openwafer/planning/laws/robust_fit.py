"""Constants that make the logs of losses fit, by the Huber loss and BFGS.

Of so few constants BFGS keeps all that L-BFGS would. scipy's L-BFGS-B calls threaded products of
matrices for them, and took ten times as long on two busy cores.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy.optimize import minimize

from openwafer.planning.laws.fitted import Array

HUBER_DELTA: Final = 1e-3
"""Distance of logs from which on an error counts by its size: Hoffmann et al. 2022, section 3.3."""

WIDER_DELTAS: Final = (0.1, 0.01)
"""Before it: the sum of absolute errors has kinks in which a search from afar stays."""

TOLERANCES: Final = {"gtol": 1e-9, "maxiter": 2000}

Form = Callable[[Array], tuple[Array, Array]]
"""From constants (k,) to expected logs (n,) and their derivatives by each constant (n, k)."""


def fit_logs(
    form: Form, logs: Array, starts: Sequence[Array], bounds: Sequence[tuple[float, float]]
) -> Array:
    """The constants (k,) of the least sum of Huber losses, from the best of `starts`, each (k,).

    `logs` (n,) are of the losses, `bounds` of each constant.
    """
    found = [_descend(form, logs, start, bounds, (*WIDER_DELTAS, HUBER_DELTA)) for start in starts]
    return min(found, key=lambda constants: _huber(form, logs, constants, HUBER_DELTA)[0])


def fit_again(
    form: Form, logs: Array, start: Array, bounds: Sequence[tuple[float, float]]
) -> Array:
    """As `fit_logs`, from the constants of a fit to other `logs` of the same law."""
    return _descend(form, logs, start, bounds, (WIDER_DELTAS[-1], HUBER_DELTA))


def _descend(
    form: Form,
    logs: Array,
    start: Array,
    bounds: Sequence[tuple[float, float]],
    deltas: Sequence[float],
) -> Array:
    low, high = np.array(bounds).T
    for delta in deltas:

        def loss(constants: Array, delta: float = delta) -> tuple[float, Array]:
            within = np.clip(constants, low, high)
            total, slopes = _huber(form, logs, within, delta)
            return total, np.where(within == constants, slopes, 0.0)

        found = minimize(loss, start, jac=True, method="BFGS", options=TOLERANCES)
        start = np.clip(found.x, low, high)
    return start


def _huber(form: Form, logs: Array, constants: Array, delta: float) -> tuple[float, Array]:
    """The sum of Huber losses in units of delta, and its derivatives (k,)."""
    expected, derivatives = form(constants)
    errors = expected - logs
    sizes = np.abs(errors)
    losses = np.where(sizes < delta, errors**2 / (2 * delta), sizes - delta / 2)
    slopes = np.clip(errors / delta, -1, 1)
    total = float(losses.sum())
    return (total if math.isfinite(total) else math.inf), slopes @ derivatives
