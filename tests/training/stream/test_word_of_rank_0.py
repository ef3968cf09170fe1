"""What rank 0 asks of ranks that listen, and what ranks learn when one of them says nothing."""

import re
import threading
import time

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import FIRST_RANK, Group
from openwafer.training.systems.control import Control
from tests.training.collectives.ranks import on_ranks

LIMIT_SECONDS = 1.0
STEP = "the signal STEP"


def noting(control: Control) -> list[object]:
    """What a rank is asked for from now on; a number is answered by its double."""
    asked: list[object] = []

    def answer(what: object) -> object:
        asked.append(what)
        return 2 * what if isinstance(what, int) else None

    control.answer = answer
    return asked


def test_what_is_asked_is_done_before_a_rank_learns_what_all_do() -> None:
    def run(group: Group) -> list[object]:
        control = Control(group)
        asked = noting(control)
        if group.rank == FIRST_RANK:
            control.ask("first", 1)
            control.ask("second", 1)
        control.reach("a line")
        return list(asked)

    assert on_ranks(3, run) == [[], ["first", "second"], []]


def test_an_answer_comes_behind_what_was_asked_before() -> None:
    def run(group: Group) -> object:
        control = Control(group)
        asked = noting(control)
        answer = None
        if group.rank == FIRST_RANK:
            control.ask("first", 1)
            control.ask(21, 1)
            answer = control.answer_of(1)
        control.reach("a line")
        return answer or asked

    assert on_ranks(2, run) == [42, ["first", 21]]


def test_a_rank_answers_while_rank_0_makes_what_it_shares() -> None:
    def run(group: Group) -> object:
        control = Control(group)
        noting(control)

        def make() -> object:
            control.ask(4, 1)
            return control.answer_of(1)

        return control.share(make)

    assert on_ranks(2, run) == [8, 8]


def test_all_do_in_order_what_rank_0_asks_until_it_ends_their_listening() -> None:
    def run(group: Group) -> list[object]:
        control = Control(group)
        asked = noting(control)
        if group.rank != FIRST_RANK:
            return [control.hear("what to do next"), *asked]
        control.ask_all({"step": 3}, STEP)
        with control.doing("a step", STEP):
            pass
        control.tell_all("end", "the signal END")
        return []

    assert on_ranks(3, run)[1:] == [["end", {"step": 3}, "a step"]] * 2


@pytest.mark.parametrize("size", [0, 4000, 4096, 100_000])
def test_words_of_any_length_come_whole(size: int) -> None:
    def run(group: Group) -> list[object]:
        return Control(group).gather(bytes([group.rank]) * size, "its bytes")

    assert on_ranks(3, run) == [[bytes([rank]) * size for rank in range(3)]] * 3


def test_a_rank_that_stands_elsewhere_is_named() -> None:
    def run(group: Group) -> None:
        control = Control(group, asked_note="a barrier keeps it from that")
        if group.rank == FIRST_RANK:
            control.ask("first", 1)
            control.deliver(1)
        time.sleep(1.5 * LIMIT_SECONDS)

    with pytest.raises(OpenwaferError) as found:
        on_ranks(2, run, LIMIT_SECONDS)
    assert "s for rank 1 on host" in str(found.value)
    assert "to take what it is asked for" in str(found.value)
    assert "a barrier keeps it from that" in str(found.value)


def test_rank_0_is_waited_for_while_it_works_for_all() -> None:
    def run(group: Group) -> object:
        def make() -> str:
            time.sleep(1.5 * LIMIT_SECONDS)
            return "made"

        control = Control(group, tick_seconds=LIMIT_SECONDS / 5)
        return control.share(make)

    assert on_ranks(2, run, LIMIT_SECONDS) == ["made"] * 2


def test_rank_0_is_waited_for_while_it_waits_for_another_rank() -> None:
    def run(group: Group) -> list[bool]:
        control = Control(group, tick_seconds=LIMIT_SECONDS / 10)
        # Rank 2 comes too late for rank 1, and in time for rank 0.
        time.sleep((0.4 * LIMIT_SECONDS, 0.0, 1.2 * LIMIT_SECONDS)[group.rank])
        return control.reach("a line")

    assert on_ranks(3, run, LIMIT_SECONDS) == [[False] * 3] * 3


def test_a_rank_that_is_late_in_taking_that_rank_0_is_there_is_not_lost() -> None:
    def run(group: Group) -> list[bool]:
        control = Control(group, tick_seconds=LIMIT_SECONDS / 10)
        with control.waited_for():
            time.sleep(1.5 * LIMIT_SECONDS)
        return control.reach("a line")

    assert on_ranks(2, run, LIMIT_SECONDS) == [[False] * 2] * 2


def test_a_rank_0_that_says_nothing_is_lost() -> None:
    def run(group: Group) -> None:
        control = Control(group)
        if group.rank != FIRST_RANK:
            control.hear("what to do next")
        time.sleep(2 * LIMIT_SECONDS)

    with pytest.raises(OpenwaferError, match=r"1\.. s for rank 0 on host 'host-0' to send what"):
        on_ranks(2, run, LIMIT_SECONDS)


def test_a_rank_that_is_gone_while_it_is_to_listen_is_named() -> None:
    def run(group: Group) -> str:
        control = Control(group)
        if group.rank != FIRST_RANK:
            return ""
        with pytest.raises(OpenwaferError) as told:
            control.ask_all("step", STEP)
        return str(told.value)

    told = on_ranks(2, run)[FIRST_RANK]
    assert re.search(r"for rank 1 on host 'host-1' to take the signal (WAIT|STEP)\n", told)


def told_late(group: Group) -> str:
    """What rank 0 is told that asks for something when it has long waited in vain."""
    control = Control(group, tick_seconds=LIMIT_SECONDS / 5)
    with control.waited_for():
        time.sleep(2.5 * LIMIT_SECONDS)
        with pytest.raises(OpenwaferError) as told:
            control.ask_all("step", STEP)
    return str(told.value)


def test_a_rank_that_does_not_listen_is_the_one_that_is_named() -> None:
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == FIRST_RANK:
            told = told_late(group)
            has_told.set()
            return told
        if group.rank == 1:
            with pytest.raises(OpenwaferError, match="for rank 0 on host 'host-0' to send"):
                Control(group).hear("what to do next")
        return str(has_told.wait())

    told = on_ranks(3, run, LIMIT_SECONDS)[FIRST_RANK]
    assert "for rank 2 on host 'host-2' to take the signal WAIT" in told
