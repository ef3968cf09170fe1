"""Adam and AdamW, to the bits of `torch.optim.Adam` and `torch.optim.AdamW`."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.optim.adam import adam

from openwafer.training.store.update_rules.rule import Cutting, Kernel, Scalar, StateSpec
from openwafer.training.torch_private import fused_adam, fused_adamw


@dataclass(frozen=True)
class AdamRule:
    """Adam (Kingma and Ba 2014); with `decoupled_weight_decay` AdamW (Loshchilov and Hutter 2017).

    torch divides the root of the second moment by its bias correction before it adds `eps`.
    """

    lr: Scalar
    betas: tuple[Scalar, Scalar]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool
    decoupled_weight_decay: bool
    kernel: Kernel

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.kernel is Kernel.FUSED else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """Two moments; with amsgrad also the largest second moment so far."""
        names = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * self.amsgrad
        return tuple(StateSpec(name, shape, dtype) for name in names)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and moments in place."""
        arrays = (
            [weight],
            [gradient],
            [states["exp_avg"]],
            [states["exp_avg_sq"]],
            [states["max_exp_avg_sq"]] if self.amsgrad else [],
        )
        if self.kernel is Kernel.FUSED:
            self._apply_fused(arrays, num_updates + 1)
            return
        adam(
            *arrays,
            [torch.tensor(float(num_updates))],
            foreach=self.kernel is Kernel.FOREACH,
            amsgrad=self.amsgrad,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=self.maximize,
            decoupled_weight_decay=self.decoupled_weight_decay,
        )

    def _apply_fused(self, arrays: tuple[list[torch.Tensor], ...], time: int) -> None:
        # torch.optim's own function around the kernel takes as long as some 50000 elements.
        kernel = fused_adamw if self.decoupled_weight_decay else fused_adam
        beta1, beta2 = self.betas
        weights, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = arrays
        kernel(
            weights,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            [torch.full((), float(time))],
            lr=float(self.lr),
            beta1=float(beta1),
            beta2=float(beta2),
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=self.amsgrad,
            maximize=self.maximize,
        )
