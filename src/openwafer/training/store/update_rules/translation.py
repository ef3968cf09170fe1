"""Translates a torch optimizer, as it stands at one step, into rules that make the same bits.

The kernels of Adam and SGD are called without their classes; every other optimizer takes its own
step, one parameter after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from openwafer.diagnostics import error
from openwafer.training.store.update_rules.own_step import (
    SEPARABLE,
    KnownStates,
    OwnStepRule,
    Snapshot,
    hyper_parameters,
)
from openwafer.training.store.update_rules.rules import (
    Cutting,
    Scalar,
    StateSpec,
    UpdateRule,
    alike,
)
from openwafer.training.store.update_rules.trial import require_separable
from openwafer.training.torch_private import fused_adam, fused_adamw, fused_sgd


@dataclass(frozen=True)
class AdamRule:
    """Adam (Kingma and Ba 2014); with `decoupled_weight_decay` AdamW (Loshchilov and Hutter 2017).

    torch divides the root of the second moment by its bias correction before it adds `eps`. Its
    three forms, by element, `foreach` and `fused`, may differ in the last place.
    """

    lr: Scalar
    betas: tuple[Scalar, Scalar]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool
    decoupled_weight_decay: bool
    foreach: bool | None
    fused: bool | None
    counts: ClassVar = True

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.fused else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """Two moments; with amsgrad also the largest second moment so far."""
        names = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * self.amsgrad
        return alike(names, shape, dtype)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and moments in place."""
        mean, square = states["exp_avg"], states["exp_avg_sq"]
        largest = [states["max_exp_avg_sq"]] if self.amsgrad else []
        beta1, beta2 = self.betas
        options: dict[str, Any] = {
            "weight_decay": self.weight_decay,
            "eps": self.eps,
            "amsgrad": self.amsgrad,
            "maximize": self.maximize,
        }
        if self.fused:
            # torch.optim's own function around the kernel takes as long as some 50000 elements.
            kernel = fused_adamw if self.decoupled_weight_decay else fused_adam
            time = torch.full((), float(num_updates + 1))
            options |= {"lr": float(self.lr), "beta1": float(beta1), "beta2": float(beta2)}
            kernel([weight], [gradient], [mean], [square], largest, [time], **options)
            return
        time = torch.full((), float(num_updates))
        options |= {"lr": self.lr, "beta1": beta1, "beta2": beta2, "foreach": bool(self.foreach)}
        options["decoupled_weight_decay"] = self.decoupled_weight_decay
        adam([weight], [gradient], [mean], [square], largest, [time], **options)


@dataclass(frozen=True)
class SgdRule:
    """SGD with momentum, dampening and Nesterov's variant, as torch writes them.

    The momentum buffer starts as the first gradient, without dampening.
    """

    lr: Scalar
    momentum: float
    dampening: float
    weight_decay: Scalar
    nesterov: bool
    maximize: bool
    foreach: bool | None
    fused: bool | None
    counts: ClassVar = False

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.fused else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One buffer, or nothing without momentum. Raises `optimizer-unsupported`, see below."""
        # https://github.com/pytorch/pytorch/issues/191763: the vector part of the kernel does not
        # write the weights, and writes whatever into the buffer.
        if self.fused and dtype in (torch.bfloat16, torch.float16):
            raise error(
                "optimizer-unsupported",
                f"torch's fused SGD does not update weights of {dtype} on the CPU",
                notes=("a bug of torch, pytorch/pytorch issue 191763",),
                help="build the optimizer with fused=False, or keep fp32 master weights",
            )
        return alike(("momentum_buffer",) if self.momentum else (), shape, dtype)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and buffer in place."""
        is_first = num_updates == 0
        buffers = [states["momentum_buffer"]] if self.momentum else []
        options: dict[str, Any] = {
            "momentum": self.momentum,
            "dampening": self.dampening,
            "nesterov": self.nesterov,
            "maximize": self.maximize,
        }
        if self.fused:
            lr, decay = float(self.lr), float(self.weight_decay)
            options |= {"lr": lr, "weight_decay": decay, "is_first_step": is_first}
            fused_sgd([weight], [gradient], buffers, **options)
            return
        options |= {"lr": self.lr, "weight_decay": self.weight_decay}
        filled: list[torch.Tensor | None] = [None] if is_first or not buffers else [*buffers]
        sgd([weight], [gradient], filled, foreach=bool(self.foreach), **options)
        if is_first and filled[0] is not None:
            buffers[0].copy_(filled[0])


RuleClass = type[AdamRule | SgdRule]

RULE_CLASSES: Mapping[type[Optimizer], RuleClass] = MappingProxyType(
    {torch.optim.AdamW: AdamRule, torch.optim.Adam: AdamRule, torch.optim.SGD: SgdRule}
)
"""Optimizers whose kernels are called without their class; every other takes its own step."""

_REMEDIES = MappingProxyType(
    {
        "capturable": "it serves CUDA graphs, and the store updates on the host: leave it out",
        "differentiable": "streamed weights keep no graph between steps: leave it out",
    }
)


class Translator:
    """Reads the rules of an optimizer, step after step.

    Args:
        optimizer: stays the loop's; it is only read.
        keeps_masters: whether its bf16 weights are updated as fp32 masters.

    Attributes:
        writes_gradients: whether its step has been seen to write to the gradients, as no rule does.
    """

    def __init__(self, optimizer: Optimizer, *, keeps_masters: bool = False) -> None:
        self.writes_gradients = False
        self._optimizer = optimizer
        self._keeps_masters = keeps_masters
        # A subclass may override anything, so that only the classes themselves are known.
        self._rule_class = RULE_CLASSES.get(type(optimizer))
        self._is_known = self._rule_class is not None or type(optimizer) in SEPARABLE
        self._tried: set[object] = set()
        self._states: KnownStates = {}

    def rules(self) -> tuple[UpdateRule, ...]:
        """The rule of each parameter group with the hyper-parameters of this moment.

        Call it once a step, where the plain loop has `optimizer.step()`: later changes by a
        scheduler do not reach the rules. Raises `optimizer-unsupported` for a flag that the store
        cannot honour, and for an optimizer that cannot update one parameter at a time, which is
        tried at first and whenever options change that may decide it.
        """
        optimizer = self._optimizer
        _require_no_flags(optimizer)
        if self._rule_class is not None:
            return tuple(_read(self._rule_class, group) for group in optimizer.param_groups)
        options = tuple(_switches(hyper_parameters(group)) for group in optimizer.param_groups)
        if not self._is_known and options not in self._tried:
            writes = require_separable(optimizer, keeps_masters=self._keeps_masters)
            self.writes_gradients |= writes
            self._tried.add(options)
        snapshot = Snapshot.of(optimizer)
        return tuple(
            OwnStepRule(snapshot, number, self.writes_gradients, self._states)
            for number in range(len(optimizer.param_groups))
        )


def from_torch(optimizer: Optimizer) -> tuple[UpdateRule, ...]:
    """The rule of each parameter group at this moment; see :meth:`Translator.rules`."""
    return Translator(optimizer).rules()


def _require_no_flags(optimizer: Optimizer) -> None:
    for number, group in enumerate(optimizer.param_groups):
        for flag, remedy in _REMEDIES.items():
            if group.get(flag, False):
                raise error(
                    "optimizer-unsupported",
                    f"{type(optimizer).__name__} has {flag}=True in parameter group {number}",
                    help=remedy,
                )


def _switches(value: Any) -> object:
    """What of an option may change the course of a step: of a number, whether it is zero."""
    if isinstance(value, Mapping):
        return tuple((name, _switches(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_switches, value))
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int | float):
        return type(value), value == 0
    return type(value)


def _read(rule_class: RuleClass, group: Mapping[str, Any]) -> UpdateRule:
    """Fill a rule's fields from the entries of the same names."""
    return rule_class(*(_snapshot(group[name]) for name in rule_class.__match_args__))


def _snapshot(value: Any) -> Any:
    """A hyper-parameter that a scheduler cannot change any more, lists as tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return tuple(_snapshot(item) for item in value)
    return value
