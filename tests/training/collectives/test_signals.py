"""What one rank tells the others, and what they learn when it says nothing."""

import re
import threading
import time

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import FIRST_RANK, Group
from openwafer.training.collectives.signals import Leading, Signal, heard
from tests.training.collectives.ranks import on_ranks

LIMIT_SECONDS = 1.0


def test_content_comes_with_its_signal() -> None:
    def run(group: Group) -> list[object]:
        if group.rank != FIRST_RANK:
            return [heard(group), heard(group)]
        leading = Leading(group)
        leading.tell(Signal.STEP, {"step": 3})
        leading.go_on()
        leading.end()
        return []

    assert on_ranks(3, run)[1:] == [[(Signal.STEP, {"step": 3}), (Signal.END, None)]] * 2


def test_a_leader_that_is_busy_is_waited_for() -> None:
    def run(group: Group) -> object:
        if group.rank != FIRST_RANK:
            return heard(group)[0]
        leading = Leading(group, tick_seconds=LIMIT_SECONDS / 5)
        time.sleep(2.5 * LIMIT_SECONDS)
        leading.end()
        return None

    assert on_ranks(2, run, LIMIT_SECONDS)[1] is Signal.END


def test_a_leader_that_says_nothing_is_lost() -> None:
    def run(group: Group) -> None:
        if group.rank != FIRST_RANK:
            heard(group)
        time.sleep(2 * LIMIT_SECONDS)

    with pytest.raises(OpenwaferError, match=r"1\.. s for rank 0 on host 'host-0' to send what"):
        on_ranks(2, run, LIMIT_SECONDS)


def test_a_rank_that_is_gone_between_steps_is_named() -> None:
    def run(group: Group) -> str:
        if group.rank != FIRST_RANK:
            return ""
        leading = Leading(group)
        with pytest.raises(OpenwaferError) as told:
            leading.tell(Signal.STEP)
        leading.end()
        return str(told.value)

    told = on_ranks(2, run)[FIRST_RANK]
    assert re.search(r"for rank 1 on host 'host-1' to take the signal (WAIT|STEP)\n", told)


def told_late(group: Group) -> str:
    """What the leader is told that tells something when it has long waited in vain."""
    leading = Leading(group, tick_seconds=LIMIT_SECONDS / 5)
    time.sleep(2.5 * LIMIT_SECONDS)
    try:
        leading.tell(Signal.STEP)
    except OpenwaferError as told:
        return str(told)
    finally:
        leading.end()
    return ""


def test_a_rank_that_is_silent_between_steps_is_the_one_that_is_named() -> None:
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == FIRST_RANK:
            told = told_late(group)
            has_told.set()
            return told
        if group.rank == 1:
            with pytest.raises(OpenwaferError, match="for rank 0 on host 'host-0' to send"):
                heard(group)
        return str(has_told.wait())

    told = on_ranks(3, run, LIMIT_SECONDS)[FIRST_RANK]
    assert "for rank 2 on host 'host-2' to take the signal WAIT" in told
