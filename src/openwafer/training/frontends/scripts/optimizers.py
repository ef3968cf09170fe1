"""Optimizers of the vendor's scripts: all states exist before the first step.

A step then changes what is there and makes nothing, which is what a compiled step asks for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.store.update_rules.optimizers import step_each

State = dict[str, Any]


class PreinitializedOptimizer(Optimizer):
    """An optimizer that makes the states of all parameters when it is constructed.

    A subclass says what a parameter's state is before its first step, and what a step does to it.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.preinitialize()

    def preinitialize(self) -> None:
        """Give each parameter the state that it has before its first step."""
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight] = self.first_state(weight, group)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """The state of a parameter before its first step."""
        raise NotImplementedError

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """Take one parameter's step, in place; the gradient is only read."""
        raise NotImplementedError

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        return step_each(self, self.update, closure)


class EpsilonHatAdam(PreinitializedOptimizer):
    """Adam and AdamW whose epsilon stands beside the uncorrected second moment.

    With m and v the moving averages of gradients and of their squares, a step t takes from a
    weight p ``lr * (c * m / (sqrt(v) + eps) + weight_decay * p)``, where c is
    ``sqrt(1 - beta2**t) / (1 - beta1**t)``, or 1 without `correct_bias`. torch divides sqrt(v) by
    its correction before it adds epsilon. With `amsgrad`, v is the largest one so far; a gradient
    has ``l2_regularization_rate * p`` added.

    The states ``beta1_power`` and ``beta2_power`` are beta1**t and beta2**t of the next step, fp32.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization; Kingma and Ba, section 2,
    for the place of epsilon.
    """

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        state: State = {name: torch.zeros_like(weight, requires_grad=False) for name in names}
        if group["correct_bias"]:
            beta1, beta2 = group["betas"]
            state |= {"beta1_power": torch.tensor(beta1), "beta2_power": torch.tensor(beta2)}
        return state

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        beta1, beta2 = group["betas"]
        if group["l2_regularization_rate"]:
            gradient = gradient.add(weight, alpha=group["l2_regularization_rate"])
        mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if group["amsgrad"]:
            largest = state["max_exp_avg_sq"]
            square = largest.copy_(torch.maximum(largest, square))
        change = mean / square.sqrt().add_(group["eps"])
        if group["correct_bias"]:
            power1, power2 = state["beta1_power"], state["beta2_power"]
            change.mul_((1 - power2).sqrt() / (1 - power1))
            power1.mul_(beta1)
            power2.mul_(beta2)
        change.add_(weight * group["weight_decay"])
        weight.sub_(change.mul_(group["lr"]))


def adam_options(
    name: str,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    **others: Any,
) -> dict[str, Any]:
    """Defaults of an :class:`EpsilonHatAdam`; `others` beside those that are named here.

    Raises:
        OpenwaferError: ``optimizer-option``.
    """
    beta1, beta2 = betas
    are_right = lr >= 0 and eps >= 0 and are_betas((beta1, beta2))
    require(name, are_right, lr=lr, betas=(beta1, beta2), eps=eps)
    options = {"lr": lr, "betas": (beta1, beta2), "eps": eps}
    absent = {
        "weight_decay": 0.0,
        "l2_regularization_rate": 0.0,
        "correct_bias": True,
        "amsgrad": False,
    }
    return {**options, **absent, **others}


def are_betas(betas: Iterable[float]) -> bool:
    """Whether each may be the share that a moving average keeps."""
    return all(0 <= beta < 1 for beta in betas)


def require(name: str, are_right: bool, **options: object) -> None:
    """Refuse options of the optimizer `name` that are not as they may be.

    Raises:
        OpenwaferError: ``optimizer-option``.
    """
    if not are_right:
        raise error(
            "optimizer-option",
            f"{name} got {', '.join(f'{option}={value}' for option, value in options.items())}",
            help="rates, eps and decays are not negative, betas lie from 0 to below 1",
        )
