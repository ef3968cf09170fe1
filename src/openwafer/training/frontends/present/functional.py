"""What scripts find in ``cstorch.nn.functional``."""

import torch

__all__ = ["one_hot", "sparse_act_matmul"]


def one_hot(array: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Ones of int32 at the places that `array` names along a new last dim of `num_classes`."""
    zeros = torch.zeros(*array.shape, num_classes, device=array.device, dtype=torch.int32)
    return zeros.scatter_(-1, array.long().unsqueeze(-1), 1)


def sparse_act_matmul(
    input_value: torch.Tensor,
    input_mask: torch.Tensor,
    weight: torch.Tensor,
    dense_capacity: int | None = None,
) -> torch.Tensor:
    """Rows [..., tokens, in] times a weight [out, in], 0 where the mask [..., tokens] is 0.

    `dense_capacity`, the most rows that a mask has, is for the vendor's compiler.
    """
    mask = input_mask.unsqueeze(-1)
    # Before the product, too: what a masked row holds, infinity or NaN, reaches neither the result
    # nor the gradient of the weight.
    rows = input_value.masked_fill(mask == 0, 0)
    product = torch.nn.functional.linear(rows, weight)
    return product * mask.to(product.dtype)
