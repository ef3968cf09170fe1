"""Stochastic gradient descent, to the bits of `torch.optim.SGD`."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.optim.sgd import sgd

from openwafer.diagnostics import error
from openwafer.training.store.update_rules.rule import Cutting, Kernel, Scalar, StateSpec
from openwafer.training.torch_private import fused_sgd


@dataclass(frozen=True)
class SgdRule:
    """SGD with momentum, dampening and Nesterov's variant, as torch writes them.

    The momentum buffer starts as the first gradient, without dampening.
    """

    lr: Scalar
    momentum: float
    dampening: float
    weight_decay: Scalar
    nesterov: bool
    maximize: bool
    kernel: Kernel

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.kernel is Kernel.FUSED else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One buffer, or nothing without momentum. Raises `optimizer-unsupported`, see below."""
        # https://github.com/pytorch/pytorch/issues/191763: the vector part of the kernel does not
        # write the weights, and writes whatever into the buffer.
        if self.kernel is Kernel.FUSED and dtype in (torch.bfloat16, torch.float16):
            raise error(
                "optimizer-unsupported",
                f"torch's fused SGD does not update weights of {dtype} on the CPU",
                notes=("a bug of torch, pytorch/pytorch issue 191763",),
                help="build the optimizer with fused=False, or keep fp32 master weights",
            )
        return (StateSpec("momentum_buffer", shape, dtype),) if self.momentum else ()

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and buffer in place."""
        is_first = num_updates == 0
        buffers = [states["momentum_buffer"]] if self.momentum else []
        if self.kernel is Kernel.FUSED:
            fused_sgd(
                [weight],
                [gradient],
                buffers,
                lr=float(self.lr),
                momentum=self.momentum,
                dampening=self.dampening,
                weight_decay=float(self.weight_decay),
                nesterov=self.nesterov,
                maximize=self.maximize,
                is_first_step=is_first,
            )
            return
        filled: list[torch.Tensor | None] = [None] if is_first or not buffers else [*buffers]
        sgd(
            [weight],
            [gradient],
            filled,
            foreach=self.kernel is Kernel.FOREACH,
            weight_decay=self.weight_decay,  # type: ignore[arg-type]  # torch's SGD takes a tensor
            momentum=self.momentum,
            lr=self.lr,  # type: ignore[arg-type]
            dampening=self.dampening,
            nesterov=self.nesterov,
            maximize=self.maximize,
        )
        if is_first and filled[0] is not None:
            buffers[0].copy_(filled[0])
