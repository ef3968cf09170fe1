"""What scripts find in ``cstorch.nn.functional``."""

import torch

__all__ = ["one_hot"]


def one_hot(array: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Ones of int32 at the places that `array` names along a new last dim of `num_classes`."""
    zeros = torch.zeros(*array.shape, num_classes, device=array.device, dtype=torch.int32)
    return zeros.scatter_(-1, array.long().unsqueeze(-1), 1)
