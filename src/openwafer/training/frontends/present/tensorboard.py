"""Summaries for TensorBoard, where it is installed."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from openwafer.config import PathLike
from openwafer.diagnostics import error

__all__ = ["SummaryWriter"]


class SummaryWriter:
    """torch's writer of summaries, and tensors beside it; all that it has is here, too.

    Args:
        log_dir: where to; by default what torch chooses.
        base_step: number of an executor's first step in ``cstorch.summarize_scalar``.
        others: for torch's writer.

    Raises:
        OpenwaferError: ``present-tensorboard`` where TensorBoard is not installed.
    """

    def __init__(self, log_dir: PathLike | None = None, base_step: int = 1, **others: Any) -> None:
        self.base_step = base_step
        where = None if log_dir is None else str(log_dir)
        self._writer = _writers().SummaryWriter(where, **others)

    def __getattr__(self, name: str) -> Any:
        if name == "_writer":
            raise AttributeError(name)
        return getattr(self._writer, name)

    def add_tensor(self, name: str, tensor: torch.Tensor, step: int) -> None:
        """Write a tensor to ``tensors/NAME/STEP.pt`` beside the summaries."""
        folder = Path(self._writer.log_dir) / "tensors" / name
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"step": step, "tensor": tensor.detach().cpu()}, folder / f"{step}.pt")


def _writers() -> Any:
    try:
        return import_module("torch.utils.tensorboard")
    except ImportError as missing:
        raise error(
            "present-tensorboard",
            f"a SummaryWriter is made, and TensorBoard is not installed: {missing}",
            help="install it: pip install tensorboard",
        ) from missing
