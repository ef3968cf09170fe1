"""Optimizers by name, for runs that are described in a config, and those that torch lacks."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import counted, did_you_mean, error


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

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        return step_each(self, update_by_lion, closure)


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

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        return step_each(self, _update_by_lamb, closure)


def update_by_lion(
    weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    """Lion's step on one weight and its state, in place; see :func:`step_each`."""
    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(weight)
    exp_avg, lr, (beta1, beta2) = state["exp_avg"], group["lr"], group["betas"]
    # In the order of the published program.
    weight.mul_(1 - lr * group["weight_decay"])
    direction = exp_avg.mul(beta1).add_(gradient.mul(1 - beta1)).sign_()
    weight.add_(direction, alpha=-lr)
    exp_avg.mul_(beta2).add_(gradient, alpha=1 - beta2)


def _update_by_lamb(
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


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters of all groups, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def step_each(
    optimizer: Optimizer, update: Callable[..., None], closure: Callable[[], float] | None
) -> float | None:
    """Update every parameter that has a gradient; return the closure's loss.

    Args:
        optimizer: whose parameters and states they are.
        update: changes a weight and its state in place: (weight, gradient, state, group).
        closure: computes the loss and its gradients first.
    """
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                update(weight, weight.grad, optimizer.state[weight], group)
    return loss


OPTIMIZERS: Mapping[str, type[Optimizer]] = MappingProxyType(
    {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "lion": Lion,
        "lamb": Lamb,
        "adafactor": torch.optim.Adafactor,
        "muon": torch.optim.Muon,
        "adagrad": torch.optim.Adagrad,
        "adadelta": torch.optim.Adadelta,
        "adamax": torch.optim.Adamax,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "rmsprop": torch.optim.RMSprop,
        "asgd": torch.optim.ASGD,
        "rprop": torch.optim.Rprop,
    }
)


def build_optimizer(
    name: str, params: Iterable[Any], options: Mapping[str, object] | None = None
) -> Optimizer:
    """Build an optimizer over parameters or parameter groups; fused where torch has a fused form.

    `options` are the arguments of that torch class. Raises `optimizer-unknown` and
    `optimizer-option`, the latter with torch's own words for a value it refuses.
    """
    if name not in OPTIMIZERS:
        raise error(
            "optimizer-unknown",
            f"no optimizer is called '{name}'",
            help=did_you_mean(name, OPTIMIZERS),
        )
    accepted = options_of(name)
    for option, value in (options or {}).items():
        if option not in accepted:
            raise error(
                "optimizer-option",
                f"{name} has no option '{option}'",
                help=did_you_mean(option, accepted),
            )
        _require_length(name, option, value, accepted[option])
    chosen = {"fused": True} if "fused" in accepted and "foreach" not in (options or {}) else {}
    try:
        return OPTIMIZERS[name](params, **{**chosen, **(options or {})})  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as refusal:
        raise error(
            "optimizer-option",
            f"{name} refuses its options: {refusal}",
            notes=tuple(f"{option}: {value!r}" for option, value in (options or {}).items()),
            help=f"its options are {', '.join(accepted)}",
        ) from refusal


def options_of(name: str) -> Mapping[str, object]:
    """The options of the optimizer of that name, with their defaults."""
    _, *options = inspect.signature(OPTIMIZERS[name]).parameters.values()
    return {option.name: option.default for option in options}


def _require_length(name: str, option: str, value: object, default: object) -> None:
    """Refuse what torch's constructors index without a look."""
    if not isinstance(default, tuple):
        return
    if not isinstance(value, list | tuple) or len(value) != len(default):
        found = counted(len(value), "value") if isinstance(value, list | tuple) else repr(value)
        raise error(
            "optimizer-option",
            f"{name} takes {len(default)} values for '{option}', found {found}",
            notes=(f"{option}: {value!r}",),
            help=f"write {option}: {list(default)}",
        )
