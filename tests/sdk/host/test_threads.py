"""How many threads simulate a fabric."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host.pe_code import num_threads


def test_a_small_fabric_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENWAFER_THREADS", raising=False)
    assert num_threads(16, 100) == 1


def test_a_caller_that_asks_for_one_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENWAFER_THREADS", raising=False)
    assert num_threads(1, 10**6) == 1


def test_the_environment_goes_before_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_THREADS", "3")
    assert num_threads(1, 4) == 3


@pytest.mark.parametrize("given", ["0", "65", "many"])
def test_another_word_than_a_number_of_threads_is_an_error(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("OPENWAFER_THREADS", given)
    with pytest.raises(OpenwaferError, match=f"OPENWAFER_THREADS is '{given}', not a number from"):
        num_threads(1, 4)
