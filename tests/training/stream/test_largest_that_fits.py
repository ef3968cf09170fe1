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


def test_a_number_that_was_expected_rightly_takes_two_tries_beside_the_ends() -> None:
    tries = []

    def peak_of(number: int) -> int:
        tries.append(number)
        return max(3000, 500 + 7 * number)

    assert largest_that_fits(1000, peak_of, 4003, lambda: 500) == 500
    assert len(tries) == 4


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(0, 30_000), st.integers(-5, 70))
def test_a_wrong_expectation_changes_nothing(steps: list[int], budget: int, number: int) -> None:
    peaks = [sum(steps[:end]) for end in range(len(steps) + 1)]
    expected = largest_that_fits(len(steps), peaks.__getitem__, budget)
    assert largest_that_fits(len(steps), peaks.__getitem__, budget, lambda: number) == expected


def test_without_a_budget_all_fit() -> None:
    assert largest_that_fits(12, lambda number: 1 << number, None) == 12
