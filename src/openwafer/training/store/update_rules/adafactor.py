"""Adafactor with factored second moments, to the bits of `torch.optim.Adafactor`."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from openwafer.training.store.update_rules.rule import Cutting, Kernel, Scalar, StateSpec
from openwafer.training.torch_private import adafactor


@dataclass(frozen=True)
class AdafactorRule:
    """Adafactor (Shazeer and Stern 2018) in torch's reading, where `lr` bounds the relative step.

    A tensor of two or more dims keeps one mean square per row and one per column of its last two
    dims; a vector keeps one per element. `eps` is (None for the dtype's own, least scale).
    """

    lr: Scalar
    beta2_decay: float
    eps: tuple[float | None, float]
    d: float
    weight_decay: float
    maximize: bool
    kernel: Kernel

    @property
    def cutting(self) -> Cutting:
        """The step is relative to norms of the whole tensor."""
        return Cutting.NEVER

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """Row and column factors, or the whole variance of a vector or scalar."""
        if len(shape) < 2:
            return (StateSpec("variance", shape, dtype),)
        *batch, num_rows, num_columns = shape
        return (
            StateSpec("row_var", (*batch, num_rows, 1), dtype),
            StateSpec("col_var", (*batch, 1, num_columns), dtype),
        )

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and variances in place."""
        adafactor(
            [weight],
            [gradient],
            [states.get("row_var")],
            [states.get("col_var")],
            [states.get("variance")],
            [torch.tensor(float(num_updates))],
            foreach=self.kernel is Kernel.FOREACH,
            d=self.d,
            lr=self.lr,
            beta2_decay=self.beta2_decay,
            weight_decay=self.weight_decay,
            eps1=self.eps[0],  # type: ignore[arg-type]  # None stands for the dtype's own
            eps2=self.eps[1],
            maximize=self.maximize,
        )
