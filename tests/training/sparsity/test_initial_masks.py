"""Initial masks: exact counts, and the same mask wherever and in whatever order they are made."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.masks.one_shot import (
    InitMethod,
    checkerboard_mask,
    initial_mask,
    magnitude_mask,
    random_mask,
)
from openwafer.training.sparsity.masks.structures import Blocks, NOfM, Structure, Unstructured
from tests.training.sparsity.plain_masks import (
    falling,
    first_of_each_group,
    plain_count,
    plain_draws,
    plain_units,
    to_tensor,
    unit_sizes,
)

STRUCTURES: dict[str, Structure] = {"1": Unstructured(), "2:4": NOfM(2, 4), "2x3": Blocks(2, 3)}


def weights(seed: int, *shape: int) -> Tensor:
    """Weights of few values, so that many are equal."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)) / 4


@given(
    st.sampled_from(sorted(STRUCTURES)),
    st.sampled_from(list(InitMethod)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_every_method_keeps_the_exact_number(
    structure: str, method: InitMethod, rows: int, twelves: int, percent: int
) -> None:
    shape = (2 * rows, 12 * twelves)
    mask = initial_mask(
        method, weights(percent, *shape), percent / 100, "w", 1, STRUCTURES[structure]
    )
    units = plain_units(structure, shape)
    per_group = len(units) // len({group for group, _ in units})
    number = plain_count(percent / 100, per_group)
    kept = {unit for unit, held in units.items() if mask.flatten()[held].all()}
    assert int(mask.sum()) == sum(len(units[unit]) for unit in kept)
    assert kept == first_of_each_group(sorted(kept), number)
    assert len(kept) == number * len(units) // per_group


@given(st.sampled_from(sorted(STRUCTURES)), st.integers(0, 99))
def test_the_largest_are_kept_and_of_equal_ones_the_first(structure: str, percent: int) -> None:
    values = weights(percent, 6, 12)
    units = plain_units(structure, (6, 12))
    per_group = 1 + max(number for _, number in units)
    order = falling(unit_sizes(units, values))
    kept = first_of_each_group(order, plain_count(percent / 100, per_group))
    mask = magnitude_mask(values, percent / 100, "w", STRUCTURES[structure])
    assert torch.equal(mask, to_tensor(kept, units, (6, 12)))


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_a_random_mask_is_the_documented_draw(structure: str) -> None:
    units = plain_units(structure, (6, 12))
    order = falling(plain_draws(units, 7, 0, "blocks.0.w"))
    number = plain_count(0.5, 1 + max(number for _, number in units))
    mask = random_mask((6, 12), 0.5, "blocks.0.w", 7, STRUCTURES[structure])
    assert torch.equal(mask, to_tensor(first_of_each_group(order, number), units, (6, 12)))


def test_random_masks_differ_by_name_and_seed_and_by_nothing_else() -> None:
    def draw(name: str, seed: int) -> Tensor:
        torch.rand(3)
        return random_mask((40, 50), 0.9, name, seed)

    first = draw("a", 1)
    assert torch.equal(first, draw("a", 1))
    assert not torch.equal(first, draw("b", 1))
    assert not torch.equal(first, draw("a", 2))


@pytest.mark.slow
def test_a_random_mask_keeps_every_position_equally_often() -> None:
    drawn = torch.stack([random_mask((4, 5), 0.75, "w", seed) for seed in range(2000)])
    often = drawn.double().mean(dim=0)
    assert torch.allclose(often, torch.full((4, 5), 0.25).double(), atol=4 * math.sqrt(3 / 32000))


def test_masks_do_not_depend_on_the_number_of_threads() -> None:
    values = weights(3, 300, 400)
    num_threads = torch.get_num_threads()
    masks = []
    for number in (1, 4):
        torch.set_num_threads(number)
        masks.append(magnitude_mask(values, 0.9, "w"))
    torch.set_num_threads(num_threads)
    assert torch.equal(*masks)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_format_is_ranked_exactly(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, -3.0, 2.0, 0.5]], dtype=dtype)
    assert magnitude_mask(values, 0.5, "w").tolist() == [[False, True, True, False]]


def test_half_of_a_checkerboard_is_a_checkerboard() -> None:
    rows, columns = torch.meshgrid(torch.arange(6), torch.arange(8), indexing="ij")
    assert torch.equal(checkerboard_mask((6, 8), 0.5, "w"), (rows + columns) % 2 == 0)


def test_a_checkerboard_keeps_as_many_in_each_row_and_column() -> None:
    mask = checkerboard_mask((100, 100), 0.9, "w").double()
    assert (mask.sum(dim=0) - 10).abs().max() <= 1
    assert (mask.sum(dim=1) - 10).abs().max() <= 1


def test_a_checkerboard_of_two_in_four_turns_from_group_to_group() -> None:
    mask = checkerboard_mask((2, 8), 0.5, "w", NOfM(2, 4))
    assert mask.int().tolist() == [[1, 0, 1, 0, 0, 1, 0, 1], [0, 1, 0, 1, 1, 0, 1, 0]]


def test_a_weight_of_more_dims_is_a_matrix_of_its_first_and_the_rest() -> None:
    values = weights(5, 4, 2, 3, 2)
    mask = magnitude_mask(values, 0.5, "w", Blocks(2, 3))
    flat = magnitude_mask(values.reshape(4, 12), 0.5, "w", Blocks(2, 3))
    assert torch.equal(mask.reshape(4, 12), flat)


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (NOfM(2, 4), r"w of shape \[6, 10\] cannot be 2:4: its 10 columns are no multiple of 4"),
        (Blocks(4, 2), "cannot be blocks of 4x2: its 6 rows are no multiple of 4"),
        (Blocks(2, 4), "cannot be blocks of 2x4: its 10 columns are no multiple of 4"),
    ],
)
def test_a_shape_that_a_structure_does_not_divide_is_refused(
    structure: Structure, message: str
) -> None:
    with pytest.raises(OpenwaferError, match=message):
        random_mask((6, 10), 0.5, "w", 0, structure)


def test_weights_without_an_order_are_refused() -> None:
    values = torch.tensor([[1.0, math.nan], [math.inf, 2.0]])
    with pytest.raises(OpenwaferError, match=r"2 of 4 weights of fc\.weight are not finite"):
        magnitude_mask(values, 0.5, "fc.weight")
