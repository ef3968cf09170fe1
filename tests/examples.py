"""How many examples a property has: few by default, and all in the slow suite."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., Any])
NUM_BY_DEFAULT = 12
SLOW = "slow"
_chosen: list[str] = []


def are_chosen_by(expression: str) -> None:
    """Say by which marks tests are chosen, before they are read."""
    _chosen[:] = [expression]


def examples(
    number: int,
    parent: settings | None = None,
    *,
    by_default: int = NUM_BY_DEFAULT,
    **options: Any,
) -> Callable[[Test], Test]:
    """Settings of a property that has more examples where slow tests are asked for.

    Args:
        number: how many it then has.
        by_default: how many it has else.
        parent, options: further settings.
    """
    are_all = _chosen == [SLOW]

    def decorate(test: Test) -> Test:
        num = number if are_all else by_default
        decorated: Test = settings(parent, max_examples=num, **options)(test)
        return pytest.mark.slow(decorated) if are_all else decorated

    return decorate
