"""The schedule of many systems: room for two layers is room for two, however bytes are rounded."""

import pytest

from openwafer.cli.system_pictures import schedule_seconds

TOKENS = 11_560


def test_192_systems_are_160_times_as_fast_on_a_small_model() -> None:
    """As docs/design/step-time-of-systems.md says of 1.3 billion parameters."""
    one, many = (schedule_seconds(1.3e9, 24, number, TOKENS) for number in (1, 192))
    assert 192 * one / many == pytest.approx(160, abs=0.5)


def test_whole_bytes_and_shares_of_them_take_as_long() -> None:
    for layers in range(2, 200, 17):
        whole = layers * round(1.3e9 / layers)
        seconds = [schedule_seconds(n, layers, 16, TOKENS) for n in (1.3e9, whole)]
        assert seconds[0] == pytest.approx(seconds[1], rel=1e-6), layers
