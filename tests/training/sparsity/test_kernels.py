"""Products by vectors of all widths that this machine has, against masked dense ones in float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import walks_of
from openwafer.training.sparsity.kernels.processor import lanes_here
from openwafer.training.sparsity.kernels.vectors import NARROW
from tests.tables import some
from tests.training.sparsity.dense_oracle import Case, Products, bounds, case_of, exact

SHAPES = [
    (70, 131, 77, 0.9),
    (3, 5, 1, 0.5),
    (1100, 300, 64, 0.5),
    (200, 2100, 130, 0.99),
    (40, 24, 65, 0.0),
    (33, 47, 20, 1.0),
]

# Code of a width between the widest and the narrowest is compiled for the slow tests alone.
LANES = some(lanes_here(), lanes_here()[0], NARROW)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def products(case: Case, lanes: int) -> Products:
    walks = walks_of(case.index.words)
    output = calls.forward(walks[0], case.values, case.inputs, case.bias, lanes)
    given = case.gradient, case.inputs, case.values
    of_inputs, of_values = calls.backward(walks, *given, lanes)
    return Products(output, of_inputs, of_values, case.gradient.sum(0))


def all_of(products: Products) -> list[Tensor]:
    return [products.output, products.of_inputs, products.of_values]


def assert_within_bounds(case: Case, lanes: int) -> None:
    found, expected, most = products(case, lanes), exact(case), bounds(case)
    for ours, theirs, off in zip(*map(all_of, (found, expected, most)), strict=True):
        assert ((ours - theirs).abs() <= off).all()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_masked_weight(
    lanes: int, shape: tuple[int, int, int, float]
) -> None:
    assert_within_bounds(case_of(*shape), lanes)


@pytest.mark.parametrize("lanes", LANES)
@settings(max_examples=25)
@given(
    rows=st.integers(0, 90),
    columns=st.integers(0, 300),
    num_tokens=st.integers(0, 140),
    sparsity=st.sampled_from([0.0, 0.5, 0.9, 0.98]),
)
def test_products_of_any_shape_are_right(
    lanes: int, rows: int, columns: int, num_tokens: int, sparsity: float
) -> None:
    assert_within_bounds(case_of(rows, columns, num_tokens, sparsity), lanes)


@pytest.mark.slow
def test_wider_vectors_give_the_same_bits() -> None:
    case = case_of(150, 400, 200, 0.8)
    found = [products(case, lanes) for lanes in lanes_here() if lanes > NARROW]
    for other in found[1:]:
        assert all(map(torch.equal, all_of(found[0]), all_of(other)))


@pytest.mark.parametrize("shape", [(1100, 300, 300, 0.7), (300, 1500, 70, 0.99)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, int, int, float]) -> None:
    case, lanes = case_of(*shape), lanes_here()[0]
    with threads(1):
        alone = products(case, lanes)
    for number in (2, 2, 3):
        with threads(number):
            assert all(map(torch.equal, all_of(products(case, lanes)), all_of(alone)))


def test_many_tokens_are_taken_some_at_a_time() -> None:
    num_tokens = 2 * calls.WORKSPACE_BYTES // (4 * 700) + 1
    assert_within_bounds(case_of(400, 300, num_tokens, 0.9), lanes_here()[0])


def test_sums_take_their_columns_in_ascending_order() -> None:
    case = case_of(1, 300, 1, 0.0)
    # 2^24 swallows what is added to it alone: the order of the sum shows.
    numbers = [1.0, 2.0**24, 1.0, -(2.0**24), 1.0]
    case.inputs.zero_()
    case.inputs[0, [0, 100, 130, 200, 290]] = torch.tensor(numbers)
    case.weight.fill_(1.0)
    case.bias.zero_()
    expected = torch.tensor(0.0)
    for number in numbers:
        expected = expected + number
    assert products(case, lanes_here()[0]).output.item() == expected.item()


def test_numbers_that_are_not_finite_stay_in_their_tokens() -> None:
    case = case_of(20, 40, 66, 0.5)
    case.inputs[65, 3] = torch.inf
    output = products(case, lanes_here()[0]).output
    assert output[:65].isfinite().all()
    assert torch.equal(output[65].isfinite(), ~case.pattern.mask()[:, 3])
