"""Systems that are threads of this process: what they learn of each other in a step."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.joining import Meeting
from openwafer.training.session.systems import BegunStep, MicroBatchReport, Systems, blocks_of

TIMEOUT_SECONDS = 20.0


def of_digest(store: HashStore, rank: int, digest: int) -> str:
    """What a system says that has computed with weights of that digest."""
    systems = Systems(Meeting(store, rank, 3, TIMEOUT_SECONDS))
    try:
        with systems.measured(BegunStep(7, 1.0, checks_weights=True)):
            systems.replicas.digests.last = digest
    except OpenwaferError as told:
        return str(told)
    return ""


@pytest.mark.parametrize("digests", [(5, 5, 5), (5, 5, 2**64 - 5)])
def test_a_system_with_other_weights_is_named(digests: tuple[int, int, int]) -> None:
    store = HashStore()
    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(of_digest, [store] * 3, range(3), digests))
    found = ["in step 7 rank 2 on host" in text and "ranks-differ" in text for text in told]
    assert found == [len(set(digests)) > 1] * 3


def of_reports(store: HashStore, rank: int) -> list[MicroBatchReport]:
    systems = Systems(Meeting(store, rank, 2, TIMEOUT_SECONDS))
    own = [MicroBatchReport(float(index), index, 10 * index) for index in systems.block(5)]
    return systems.exchange(own, 5)


def test_all_systems_know_all_losses_in_order() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(of_reports, [store] * 2, range(2))
    assert first == second == [MicroBatchReport(float(i), i, 10 * i) for i in range(5)]


@pytest.mark.parametrize("num_systems", range(1, 8))
def test_blocks_are_neighbours_and_alike(num_systems: int) -> None:
    blocks = blocks_of(7, num_systems)
    assert [index for block in blocks for index in block] == list(range(7))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
