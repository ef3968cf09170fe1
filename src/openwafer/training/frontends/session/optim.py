"""Optimizers under the session style's names; each tells the program of itself."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.training.frontends.scripts.optimizers import EpsilonHatAdam, adam_options
from openwafer.training.frontends.session import lr_scheduler, program

__all__ = ["SGD", "AdamW", "Optimizer", "lr_scheduler"]


def _told(optimizer: Optimizer) -> None:
    running = program.running()
    if running is not None:
        running.take_optimizer(optimizer)


class SGD(torch.optim.SGD):
    """torch's SGD."""

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **kwargs)
        _told(self)


class AdamW(EpsilonHatAdam):
    """See :class:`EpsilonHatAdam`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        others = {"weight_decay": weight_decay, "correct_bias": correct_bias}
        super().__init__(params, adam_options("AdamW", lr=lr, betas=betas, eps=eps, **others))
        _told(self)
