"""Every rank gets a record as its owner has it, or an error that names both records."""

import threading

import pytest
import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.broadcasts import Broadcasts
from openwafer.training.collectives.group import Group
from tests.training.collectives.ranks import on_ranks

RECORDS = ("pinned", "layers.0", "layers.1", "layers.2", "layers.3")
NUM_BYTES = dict(zip(RECORDS, (12, 1000, 1000, 1_000_000, 70_000), strict=True))
AHEAD = 2
CHUNK_BYTES = 1 << 17
SIZES = (0, 1, 7, 1 << 16, (1 << 16) + 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1)


def owners_of(group: Group) -> dict[str, int]:
    return {record: index % group.size for index, record in enumerate(RECORDS)}


def owned(record: str, step: int) -> Tensor:
    seed = 10 * step + RECORDS.index(record)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (NUM_BYTES[record],), dtype=torch.uint8, generator=generator)


def received(group: Group, num_steps: int) -> list[Tensor]:
    """All records of all steps, which change between two steps at their owners."""
    owners = owners_of(group)
    broadcasts, found = Broadcasts(group, RECORDS, owners), []
    turns = [(step, record) for step in range(num_steps) for record in RECORDS]
    for place in range(len(turns) + AHEAD):
        if place < len(turns):
            step, record = turns[place]
            has_it = owners[record] == group.rank
            found.append(owned(record, step) if has_it else torch.empty(NUM_BYTES[record]).byte())
            broadcasts.begin(record, found[-1])
        if place >= AHEAD:
            broadcasts.wait(turns[place - AHEAD][1])
    broadcasts.end_pass()
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_ranks_get_what_the_owners_have(size: int) -> None:
    expected = [owned(record, step) for step in range(3) for record in RECORDS]
    for found in on_ranks(size, lambda group: received(group, 3)):
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("size", [2, 3])
def test_what_goes_back_by_other_connections_comes_and_is_counted(size: int) -> None:
    others = on_ranks(size, lambda group: group)

    def run(group: Group) -> tuple[list[Tensor], int]:
        group.return_by(others[group.rank])
        return received(group, 3), group.traffic.received_bytes

    alone = on_ranks(size, lambda group: (received(group, 3), group.traffic.received_bytes))
    for (found, num_bytes), (expected, as_many) in zip(on_ranks(size, run), alone, strict=True):
        assert all(map(torch.equal, found, expected))
        assert num_bytes == as_many


def received_sizes(group: Group) -> list[bool]:
    """Whether records of all sizes come from each rank in turn, all under way at once."""
    names = [f"{size} bytes of {rank}" for rank in range(group.size) for size in SIZES]
    owners = {name: int(name.rpartition(" ")[2]) for name in names}
    broadcasts = Broadcasts(group, names, owners, CHUNK_BYTES)
    there = {name: torch.arange(int(name.split()[0])).add(owners[name]).byte() for name in names}
    came = {n: t.clone() if owners[n] == group.rank else t + 1 for n, t in there.items()}
    for name in names:
        broadcasts.begin(name, came[name])
    for name in reversed(names):
        broadcasts.wait(name)
    broadcasts.end_pass()
    return [torch.equal(came[name], there[name]) for name in names]


@pytest.mark.parametrize("size", [2, 4])
def test_records_of_any_size_come_whole(size: int) -> None:
    assert all(map(all, on_ranks(size, received_sizes)))


def test_each_rank_receives_each_byte_once() -> None:
    def count(group: Group) -> int:
        received(group, 1)
        return group.traffic.received_bytes

    label_bytes = 3 * torch.int64.itemsize
    own = [NUM_BYTES[record] + label_bytes for record in RECORDS]
    assert on_ranks(len(RECORDS), count) == [sum(own) - one for one in own]


def told_to(group: Group, record: str, first: threading.Event | None = None) -> str:
    """What a rank is told that wants a record of rank 0, and waits for something first."""
    broadcasts = Broadcasts(group, RECORDS, dict.fromkeys(RECORDS, 0))
    try:
        broadcasts.begin(record, torch.zeros(NUM_BYTES[record], dtype=torch.uint8))
        if first is not None:
            first.wait()
        broadcasts.wait(record)
        broadcasts.end_pass()
    except OpenwaferError as told:
        return str(told)
    return ""


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [("layers.0", "layers.1"), ("layers.3", "layers.2"), ("layers.2", "layers.3")],
    ids=["as long", "longer", "shorter"],
)
def test_a_rank_that_goes_another_way_is_told_both_records(sent: str, wrong: str) -> None:
    has_told = threading.Event()

    def run(group: Group) -> str:
        if group.rank == 0:
            return told_to(group, sent, has_told)
        told = told_to(group, wrong)
        has_told.set()
        return told

    # Rank 0 waits when the other has told.
    told = on_ranks(2, run, {0: 0.5})[1]
    assert f"[ranks-differ]: rank 1 on host 'host-1' expects '{wrong}' as broadcast 0" in told
    assert f"host 'host-0' sends '{sent}' as broadcast 0, of {NUM_BYTES[sent]:,} bytes" in told


def test_an_owner_that_has_ended_is_named() -> None:
    told = on_ranks(2, lambda group: told_to(group, "layers.0") if group.rank else "")[1]
    assert "[rank-lost]: rank 1 on host 'host-1' waited " in told
    assert "for rank 0 on host 'host-0' to send the weights of 'layers.0'" in told


def digests(group: Group, changed: int | None) -> int | None:
    """The digest of a pass; one rank finds a byte of its first record changed in its memory."""
    broadcasts = Broadcasts(group, RECORDS, dict.fromkeys(RECORDS, 0))
    broadcasts.digest = 0
    for place, record in enumerate(RECORDS):
        weights = owned(record, 0) if group.rank == 0 else torch.empty(NUM_BYTES[record]).byte()
        broadcasts.begin(record, weights)
        if place == 0 and group.rank == changed:
            weights.data = weights ^ 1
        broadcasts.wait(record)
    broadcasts.end_pass()
    return broadcasts.digest


@pytest.mark.parametrize("changed", [None, 0])
def test_ranks_with_other_weights_have_other_digests(changed: int | None) -> None:
    first, second, third = on_ranks(3, lambda group: digests(group, changed))
    assert second == third
    assert (first == second) is (changed is None)
