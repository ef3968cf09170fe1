"""The loss among what a model returns."""

from typing import Any

import torch

from openwafer.diagnostics import error

__all__ = ["extract_loss"]


def extract_loss(outputs: Any) -> torch.Tensor:
    """The loss of a model's outputs: a tensor, the first of several, or an attribute ``loss``.

    Raises:
        OpenwaferError: ``session-loss`` where it is none of these.
    """
    first = outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs
    loss = getattr(first, "loss", first)
    if isinstance(loss, torch.Tensor):
        return loss
    raise error(
        "session-loss",
        f"no loss is found in what a model returned, a {type(outputs).__name__}",
        help="return the loss, a tuple that begins with it, or an object with an attribute loss",
    )
