"""Loss scaling where a step computes in the weights' own format: it changes nothing."""

from typing import Any

import torch
from torch.optim import Optimizer


class UnscaledLoss:
    """The calls of torch's GradScaler; in fp32 a scale of the loss and its inverse cancel."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return loss

    def unscale_(self, optimizer: Optimizer) -> None:
        """Leave the gradients, which have no scale."""

    def step(self, optimizer: Optimizer) -> Any:
        """Take the optimizer's step."""
        return optimizer.step()

    def update(self) -> None:
        """Leave the scale."""

    def get_scale(self) -> float:
        """The factor of the loss."""
        return 1.0
