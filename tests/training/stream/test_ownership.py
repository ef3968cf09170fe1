"""Records are dealt to ranks, each to one, by their bytes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out, slice_name
from openwafer.training.stream.replicas.ownership import (
    HostMemory,
    Ownership,
    StagePlan,
    StoreSystems,
    fair_bytes,
    fetched_but_experts,
    owners_of,
    share_of,
)


def record_of(name: str, num_elements: int) -> RecordLayout:
    weight = ArraySpec(name, torch.float32, (num_elements,))
    state = ArraySpec(f"exp_avg/{name}", torch.float32, (num_elements,))
    return lay_out(name, [weight], [state], [])


def records_of(sizes: list[int]) -> dict[str, RecordLayout]:
    return {f"layer {n}": record_of(f"layer {n}", size) for n, size in enumerate(sizes)}


sizes_of_records = st.lists(st.integers(0, 20_000), min_size=1, max_size=12)


@given(sizes_of_records, st.integers(1, 5))
def test_each_record_is_in_one_share(sizes: list[int], num_ranks: int) -> None:
    layouts = records_of(sizes)
    owners = owners_of(layouts, num_ranks, StoreSystems.ALL)
    shares = [share_of(layouts, owners, rank) for rank in range(num_ranks)]
    assert sorted(name for share in shares for name in share) == sorted(layouts)
    assert all(list(share) == sorted(share, key=list(layouts).index) for share in shares)


@given(sizes_of_records, st.integers(1, 5))
def test_shares_differ_by_no_more_than_a_record(sizes: list[int], num_ranks: int) -> None:
    layouts = records_of(sizes)
    owners = owners_of(layouts, num_ranks, StoreSystems.ALL)
    num_bytes = [0] * num_ranks
    for name, owner in owners.items():
        num_bytes[owner] += layouts[name].num_bytes
    largest = max(layout.num_bytes for layout in layouts.values())
    assert max(num_bytes) - min(num_bytes) <= largest


def test_the_largest_come_first() -> None:
    owners = owners_of(records_of([1024, 5120, 2048, 4096]), 2, StoreSystems.ALL)
    assert owners == {"layer 0": 0, "layer 1": 0, "layer 2": 1, "layer 3": 1}


def test_the_first_rank_may_have_all() -> None:
    layouts = records_of([1024, 5120, 2048])
    assert set(owners_of(layouts, 3, StoreSystems.FIRST).values()) == {0}


def test_ranks_of_one_host_share_its_memory_by_what_they_hold() -> None:
    hosts = [HostMemory("a", 1000), HostMemory("a", 1000), HostMemory("b", 500)]
    assert fair_bytes(hosts, None, [10, 30, 20]) == (200, 600, 400)
    assert fair_bytes(hosts, 600, [10, 30, 20]) == (150, 450, 600)


def test_a_rank_without_records_needs_no_memory() -> None:
    hosts = [HostMemory("a", 1000)] * 2
    assert fair_bytes(hosts, None, [10, 0]) == (800, 0)
    assert fair_bytes(hosts, None, [0, 0]) == (0, 0)


def test_who_fetches_a_record_computes_with_it() -> None:
    ownership = Ownership({"layer 0": 1, "layer 1": 0})
    assert [ownership.computed_by("layer 0", rank) for rank in range(3)] == [0, 1, 2]


def test_the_first_rank_has_the_records_that_are_not_named() -> None:
    assert Ownership().owner("layer 0") == 0


def test_experts_are_computed_by_their_owners_for_all_ranks() -> None:
    owners = {slice_name("experts.up", n): n // 2 for n in range(4)} | {"router": 1}
    ownership = fetched_but_experts(owners, num_ranks=2)
    experts = [slice_name("experts.up", n) for n in range(4)]
    for rank in range(2):
        assert [ownership.computed_by(name, rank) for name in experts] == [0, 0, 1, 1]
        assert ownership.computed_by("router", rank) == rank


def two_pipelines() -> StagePlan:
    layouts = records_of([1024, 2048])
    stages = tuple({name: layout} for name, layout in layouts.items())
    return StagePlan(tuple(layouts), (range(1), range(1, 2)), stages, {}, num_replicas=2)


def test_a_layer_is_computed_by_its_stage_of_the_same_pipeline() -> None:
    ownership = two_pipelines().ownership
    assert [ownership.computed_by("layer 1", rank) for rank in range(4)] == [1, 1, 3, 3]
    assert ownership.owner("layer 1") == 1


def test_a_stage_holds_what_it_computes_with_and_copies_hold_weights_alone() -> None:
    plan = two_pipelines()
    own, copy = plan.share(1).layouts, plan.share(3).layouts
    assert list(own) == list(copy) == ["layer 1"]
    assert own["layer 1"].part_bytes(Part.STATES) > 0
    assert copy["layer 1"].part_bytes(Part.STATES) == 0
