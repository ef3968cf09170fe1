"""Optimizers of the present style that vary Adam's correction of its moments."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from openwafer.training.frontends.present.optimizers import Optimizer, decayed
from openwafer.training.frontends.scripts.optimizers import State, are_betas, require


class Adamax(Optimizer):
    """torch's Adamax."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        are_right = lr >= 0 and eps >= 0 and are_betas(betas)
        require("Adamax", are_right, **options)
        super().__init__(params, {**options, "maximize": maximize})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_inf")}
        return {**zeros, "beta1_power": torch.tensor(group["betas"][0])}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        beta1, beta2 = group["betas"]
        change = decayed(weight, gradient, group)
        mean = state["exp_avg"].mul_(beta1).add_(change, alpha=1 - beta1)
        largest = state["exp_inf"].mul_(beta2)
        largest.copy_(torch.maximum(largest, change.abs().add_(group["eps"])))
        power = state["beta1_power"]
        weight.sub_((mean / largest).div_(1 - power).mul_(group["lr"]))
        power.mul_(beta1)


class NAdam(Optimizer):
    """Adam with Nesterov's momentum, as the style has it.

    torch's corrects the coming momentum by the product of all mu up to the next one; here the mu of
    this step stands twice in it. The decay is added to the gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
    ) -> None:
        options = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
        }
        are_right = min(lr, eps, weight_decay, momentum_decay) >= 0 and are_betas(betas)
        require("NAdam", are_right, **options)
        super().__init__(params, options)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        return {"mu_product": torch.tensor(1.0), **_moments(weight)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        beta1, beta2 = group["betas"]
        step = state["step"].add_(1)
        change = decayed(weight, gradient, group)
        mean, square = _moved(state, change, group)

        def mu_at(step: Tensor) -> Tensor:
            mu: Tensor = beta1 * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"]))
            return mu

        mu, following = mu_at(step), mu_at(step + 1)
        product = state["mu_product"].mul_(mu)
        coming = mean * (following / (1 - product * mu * following))
        moved = coming + change * ((1 - mu) / (1 - product))
        root = (square / (1 - torch.tensor(beta2) ** step)).sqrt_().add_(group["eps"])
        weight.sub_(moved.mul_(group["lr"]).div_(root))


class RAdam(Optimizer):
    """torch's RAdam: the second moment is used where its variance is tractable."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        are_right = min(lr, eps, weight_decay) >= 0 and are_betas(betas)
        require("RAdam", are_right, **options)
        super().__init__(params, options)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        return _moments(weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        beta1, beta2 = group["betas"]
        t = float(state["step"].add_(1))
        mean, square = _moved(state, decayed(weight, gradient, group), group)
        change = mean / (1 - beta1**t)
        largest = 2 / (1 - beta2) - 1
        length = largest - 2 * t * beta2**t / (1 - beta2**t)
        if length > 5:
            ratio = (length - 4) * (length - 2) * largest
            rectified = (ratio / ((largest - 4) * (largest - 2) * length)) ** 0.5
            root = square.sqrt().add_(group["eps"])
            change.mul_(rectified * (1 - beta2**t) ** 0.5).div_(root)
        weight.sub_(change.mul_(group["lr"]))


def _moments(weight: Tensor) -> State:
    zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.tensor(0.0), **zeros}


def _moved(state: State, change: Tensor, group: State) -> tuple[Tensor, Tensor]:
    """The moving averages of gradients and of their squares, behind this step's."""
    beta1, beta2 = group["betas"]
    mean: Tensor = state["exp_avg"].mul_(beta1).add_(change, alpha=1 - beta1)
    square: Tensor = state["exp_avg_sq"].mul_(beta2).addcmul_(change, change, value=1 - beta2)
    return mean, square
