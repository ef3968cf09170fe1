"""The host API: any calls in any order end in a result or diagnostics."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st

from openwafer.sdk.compiler.artifacts import compilation_of
from tests.examples import examples
from tests.sdk.fuzz.host_calls import HostCalls
from tests.sdk.host.hand_built import PROGRAM

_CALLS = 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    compilation_of(PROGRAM).write(tmp_path / "out")
    return tmp_path / "out"


def make_calls(random: Random, folder: Path) -> None:
    calls = HostCalls(random, folder)
    try:
        calls.begin()
        for _ in range(_CALLS):
            calls.make()
        calls.end()
    finally:
        note("\n".join(calls.made))


@examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False))
def test_any_calls_of_the_host_end_in_a_result_or_diagnostics(random: Random, folder: Path) -> None:
    make_calls(random, folder)
