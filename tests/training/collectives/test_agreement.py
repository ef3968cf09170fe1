"""What rank 0 asks of ranks that wait for what all do next."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from torch._C._distributed_c10d import HashStore

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.agreement import Agreement
from openwafer.training.collectives.joining import Meeting

LIMIT_SECONDS = 2.0
T = TypeVar("T")


def on_ranks(size: int, run: Callable[[Agreement, int], T], timeout: float = 20.0) -> list[T]:
    """What a function returns on each rank; raises what the first one has raised."""
    store = HashStore()

    def run_on(rank: int) -> T:
        return run(Agreement(Meeting(store, rank, size, timeout), "test"), rank)

    with ThreadPoolExecutor(size) as threads:
        return [one.result() for one in [threads.submit(run_on, rank) for rank in range(size)]]


def noting(agreement: Agreement) -> list[object]:
    """What a rank is asked for from now on; a number is answered by its double."""
    asked: list[object] = []

    def answer(what: object) -> object:
        asked.append(what)
        return 2 * what if isinstance(what, int) else None

    agreement.answer = answer
    return asked


def test_what_is_asked_is_done_before_a_rank_learns_what_all_do() -> None:
    def run(agreement: Agreement, rank: int) -> list[object]:
        asked = noting(agreement)
        if rank == 0:
            agreement.ask("first", 1)
            agreement.ask("second", 1)
        agreement.reach("a line")
        return list(asked)

    assert on_ranks(3, run) == [[], ["first", "second"], []]


def test_an_answer_comes_behind_what_was_asked_before() -> None:
    def run(agreement: Agreement, rank: int) -> object:
        asked = noting(agreement)
        answer = None
        if rank == 0:
            agreement.ask("first", 1)
            agreement.ask(21, 1)
            answer = agreement.answer_of(1)
        agreement.reach("a line")
        return answer or asked

    assert on_ranks(2, run) == [42, ["first", 21]]


def test_a_rank_answers_while_rank_0_makes_what_it_shares() -> None:
    def run(agreement: Agreement, rank: int) -> object:
        noting(agreement)

        def make() -> object:
            agreement.ask(4, 1)
            return agreement.answer_of(1)

        return agreement.share(make if rank == 0 else None)

    assert on_ranks(2, run) == [8, 8]


def test_a_rank_that_stands_elsewhere_is_named() -> None:
    def run(agreement: Agreement, rank: int) -> None:
        if rank == 0:
            agreement.ask("first", 1)
            agreement.deliver(1)
        time.sleep(1.5 * LIMIT_SECONDS)

    with pytest.raises(OpenwaferError) as found:
        on_ranks(2, run, LIMIT_SECONDS)
    assert "s for rank 1 on host" in str(found.value)
    assert "to take what it is asked for" in str(found.value)
    assert "a barrier of the program's own keeps it from that" in str(found.value)
