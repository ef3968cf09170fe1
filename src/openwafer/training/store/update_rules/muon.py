"""Muon, to the bits of `torch.optim.Muon`."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from openwafer.training.store.update_rules.rule import Cutting, Scalar, StateSpec
from openwafer.training.torch_private import muon


@dataclass(frozen=True)
class MuonRule:
    """Momentum made orthogonal by Newton-Schulz steps (Jordan 2024), for matrices alone."""

    lr: Scalar
    weight_decay: float
    momentum: float
    nesterov: bool
    ns_coefficients: tuple[float, float, float]
    eps: float
    ns_steps: int
    adjust_lr_fn: str | None

    @property
    def cutting(self) -> Cutting:
        """The direction is a product of whole matrices."""
        return Cutting.NEVER

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One momentum."""
        return (StateSpec("momentum_buffer", shape, dtype),)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and momentum in place."""
        muon(
            [weight],
            [gradient],
            [states["momentum_buffer"]],
            lr=self.lr,  # type: ignore[arg-type]  # torch's Muon takes a tensor
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_coefficients=self.ns_coefficients,
            ns_steps=self.ns_steps,
            eps=self.eps,
            adjust_lr_fn=self.adjust_lr_fn,
            has_complex=False,
        )
