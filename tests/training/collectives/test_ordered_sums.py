"""The sum over all ranks has the bits of one loop over all micro-batches, however many ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import pytest
import torch
from torch import Tensor

from openwafer.training.collectives.group import Group
from openwafer.training.collectives.ordered_sums import OrderedSums, Sum
from tests.tables import checkerboard
from tests.training.collectives.ranks import on_ranks

SHAPES = {"weight": (37, 11), "bias": (37,), "scale": (), "nothing": (0, 3)}
RECORDS = {f"layers.{index}": SHAPES for index in range(5)}
NUM_MICRO_BATCHES = 7
CHUNK_BYTES = 256

Parts = dict[str, list[dict[str, Tensor]]]


def drawn(dtype: torch.dtype, seed: int) -> Parts:
    """Gradients of each record and micro-batch; every fifth one is missing."""
    generator = torch.Generator().manual_seed(seed)
    parts: Parts = {record: [{} for _ in range(NUM_MICRO_BATCHES)] for record in RECORDS}
    for record, shapes in RECORDS.items():
        for part in parts[record]:
            for name, shape in shapes.items():
                gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
                if torch.rand((), generator=generator) > 0.2:
                    part[name] = (10 * gradient).to(dtype)
    return parts


def as_one_loop_adds(parts: Parts) -> dict[str, dict[str, Tensor]]:
    def total(record: str, name: str) -> Tensor | None:
        own = [part[name] for part in parts[record] if name in part]
        return reduce(torch.add, own) if own else None

    return {
        record: {name: found for name in SHAPES if (found := total(record, name)) is not None}
        for record in parts
    }


@contextmanager
def ordered_sums(group: Group, dtype: torch.dtype) -> Iterator[OrderedSums]:
    likes = {
        record: {
            name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in one.items()
        }
        for record, one in RECORDS.items()
    }
    owners = {record: index % group.size for index, record in enumerate(RECORDS)}
    sums = OrderedSums(group, likes, owners, CHUNK_BYTES)
    try:
        yield sums
    finally:
        sums.close()


def share(group: Group) -> slice:
    """The micro-batches of a rank: a block of neighbours."""
    bounds = [NUM_MICRO_BATCHES * rank // group.size for rank in (group.rank, group.rank + 1)]
    return slice(*bounds)


def one_pass(sums: OrderedSums, group: Group, parts: Parts, order: list[str]) -> list[Sum]:
    sums.begin()
    found: list[Sum] = []
    for record in order:
        sums.add(record, [dict(part) for part in parts[record][share(group)]])
        found.extend(sums.ready())
    return [*found, *sums.finish()]


def check(found: list[list[Sum]], parts: Parts) -> None:
    """Each sum is at its owner, and has the bits of the loop."""
    expected = as_one_loop_adds(parts)
    for rank, sums in enumerate(found):
        assert {one.record for one in sums} == set(list(RECORDS)[rank :: len(found)])
        for one in sums:
            assert one.tensors.keys() == expected[one.record].keys()
            assert all(
                torch.equal(one.tensors[name], expected[one.record][name]) for name in one.tensors
            )


@pytest.mark.parametrize(
    ("size", "dtype"),
    checkerboard((1, 2, 3, 4, 9), (torch.float32, torch.bfloat16, torch.complex64)),
)
def test_sums_have_the_bits_of_one_loop(size: int, dtype: torch.dtype) -> None:
    def run(group: Group) -> list[Sum]:
        with ordered_sums(group, dtype) as sums:
            return one_pass(sums, group, drawn(dtype, 1), list(RECORDS))

    check(on_ranks(size, run), drawn(dtype, 1))


@pytest.mark.parametrize("size", [2, 4])
def test_passes_follow_one_another_and_each_rank_has_its_own_order(size: int) -> None:
    def run(group: Group) -> list[list[Sum]]:
        orders = list(RECORDS), list(RECORDS)[::-1]
        with ordered_sums(group, torch.float32) as sums:
            order = orders[group.rank % 2]
            return [one_pass(sums, group, drawn(torch.float32, seed), order) for seed in range(3)]

    for seed, found in enumerate(zip(*on_ranks(size, run), strict=True)):
        check(list(found), drawn(torch.float32, seed))


def test_a_record_that_a_rank_does_not_use_is_summed_over_the_others() -> None:
    parts = drawn(torch.float32, 2)

    def run(group: Group) -> list[Sum]:
        order = [record for index, record in enumerate(RECORDS) if index != group.rank]
        with ordered_sums(group, torch.float32) as sums:
            return one_pass(sums, group, drawn(torch.float32, 2), order)

    for rank, unused in enumerate(list(RECORDS)[:3]):
        bounds = slice(NUM_MICRO_BATCHES * rank // 3, NUM_MICRO_BATCHES * (rank + 1) // 3)
        for part in parts[unused][bounds]:
            part.clear()
    check(on_ranks(3, run), parts)
