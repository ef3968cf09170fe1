"""The host tells when it waits for long."""

import pytest

from openwafer.sdk.fabric.patience import Patience


def test_a_long_wait_says_what_pes_are_at(capsys: pytest.CaptureFixture[str]) -> None:
    Patience("PEs to take words", seconds=0.0).look(1_200_000, lambda: ["PE (0, 0) is at work"])
    told = capsys.readouterr().err
    assert told == (
        "openwafer: the host has waited 0 s, 1,200,000 cycles, for PEs to take words\n"
        "  PE (0, 0) is at work\n"
    )


def test_a_short_wait_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    Patience("PEs to take words").look(1_200_000, lambda: ["PE (0, 0) is at work"])
    assert capsys.readouterr().err == ""
