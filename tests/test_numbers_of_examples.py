"""A property has few examples by default, and all of them in the slow suite."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import NUM_BY_DEFAULT, SLOW, are_chosen_by, examples

MANY = 2 * NUM_BY_DEFAULT


@pytest.fixture
def chosen(request: pytest.FixtureRequest) -> Iterator[None]:
    """Properties are read as if tests were chosen by these marks."""
    are_chosen_by(request.param)
    yield
    are_chosen_by(request.config.getoption("markexpr"))


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize(
    ("chosen", "num_expected"), [("not slow", NUM_BY_DEFAULT), (SLOW, MANY)], indirect=["chosen"]
)
def test_examples_are_as_many_as_the_suite_asks_for(num_expected: int) -> None:
    seen = []

    @examples(MANY)
    @given(st.integers())
    def test(number: int) -> None:
        seen.append(number)

    test()
    marks = [mark.name for mark in getattr(test, "pytestmark", ())]
    assert (len(seen), marks) == (num_expected, [SLOW] * (num_expected == MANY))
