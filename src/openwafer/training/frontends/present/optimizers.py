"""Optimizers of the present style, by the style's formulas."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from openwafer.diagnostics import error
from openwafer.training.frontends.present import backends
from openwafer.training.frontends.scripts.optimizers import (
    EpsilonHatAdam,
    PreinitializedOptimizer,
    State,
    adam_options,
    are_betas,
    require,
)
from openwafer.training.store.update_rules.optimizers import update_by_lion


class Optimizer(PreinitializedOptimizer):
    """An optimizer that the executors of this process know of.

    A script's own one is a subclass with ``preinitialize`` and ``step``, or with ``first_state``
    and ``update``; see :class:`PreinitializedOptimizer`.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        backend = backends.current(f"cstorch.optim.{type(self).__name__}")
        super().__init__(params, defaults)
        backend.take_optimizer(self)

    def apply(self, function: Callable[["Optimizer"], Any]) -> Any:
        """What a function makes of this optimizer."""
        return function(self)


class AdamW(EpsilonHatAdam, Optimizer):
    """AdamW; see :class:`EpsilonHatAdam`."""

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        others = {"weight_decay": weight_decay, "correct_bias": correct_bias, "amsgrad": amsgrad}
        super().__init__(params, adam_options("AdamW", lr=lr, betas=betas, eps=eps, **others))


class Adam(EpsilonHatAdam, Optimizer):
    """Adam, whose weight decay is added to the gradient; see :class:`EpsilonHatAdam`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        others = {"l2_regularization_rate": weight_decay, "amsgrad": amsgrad}
        options = adam_options("Adam", lr=lr, betas=betas, eps=eps, **others)
        super().__init__([_with_decay_as_l2(group) for group in _groups(params)], options)


def _decayed(weight: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> Tensor:
    """The gradient, or with `maximize` its negative, and the weight decay that is added to it."""
    change = -gradient if group.get("maximize") else gradient
    decay: float | Tensor = group["weight_decay"]
    return change + weight * decay


def _groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    listed = list(params)
    return listed if listed and isinstance(listed[0], dict) else [{"params": listed}]


def _with_decay_as_l2(group: dict[str, Any]) -> dict[str, Any]:
    changed = dict(group)
    if "weight_decay" in changed:
        changed.setdefault("l2_regularization_rate", changed.pop("weight_decay"))
    return changed


class SGD(Optimizer):
    """Stochastic gradient descent, as torch's, but that momentum begins at 0.

    With dampening, torch's first step takes the whole gradient; here it takes what all others do.
    """

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        are_right = lr >= 0 and momentum >= 0 and weight_decay >= 0
        require("SGD", are_right and not (nesterov and (momentum <= 0 or dampening)), **options)
        super().__init__(params, options)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        return {"momentum_buffer": torch.zeros_like(weight)} if group["momentum"] else {}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        change = _decayed(weight, gradient, group)
        momentum = group["momentum"]
        if momentum:
            moving = state["momentum_buffer"].mul_(momentum)
            moving.add_(change, alpha=1 - group["dampening"])
            change = change.add(moving, alpha=momentum) if group["nesterov"] else moving
        weight.add_(change * -group["lr"])


class Lion(Optimizer):
    """Lion (arXiv 2302.06675): the sign of the gradient, mixed with its moving average."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay}
        are_right = lr >= 0 and weight_decay >= 0 and are_betas(betas)
        require("Lion", are_right, **options)
        super().__init__(params, options)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        return {"exp_avg": torch.zeros_like(weight)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        update_by_lion(weight, gradient, state, group)


class Lamb(Optimizer):
    """LAMB without correction of its moments, as in the third version of arXiv 1904.00962.

    A tensor's step is multiplied by its norm, at most 10, over that of the step; with `adam` it is
    not. Where one of the norms is 0, it is not either.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        are_right = lr >= 0 and eps >= 0 and are_betas(betas)
        require("Lamb", are_right, **options)
        super().__init__(params, {**options, "adam": adam})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        return {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        change = mean / square.sqrt().add_(group["eps"]) + weight * group["weight_decay"]
        if not group["adam"]:
            norm, own = weight.norm().clamp(max=10), change.norm()
            is_defined = (norm > 0) & (own > 0)
            change.mul_(torch.where(is_defined, norm / own, torch.ones_like(own)))
        weight.sub_(change.mul_(group["lr"]))


class RMSprop(Optimizer):
    """torch's RMSprop."""

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
        }
        require("RMSprop", min(options.values()) >= 0, **options)
        super().__init__(params, {**options, "centered": centered})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] > 0 else []
        names += ["grad_avg"] if group["centered"] else []
        return {name: torch.zeros_like(weight) for name in names}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        alpha = group["alpha"]
        change = _decayed(weight, gradient, group)
        square = state["square_avg"].mul_(alpha).addcmul_(change, change, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].mul_(alpha).add_(change, alpha=1 - alpha)
            square = square.addcmul(mean, mean, value=-1)
        root = square.sqrt().add_(group["eps"])
        if group["momentum"] > 0:
            moving = state["momentum_buffer"].mul_(group["momentum"])
            weight.add_(moving.addcdiv_(change, root), alpha=-group["lr"])
        else:
            weight.addcdiv_(change * -group["lr"], root)


class Adagrad(Optimizer):
    """torch's Adagrad."""

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-6,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
        }
        require("Adagrad", min(options.values()) >= 0, **options)
        super().__init__(params, {**options, "maximize": maximize})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        begun = torch.full_like(weight, group["initial_accumulator_value"])
        return {"sum": begun, "step": torch.tensor(0.0)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        change = _decayed(weight, gradient, group)
        rate = group["lr"] / (1 + state["step"] * group["lr_decay"])
        state["step"].add_(1)
        root = state["sum"].addcmul_(change, change).sqrt().add_(group["eps"])
        weight.sub_(change.div_(root).mul_(rate))


class Adadelta(Optimizer):
    """torch's Adadelta."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        require("Adadelta", min(options.values()) >= 0 and rho <= 1, **options)
        super().__init__(params, {**options, "maximize": maximize})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        return {"square_avg": torch.zeros_like(weight), "acc_delta": torch.zeros_like(weight)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        rho, eps = group["rho"], group["eps"]
        change = _decayed(weight, gradient, group)
        square = state["square_avg"].mul_(rho).addcmul_(change, change, value=1 - rho)
        moved = state["acc_delta"]
        delta = moved.add(eps).sqrt_().div_(square.add(eps).sqrt_()).mul_(change)
        moved.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        weight.sub_(delta.mul_(group["lr"]))


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
        change = _decayed(weight, gradient, group)
        mean = state["exp_avg"].mul_(beta1).add_(change, alpha=1 - beta1)
        largest = state["exp_inf"].mul_(beta2)
        largest.copy_(torch.maximum(largest, change.abs().add_(group["eps"])))
        power = state["beta1_power"]
        weight.sub_((mean / largest).div_(1 - power).mul_(group["lr"]))
        power.mul_(beta1)


class Adafactor(Optimizer):
    """Adafactor (arXiv 1804.04235) with a given learning rate.

    With `scale_parameter` the rate is multiplied by the weight's root mean square, at least
    ``eps[1]``. A weight of one dim keeps its whole second moment.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        eps: tuple[float, float] = (1e-30, 1e-3),
        decay_rate: float = -0.8,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        **others: Any,
    ) -> None:
        _require_defaults(others)
        options = {
            "lr": lr,
            "eps": tuple(eps),
            "decay_rate": decay_rate,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
        }
        super().__init__(params, options)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        step = {"step": torch.tensor(0.0)}
        if weight.ndim < 2:
            return {**step, "exp_avg_sq": torch.zeros_like(weight)}
        rows, columns = weight.detach()[..., 0], weight.detach()[..., 0, :]
        zeros = {"exp_avg_sq_row": rows, "exp_avg_sq_col": columns}
        return {**step, **{name: torch.zeros_like(of) for name, of in zeros.items()}}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        state["step"].add_(1)
        rate = torch.as_tensor(group["lr"])
        if group["scale_parameter"]:
            rate = rate * _root_mean_square(weight).clamp(min=group["eps"][1])
        share = 1 - state["step"] ** group["decay_rate"]
        square = gradient.square() + group["eps"][0]
        if "exp_avg_sq" in state:
            kept = state["exp_avg_sq"].mul_(share).add_(square.mul_(1 - share))
            change = kept.rsqrt() * gradient
        else:
            rows = state["exp_avg_sq_row"].mul_(share).add_(square.mean(-1).mul_(1 - share))
            columns = state["exp_avg_sq_col"].mul_(share).add_(square.mean(-2).mul_(1 - share))
            by_row = (rows / rows.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
            change = by_row * columns.rsqrt().unsqueeze(-2) * gradient
        change.div_(_root_mean_square(change).clamp(min=1)).mul_(rate)
        weight.sub_(weight * (group["weight_decay"] * rate)).sub_(change)


def _require_defaults(others: dict[str, Any]) -> None:
    known = {"clip_threshold": 1.0, "beta1": None, "relative_step": False, "warmup_init": False}
    for name, value in others.items():
        if name not in known or value != known[name]:
            raise error(
                "optimizer-option",
                f"Adafactor got {name}={value}",
                help="leave it out: " + ", ".join(f"{n} is {v}" for n, v in known.items()),
            )


def _root_mean_square(tensor: Tensor) -> Tensor:
    return tensor.square().mean().sqrt()
