"""Ranks ask each other for what they make of rows, each when it comes to it."""

import threading

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.exchange import Asked, RowCall, RowExchange, Width
from openwafer.training.collectives.group import Group
from tests.training.collectives.ranks import PATIENT, on_ranks

WIDTH = Width(4, 4, torch.float32)


def exchange(group: Group) -> RowExchange:
    """Of a rank that answers with its index, who asks, the number of the call, and half a row."""

    def answer(rank: int, call: RowCall, rows: torch.Tensor) -> torch.Tensor:
        said = torch.tensor([group.rank, rank, call.call]).expand(len(rows), 3)
        return torch.cat([said, rows[:, :1]], dim=1)

    return RowExchange(group, 2, lambda call: WIDTH, answer)


def asked(rows: RowExchange, rank: int, number: int, num_rows: int) -> list[list[float]]:
    call = RowCall(Asked.FORWARD, call=number, sizes=(num_rows, 0))
    answers = torch.empty(num_rows, 4)
    for message in rows.ask(rank, call, torch.full((num_rows, 4), 0.5), answers):
        message.wait()
    return answers.tolist()


def test_ranks_need_not_ask_equally_often() -> None:
    def run(group: Group) -> list[list[list[float]]]:
        rows = exchange(group)
        rows.begin()
        others = [rank for rank in range(3) if rank != group.rank]
        found = [asked(rows, others[0], number, number) for number in range(1 + 2 * group.rank)]
        rows.finish()
        return found

    first, second, third = on_ranks(3, run)
    assert first == [[]]
    assert second == [[], [[0, 1, 1, 0.5]], [[0, 1, 2, 0.5]] * 2]
    assert third[4] == [[0, 2, 4, 0.5]] * 4


def test_a_pass_that_was_left_is_followed_by_another() -> None:
    def run(group: Group) -> list[list[float]]:
        rows = exchange(group)
        rows.begin()
        rows.abandon()
        rows.begin()
        found = asked(rows, 1 - group.rank, 7, 1)
        rows.finish()
        return found

    assert on_ranks(2, run) == [[[1, 0, 7, 0.5]], [[0, 1, 7, 0.5]]]


def test_one_rank_gets_what_all_have() -> None:
    def run(group: Group) -> list[float]:
        places = list(torch.zeros(6).split([1, 2, 3])) if group.rank == 1 else []
        own = torch.full((group.rank + 1,), 1.0 + group.rank)
        exchange(group).collect(own, 1, places, "numbers")
        return torch.cat(places).tolist() if places else []

    assert on_ranks(3, run) == [[], [1, 2, 2, 3, 3, 3], []]


def told_to_the_first(*, is_lost: bool) -> str:
    """What a rank is told that asks one which has ended, or says nothing."""
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == 1:
            return "" if is_lost else str(has_told.wait())
        rows = exchange(group)
        try:
            rows.begin()
            asked(rows, 1, 0, 2)
        except OpenwaferError as told:
            return str(told)
        finally:
            has_told.set()
        return ""

    return on_ranks(2, run, PATIENT if is_lost else {0: 0.5})[0]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_rank_that_does_not_answer_is_named(is_lost: bool) -> None:
    told = told_to_the_first(is_lost=is_lost)
    assert told.startswith("error[rank-lost]: rank 0 on host 'host-0' waited ")
    assert "for rank 1 on host 'host-1' to " in told
    assert "what its experts make" in told or "a call of its experts" in told


def test_a_rank_that_ends_while_others_finish_is_named() -> None:
    def run(group: Group) -> str:
        rows = exchange(group)
        rows.begin()
        if group.rank == 1:
            return ""
        with pytest.raises(OpenwaferError) as told:
            rows.finish()
        return str(told.value)

    assert "for rank 1 on host 'host-1'" in on_ranks(2, run)[0]
