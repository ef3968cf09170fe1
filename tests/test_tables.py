"""Tables of cases have the same names in every process."""

import pytest

from tests.tables import checkerboard


def test_a_set_names_no_case() -> None:
    with pytest.raises(TypeError, match="another order in another process: name it in a dict"):
        checkerboard(({1, 2}, {3}))
