"""Features taken from activations, as products with weights of one a feature that stream in."""

from functools import lru_cache

import numpy as np
import scipy.sparse

from openwafer.fabric_device.wafer import Held, Wafer
from openwafer.sdk.kernels.resident_plan import Activation, ResidentPlan, Weights

Numbers = tuple[int, ...]


def selected(rest: Held, features: Numbers) -> Held:
    """These features of an activation, in this order; where they begin a PE's row, in place."""
    if features == tuple(range(rest.num_features)):
        return rest
    wafer, first = rest.wafer, features[0]
    plan, count = wafer.resident.plan, len(features)
    if first % plan.rows == 0 and features == tuple(range(first, first + count)):
        place = rest.activation.first + first // plan.rows
        return rest.part(Activation(place, count, plan.panels_of(count)))
    return placed(rest, features, tuple(range(count)), count)


def placed(rest: Held, features: Numbers, places: Numbers, count: int, factor: float = 1.0) -> Held:
    """Some features times a factor at some places among `count`; zeros are at the others."""
    wafer = rest.wafer
    weights = _selection(features, places, (count, rest.num_features), wafer.resident.plan)
    data = np.full(len(features), factor, np.float32)
    return wafer.made(
        wafer.resident.forward(weights, data, rest.activation), has_zeros=rest.has_zeros
    )


def added_back(rest: Held, features: Numbers, count: int) -> Held:
    """The gradient of `count` features of which `features` were taken, some of them often."""
    wafer = rest.wafer
    places = tuple(range(len(features)))
    weights = _selection(features, places, (len(features), count), wafer.resident.plan)
    data = np.ones(len(features), np.float32)
    return wafer.made(
        wafer.resident.delta(weights, data, rest.activation), has_zeros=rest.has_zeros
    )


def joined(rests: list[tuple[Held, Numbers, Numbers]], count: int, wafer: Wafer) -> Held:
    """Features of several activations side by side.

    Args:
        rests: of each the activation, which of its features, and their places.
        count: of all features.
        wafer: has them.
    """
    total: Held | None = None
    for rest, features, places in rests:
        one = placed(rest, features, places, count)
        if total is not None:
            both = wafer.resident.add(total.activation, one.activation)
            one = wafer.made(both, has_zeros=total.has_zeros and one.has_zeros)
        total = one
    assert total is not None
    return total


@lru_cache(maxsize=256)
def _selection(
    features: Numbers, places: Numbers, shape: tuple[int, int], plan: ResidentPlan
) -> Weights:
    ones = np.ones(len(features), np.float32)
    matrix = scipy.sparse.csr_array((ones, (places, features)), shape=shape)
    return Weights.of(matrix, plan, has_bias=False)
