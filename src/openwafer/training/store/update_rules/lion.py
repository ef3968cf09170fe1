"""Lion: the sign of an interpolated momentum (Chen et al. 2023, arXiv 2302.06675)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.store.update_rules.rule import Cutting, StateSpec


def lion(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
) -> None:
    """Update `weight` and `exp_avg` in place, in the order of the published program."""
    beta1, beta2 = betas
    weight.mul_(1 - lr * weight_decay)
    direction = exp_avg.mul(beta1).add_(gradient.mul(1 - beta1)).sign_()
    weight.add_(direction, alpha=-lr)
    exp_avg.mul_(beta2).add_(gradient, alpha=1 - beta2)


class Lion(Optimizer):
    """Lion as an ordinary torch optimizer, for loops whose model stays resident."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        beta1, beta2 = betas
        if lr < 0 or weight_decay < 0 or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise error(
                "optimizer-option",
                f"lion got lr={lr}, betas=({beta1}, {beta2}), weight_decay={weight_decay}",
                help="lr and weight_decay are not negative, betas lie from 0 to below 1",
            )
        super().__init__(params, {"lr": lr, "betas": (beta1, beta2), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            options = {name: group[name] for name in ("lr", "betas", "weight_decay")}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if "exp_avg" not in self.state[weight]:
                    self.state[weight]["exp_avg"] = torch.zeros_like(weight)
                lion(weight, weight.grad, self.state[weight]["exp_avg"], **options)
        return loss


@dataclass(frozen=True)
class LionRule:
    """Lion, to the bits of the optimizer above."""

    lr: float
    betas: tuple[float, float]
    weight_decay: float

    @property
    def cutting(self) -> Cutting:
        """Six passes over memory, unless cut."""
        return Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One momentum."""
        return (StateSpec("exp_avg", shape, dtype),)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and momentum in place."""
        lion(
            weight,
            gradient,
            states["exp_avg"],
            lr=self.lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
        )
