"""From a torch optimizer, as it stands at one step, to the rules that make the same bits."""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.update_rules.adafactor import AdafactorRule
from openwafer.training.store.update_rules.adam import AdamRule
from openwafer.training.store.update_rules.lion import Lion, LionRule
from openwafer.training.store.update_rules.muon import MuonRule
from openwafer.training.store.update_rules.rule import Kernel, UpdateRule
from openwafer.training.store.update_rules.sgd import SgdRule

RuleClass = type[AdamRule | SgdRule | LionRule | AdafactorRule | MuonRule]

RULE_CLASSES: Mapping[type[Optimizer], RuleClass] = MappingProxyType(
    {
        torch.optim.AdamW: AdamRule,
        torch.optim.Adam: AdamRule,
        torch.optim.SGD: SgdRule,
        Lion: LionRule,
        torch.optim.Adafactor: AdafactorRule,
        torch.optim.Muon: MuonRule,
    }
)
"""Optimizers whose updates the parameter store can make."""

_REMEDIES = MappingProxyType(
    {
        "capturable": "it serves CUDA graphs, and the store updates on the host: leave it out",
        "differentiable": "streamed weights keep no graph between steps: leave it out",
    }
)


def from_torch(optimizer: Optimizer) -> tuple[UpdateRule, ...]:
    """The rule of each parameter group with the hyper-parameters of this moment.

    Call it once a step, where the plain loop has `optimizer.step()`: later changes by a scheduler
    do not reach the rules. Raises `optimizer-unsupported` for a class whose algorithm the store
    does not know, subclasses included, and for a flag that it cannot honour.
    """
    # A subclass may override anything, so that only the classes themselves are known.
    rule_class = RULE_CLASSES.get(type(optimizer))
    if rule_class is None:
        raise _unsupported_class(type(optimizer))
    for number, group in enumerate(optimizer.param_groups):
        for flag, remedy in _REMEDIES.items():
            if group.get(flag, False):
                raise error(
                    "optimizer-unsupported",
                    f"{type(optimizer).__name__} has {flag}=True in parameter group {number}",
                    help=remedy,
                )
    return tuple(_read(rule_class, group) for group in optimizer.param_groups)


def _read(rule_class: RuleClass, group: Mapping[str, Any]) -> UpdateRule:
    """Fill a rule's fields from the entries of the same names."""
    kernel = Kernel.of_flags(group.get("foreach"), group.get("fused"))
    values: dict[str, Any] = {
        field.name: kernel if field.name == "kernel" else _snapshot(group[field.name])
        for field in fields(rule_class)
    }
    return rule_class(**values)


def _snapshot(value: Any) -> Any:
    """A hyper-parameter that a scheduler cannot change any more, lists as tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return tuple(_snapshot(item) for item in value)
    return value


def _unsupported_class(found: type[Optimizer]) -> OpenwaferError:
    known = [f"{known.__module__.split('.')[0]}'s {known.__name__}" for known in RULE_CLASSES]
    parents = [parent for parent in RULE_CLASSES if issubclass(found, parent)]
    help_text = "use one of those"
    if parents:
        help_text = f"pass a {parents[0].__name__} itself; hooks and schedulers need no subclass"
    return error(
        "optimizer-unsupported",
        f"the parameter store knows no update rule for {found.__module__}.{found.__qualname__}",
        notes=(f"it knows {', '.join(known)}",),
        help=help_text,
    )
