"""Signals end a run after its step."""

import os
import signal
import threading

import pytest

from openwafer.training.session.interruption import Interruption


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
