"""Optimizers under the session style's names; each tells the program of itself."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.training.frontends.session import program
from openwafer.training.store.update_rules.optimizers import step_each

__all__ = ["SGD", "AdamW", "Optimizer"]


def _told(optimizer: Optimizer) -> None:
    running = program.running()
    if running is not None:
        running.take_optimizer(optimizer)


class SGD(torch.optim.SGD):
    """torch's SGD."""

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **kwargs)
        _told(self)


class AdamW(Optimizer):
    """AdamW whose epsilon stands beside the uncorrected second moment.

    With m and v the moving averages of gradients and of their squares, a step t takes from a
    weight p ``lr * (c * m / (sqrt(v) + eps) + weight_decay * p)``, where c is
    ``sqrt(1 - beta2**t) / (1 - beta1**t)``, or 1 without `correct_bias`. torch's AdamW divides
    sqrt(v) by its correction before it adds epsilon.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: decay of m, of v.
        eps: see above.
        weight_decay: see above.
        correct_bias: see above.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization; Kingma and Ba, section 2,
    for the place of epsilon.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_bias": correct_bias,
        }
        super().__init__(params, defaults)
        _told(self)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        return step_each(self, _update_by_adamw, closure)


def _update_by_adamw(
    weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(weight)
        state["exp_avg_sq"] = torch.zeros_like(weight)
    state["step"] += 1
    beta1, beta2 = group["betas"]
    state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    update = state["exp_avg"] / state["exp_avg_sq"].sqrt().add_(group["eps"])
    if group["correct_bias"]:
        taken = state["step"].item()
        update.mul_((1 - beta2**taken) ** 0.5 / (1 - beta1**taken))
    update.add_(weight, alpha=group["weight_decay"])
    weight.add_(update, alpha=-group["lr"])
