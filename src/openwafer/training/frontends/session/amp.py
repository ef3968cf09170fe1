"""Loss scaling: a session computes in the weights' own format, where it changes nothing."""

from typing import Any

import torch

from openwafer.training.frontends.scripts.loss_scale import UnscaledLoss
from openwafer.training.frontends.session import program

__all__ = ["GradScaler", "get_init_params", "load_state_dict", "state_dict"]


class GradScaler(UnscaledLoss):
    """Gives a loss as it is: in fp32 a scale of the loss and its inverse in the step cancel.

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
        running = program.current("amp.GradScaler")
        running.max_gradient_norm = max_gradient_norm
        running.loss_scale = loss_scale
        self.loss_scale = loss_scale

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        return loss


def get_init_params() -> dict[str, Any]:
    """What the scaler of this program was made with; empty before."""
    running = program.running()
    if running is None or running.max_gradient_norm is None:
        return {}
    return {"max_gradient_norm": running.max_gradient_norm}


def state_dict() -> dict[str, Any]:
    """What a checkpoint keeps of the scaler: the scale that the script gave."""
    return {"loss_scale": program.current("amp.state_dict").loss_scale}


def load_state_dict(state: dict[str, Any]) -> None:
    """Take the scale that :func:`state_dict` gave."""
    program.current("amp.load_state_dict").loss_scale = state.get("loss_scale")
