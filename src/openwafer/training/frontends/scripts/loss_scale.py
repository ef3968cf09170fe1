"""Loss scaling where a step computes in the weights' own format: it changes nothing."""

from typing import Any

import torch
from torch.optim import Optimizer


class UnscaledLoss:
    """The calls of torch's GradScaler; in fp32 a scale of the loss and its inverse cancel.

    Args:
        loss_scale: ``"dynamic"``, a number or None; kept for the state alone.
        max_gradient_norm: to which the gradients of a step are clipped.
        others: how a dynamic scale changes; there is none to change.
    """

    def __init__(
        self,
        loss_scale: float | str | None = None,
        *,
        max_gradient_norm: float | None = None,
        **others: Any,
    ) -> None:
        self.loss_scale, self.max_gradient_norm = loss_scale, max_gradient_norm

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
