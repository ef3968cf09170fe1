"""A heap whose holes make the process larger than its limit gives them back."""

from tests.own_process import integers_of
from tests.training.session.returned_holes import MIB, NUM_HOLES


def test_holes_leave_the_process_and_what_lies_between_them_stays() -> None:
    before, left, is_whole = integers_of("tests.training.session.returned_holes")
    assert before - left > 0.9 * NUM_HOLES * MIB
    assert is_whole
