"""Optimizers as people write them, most of which the store can run and some of which it cannot."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import StateDict

Closure = Callable[[], float] | None
Params = Iterable[Any]


class ClampedAdamW(AdamW):
    """Writes to the gradients, then does what its parent does."""

    def step(self, closure: Closure = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad.clamp_(-0.01, 0.01)
        return super().step(closure)


class Foreign(Optimizer):
    """Visits every parameter that has a gradient; `visit` updates it."""

    def __init__(self, params: Params, lr: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    def step(self, closure: Closure = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                self.begin(group)
                for weight in group["params"]:
                    if weight.grad is not None:
                        self.visit(weight, group, self.state[weight])
        return loss

    def begin(self, group: dict[str, Any]) -> None:
        pass

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        raise NotImplementedError


class Unguarded(Foreign):
    """Takes every parameter to have a gradient."""

    def begin(self, group: dict[str, Any]) -> None:
        with torch.no_grad():
            for weight in group["params"]:
                weight.sub_(weight.grad.square(), alpha=group["lr"])


class SignMomentum(Foreign):
    """Makes its state and its weight anew instead of writing into them."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(weight)) + weight.grad
        weight.data = weight.data - group["lr"] * state["momentum"].sign()


class Preinitialized(Foreign):
    """Makes its states when it is constructed, and none in its step, as those that are compiled."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.preinitialize()

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["mean"] = torch.zeros_like(weight)
                self.state[weight]["power"] = torch.tensor(0.9)

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        state["mean"].mul_(0.9).add_(weight.grad, alpha=0.1)
        weight.sub_(group["lr"] * state["mean"] / (1 - state["power"]))
        state["power"] *= 0.9


class Counting(Foreign):
    """Has numbers for states, one of each type, and a count in its group."""

    def begin(self, group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        if not state:
            state.update(count=0, decay=1.0, is_late=False, mean=torch.zeros(()))
        state["count"] += 1
        state["decay"] *= 0.9
        state["is_late"] = state["count"] > 2
        state["mean"] += weight.grad.mean()
        scale = state["decay"] / math.sqrt(group["step"]) / (1 + abs(state["mean"].item()))
        weight.sub_(weight.grad, alpha=group["lr"] * scale * (0.5 if state["is_late"] else 1.0))


class RowNorms(Foreign):
    """Has a state of another shape and dtype than its weight."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        if "rows" not in state:
            state["rows"] = torch.zeros(max(1, *weight.shape[:1], 1), dtype=torch.float64)
        state["rows"] += weight.grad.double().square().sum()
        weight.sub_(weight.grad / (state["rows"].sqrt()[0].float() + 1e-8), alpha=group["lr"])


class ClippedSgd(SGD):
    """Couples the parameters: it clips by the norm over all of them."""

    def step(self, closure: Closure = None) -> Any:
        held = [weight for group in self.param_groups for weight in group["params"]]
        nn.utils.clip_grad_norm_(held, 1.0)
        return super().step(closure)


class LoosePositions(Foreign):
    """Couples the parameters: the first moves faster."""

    def begin(self, group: dict[str, Any]) -> None:
        self.factor = 2.0

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(weight.grad, alpha=group["lr"] * self.factor)
        self.factor = 1.0


class Distance(Foreign):
    """Couples the parameters: it estimates a number of the group from all of them."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        group["distance"] = max(group.get("distance", 0.0), weight.grad.norm().item())
        weight.sub_(weight.grad, alpha=group["lr"])


class Noisy(Foreign):
    """Draws random numbers."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(weight.grad + torch.randn_like(weight), alpha=group["lr"])


class AtOnce(Foreign):
    """Makes its states with the optimizer."""

    def __init__(self, params: Params, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["total"] = torch.zeros_like(weight)

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(state["total"].add_(weight.grad), alpha=group["lr"])


class Listing(Foreign):
    """Has a state that is neither a tensor nor a number."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        state.setdefault("past", []).append(weight.grad.clone())
        weight.sub_(state["past"][0], alpha=group["lr"])


class Colliding(Foreign):
    """Has a state by the name of the store's own average."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        state["average"] = torch.zeros_like(weight)


class Borrowing(Foreign):
    """Keeps the very gradient, which the next backward may overwrite."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(state.get("last", weight.grad), alpha=group["lr"])
        state["last"] = weight.grad


class Taking(Foreign):
    """Leaves no gradient behind."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(weight.grad, alpha=group["lr"])
        weight.grad = None


class Knowing(Foreign):
    """Knows parameters of the model by their identity."""

    def __init__(self, params: Params, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        self.favourites = {id(self.param_groups[0]["params"][0])}

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(weight.grad, alpha=group["lr"] * (2 if id(weight) in self.favourites else 1))


class Attributed(Foreign):
    """Reads what its user has written on the parameters."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        weight.sub_(weight.grad, alpha=group["lr"] * getattr(weight, "lr_scale", 1.0))


class Patched(Foreign):
    """Has a method of its own as an attribute, which would still be that of the loop's."""

    def __init__(self, params: Params, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        vars(self)["visit"] = self.visit


class Lookahead(Foreign):
    """Wraps another optimizer."""

    def __init__(self, params: Params, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        self.inner = SGD(self.param_groups, lr)

    def step(self, closure: Closure = None) -> Any:
        return self.inner.step(closure)


class Late(Foreign):
    """Makes a state at its third step."""

    def visit(self, weight: nn.Parameter, group: dict[str, Any], state: StateDict) -> None:
        assert weight.grad is not None
        state["count"] = state.get("count", 0) + 1
        if state["count"] == 3:
            state["slow"] = weight.clone()
        weight.sub_(weight.grad, alpha=group["lr"])


class Twice(Foreign):
    """Asks its closure, as methods do that look around before they step."""

    def step(self, closure: Closure) -> float | None:  # type: ignore[override]
        assert closure is not None
        closure()
        return closure()
