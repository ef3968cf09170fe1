"""Summaries for TensorBoard, where it is installed."""

from pathlib import Path
from typing import Any

import torch

from openwafer.config import PathLike
from openwafer.training.metrics.loggers import tensorboard_writers

__all__ = ["SummaryWriter"]


class SummaryWriter:
    """torch's writer of summaries, and tensors beside it; all that it has is here, too.

    Args:
        log_dir: where to; by default what torch chooses.
        base_step: number of an executor's first step in ``cstorch.summarize_scalar``.
        others: for torch's writer.

    Raises:
        OpenwaferError: ``logger-not-installed`` where TensorBoard is not installed.
    """

    def __init__(self, log_dir: PathLike | None = None, base_step: int = 1, **others: Any) -> None:
        self.base_step = base_step
        where = None if log_dir is None else str(log_dir)
        self._writer = tensorboard_writers("a SummaryWriter").SummaryWriter(where, **others)

    def __getattr__(self, name: str) -> Any:
        if name == "_writer":
            raise AttributeError(name)
        return getattr(self._writer, name)

    def add_tensor(self, name: str, tensor: torch.Tensor, step: int) -> None:
        """Write a tensor to ``tensors/NAME/STEP.pt`` beside the summaries."""
        folder = Path(self._writer.log_dir) / "tensors" / name
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"step": step, "tensor": tensor.detach().cpu()}, folder / f"{step}.pt")
