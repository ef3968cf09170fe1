"""Squared norms of each example's gradient of a weight, from a layer's input and output gradient.

The gradient of a weight is a sum over tokens; where the sum ends with each example, it is that
example's (Gray et al. 2024, arXiv:2411.00999, section 3). Nothing larger is made than one weight's
gradient, or one vector an example.

Shapes: B examples, T tokens of each, D inputs, F outputs. Results are (B,), in float32.
"""

import torch
from torch import Tensor


def of_norm_weight(normalised: Tensor, gradient: Tensor, num_weight_dims: int) -> Tensor:
    """Of the weight of a normalisation layer.

    Args:
        normalised: (B, ..., weight's dims), as it was before weights.
        gradient: of the layer's output, of the same shape.
        num_weight_dims: how many dims the weight has.
    """
    return of_bias(normalised * gradient.to(normalised.dtype), num_weight_dims)


def of_bias(gradient: Tensor, num_weight_dims: int = 1) -> Tensor:
    """Of what is added to each token: ``gradient`` is (B, ..., bias's dims)."""
    between = tuple(range(1, gradient.dim() - num_weight_dims))
    by_example = gradient.float().sum(between) if between else gradient.float()
    return by_example.flatten(1).square().sum(1)


def of_linear(x_BTD: Tensor, gradient_BTF: Tensor) -> Tensor:
    """Of a linear map's weight; one example after the other, as each is as large as the weight."""
    norms = [
        torch.mm(gradient_TF.T, x_TD).square().sum()
        for x_TD, gradient_TF in zip(x_BTD.float(), gradient_BTF.float(), strict=True)
    ]
    return torch.stack(norms)


def of_embedding(ids_BT: Tensor, gradient_BTD: Tensor) -> Tensor:
    """Of a table of embeddings: rows of tokens that occur twice in an example are added first."""
    num_examples = ids_BT.shape[0]
    example_BT = torch.arange(num_examples, device=ids_BT.device)[:, None].expand_as(ids_BT)
    pairs = torch.stack((example_BT.flatten(), ids_BT.flatten()))
    rows, row_of_token = torch.unique(pairs, dim=1, return_inverse=True)
    gradient_ND = gradient_BTD.float().flatten(0, 1)
    sums = gradient_ND.new_zeros(rows.shape[1], gradient_ND.shape[1])
    squares = sums.index_add_(0, row_of_token, gradient_ND).square().sum(1)
    return squares.new_zeros(num_examples).index_add_(0, rows[0], squares)


def rows_of_linear(x_BTD: Tensor, gradient_BTF: Tensor, ids_BS: Tensor) -> Tensor:
    """Rows of each example's gradient of a linear map's weight, (B, S, D).

    Of a weight that is also a table of embeddings: the rows of the tokens that the example has.
    """
    chosen_BTS = gradient_BTF.float().gather(
        2, ids_BS[:, None, :].expand(-1, gradient_BTF.shape[1], -1)
    )
    return torch.bmm(chosen_BTS.transpose(1, 2), x_BTD.float())
