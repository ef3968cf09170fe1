"""What a run left behind: written, read again, compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Region
from openwafer.sdk.host.final_state import FinalState, difference, read
from openwafer.sdk.host.pe_code import EngineKind
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE
from tests.sdk.host.hand_built import running

CORNER = Region(1, 0, 1, 1, 2)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FinalState]:
    """States of the same run in native code and in the interpreter."""
    folder = tmp_path_factory.mktemp("states")
    with pytest.MonkeyPatch.context() as patch:
        for kind in EngineKind:
            patch.setenv(FINAL_STATE_VARIABLE, str(folder / kind))
            runtime = running(kind)
            runtime.copy_to_device(1, np.ones(CORNER.shape, np.float32).view(np.uint32), CORNER)
            runtime.launch("scale", 3.0)
            runtime.send(5, np.full(CORNER.shape, 7, np.uint32), CORNER)
            runtime.stop()
    return {kind: read(folder / kind / "0000.npz") for kind in EngineKind}


def test_both_engines_leave_the_same_state(states: dict[str, FinalState]) -> None:
    assert difference(states["native"], states["interpreter"]) == ""


def test_the_state_holds_data_and_counts(states: dict[str, FinalState]) -> None:
    state = states["native"]
    assert state.words[0, 1, 16:20].view(np.float32).tolist() == [3.0, 1.0]
    assert (state.counts["wavelets"], state.counts["tasks"]) == (2, 6)


def test_a_word_that_differs_is_named_with_both_values(states: dict[str, FinalState]) -> None:
    words = states["native"].words.copy()
    words[0, 1, 18] += 1
    expected = (
        "word 2 of 'A' of PE (1, 0) is 0x0000 and 0x0001, one of 1 words that differ",
        "wavelets are 2 and 3",
    )
    state = states["native"]
    counts = dict(state.counts, wavelets=3)
    others = replace(state, words=words), replace(state, counts=counts)
    assert tuple(difference(state, other) for other in others) == expected


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "state.npz", format=np.str_("openwafer-final-state"), version=np.int64(1))
    with pytest.raises(OpenwaferError, match=r"version 1; this program reads .* version 2"):
        read(tmp_path / "state.npz")


def test_any_nan_equals_any_other(states: dict[str, FinalState]) -> None:
    both = []
    for nan in (0x7FC0, 0xFFC1):
        words = states["native"].words.copy()
        words[1, 1, 17] = nan
        both.append(replace(states["native"], words=words))
    assert difference(*both) == ""
