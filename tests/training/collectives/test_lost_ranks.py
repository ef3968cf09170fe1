"""Who waits for a rank that has ended or is silent is told which, where, and for what."""

import re
import threading

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import Group
from openwafer.training.collectives.ordered_sums import OrderedSums
from tests.training.collectives.ranks import TIMEOUT_SECONDS, on_ranks

LIKES = {"layers.0": {"weight": torch.empty(64, 64, device="meta")}}


def one_pass(group: Group) -> str:
    """What a rank is told that has a part."""
    sums = OrderedSums(group, LIKES, {"layers.0": 0})
    try:
        sums.begin()
        sums.add("layers.0", [{"weight": torch.ones(64, 64)}])
        list(sums.finish())
    except OpenwaferError as told:
        return str(told)
    finally:
        sums.close()
    return ""


def told_to(here: int, size: int, lost: int | None, timeout: float = TIMEOUT_SECONDS) -> str:
    """What one of the ranks is told while one has ended and the others are silent."""
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == lost:
            return ""
        if group.rank != here:
            has_told.wait()
            return ""
        told = one_pass(group)
        has_told.set()
        return told

    return on_ranks(size, run, timeout)[here]


@pytest.mark.parametrize(
    ("lost", "here", "what"),
    [
        (1, 0, "for rank 1 on host 'host-1' to take"),
        (0, 1, "for rank 0 on host 'host-0' to send the next gradients"),
        (1, 2, "for rank 1 on host 'host-1' to send the next gradients"),
    ],
)
def test_a_rank_that_has_ended_is_named_with_what_it_owed(lost: int, here: int, what: str) -> None:
    told = told_to(here, size=3, lost=lost)
    assert told.startswith(f"error[rank-lost]: rank {here} on host 'host-{here}' waited ")
    assert what in told
    assert re.search(r"says: .*Connection (closed|reset) by peer.*\n  = help", told)


def test_a_rank_that_says_nothing_is_waited_for_no_longer_than_the_limit() -> None:
    told = told_to(1, size=2, lost=None, timeout=0.5)
    assert "waited 0.5 s for rank 0 on host 'host-0' to send the next gradients" in told
    assert "Timed out waiting" in told
