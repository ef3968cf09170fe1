"""Tables of cases have the same names in every process."""

import pytest

from tests.tables import checkerboard


def test_a_set_names_no_case() -> None:
    with pytest.raises(TypeError, match="another order in another process: name it in a dict"):
        checkerboard(({1, 2}, {3}))


def test_a_function_names_a_case_by_its_name() -> None:
    (one,) = checkerboard((test_a_set_names_no_case,))
    assert one.id == "test_a_set_names_no_case"
