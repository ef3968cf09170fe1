"""The convention by which any model reports its loss."""

from collections.abc import Mapping

from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error


def loss_of(output: object) -> Tensor:
    """The loss in what forward returned: ``output.loss``, ``output["loss"]``, or the scalar itself.

    Raises:
        OpenwaferError: there is none, or it is not a scalar that gradients can start from.
    """
    match output:
        case Tensor():
            loss: object = output
        case Mapping():
            loss = output.get("loss")
        case _ if hasattr(output, "loss"):
            loss = output.loss
        case _:
            raise _no_loss(f"forward returned {type(output).__name__}, which holds no loss")
    if not isinstance(loss, Tensor):
        raise _no_loss(f"the loss in the {type(output).__name__} of forward is {loss!r:.60}")
    if loss.ndim or not loss.is_floating_point():
        raise _no_loss(f"the loss has shape {tuple(loss.shape)} and type {loss.dtype}")
    return loss


def _no_loss(message: str) -> OpenwaferError:
    return error(
        "model-loss",
        message,
        notes=('forward must return a scalar, or an object or mapping with a scalar "loss"',),
        help="does the batch hold labels?",
    )
