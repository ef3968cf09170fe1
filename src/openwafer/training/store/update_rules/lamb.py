"""LAMB: Adam whose step is as long, beside its tensor, as the learning rate says."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error


class Lamb(Optimizer):
    """LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2) as an ordinary torch optimizer.

    For each tensor x with gradient g, at its t-th step::

        m = beta1 m + (1 - beta1) g               v = beta2 v + (1 - beta2) g^2
        r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
        u = r + weight_decay x
        x = x - lr (norm(x) / norm(u)) u

    The trust ratio is of the Euclidean norms of the whole tensor, and 1 where one of
    them is 0. Gradients are not clipped: that is the loop's to do.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        beta1, beta2 = betas
        is_valid = lr >= 0 and weight_decay >= 0 and eps >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1
        if not is_valid:
            raise error(
                "optimizer-option",
                f"lamb got lr={lr}, betas=({beta1}, {beta2}), eps={eps}, "
                f"weight_decay={weight_decay}",
                help="lr, eps and weight_decay are not negative, betas lie from 0 to below 1",
            )
        options = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _update(weight, weight.grad, self.state[weight], group)
        return loss


def _update(
    weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(weight)
        state["exp_avg_sq"] = torch.zeros_like(weight)
    state["step"] += 1
    time = state["step"].item()
    beta1, beta2 = group["betas"]
    mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = square.div(1 - beta2**time).sqrt_().add_(group["eps"])
    direction = mean.div(1 - beta1**time).div_(root)
    if group["weight_decay"]:
        direction.add_(weight, alpha=group["weight_decay"])
    weight_norm, norm = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(direction)
    is_defined = (weight_norm > 0) & (norm > 0)
    ratio = torch.where(is_defined, weight_norm / norm, torch.ones_like(norm))
    weight.sub_(direction.mul_(ratio * group["lr"]))
