"""A few tokens are multiplied by what is kept of a weight, whose pattern is never an old one."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openwafer.training.sparsity.packed_linear import (
    PackedLinear,
    multiplying_few_tokens,
    pack_linears,
)
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.sparsity.products import MOST_TOKENS, Products, pattern_bytes

INPUTS, OUTPUTS, SHARE = 150, 70, 0.2
MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(INPUTS, OUTPUTS),
    "without bias": lambda: nn.Linear(INPUTS, OUTPUTS, bias=False),
    "turned": lambda: Conv1D(OUTPUTS, INPUTS),
}


def mask_of(weight: Tensor, seed: int = 3) -> Tensor:
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < SHARE


def packed(module: nn.Module, products: Products = Products.SPARSE) -> nn.Sequential:
    model = nn.Sequential(module)
    capacity = int(1.2 * SHARE * module.get_parameter("weight").numel())
    pack_linears(model, {"0.weight": capacity}, lambda _, weight: mask_of(weight), products)
    return model


def linear_of(model: nn.Sequential) -> PackedLinear:
    [linear] = model
    assert isinstance(linear, PackedLinear)
    return linear


def written(model: nn.Sequential, inputs: Tensor, *, keeps: bool = True) -> list[Tensor]:
    """What a writing model makes of the same inputs twice."""
    with torch.no_grad(), multiplying_few_tokens(model) as weights:
        for weight in weights:
            weight.keeps_pattern = keeps
        return [model(inputs), model(inputs)]


@pytest.mark.parametrize("leading", [(1,), (1, 1), (2, 4)])
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
def test_sums_are_as_near_as_their_length_allows(
    build: Callable[[], nn.Module], leading: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model, inputs = packed(build()), torch.randn(*leading, INPUTS)
    exact = copy.deepcopy(linear_of(model))
    weight = exact.dense_weight().double()
    weight = weight if exact.multiplication.is_turned else weight.t()
    bias = torch.zeros(()) if exact.bias is None else exact.bias.detach().double()
    bound = 2.0**-24 * INPUTS * (inputs.double().abs() @ weight.abs() + bias.abs())
    for found in written(model, inputs):
        assert ((found.double() - (inputs.double() @ weight + bias)).abs() <= bound).all()


def test_a_kept_pattern_changes_no_bit() -> None:
    model, inputs = packed(nn.Linear(INPUTS, OUTPUTS)), torch.randn(3, INPUTS)
    found = [*written(model, inputs), *written(model, inputs, keeps=False)]
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("is_copied", [True, False], ids=["in place", "another tensor"])
def test_behind_a_mask_update_the_new_pattern_is_multiplied(is_copied: bool) -> None:
    model, inputs = packed(nn.Linear(INPUTS, OUTPUTS)), torch.randn(1, INPUTS)
    linear, other = linear_of(model), torch.randn(OUTPUTS, INPUTS)
    expected = packed(nn.Linear(INPUTS, OUTPUTS))
    expected.load_state_dict(model.state_dict())
    with torch.no_grad(), multiplying_few_tokens(model) as weights:
        weights[0].keeps_pattern = True
        model(inputs)
        linear_of(expected).take(other, mask_of(other, 4))
        if is_copied:
            linear.take(other, mask_of(other, 4))
        else:
            given = linear_of(expected)
            linear.weight, linear.weight_pattern = given.weight, given.weight_pattern
        found = model(inputs)
    assert torch.equal(found, written(expected, inputs)[0])


def test_what_is_kept_takes_no_more_than_is_reckoned() -> None:
    linear = linear_of(packed(nn.Linear(INPUTS, OUTPUTS)))
    rows, columns = linear.room.shape
    mask = (torch.arange(rows * columns) < linear.room.capacity).view(rows, columns)
    full = Pattern.from_mask(mask)
    num_bytes = full.row_starts.nbytes + full.columns.nbytes + linear.weight_pattern.nbytes
    assert num_bytes <= pattern_bytes(linear.room) <= num_bytes + 8


OTHERS: dict[str, tuple[Tensor, Products, bool]] = {
    "many tokens": (torch.randn(MOST_TOKENS + 1, INPUTS), Products.SPARSE, False),
    "no tokens": (torch.randn(0, INPUTS), Products.SPARSE, False),
    "dense products": (torch.randn(1, INPUTS), Products.DENSE, False),
    "gradients": (torch.randn(1, INPUTS), Products.SPARSE, True),
}


@pytest.mark.parametrize(("inputs", "products", "has_gradients"), OTHERS.values(), ids=OTHERS)
def test_all_else_has_the_bits_that_it_has_in_training(
    inputs: Tensor, products: Products, has_gradients: bool
) -> None:
    model = packed(nn.Linear(INPUTS, OUTPUTS), products)
    expected = model(inputs)
    with torch.set_grad_enabled(has_gradients), multiplying_few_tokens(model):
        assert torch.equal(model(inputs), expected)


def test_behind_the_writing_nothing_is_left() -> None:
    model = packed(nn.Linear(INPUTS, OUTPUTS))
    written(model, torch.randn(1, INPUTS))
    assert linear_of(model).other_product is None
