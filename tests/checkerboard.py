"""Tables of cases of which every other cell runs by default."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def checkerboard(*axes: Iterable[Any] | dict[str, Any]) -> list[ParameterSet]:
    """All combinations of one value of each axis; those whose indices have an odd sum are slow.

    So every value of an axis of two or more meets, by default, half of the combinations of the
    others. An axis that is a dict names its values.
    """
    named = [
        axis if isinstance(axis, dict) else {str(value): value for value in axis} for axis in axes
    ]
    return [
        pytest.param(
            *(value for _, (_, value) in cell),
            marks=pytest.mark.slow if sum(index for index, _ in cell) % 2 else (),
            id="-".join(name for _, (name, _) in cell),
        )
        for cell in product(*(enumerate(axis.items()) for axis in named))
    ]
