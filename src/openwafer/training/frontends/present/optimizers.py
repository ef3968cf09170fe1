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


def decayed(weight: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> Tensor:
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
        change = decayed(weight, gradient, group)
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
        change = decayed(weight, gradient, group)
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
        change = decayed(weight, gradient, group)
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
        change = decayed(weight, gradient, group)
        square = state["square_avg"].mul_(rho).addcmul_(change, change, value=1 - rho)
        moved = state["acc_delta"]
        delta = moved.add(eps).sqrt_().div_(square.add(eps).sqrt_()).mul_(change)
        moved.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        weight.sub_(delta.mul_(group["lr"]))


class ASGD(Optimizer):
    """torch's ASGD: the state ``ax`` is the average of the weights from step `t0` on."""

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        require("ASGD", lr >= 0 and weight_decay >= 0, **options)
        super().__init__(params, {**options, "maximize": maximize})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        numbers = {"eta": group["lr"], "mu": 1.0, "step": 0.0}
        state = {name: torch.tensor(float(number)) for name, number in numbers.items()}
        return {**state, "ax": torch.zeros_like(weight)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        rate, share, average = state["eta"], state["mu"], state["ax"]
        step = state["step"].add_(1)
        change = decayed(weight, gradient, group)
        weight.mul_(1 - group["lambd"] * rate).sub_(change.mul_(rate))
        average.copy_(torch.where(share == 1, weight, average + (weight - average) * share))
        rate.copy_(group["lr"] / (1 + group["lambd"] * group["lr"] * step) ** group["alpha"])
        share.copy_(1 / (step - group["t0"]).clamp(min=1))


class Rprop(Optimizer):
    """torch's Rprop: each element has a step size of its own, which a change of sign reduces."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
    ) -> None:
        options = {"lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes)}
        require("Rprop", lr >= 0 and 0 < etas[0] < 1 < etas[1], **options)
        super().__init__(params, options)

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        sizes = torch.full_like(weight, group["lr"], requires_grad=False)
        return {"prev": torch.zeros_like(weight), "step_size": sizes}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        smaller, larger = group["etas"]
        least, most = group["step_sizes"]
        turn = (gradient * state["prev"]).sign()
        factor = (
            torch.ones_like(turn).masked_fill_(turn > 0, larger).masked_fill_(turn < 0, smaller)
        )
        size = state["step_size"].mul_(factor).clamp_(least, most)
        taken = gradient.masked_fill(turn < 0, 0)
        weight.sub_(taken.sign().mul_(size))
        state["prev"].copy_(taken)


class Muon(Optimizer):
    """Muon: a step along the nearest orthogonal matrix, by Newton and Schulz in bfloat16.

    With b the moving average of gradients, the direction is that of ``g + momentum * b``, or of b
    without `nesterov`. It is multiplied by ``0.2 * sqrt(max(rows, columns))``, with which the decay
    is multiplied, too. A weight of more dims is one matrix of its first dim.

    Source: Jordan, Muon: an optimizer for hidden layers in neural networks; the factor is that of
    arXiv 2502.16982.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        are_right = lr >= 0 and are_betas((weight_decay, momentum)) and ns_steps >= 0
        require("Muon", are_right, **options, ns_steps=ns_steps)
        super().__init__(params, {**options, "nesterov": nesterov, "ns_steps": ns_steps})

    def first_state(self, weight: Tensor, group: Mapping[str, Any]) -> State:
        """See :class:`PreinitializedOptimizer`."""
        if weight.ndim < 2:
            raise error(
                "optimizer-option",
                f"Muon is given a weight of the shape {tuple(weight.shape)}, and takes matrices",
                help="give vectors, norms and embeddings to an optimizer of their own, as AdamW",
            )
        return {"momentum_buffer": torch.zeros_like(weight)}

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """See :class:`PreinitializedOptimizer`."""
        momentum = group["momentum"]
        moving = state["momentum_buffer"].mul_(momentum).add_(gradient, alpha=1 - momentum)
        wanted = gradient.add(moving, alpha=momentum) if group["nesterov"] else moving
        direction = _orthogonal(wanted.flatten(1), group["ns_steps"]).view_as(weight)
        rate = group["lr"] * 0.2 * max(weight.shape[:2]) ** 0.5
        weight.mul_(1 - rate * group["weight_decay"]).sub_(direction.to(weight.dtype) * rate)


def _orthogonal(matrix: Tensor, num_steps: int) -> Tensor:
    """The orthogonal matrix nearest to one, about, in bfloat16.

    The polynomial a x + b x^3 + c x^5 brings singular values between 0 and 1 close to 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[0] > matrix.shape[1]
    found: Tensor = (matrix.mT if is_tall else matrix).bfloat16()
    found = found / (found.norm() + 1e-7)
    for _ in range(num_steps):
        square = found @ found.mT
        found = a * found + (b * square + c * square @ square) @ found
    return found.mT if is_tall else found


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
