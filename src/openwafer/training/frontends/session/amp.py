"""Loss scaling: a session computes in the weights' own format, where it changes nothing."""

from typing import Any

import torch

from openwafer.training.frontends.scripts.loss_scale import UnscaledLoss
from openwafer.training.frontends.session import program

__all__ = ["GradScaler", "get_init_params", "load_state_dict", "state_dict"]


class GradScaler(UnscaledLoss):
    """Gives a loss as it is; see :class:`UnscaledLoss`."""

    def __init__(self, loss_scale: float | str | None = None, **options: Any) -> None:
        running = program.current("amp.GradScaler")
        super().__init__(loss_scale, **options)
        running.loss_scale, running.max_gradient_norm = self.loss_scale, self.max_gradient_norm

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
