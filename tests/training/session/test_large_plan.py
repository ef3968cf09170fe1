"""A plan needs neither the memory nor the time that the model would need."""

from pathlib import Path

import pytest

from tests.own_process import integers_of


@pytest.mark.slow
def test_a_hundred_billion_parameters_are_planned_in_30_seconds_and_2_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = integers_of("tests.training.session.large_plan", tmp_path)
    parameters, processor_milliseconds, peak_bytes = found
    assert parameters > 100e9
    assert peak_bytes <= 2e9
    assert processor_milliseconds <= 30_000
