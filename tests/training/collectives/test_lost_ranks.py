"""Who waits for a rank that has ended or is silent is told which, where, and for what."""

import re
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.broadcasts import LABEL_TAG, SMALL_BYTES, Broadcasts
from openwafer.training.collectives.group import KEY, FirstLoss, Group, Loss
from openwafer.training.collectives.joining import Meeting
from openwafer.training.collectives.ordered_sums import OrderedSums
from tests.training.collectives.ranks import PATIENT, TIMEOUT_SECONDS, on_ranks

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


def told_to(here: int, size: int, lost: int | None) -> str:
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

    return on_ranks(size, run, {here: 0.5} if lost is None else PATIENT)[here]


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


class Chain:
    """Three ranks, each of which waits for the next one; the last one ends or says nothing.

    Where it says nothing, rank 0 waits from when rank 1 has told that.

    Args:
        limit: how many seconds ranks wait for a message.
    """

    def __init__(self, limit: float) -> None:
        self._is_silent = limit < TIMEOUT_SECONDS
        self._store, self._limit = HashStore(), limit
        self._last_has_told = threading.Event()
        self._end = threading.Barrier(3, timeout=TIMEOUT_SECONDS)

    def told(self, rank: int) -> str:
        """What a rank is told."""
        meeting = Meeting(self._store, rank, 3, TIMEOUT_SECONDS)
        (group,) = meeting.groups(["chain"])
        self._end.wait()
        group.timeout_seconds = self._limit
        if rank == 0 and self._is_silent:
            self._last_has_told.wait()
        try:
            if rank < group.size - 1:
                group.receive(torch.empty(1), rank + 1, 0, "a number").wait()
        except OpenwaferError as told:
            return str(told)
        finally:
            if rank == 1:
                self._last_has_told.set()
            if self._is_silent:
                self._end.wait()
        return ""


@pytest.mark.parametrize("limit", [TIMEOUT_SECONDS, 0.5], ids=["ends", "is silent"])
def test_who_loses_a_rank_that_has_lost_another_names_that_one_in_the_first_line(
    limit: float,
) -> None:
    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(Chain(limit).told, range(3)))
    host = re.escape(repr(socket.gethostname()))
    first = rf"rank 1 on host {host} waited \d+\.\d s for rank 2 on host {host} to send a number\n"
    assert re.match(rf"error\[rank-lost\]: {first}", told[1]), told
    other = rf"for rank 1 on host {host} to send a number; rank 2 on host {host} was lost first\n"
    assert re.search(rf"{other}.*\n.*note: {first}.*see what rank 2", told[0]), told


def test_who_has_lost_a_rank_that_waits_for_another_hears_of_its_loss_later() -> None:
    store = HashStore()
    own, later = Loss("rank 1", "rank 1 says nothing"), Loss("rank 0", "rank 0 says nothing")
    with ThreadPoolExecutor(1) as threads:
        after = partial(FirstLoss(store).after, patience_seconds=TIMEOUT_SECONDS)
        first = threads.submit(after, "rank 0", own)
        store.wait([f"{KEY}/rank 0"])
        FirstLoss(store).after("rank 1", later)
        assert first.result() == later


def lost_mid_relay(here: int, lost: int, limits: Mapping[int, float] = PATIENT) -> str:
    """What a rank is told when another has taken part of a record and does not pass it on."""
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == lost:
            label, half = torch.zeros(3, dtype=torch.int64), torch.empty(1 << 20).byte()
            group.receive(label, 0, LABEL_TAG, "a label").wait()
            group.receive(half, lost - 1, 0, "half of it").wait()
            return str(has_told.wait()) if limits else ""
        told = told_of_a_record(group)
        if group.rank == here:
            has_told.set()
        has_told.wait()
        return told

    return on_ranks(4, run, limits)[here]


def told_of_a_record(group: Group, num_bytes: int = 1 << 22) -> str:
    broadcasts = Broadcasts(group, ["layers.0"], {"layers.0": 0})
    try:
        broadcasts.begin("layers.0", torch.zeros(num_bytes, dtype=torch.uint8))
        broadcasts.wait("layers.0")
        broadcasts.end_pass()
    except OpenwaferError as told:
        return str(told)
    return ""


@pytest.mark.parametrize(
    ("here", "what"),
    [
        (1, "host 'host-2' to take the weights of 'layers.0'"),
        (3, "to send the weights of 'layers.0', which come from rank 0 on host 'host-0'"),
    ],
)
def test_a_rank_that_is_lost_mid_relay_is_named(here: int, what: str) -> None:
    told = lost_mid_relay(here, 2)
    assert f"[rank-lost]: rank {here} on host 'host-{here}' waited" in told
    assert "for rank 2 on" in told
    assert what in told


def told_of_losses(group: Group) -> str:
    try:
        group.gather(torch.tensor([group.rank]), "its losses")
    except OpenwaferError as told:
        return str(told)
    return ""


def test_a_rank_that_is_lost_before_it_gives_its_own_is_named_by_who_sees_it_first() -> None:
    told = on_ranks(3, lambda group: "" if group.rank == 1 else told_of_losses(group))
    # Which of the two messages with it fails first is the network's choice.
    lost = r"for rank 1 on host 'host-1' to (send|take) its losses\n"
    assert any(re.search(lost, one) for one in told), told


def test_a_rank_that_has_ended_before_a_short_record_is_named_by_its_owner() -> None:
    owner_has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == 2:
            return ""
        told = told_of_a_record(group, SMALL_BYTES)
        if group.rank == 0:
            owner_has_told.set()
        # Who ends before would be lost, too.
        owner_has_told.wait()
        return told

    told = on_ranks(4, run)[0]
    assert "for rank 2 on host 'host-2' to take the weights of 'layers.0'" in told


def test_a_rank_that_has_ended_before_a_long_record_is_named_by_who_sees_it_first() -> None:
    def run(group: Group) -> str:
        return "" if group.rank == 2 else told_of_a_record(group)

    told = on_ranks(4, run)
    assert any("for rank 2 on host 'host-2' to " in one for one in told), told


def test_a_relay_waits_no_longer_than_the_limit() -> None:
    assert "Timed out waiting" in lost_mid_relay(3, 2, {3: 0.5})


def test_a_rank_that_says_nothing_is_waited_for_no_longer_than_the_limit() -> None:
    told = told_to(1, size=2, lost=None)
    assert "for rank 0 on host 'host-0' to send the next gradients" in told
    assert "Timed out waiting 500ms" in told
