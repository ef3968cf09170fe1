"""What rank 0 asks of ranks that listen, and what ranks learn when one of them says nothing."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import FIRST_RANK, Group
from openwafer.training.systems.control import FRAME_BYTES, FRAME_TAG, Control
from tests.training.collectives.ranks import TIMEOUT_SECONDS, on_ranks
from tests.training.store.example_records import poll

LIMIT_SECONDS = 0.5
TICK_SECONDS = 0.05
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
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank != FIRST_RANK:
            return str(has_told.wait(TIMEOUT_SECONDS))
        control = Control(group, asked_note="a barrier keeps it from that")
        control.ask("first", 1)
        return told_by(lambda: control.deliver(1), has_told)

    told = on_ranks(2, run, {FIRST_RANK: LIMIT_SECONDS})[FIRST_RANK]
    assert "s for rank 1 on host" in told
    assert "to take what it is asked for" in told
    assert "a barrier keeps it from that" in told


def told_by(call: Callable[[], object], has_told: threading.Event) -> str:
    """What a rank is told by a call; then an event is set."""
    try:
        call()
    except OpenwaferError as told:
        return str(told)
    finally:
        has_told.set()
    return ""


def hears_words(listener: Group) -> bool:
    """Whether a rank that listens takes two words of rank 0 and goes on listening."""
    return poll(lambda: listener.traffic.received_bytes >= 3 * FRAME_BYTES)


def test_rank_0_is_waited_for_while_it_works_for_all() -> None:
    listener: Future[Group] = Future()

    def run(group: Group) -> object:
        control = Control(group, tick_seconds=TICK_SECONDS)
        if group.rank != FIRST_RANK:
            listener.set_result(group)
        return control.share(lambda: hears_words(listener.result()))

    assert on_ranks(2, run) == [True, True]


def test_rank_0_is_waited_for_while_it_waits_for_another_rank() -> None:
    listener: Future[Group] = Future()

    def run(group: Group) -> tuple[bool, list[bool]]:
        control = Control(group, tick_seconds=TICK_SECONDS)
        if group.rank == 1:
            listener.set_result(group)
        is_heard = group.rank < 2 or hears_words(listener.result())
        return is_heard, control.reach("a line")

    assert on_ranks(3, run) == [(True, [False] * 3)] * 3


def test_a_rank_that_is_late_in_taking_that_rank_0_is_there_is_not_lost() -> None:
    have_left = threading.Event()

    def run(group: Group) -> list[bool]:
        control = Control(group)
        if group.rank == FIRST_RANK:
            for _ in range(3):
                control.presence.tell()
            have_left.set()
        have_left.wait(TIMEOUT_SECONDS)
        return control.reach("a line")

    assert on_ranks(2, run) == [[False] * 2] * 2


def test_a_rank_0_that_says_nothing_is_lost() -> None:
    has_told = threading.Event()

    def run(group: Group) -> str:
        control = Control(group, tick_seconds=TICK_SECONDS)
        if group.rank == FIRST_RANK:
            return str(has_told.wait(TIMEOUT_SECONDS))
        return told_by(lambda: control.hear("what to do next"), has_told)

    told = on_ranks(2, run, {1: LIMIT_SECONDS})[1]
    assert "s for rank 0 on host 'host-0' to send what to do next" in told
    assert "Timed out waiting 500ms" in told


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


def test_a_rank_that_does_not_listen_is_the_one_that_is_named() -> None:
    has_heard, has_told = threading.Event(), threading.Event()

    def run(group: Group) -> str:
        if group.rank == FIRST_RANK:
            control = Control(group, tick_seconds=TICK_SECONDS)
            with control.waited_for():
                has_heard.wait(TIMEOUT_SECONDS)
                return told_by(lambda: control.ask_all("step", STEP), has_told)
        if group.rank == 1:
            take_words(group)
            has_heard.set()
        return str(has_told.wait(TIMEOUT_SECONDS))

    told = on_ranks(3, run, {FIRST_RANK: LIMIT_SECONDS})[FIRST_RANK]
    assert "for rank 2 on host 'host-2' to take the signal WAIT" in told


def take_words(group: Group) -> None:
    """Two: when the second one is here, the first one has left rank 0 for certain."""
    frame = torch.empty(FRAME_BYTES, dtype=torch.uint8)
    for _ in range(2):
        group.receive(frame, FIRST_RANK, FRAME_TAG, "a word").wait()
