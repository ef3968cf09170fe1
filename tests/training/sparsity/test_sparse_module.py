"""A layer with a sparse weight, beside the dense layer that it was made from."""

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.linear import SparseLinear
from tests.training.sparsity.random_masks import random_mask


def masked(linear: nn.Linear, mask: torch.Tensor) -> nn.Linear:
    linear.weight.data *= mask
    return linear


def test_a_sparse_layer_trains_like_its_masked_dense_one() -> None:
    mask = random_mask(24, 40, 0.7)
    dense = masked(nn.Linear(40, 24), mask)
    sparse = SparseLinear.of(dense, mask)
    optimizers = [torch.optim.AdamW(layer.parameters(), lr=0.05) for layer in (dense, sparse)]
    x, goal = torch.randn(70, 40), torch.randn(70, 24)
    for _ in range(5):
        for layer, optimizer in zip((dense, sparse), optimizers, strict=True):
            optimizer.zero_grad()
            (layer(x) - goal).square().mean().backward()
            optimizer.step()
            dense.weight.data *= mask
    torch.testing.assert_close(sparse.dense(), dense.weight.detach())
    torch.testing.assert_close(sparse.bias, dense.bias)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_state_dict_brings_values_and_pattern(has_bias: bool) -> None:
    mask = random_mask(24, 40, 0.7)
    saved = SparseLinear.of(nn.Linear(40, 24, bias=has_bias), mask)
    loaded = SparseLinear.of(nn.Linear(40, 24, bias=has_bias), mask.roll(1, 1))
    loaded.load_state_dict(saved.state_dict())
    x = torch.randn(7, 40)
    assert loaded.pattern == saved.pattern
    assert torch.equal(loaded(x), saved(x))


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"a weight of \(24, 40\) for a pattern of \(40, 24\)"):
        SparseLinear.of(nn.Linear(40, 24), random_mask(40, 24, 0.7))


def test_a_layer_prints_its_shape_and_density() -> None:
    mask = torch.zeros(4, 10, dtype=torch.bool)
    mask[0] = True
    assert repr(SparseLinear.of(nn.Linear(10, 4), mask)) == "SparseLinear(10 to 4, density=0.25)"
