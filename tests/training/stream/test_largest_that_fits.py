"""How many layers may keep their activations is found with few tries."""

from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.stream.plan.search import largest_that_fits


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(0, 30_000))
def test_the_largest_number_within_the_budget_is_found(steps: list[int], budget: int) -> None:
    peaks = [sum(steps[:number]) for number in range(len(steps) + 1)]
    expected = max(number for number, peak in enumerate(peaks) if peak <= budget)
    assert largest_that_fits(len(steps), peaks.__getitem__, budget) == expected


def test_four_tries_find_it_among_a_thousand_alike() -> None:
    tries = []

    def peak_of(number: int) -> int:
        tries.append(number)
        return 500 + 7 * number

    assert largest_that_fits(1000, peak_of, 4003) == 500
    assert len(tries) == 4


def test_without_a_budget_all_fit() -> None:
    assert largest_that_fits(12, lambda number: 1 << number, None) == 12
