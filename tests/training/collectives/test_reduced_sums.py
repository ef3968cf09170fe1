"""Sums by the library's reduction are those of one loop, but for roundings."""

import pytest
import torch

from openwafer.training.collectives.group import Group
from openwafer.training.collectives.ordered_sums import ReducedSums, Sum
from tests.tables import checkerboard
from tests.training.collectives.ranks import on_ranks
from tests.training.collectives.test_ordered_sums import (
    RECORDS,
    SHAPES,
    as_one_loop_adds,
    drawn,
    one_pass,
)

TOLERANCE = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float64: 1e-13}


def sums_of(group: Group, dtype: torch.dtype, num_passes: int) -> list[list[Sum]]:
    """Each rank gives its records in an order of its own."""
    likes = {
        record: {name: torch.empty(shape, dtype=dtype) for name, shape in SHAPES.items()}
        for record in RECORDS
    }
    owners = {record: index % group.size for index, record in enumerate(RECORDS)}
    sums = ReducedSums(group, likes, owners)
    order = list(RECORDS)[group.rank :] + list(RECORDS)[: group.rank]
    found = [one_pass(sums, group, drawn(dtype, seed), order) for seed in range(num_passes)]
    sums.close()
    return found


@pytest.mark.parametrize(("size", "dtype"), checkerboard((1, 2, 3, 5), tuple(TOLERANCE)))
def test_the_sums_are_those_of_one_loop(size: int, dtype: torch.dtype) -> None:
    found = on_ranks(size, lambda group: sums_of(group, dtype, 2))
    for seed in range(2):
        expected = as_one_loop_adds(drawn(dtype, seed))
        own = {one.record: one.tensors for ranks in found for one in ranks[seed]}
        assert own.keys() == expected.keys()
        for record, tensors in own.items():
            limit = TOLERANCE[dtype]
            torch.testing.assert_close(tensors, expected[record], rtol=limit, atol=100 * limit)
