"""Signals end a run after its step."""

import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from openwafer.training.collectives.joining import MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
from openwafer.training.session.systems import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_is_noted_and_raises_nothing(number: signal.Signals) -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), number)
    assert interruption.signal_name == number.name


def test_a_second_signal_ends_the_run_at_once() -> None:
    with Interruption():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_earlier_response_to_a_signal_comes_back() -> None:
    earlier = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != earlier
    assert signal.getsignal(signal.SIGINT) == earlier


def test_a_run_in_another_thread_leaves_signals_alone() -> None:
    found: list[object] = []

    def enter() -> None:
        with Interruption():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize(("seconds", "ends"), [(1.0, False), (60.0, True)])
def test_a_launcher_s_second_signal_is_the_first_one_passed_on(
    seconds: float, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    for name in (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        now = seconds
        with pytest.raises(KeyboardInterrupt) if ends else nullcontext():
            os.kill(os.getpid(), signal.SIGTERM)
    assert (interruption.signal_name, interruption.has_ended_run) == ("SIGTERM", ends)


def test_blocks_within_each_other_are_one() -> None:
    with Interruption() as interruption:
        with interruption:
            os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal_name == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
